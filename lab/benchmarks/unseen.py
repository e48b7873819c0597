"""Recall@1 on questions that no model has seen: 150 everyday questions, each written twice in other words.

python -m lab.benchmarks.unseen similar-lookup similar runs/e5-small-zh --output lab/results/unseen.json

Each paraphrase in unseen.tsv searches the 150 questions for its own; equal scores count by their expectation.
"""

import argparse
from pathlib import Path

import numpy as np

from cosent.comparing.document import Cell, markdown_table
from cosent.errors import messages_for_users
from cosent.models.auto import load_bi_encoder
from cosent.record import shortened
from lab.benchmarks.common import save

QUESTIONS = Path(__file__).with_name("unseen.tsv")


def main(args: argparse.Namespace) -> None:
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    questions, paraphrases = map(list, zip(*(line.split("\t") for line in lines), strict=True))
    rows = [{"name": Path(name).name} | measure(name, questions, paraphrases) for name in args.models]
    print(unseen_table(save(args.output, "unseen", rows, questions=len(lines))))


def measure(model: str, questions: list[str], paraphrases: list[str]) -> dict[str, float]:
    """Recall@1 and Recall@10 of a model, and the standard error of the first."""
    encoder = load_bi_encoder(model).eval()
    queries, documents = (encoder.encode(texts, normalize_embeddings=True) for texts in (paraphrases, questions))
    hits = {place: found_at(queries @ documents.T, place) for place in (1, 10)}
    recall = {f"recall_at_{place}": float(found.mean()) for place, found in hits.items()}
    return recall | {"standard_error": float(hits[1].std(ddof=1) / len(questions) ** 0.5)}


def found_at(scores: np.ndarray, place: int) -> np.ndarray:
    """Probability that row i's own column i is among its `place` highest, with equal scores in random order."""
    own = np.diag(scores)[:, None]
    above, equal = (scores > own).sum(1), (scores == own).sum(1)
    return np.clip((place - above) / equal, 0, 1)


def unseen_table(result: dict) -> str:
    """Recall of every model, x100, with a 95% interval."""
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        half = 196 * row["standard_error"]
        first, tenth = (100 * row[f"recall_at_{place}"] for place in (1, 10))
        rows.append([row["name"], f"{first:.1f} ± {half:.1f}", f"{tenth:.1f}"])
    note = f"{result['questions']} questions; {result['device']}, commit {shortened(result['commit'])}."
    return f"{markdown_table(['', 'Recall@1', 'Recall@10'], rows)}\n\n{note}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="shipped encoders or folders")
    parser.add_argument("--output", required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
