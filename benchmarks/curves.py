"""Two pictures of docs/results.md: the gap between CoSENT and Sentence-BERT by budget, and every loss by learning rate.

python -m benchmarks.curves        writes docs/images/gap_by_budget.svg and docs/images/learning_rates.svg
"""

import json
from pathlib import Path

from benchmarks.claim_measures import of_studies, study_of
from benchmarks.study_tables import overlap
from cosent.errors import write_atomically
from cosent.reporting.document import Figure
from cosent.reporting.figures import COLORS, DASHES, FAINT, canvas, saved, styled

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
# By corpus: pairs that a run reads in all, the study, and its rows of CoSENT and Sentence-BERT.
BUDGETS = {
    "STS-B, six classes": [
        ("stsb", 5231, "losses_stsb", "cosent", "sbert"),
        ("stsb", 15693, "encoders", "cosent_mini mini", "sbert mini"),
        ("stsb", 20924, "convergence", "cosent", "sbert"),
    ],
    "STS-B, two classes": [("stsb", 5231, "primary", "cosent", "sbert")],
    "ATEC": [
        ("atec", 10000, "retrieval_atec", "cosent_mini", "sbert"),
        ("atec", 20000, "primary", "cosent", "sbert"),
        ("atec", 40000, "native_mini", "cosent", "sbert"),
    ],
    "BQ": [
        ("bq", 20000, "primary", "cosent", "sbert"),
        ("bq", 27810, "native_mini", "cosent", "sbert"),
    ],
    "LCQMC": [
        ("lcqmc", 20000, "retrieval", "cosent_mini", "sbert"),
        ("lcqmc", 40000, "native_mini", "cosent", "sbert"),
    ],
}
NAMES = {
    "cosent": "CoSENT",
    "angle": "AnglE (angle term)",
    "cosine_squared": "squared error (Sentence-BERT, regression)",
    "cosine_floor": "cosine, floor",
    "cosine_hinge": "cosine, hinge",
    "cosine_linear": "cosine, plain",
    "cosine_mse": "cosine, 0 or 1",
    "sbert": "Sentence-BERT (head of six classes)",
}

Point = tuple[float, float, float, float]  # pairs, gap and the ends of its interval


def budgets() -> dict[str, list[Point]]:
    """Gap in test Spearman by corpus and pairs read; of studies that have been run with two seeds or more."""
    series: dict[str, list[Point]] = {}
    for label, points in BUDGETS.items():
        for corpus, pairs, name, *rows in points:
            study = study_of(name)
            claim = {"claim": label, "source": "", "compared": rows, "corpus": corpus}
            found = of_studies(claim, (study, study)) if study else None
            if found and found["seeds"] > 1:
                series.setdefault(label, []).append((pairs, found["mean"], found["low"], found["high"]))
    return series


@styled
def gap_by_budget(series: dict[str, list[Point]]) -> Figure:
    title = "CoSENT minus Sentence-BERT, from mini"
    axes = canvas(title, "thousands of training pairs read, those of every epoch", 3)
    axes.set_ylabel("test Spearman x100", color=FAINT)
    axes.axhline(0, color=FAINT, linewidth=1.2)
    for place, (label, points) in enumerate(series.items()):
        pairs, gaps, lows, highs = zip(*points, strict=True)
        spans = [[gap - low for gap, low in zip(gaps, lows, strict=True)],
                 [high - gap for gap, high in zip(gaps, highs, strict=True)]]  # fmt: skip
        shifted = [each / 1000 + 0.25 * place for each in pairs]  # so that intervals do not cover each other
        style = {"color": COLORS[place], "linestyle": DASHES[place % len(DASHES)]}
        axes.errorbar(shifted, gaps, yerr=spans, marker="o", markersize=4, capsize=3, label=label, **style)
    ends = "; ".join(f"{label}: " + ", ".join(f"{gap:+.1f} at {pairs:,}" for pairs, gap, *_ in points)
                     for label, points in series.items())  # fmt: skip
    return saved(axes, title, f"Differences with 95% intervals. {ends}.")


@styled
def by_rate(result: dict) -> Figure:
    title = "STS-B after one epoch, by learning rate"
    axes = canvas(title, "learning rate", 3.4)
    axes.set_xscale("log")
    rates = result["rows"][0]["rates"]
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.set_ylabel("test Spearman x100", color=FAINT)
    floor = overlap(result["corpus"])
    lines = {"untrained": result["untrained"][1]} | ({"character overlap": floor.value} if floor else {})
    for dash, (label, value) in zip(DASHES[1:], lines.items(), strict=False):
        axes.axhline(value, color=FAINT, linewidth=1.2, linestyle=dash, label=label)
    for place, row in enumerate(result["rows"]):
        style = {"color": COLORS[place], "linestyle": DASHES[place % len(DASHES)]}
        axes.plot(row["rates"], row["test"], marker="o", markersize=4, label=NAMES[row["loss"]], **style)
    spans = "; ".join(
        f"{NAMES[row['loss']]}: {min(row['test']):.1f} to {max(row['test']):.1f}" for row in result["rows"]
    )
    return saved(
        axes, title, f"One seed. {', '.join(f'{name} {value:.1f}' for name, value in lines.items())}. {spans}."
    )


def pictures() -> dict[Path, str]:
    rates = json.loads((ROOT / "results/learning_rates.json").read_text(encoding="utf-8"))
    return {
        IMAGES / "gap_by_budget.svg": gap_by_budget(budgets()).svg,
        IMAGES / "learning_rates.svg": by_rate(rates).svg,
    }


if __name__ == "__main__":
    for file, svg in pictures().items():
        write_atomically(file, svg)
