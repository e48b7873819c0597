"""Log loss of a map where another share of the pairs is similar, and how often --base_rate auto refuses.

python -m lab.benchmarks.base_rate --output lab/results/base_rate.json

Similar pairs of a test split are thinned out at random to a share of 0.05. The draws are pairs of the split as it is.
"""

import argparse
from dataclasses import replace

import numpy as np

from cosent.comparing.document import Cell, markdown_table
from cosent.data.corpus import Corpus, load_corpus
from cosent.data.groups import pair_groups
from cosent.errors import InputError
from cosent.evaluation.calibration import Calibration, estimated_base_rate, probability_metrics
from cosent.models.auto import load_bi_encoder
from cosent.models.decision import DecisionRule, decision_rules
from cosent.record import shortened
from lab.benchmarks.common import save

RARE = 0.05
SIZES = ("300", "1500")  # pairs of a draw
LOSSES = ("as is", "true share", "auto")


def thinned(labels: np.ndarray) -> np.ndarray:
    """All dissimilar rows, and random similar ones up to a share of `RARE`."""
    similar, others = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
    count = round(len(others) * RARE / (1 - RARE))
    return np.sort([*others, *np.random.default_rng(1).permutation(similar)[:count]])


def estimated(calibration: Calibration, scores: np.ndarray, corpus: Corpus, rows: np.ndarray) -> list[float]:
    """The share that --base_rate auto takes for these test pairs, and its interval; empty if it refuses."""
    try:
        return [*estimated_base_rate(calibration, scores[rows], pair_groups(corpus.split("test").select(rows)))]
    except InputError:
        return []


def measure(corpus: Corpus, scores: np.ndarray, rules: dict[str, DecisionRule], draws: int) -> list[dict]:
    """A row for the corpus' own map on thinned pairs, and one for each map on the test pairs as they are."""
    test, labels, generator = corpus.manifest.name, np.asarray(corpus.labels("test")), np.random.default_rng(1)
    every, found = np.arange(len(labels)), []
    drawn = {size: [generator.permutation(every)[: int(size)] for _ in range(draws)] for size in SIZES}
    for name, rows in [(test, thinned(labels)), *((name, every) for name in rules)]:
        share, rule = float(labels[rows].mean()), rules[name]
        auto = estimated(rule.calibration, scores, corpus, rows)
        ways = [replace(rule, base_rate=rate) for rate in (None, share, *auto[:1])]
        losses = [probability_metrics(way.probabilities(scores[rows]), labels[rows])["log_loss"] for way in ways]
        row = {"map": name, "corpus": test, "thinned": rows is not every, "share": share, "estimated": auto}
        row["log_loss"] = dict(zip(LOSSES, losses, strict=False))
        if rows is every:
            refused = {
                size: [not estimated(rule.calibration, scores, corpus, some) for some in drawn[size]] for size in SIZES
            }
            row["refused"] = {size: float(np.mean(each)) for size, each in refused.items()}
        found.append(row)
    return found


def base_rate_table(result: dict) -> str:
    """Log loss by map and test pairs, the estimated share, and the share of refused draws."""
    header = ["map of", "test pairs of", "true share", *(f"log loss, {way}" for way in LOSSES), "estimated"]
    rows: list[list[Cell]] = []
    for row in sorted(result["rows"], key=lambda row: (not row["thinned"], row["map"] != row["corpus"])):
        corpus = f"{row['corpus']}, thinned out" if row["thinned"] else row["corpus"]
        losses = [f"{row['log_loss'][way]:.3f}" if way in row["log_loss"] else "refused" for way in LOSSES]
        estimate = "{:.3f} [{:.3f}, {:.3f}]".format(*row["estimated"]) if row["estimated"] else None
        refused = [f"{row['refused'][size]:.0%}" if "refused" in row else None for size in SIZES]
        rows.append([row["map"], corpus, f"{row['share']:.3f}", *losses, estimate, *refused])
    header += [f"{int(size):,} pairs refused" for size in SIZES]
    about = f"refused of {result['draws']} random draws each; {result['device']}"
    return f"{markdown_table(header, rows)}\n\n`{result['model']}`, {about}, commit {shortened(result['commit'])}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="similar", help="bi-encoder with a map for each corpus")
    parser.add_argument("--corpora", nargs="+", default=["bq", "atec", "lcqmc"])
    parser.add_argument("--draws", type=int, default=100, help="random draws of each size")
    parser.add_argument("--output", required=True, help="JSON file to write")
    args = parser.parse_args()
    encoder, rules, rows = load_bi_encoder(args.model).eval(), decision_rules(args.model), []
    for corpus in map(load_corpus, args.corpora):
        split = corpus.split("test")
        scores = encoder.similarity(split["sentence1"][:], split["sentence2"][:])
        rows += measure(corpus, scores, {name: rules[name] for name in args.corpora}, args.draws)
    print(base_rate_table(save(args.output, "base_rate", rows, model=args.model, draws=args.draws)))


if __name__ == "__main__":
    main()
