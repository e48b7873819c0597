"""Gain of a transformer over character tables: scores by number of labels, and a probe of the models of 1,000 labels.

python -m lab.benchmarks.adds --output lab/results/adds.json                     after the studies adds and adds_more
python -m lab.benchmarks.adds --output lab/results/adds_probed.json --probe      from their models in runs/studies

Of both studies the test scores are kept for STS-B alone (27 MiB are the limit of lab/results), so run them again first.
"""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from cosent.comparing.comparison import shared_scores
from cosent.comparing.document import Cell, markdown_table
from cosent.comparing.figures import COLORS, FAINT, canvas, saved, styled
from cosent.comparing.results import Result
from cosent.data.corpus import load_corpus
from cosent.errors import messages_for_users
from cosent.evaluation.significance import difference, independent, mean_of_ranks, resampled_spearman, spearman
from cosent.models import load_bi_encoder
from cosent.record import shortened
from lab.benchmarks.common import save
from lab.claims.measures import UNTRAINED, of_row, study_of
from lab.probe.phenomena import PHENOMENA, by_phenomenon, pairs, passed, read_items
from lab.tables.curves import DASHES
from lab.tables.studies import overlap

CORPORA = {"stsb": "STS-B", "lcqmc": "LCQMC", "bq": "BQ (28% of its labels)", "atec": "ATEC"}
MODELS = ("characters", "pairs", "transformer")
BOTH = "both"  # mean of the ranks of pairs and transformer, which were trained apart
NAMES = {"characters": "characters", "pairs": "characters and pairs", "transformer": "transformer", BOTH: "both"}
GAPS = (("transformer", "characters"), ("transformer", "pairs"), (BOTH, "transformer"))
FEW, MORE = ("adds", "{model} {limit}"), ("adds_more", "{model} {limit}")
SOURCES = {  # by --limit_train: study and row of the tables, and of the transformer
    100: (FEW, FEW),
    1000: (FEW, FEW),
    10000: (MORE, ("across", "cosent, trained on {corpus}")),
    40000: (MORE, ("native_mini", "cosent")),
}
RESAMPLES = 500
PROBED = 1000  # labels of the models that are probed
SHOWN = 5000  # least labels of the rows of the table; the picture has all


def main(args: argparse.Namespace) -> None:
    if args.probe:
        rows = [probe(folder) for folder in sorted(Path("runs/studies/adds").glob(f"*-{PROBED}-*-1"))]
        print(adds_probed_table(save(args.output, "adds_probed", rows)))
    else:
        rows = [row for corpus in CORPORA for limit in (0, *SOURCES) if (row := by_labels(corpus, limit))]
        print(adds_table(save(args.output, "adds", rows)))


def by_labels(corpus: str, limit: int) -> dict[str, Any] | None:
    """Test Spearman of every seed by model, and the `GAPS`; None where a model was not trained.

    Of no labels, the scores before training.
    """
    runs: dict[str, dict[int, Result]] = {}
    for model in MODELS:
        name, row = SOURCES[limit or min(SOURCES)][model == "transformer"]
        row += "" if limit else UNTRAINED
        study = study_of(name)
        runs[model] = (
            of_row(study, row.format(model=model, limit=limit or min(SOURCES), corpus=corpus), corpus) if study else {}
        )
    seeds = sorted(set.intersection(*map(set, runs.values())))
    if not seeds:
        return None
    if not limit:  # every seed has the same start
        runs, seeds = {model: {seeds[0]: of_model[seeds[0]]} for model, of_model in runs.items()}, seeds[:1]
    test = {model: [run.test(corpus) for run in of_model.values()] for model, of_model in runs.items()}
    labels = runs["pairs"][seeds[0]].train_pairs if limit else 0
    facts = {"corpus": corpus, "labels": labels, "seeds": seeds, "overlap": overlap(corpus), "test": test}
    both, gaps = compared({model: [of_model[seed] for seed in seeds] for model, of_model in runs.items()}, corpus)
    return facts | {"test": test | {BOTH: both}, "gaps": gaps}


def compared(runs: dict[str, list[Result]], corpus: str) -> tuple[list[float], dict[str, list[float]]]:
    """Spearman of both together for every seed, and the `GAPS`; empty where test scores were not kept."""
    every = [run for of_model in runs.values() for run in of_model]
    if any(corpus not in run.scores for run in every):
        return [], {}
    scores, labels, groups = shared_scores(every, corpus)
    by_model = dict(zip(MODELS, np.split(scores, len(MODELS)), strict=True))
    fused = zip(by_model["transformer"], by_model["pairs"], strict=True)
    by_model[BOTH] = np.stack([mean_of_ranks(np.stack(two)) for two in fused])
    drawn = {model: resampled_spearman(rows, labels, RESAMPLES, groups=groups) for model, rows in by_model.items()}
    each = {model: np.array([spearman(row, labels) for row in rows]) for model, rows in by_model.items()}
    gaps = {}
    for first, second in GAPS:
        found = difference(each[first] - each[second], drawn[first] - drawn[second], independent(groups))
        gaps[f"{first} minus {second}"] = [found.mean, found.low, found.high]
    return each[BOTH].tolist(), gaps


def probe(folder: Path) -> dict[str, Any]:
    """Spearman on PAWSX, and accuracy by phenomenon, of a model of the study."""
    model, items, test = load_bi_encoder(str(folder)).eval(), read_items(), load_corpus("pawsx").split("test")
    order = by_phenomenon(items, passed(np.asarray(model.similarity(*pairs(items).values()), np.float64)))
    scores = np.asarray(model.similarity(test["sentence1"][:], test["sentence2"][:]), np.float64)
    accuracy = {name: order[name]["accuracy"] for name in PHENOMENA}
    return {"name": folder.name, "pawsx": float(spearman(scores, np.array(test["label"][:]))), "accuracy": accuracy}


def adds_table(result: dict) -> str:
    """Test Spearman x100 by corpus and many labels, and what the transformer and both together add."""
    rows: list[list[Cell]] = []
    for row in (row for row in result["rows"] if row["labels"] >= SHOWN):
        cells = [points(values) if values else None for values in row["test"].values()]
        gaps = [interval(values) for values in row["gaps"].values()] or [None] * len(GAPS)
        rows.append([CORPORA[row["corpus"]], f"{row['labels']:,}", f"{row['overlap']:.1f}", *cells, *gaps])
    header = ["test Spearman x100", "labels", "overlap", *(NAMES[model] for model in (*MODELS, BOTH))]
    header += [f"{NAMES[first]} minus {NAMES[second]} [95%]" for first, second in GAPS]
    return f"{markdown_table(header, rows)}\n\n{ending(result)}"


def adds_probed_table(result: dict) -> str:
    """Accuracy by phenomenon, and Spearman x100 on PAWSX: mean over the models of four corpora, lowest to highest."""
    named = {model: [row for row in result["rows"] if row["name"].startswith(f"{model}-")] for model in MODELS}

    def cells(value: Callable[[dict], float]) -> list[Cell]:
        every = [[100 * value(row) for row in rows] for rows in named.values()]
        return [f"{np.mean(values):.0f} ({min(values):.0f} to {max(values):.0f})" for values in every]

    rows = [[name, *cells(lambda row, name=name: row["accuracy"][name])] for name in PHENOMENA]
    rows.append(["PAWSX, Spearman", *cells(lambda row: row["pawsx"])])
    return f"{markdown_table(['x100', *(NAMES[model] for model in MODELS)], rows)}\n\n{ending(result)}"


def ending(result: dict) -> str:
    return f"{result['device']}, commit {shortened(result['commit'])}."


def points(values: Iterable[float]) -> str:
    numbers = [100 * value for value in values]
    return f"{np.mean(numbers):.1f}" + (f" ± {np.std(numbers, ddof=1):.1f}" if len(numbers) > 1 else "")


def interval(values: list[float]) -> str:
    return "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * value for value in values))


@styled
def adds_picture(result: dict) -> str:
    """A panel for each corpus, a line for each model by labels."""
    first = canvas(CORPORA["stsb"], "", 2.6)
    figure = first.figure
    figure.set_size_inches(8, 6)
    for place, (corpus, title) in enumerate(CORPORA.items()):
        box = (0.5 * (place % 2), 0.55 * (place < 2), 0.42, 0.38)
        axes = first if place == 0 else figure.add_axes(box)
        axes.set_position(box)
        axes.set_title(title)
        rows = [row for row in result["rows"] if row["corpus"] == corpus and row["labels"]]
        labels = [row["labels"] for row in rows]
        axes.set_xscale("log")
        axes.set_xticks(labels, [f"{count:,}" for count in labels])
        axes.minorticks_off()
        axes.set_xlabel("labels", color=FAINT)
        axes.set_ylabel("test Spearman x100", color=FAINT)
        axes.axhline(rows[0]["overlap"], color=FAINT, linewidth=1.2, linestyle=DASHES[4], label="character overlap")
        for number, model in enumerate((*MODELS, BOTH)):
            drawn = [
                (row["labels"], [100 * value for value in row["test"][model]]) for row in rows if row["test"][model]
            ]
            places, runs = zip(*drawn, strict=True)
            style = {"color": COLORS[number], "linestyle": DASHES[number]}
            axes.fill_between(places, list(map(min, runs)), list(map(max, runs)), color=COLORS[number], alpha=0.13)
            axes.plot(
                places, [np.mean(values) for values in runs], marker="o", markersize=4, label=NAMES[model], **style
            )
    return saved(figure.axes[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="JSON file to write")
    parser.add_argument("--probe", action="store_true", help="phenomena and PAWSX in place of scores by labels")
    with messages_for_users():
        main(parser.parse_args())
