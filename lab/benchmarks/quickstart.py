"""The ten pairs of kexue.fm 8541 as models of several seeds score them, next to the published scores.

python -m lab.benchmarks.quickstart --runs runs/quickstart runs/quickstart-1 --output lab/results/quickstart.json

The runs are finished ones of `make quickstart`, and of its second command with `--seed`.
"""

import argparse
import json
from dataclasses import asdict
from itertools import product
from pathlib import Path

from cosent.comparing.report import Cell, markdown_table
from cosent.data.files import PAIR, open_table
from cosent.errors import InputError, messages_for_users
from cosent.evaluation.metrics import correlations
from cosent.models import load_model
from cosent.record import read_record, shortened

PAIRS = "recipes/demo/pairs_8541.tsv"
SIMILAR_SCORE = 0.9  # published scores above it are of sentences that say the same; the others are at most 0.72


def published_pairs() -> list[dict]:
    return list(open_table(PAIRS, None, PAIR, "").rows())


def measure(run: str) -> dict:
    record = read_record(run)
    if record is None:
        raise InputError(f"{run} is no finished run: it has no run.json. Train it first.")
    pairs = published_pairs()
    scores = load_model(run).similarity([pair["sentence1"] for pair in pairs], [pair["sentence2"] for pair in pairs])
    return {
        "seed": record.recipe["seed"],
        "scores": scores.tolist(),
        "test_spearman": record.after["demo"]["test"]["spearman"],
        "minutes": record.train_seconds / 60,
        **asdict(record.environment),
    }


def wrong_orders(scores: list[float], published: list[float]) -> int:
    """Number of combinations of a similar and a dissimilar pair in which the dissimilar one scores higher."""
    similar = [score for score, known in zip(scores, published, strict=True) if known > SIMILAR_SCORE]
    others = [score for score, known in zip(scores, published, strict=True) if known <= SIMILAR_SCORE]
    return sum(one <= other for one, other in product(similar, others))


def quickstart_table(result: dict) -> str:
    """Scores of every run next to the published ones, and their agreement."""
    runs, published = sorted(result["runs"], key=lambda run: run["seed"]), result["published"]
    header = ["pair", "published", *(f"seed {run['seed']}" for run in runs)]
    rows: list[list[Cell]] = [
        [" / ".join(pair), f"{known:.3f}", *(f"{run['scores'][place]:.3f}" for run in runs)]
        for place, (pair, known) in enumerate(zip(result["pairs"], published, strict=True))
    ]
    wrong = [wrong_orders(run["scores"], published) for run in runs]
    agreements = [f"{correlations(run['scores'], published)['spearman']:.2f}" for run in runs]
    rows += [["in the wrong order, of 25", None, *wrong], ["Spearman of the ten", None, *agreements]]
    rows.append(["demo test Spearman ×100", None, *(f"{100 * run['test_spearman']:.2f}" for run in runs)])
    return f"{markdown_table(header, rows)}\n\n{runs[0]['device']}, commit {shortened(runs[0]['commit'])}."


def main(args: argparse.Namespace) -> None:
    pairs = [(pair["sentence1"], pair["sentence2"]) for pair in published_pairs()]
    published = [float(pair["published"]) for pair in published_pairs()]
    runs = [measure(run) for run in args.runs]
    result = {"kind": "quickstart", "pairs": pairs, "published": published, "runs": runs}
    Path(args.output).write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(quickstart_table(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", required=True, help="folders of finished runs")
    parser.add_argument("--output", required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
