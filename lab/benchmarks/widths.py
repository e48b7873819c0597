"""Spearman and Recall@10 of shorter vectors: cut, projected by PCA, and cut after training with --matryoshka_dims.

cosent study recipes/studies/options.yaml    # at commit 99ab257, which has --matryoshka_dims
python -m lab.benchmarks.widths --runs runs/studies/options/any_loss_mini-{plain,matryoshka}-stsb-* \
    --output lab/results/widths.json

PCA takes the principal directions of the training sentences of each run without --matryoshka_dims, and projects
vectors as they are, so that all directions keep every cosine, or "centred", less the mean of the training sentences.
"""

import argparse
from collections.abc import Iterable, Sequence

import numpy as np

from cosent.comparing.document import Cell, markdown_table, times_100
from cosent.data.corpus import load_corpus
from cosent.data.retrieval import pool_and_relevance
from cosent.errors import InputError, messages_for_users
from cosent.evaluation.retrieval import retrieval_metrics
from cosent.evaluation.significance import spearman
from cosent.evaluation.similarity import pair_cosines, principal_directions, unit
from cosent.models.auto import load_bi_encoder
from cosent.record import read_record, shortened
from lab.benchmarks.common import save

WIDTHS = (16, 32, 64, 128, 256)
WAYS = {
    "cut": "plain, cut",
    "pca": "plain, PCA",
    "centred": "plain, PCA, centred",
    "matryoshka": "Matryoshka, cut",
}
METRICS = {"spearman": "Spearman", "recall_at_10": "Recall@10"}


def measure(run: str, corpus_name: str, widths: Sequence[int] = WIDTHS) -> list[dict]:
    """Both test metrics by width, for each way to shorten the vectors of a finished run."""
    record = read_record(run)
    if record is None:
        raise InputError(f"{run} is no finished run: it has no run.json. Train it first.")
    corpus, model = load_corpus(corpus_name), load_bi_encoder(run)
    pool, relevance, places = pool_and_relevance(corpus, "test")
    units, labels = model.encode(pool, normalize_embeddings=True), corpus.labels("test")
    kept = {name: record.recipe.get(name) for name in ("seed", "matryoshka_dims", "learning_rate", "num_train_epochs")}
    if kept["matryoshka_dims"]:
        turned = {"matryoshka": units}
    else:
        rows = corpus.split("train")
        training = model.encode(sorted({*rows["sentence1"][:], *rows["sentence2"][:]}), normalize_embeddings=True)
        directions = principal_directions(training)
        centred = (units - training.mean(axis=0)) @ directions
        turned = {"cut": units, "pca": units @ directions, "centred": centred}
    measured = []
    for way, vectors in turned.items():
        cut = [unit(np.ascontiguousarray(vectors[:, :width], np.float32)) for width in widths]
        metrics = [both(shorter, relevance, places, labels) for shorter in cut]
        measured.append({"way": way, **kept, **dict(zip(METRICS, map(list, zip(*metrics, strict=True)), strict=True))})
    return measured


def both(vectors: np.ndarray, relevance, places: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Spearman of the cosines of the pairs at `places` `(pairs, 2)`, and mean Recall@10."""
    cosines = pair_cosines(vectors[places[:, 0]], vectors[places[:, 1]])
    return spearman(cosines, labels), float(retrieval_metrics(vectors, vectors, relevance)["recall_at_10"].mean())


def values_by_width(rows: Iterable[dict], way: str, metric: str) -> list[list[float]]:
    """Values of a metric over seeds, for each width."""
    return [list(values) for values in zip(*(row[metric] for row in rows if row["way"] == way), strict=True)]


def widths_table(result: dict) -> str:
    """Both metrics by way (rows) and width (columns)."""
    rows: list[list[Cell]] = []
    for metric, name in METRICS.items():
        for way, label in WAYS.items():
            rows.append([f"{name}: {label}", *map(times_100, values_by_width(result["rows"], way, metric))])
    run = next(row for row in result["rows"] if row["matryoshka_dims"])
    dims = " ".join(map(str, run["matryoshka_dims"]))
    seeds = len({row["seed"] for row in result["rows"]})
    header = [f"{result['corpus']} test x100", *map(str, result["widths"])]
    return (
        f"{markdown_table(header, rows)}\n\n"
        f"`mini`, learning rate {run['learning_rate']:g}, {run['num_train_epochs']:g} epoch, mean ± std of {seeds} "
        f"seeds; Matryoshka: `--matryoshka_dims {dims}`; {result['device']}, commit "
        f"{shortened(result['commit'])}."
    )


def main(args: argparse.Namespace) -> None:
    rows = [row for run in args.runs for row in measure(run, args.corpus)]
    print(widths_table(save(args.output, "widths", rows, corpus=args.corpus, widths=WIDTHS)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", required=True, help="finished runs, with the option and without")
    parser.add_argument("--corpus", default="stsb", help="prepared corpus that they were trained on")
    parser.add_argument("--output", required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
