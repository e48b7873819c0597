"""Fuse two runs by the mean of their ranks: what two losses add beyond two seeds of one.

python -m benchmarks.fusion results/towers --output results/fusion.json
"""

import argparse
import json
from itertools import combinations, product
from pathlib import Path

import numpy as np

from cosent.errors import InputError, messages_for_users
from cosent.evaluation.significance import mean_of_ranks, resampled_spearman, spearman
from cosent.studies.results import Result, Study, read_results


def main(args: argparse.Namespace) -> None:
    rows = [row for folder in args.studies for row in compare(read_results(folder))]
    args.output.write_text(json.dumps({"kind": "fusion", "rows": rows}, indent=2) + "\n", encoding="utf-8")
    print(args.output)


def compare(study: Study) -> list[dict]:
    """A row per corpus and two methods, with at least two runs of each that kept their scores.

    Spearman is the mean over runs, or over all fusions of two runs of different seeds. Each resample of the test rows
    gives all of these means once, so that the interval is that of their difference on other test rows, with these runs.
    """
    rows = []
    for corpus in study.corpora:
        runs = {name: [run for run in study.cell(name, corpus) if corpus in run.scores] for name in study.rows}
        names = [name for name, found in runs.items() if len(found) > 1]
        if len(names) < 2:
            raise InputError(f"{study.name} has fewer than two methods with two runs on {corpus}: nothing to compare.")
        labels = runs[names[0]][0].scores[corpus]["test"]["labels"]
        means = {(name,): mean([scores_of(run, corpus)[None] for run in runs[name]], labels) for name in names}
        for one, other in [*((name, name) for name in names), *combinations(names, 2)]:
            means[one, other] = mean(pairs_of(runs[one], runs[other], corpus), labels)
        for one, other in combinations(names, 2):
            best = max((one, other), key=lambda name: means[name, name][0])
            rows.append({
                "study": study.name, "corpus": corpus, "methods": [one, other],
                "runs": [len(runs[one]), len(runs[other])],
                "single": [means[one,][0], means[other,][0]],
                "two_seeds": [means[one, one][0], means[other, other][0]],
                "two_methods": means[one, other][0],
                "beyond_best": interval(means[one, other], means[best, best]),
                "beyond_mean": interval(means[one, other], halfway(means[one, one], means[other, other])),
                "commit": runs[one][0].environment.commit,
            })  # fmt: skip
    return rows


def scores_of(run: Result, corpus: str) -> np.ndarray:
    return run.scores[corpus]["test"]["after"]


def pairs_of(ours: list[Result], theirs: list[Result], corpus: str) -> list[np.ndarray]:
    """Scores `(2, rows)` of every two runs of different seeds, each two once."""
    if ours is theirs:
        pairs = list(combinations(ours, 2))
    else:
        pairs = [(a, b) for a, b in product(ours, theirs) if a.seed != b.seed]
    return [np.stack([scores_of(a, corpus), scores_of(b, corpus)]) for a, b in pairs]


def mean(runs: list[np.ndarray], labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean Spearman of fusions, and that of every resample."""
    fused = np.stack([mean_of_ranks(each) for each in runs])
    return float(np.mean([spearman(row, labels) for row in fused])), resampled_spearman(fused, labels).mean(axis=1)


def halfway(first: tuple[float, np.ndarray], second: tuple[float, np.ndarray]) -> tuple[float, np.ndarray]:
    return (first[0] + second[0]) / 2, (first[1] + second[1]) / 2


def interval(first: tuple[float, np.ndarray], second: tuple[float, np.ndarray]) -> dict[str, float]:
    low, high = np.percentile(first[1] - second[1], (2.5, 97.5))
    return {"mean": first[0] - second[0], "low": float(low), "high": float(high)}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", type=Path, help="folders of results")
    parser.add_argument("--output", type=Path, default=Path("results/fusion.json"), help="JSON to write")
    return parser


if __name__ == "__main__":
    with messages_for_users():
        main(parser().parse_args())
