"""Figures of the shipped encoders: test Spearman, Recall@10, accuracy at their own thresholds, size.

cosent prepare atec ... lcqmc --source DIR; cosent prepare demo
python -m lab.benchmarks.cards --output lab/results/cards.json

Scores are those of `cosent evaluate` with its defaults. An encoder that has a row in the output, of the same weights
and thresholds, is not measured again: remove the file to start over.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from cosent.atomic import model_files, sealed_files
from cosent.comparing.report import Cell, markdown_table
from cosent.data.corpus import load_corpus
from cosent.encoders import SHIPPED, local
from cosent.errors import messages_for_users
from cosent.evaluation.similarity import overlap_spearman
from cosent.jobs.evaluate import EvaluateArguments, measure_pairs
from cosent.models.bi_encoder import SentenceEncoder
from cosent.record import shortened
from lab.benchmarks.common import save

NAMES = {"atec": "ATEC", "bq": "BQ", "lcqmc": "LCQMC", "pawsx": "PAWSX", "stsb": "STS-B", "demo": "demo"}
IN_MEAN = tuple(NAMES)[:5]  # of the five that others publish
METRICS = ("spearman", "recall_at_10", "accuracy")
OVERLAP = "character overlap"
MEASURED = ("model.safetensors", "tokenizer.json", "decision.json")


def main(args: argparse.Namespace) -> None:
    before = json.loads(args.output.read_text(encoding="utf-8"))["rows"] if args.output.is_file() else []
    rows = [with_mean({"name": OVERLAP, "test": {name: {"spearman": overlap(name)} for name in args.corpora}})]
    for name in args.encoders:
        same = {"name": name, "files": files_of(name)}
        known = [row for row in before if row | same == row and list(row["test"]) == args.corpora]
        rows += known or [measure(name, args.corpora)]
        result = save(str(args.output), "cards", rows)
    print(cards_table(result))


def overlap(name: str) -> float:
    corpus = load_corpus(name)
    split = corpus.split("test")
    return overlap_spearman(split["sentence1"][:], split["sentence2"][:], corpus.labels("test"))


def files_of(encoder: str) -> dict[str, str]:
    """SHA-256 of the files that an encoder's figures depend on."""
    sealed = sealed_files(local(encoder)) or {}
    return {file: sealed[file][1] for file in MEASURED if file in sealed}


def measure(encoder: str, corpora: list[str]) -> dict:
    """Size of an encoder, and its metrics on the test splits."""
    model, test, folder = SentenceEncoder.from_pretrained(encoder).eval(), {}, local(encoder)
    for name in corpora:
        args = EvaluateArguments(model=encoder, corpus=name)
        found = measure_pairs(args, load_corpus(name)).result
        test[name] = {metric: found[metric] for metric in METRICS if metric in found}
    size = {"millions": sum(weights.numel() for weights in model.parameters()) / 1e6}
    size["megabytes"] = sum(file.stat().st_size for file in model_files(folder)) / 1e6
    return with_mean({"name": encoder, "files": files_of(encoder), **size, "test": test})


def with_mean(row: dict) -> dict:
    """A row with its mean Spearman of `IN_MEAN`, where they were measured."""
    if not set(IN_MEAN) <= set(row["test"]):
        return row
    return row | {"mean": float(np.mean([row["test"][name]["spearman"] for name in IN_MEAN]))}


def cards_table(result: dict) -> str:
    """Size, test Spearman and Recall@10 x100 of every encoder by corpus, and the mean Spearman of `IN_MEAN`."""
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        cells = [" / ".join(f"{100 * of[m]:.2f}" for m in METRICS[:2] if m in of) for of in row["test"].values()]
        mean = f"{100 * row['mean']:.2f}" if "mean" in row else None
        size = [f"{row[unit]:.1f}" if unit in row else None for unit in ("millions", "megabytes")]
        rows.append([row["name"], *size, *cells, mean])
    header = ["", "million parameters", "MB", *(NAMES[name] for name in result["rows"][0]["test"]), "mean"]
    return f"{markdown_table(header, rows)}\n\n{result['device']}, commit {shortened(result['commit'])}."


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoders", nargs="+", default=list(SHIPPED), choices=SHIPPED, help="shipped encoders")
    parser.add_argument("--corpora", nargs="+", default=list(NAMES), choices=list(NAMES), help="prepared corpora")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
