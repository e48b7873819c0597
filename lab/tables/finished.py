"""Tables and a picture of measurements that have ended: their results stay, and commit 513c2c47 can repeat them."""

from collections.abc import Callable, Iterable

import numpy as np

from cosent.comparing.figures import COLORS, FAINT, canvas, saved, styled
from cosent.comparing.report import Cell, markdown_table, mean_of, times_100
from cosent.evaluation.metrics import correlations
from cosent.record import shortened
from lab.benchmarks.quickstart import wrong_orders
from lab.probe.phenomena import PHENOMENA
from lab.tables.curves import DASHES
from lab.tables.rows import CORPORA
from lab.tables.studies import overlap_cell, published

STUDENTS = {
    "mini": "mini, untrained",
    "stage1": "stage 1",
    "teacher_sbert": "Sentence-BERT teacher",
    "student_sbert": "student of Sentence-BERT",
    "direct_sbert": "Sentence-BERT from stage 1",
    "teacher_cosent": "CoSENT teacher",
    "student_cosent": "student of CoSENT",
}
TITLES = {"stsb": "STS-B", "lcqmc": "LCQMC", "bq": "BQ (28% of its labels)", "atec": "ATEC"}
MODELS = {"characters": "characters", "pairs": "characters and pairs", "transformer": "transformer"}
BOTH = {"both": "both"}  # mean of the ranks of pairs and transformer, which were trained apart
GAPS = ("transformer minus characters", "transformer minus characters and pairs", "both minus transformer")
SHOWN = 5000  # least labels of the rows of the table; the picture has all


def exactness_table(result: dict) -> str:
    """Differences of loss and gradient of a split batch from those of one process, and memory of cached parts."""
    models, pairs = list(next(iter(result["differences"].values()))), result["pairs"]
    splits = [
        [split, *(f"{cells[model]['loss']:.0e} / {cells[model]['gradient']:.0e}" for model in models)]
        for split, cells in result["differences"].items()
    ]
    memory = [
        [case, f"{mib['activations_mib']:.1f}", f"{mib['process_mib']:.0f}"] for case, mib in result["memory"].items()
    ]
    return (
        f"{markdown_table([f'{pairs} pairs as', *models], splits)}\n\n"
        f"{markdown_table(['bi_encoder', 'activations, MiB', 'process, MiB'], memory)}\n\n"
        f"Largest relative difference of loss / gradient from 1 x {pairs}, {result['corpus']}, no dropout; "
        f"{result['device']}, commit {shortened(result['commit'])}."
    )


def of_kind(result: dict, kind: str) -> list[dict]:
    return sorted((model for model in result["models"] if model["kind"] == kind), key=lambda model: model["seed"])


def shown(result: dict) -> dict[str, list[dict]]:
    """Models by the table name of their kind; kinds without models are left out."""
    return {name: models for kind, name in STUDENTS.items() if (models := of_kind(result, kind))}


def roformer_sim_table(result: dict) -> str:
    """Test Spearman x100 of stage 1, teachers and students by corpus, next to the published table."""
    columns, source = shown(result), {row["method"]: row for row in of_source()}
    rows: list[list[Cell]] = []
    for corpus in CORPORA:
        base, tuned, small, small_tuned = (f"{source[name][corpus]:.2f}" for name in source)
        scores = (times_100(model["test"][corpus] for model in models) for models in columns.values())
        rows.append([corpus, overlap_cell(corpus), *scores, f"{base}, {tuned}", f"{small}, {small_tuned}"])
    counts = (
        joined(wrong_orders(model["ten"], result["published"]) for model in models) for models in columns.values()
    )
    rows.append(["ten pairs in the wrong order, of 25", None, *counts, None, None])
    header = ["test Spearman x100", "character overlap", *columns, "RoFormer-Sim, -FT", "-small, -FT-small"]
    return f"{markdown_table(header, rows)}\n\n{protocol_of(result)}"


def of_source() -> list[dict]:
    """The rows of RoFormer-Sim in the published tables."""
    return next(table["rows"] for table in published() if "RoFormer-Sim" in table["source"])


def joined(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def protocol_of(result: dict) -> str:
    """Training data and settings of the table in one passage."""
    teacher, seeds = result["teacher"], len(of_kind(result, "teacher_cosent"))
    pool = teacher["pool"]
    similar, batches = sum(pool.values()) - pool["nli"], teacher["steps"] * teacher["batch"] // 2
    drawn = joined(f"{name} {batches * count / similar:,.0f}" for name, count in pool.items() if name != "nli")
    rates = joined(f"{of_kind(result, f'teacher_{loss}')[0]['learning_rate']:g}" for loss in ("sbert", "cosent"))
    return (
        f"A teacher: {teacher['steps']} batches of {teacher['batch']}, {batches:,} pairs of NLI and as many of the "
        f"others (about {drawn}), learning rates {rates}. A student: {result['student']['pairs']:,} pairs of each of "
        f"the five corpora, once. {seeds} seed{'s' if seeds > 1 else ''}; {result['device']}, "
        f"commit {shortened(result['commit'])}."
    )


def ten_pairs_table(result: dict) -> str:
    """Cosines of the ten pairs, means over seeds, next to the published ones, and statistics of generated sentences."""
    columns = shown(result)
    rows: list[list[Cell]] = [
        [
            " / ".join(pair),
            f"{known:.3f}",
            *(mean_of((m["ten"][place] for m in models), ".3f") for models in columns.values()),
        ]
        for place, (pair, known) in enumerate(zip(result["pairs"], result["published"], strict=True))
    ]
    for name, measure, form in (
        ("Spearman of the ten", lambda model: correlations(model["ten"], result["published"])["spearman"], ".2f"),
        ("distinct paraphrases", lambda model: model.get("distinct"), ".0%"),
        ("their overlap with the source", lambda model: model.get("overlap"), ".2f"),
        ("perplexity on LCQMC, before", lambda model: model.get("perplexity", [None])[0], ".2f"),
        ("perplexity on LCQMC, after", lambda model: model.get("perplexity", [None, None])[1], ".2f"),
    ):
        rows.append([name, None, *(mean_of(map(measure, models), form) for models in columns.values())])
    return markdown_table(["pair", "published", *columns], rows)


def adds_table(result: dict) -> str:
    """Test Spearman x100 by corpus and many labels, and what the transformer and both together add."""
    rows: list[list[Cell]] = []
    for row in (row for row in result["rows"] if row["labels"] >= SHOWN):
        cells = [points(values) if values else None for values in row["test"].values()]
        gaps = [interval(values) for values in row["gaps"].values()] or [None] * len(GAPS)
        rows.append([TITLES[row["corpus"]], f"{row['labels']:,}", f"{row['overlap']:.1f}", *cells, *gaps])
    header = ["test Spearman x100", "labels", "overlap", *MODELS.values(), *BOTH]
    header += [f"{gap} [95%]" for gap in GAPS]
    return f"{markdown_table(header, rows)}\n\n{ending(result)}"


def adds_probed_table(result: dict) -> str:
    """Accuracy by phenomenon, and Spearman x100 on PAWSX: mean over the models of four corpora, lowest to highest."""
    named = {model: [row for row in result["rows"] if row["name"].startswith(f"{model}-")] for model in MODELS}

    def cells(value: Callable[[dict], float]) -> list[Cell]:
        every = [[100 * value(row) for row in rows] for rows in named.values()]
        return [f"{np.mean(values):.0f} ({min(values):.0f} to {max(values):.0f})" for values in every]

    rows = [[name, *cells(lambda row, name=name: row["accuracy"][name])] for name in PHENOMENA]
    rows.append(["PAWSX, Spearman", *cells(lambda row: row["pawsx"])])
    return f"{markdown_table(['x100', *MODELS.values()], rows)}\n\n{ending(result)}"


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
    first = canvas(TITLES["stsb"], "", 2.6)
    figure = first.figure
    figure.set_size_inches(8, 6)
    for place, (corpus, title) in enumerate(TITLES.items()):
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
        for number, (model, name) in enumerate((MODELS | BOTH).items()):
            drawn = [
                (row["labels"], [100 * value for value in row["test"][model]]) for row in rows if row["test"][model]
            ]
            places, runs = zip(*drawn, strict=True)
            style = {"color": COLORS[number], "linestyle": DASHES[number]}
            axes.fill_between(places, list(map(min, runs)), list(map(max, runs)), color=COLORS[number], alpha=0.13)
            axes.plot(places, [np.mean(values) for values in runs], marker="o", markersize=4, label=name, **style)
    return saved(figure.axes[1])
