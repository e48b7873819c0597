"""Score a prepared corpus with a trained model: one JSON line on stdout, a table on stderr.

python -m cosent.evaluate --model runs/stsb --corpus stsb --split test --predictions out.tsv
"""

import csv
import json
import sys
import time
from dataclasses import dataclass, field

import numpy as np
import torch

from cosent.arguments import option
from cosent.cli import run
from cosent.data import load_corpus
from cosent.metrics import SimilarityMetrics
from cosent.modeling import SentenceEncoder
from cosent.records import read_record
from cosent.schema import SPLITS, InputError

PREDICTION_COLUMNS = ("id", "sentence1", "sentence2", "label", "prediction", "score")


@dataclass
class EvaluateArguments:
    """What to evaluate, and on what."""

    model: str = field(metadata={"help": "Folder of a trained model, a shipped encoder or a Hub id."})
    corpus: str = field(metadata={"help": "Prepared corpus: a name under --data_dir, or a folder."})
    split: str = option("test", "Split to score.", SPLITS)
    data_dir: str = option("data", "Folder of the prepared corpora.")
    batch_size: int = option(512, "The most sentences in a forward pass; their tokens are bounded too.")
    threshold: float | None = option(None, "Score from which a pair counts as similar; default: the model's own.")
    predictions: str | None = option(None, "TSV to write, a row per pair: " + ", ".join(PREDICTION_COLUMNS) + ".")


def main(args: EvaluateArguments):
    start = time.time()
    corpus = load_corpus(args.corpus, args.data_dir)
    rows = corpus.split(args.split)
    encoder = SentenceEncoder.from_pretrained(args.model).to("cuda" if torch.cuda.is_available() else "cpu")

    sentences1, sentences2 = rows["sentence1"][:], rows["sentence2"][:]
    labels = corpus.labels(args.split)
    vectors = encoder.encode([*sentences1, *sentences2], args.batch_size, normalize=True, show_progress_bar=True)
    scores = (vectors[: len(rows)] * vectors[len(rows) :]).sum(axis=1)

    name = corpus.manifest.name
    threshold = threshold_for(name, args) if corpus.manifest.label_kind == "binary" else None
    metrics = SimilarityMetrics().compute(predictions=scores, references=labels, threshold=threshold)
    if args.predictions:
        write_predictions(args.predictions, sentences1, sentences2, labels, scores, threshold)
    result = {"model": args.model, "corpus": name, "split": args.split, "pairs": len(rows), "threshold": threshold}
    print(table(result, metrics), file=sys.stderr)
    print(json.dumps(result | metrics | {"seconds": time.time() - start}))


def threshold_for(corpus: str, args: EvaluateArguments) -> float | None:
    """The threshold given by flag, else the one found on validation of this corpus, else of another one."""
    saved = read_record(args.model).get("thresholds", {})
    return args.threshold if args.threshold is not None else saved.get(corpus, next(iter(saved.values()), None))


def write_predictions(path: str, sentences1: list, sentences2: list, labels, scores, threshold: float | None) -> None:
    """Writes a row per pair in corpus order; `prediction` is 1 or 0 at the threshold and empty without one.

    Tabs and quotes inside a sentence are quoted as in CSV, so that `csv` and pandas read the rows back as they were.
    """
    predictions = [""] * len(scores) if threshold is None else (np.asarray(scores) >= threshold).astype(int)
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerow(PREDICTION_COLUMNS)
            for index, row in enumerate(zip(sentences1, sentences2, labels, predictions, scores, strict=True)):
                first, second, label, prediction, score = row
                writer.writerow([index, first, second, f"{label:g}", prediction, f"{score:.6f}"])
    except OSError as error:
        raise InputError(f"--predictions cannot be written: {error}. Name a file in a folder that exists.") from error


def table(result: dict, metrics: dict) -> str:
    head = f"{result['model']} on {result['corpus']} {result['split']} ({result['pairs']} pairs)"
    if result["threshold"] is not None:
        head += f", threshold {result['threshold']:.4f}"
    return "\n".join([head, *(f"  {name:<18}{value:8.4f}" for name, value in metrics.items())])


if __name__ == "__main__":
    run(main, EvaluateArguments)
