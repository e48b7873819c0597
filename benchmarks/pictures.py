"""Pictures of README and docs/results.md, drawn from the results: docs/images/*.svg.

python -m benchmarks.pictures        after python -m benchmarks.claims
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.claim_measures import of_studies, study_of
from benchmarks.study_tables import ROOT, overlap
from benchmarks.widths import METRICS, WAYS, values_by_width
from cosent.errors import write_atomically
from cosent.losses import TOWERS
from cosent.reporting.figures import COLORS, DASHES, FAINT, canvas, intervals, saved, styled

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
CORPORA = {"stsb": "STS-B", "bq": "BQ part", "lcqmc": "LCQMC", "atec": "ATEC", "pawsx_few": "PAWSX part"}
OTHERS = {
    "sbert": "Sentence-BERT, two classes",
    "sbert_regression": "Sentence-BERT, regression",
    "ce": "cross-encoder, cross entropy",
    "mse": "cross-encoder, squared error",
    "cosine_linear": "plain cosine loss",
}
SEEDS = 3


def against_others() -> str:
    """CoSENT minus the losses that it is compared with, by corpus, with 95% intervals.

    Of models from `mini` that were tested on the corpus that they were trained on; where several studies measured one,
    the first, which is that of the primary family.
    """
    rows: dict[str, tuple[float, float, float]] = {}
    for claim in read("claims")["rows"]:
        enough = claim.get("seeds", 0) >= SEEDS
        of_mini = enough and claim["setting"].startswith("mini,") and "trained_on" not in claim
        losses = [loss_of(name) for name in claim.get("compared", ())]
        if of_mini and "study" in claim and "quantity" not in claim and losses[0] == "cosent" and losses[1] in OTHERS:
            label = f"{OTHERS[losses[1]]}: {CORPORA[claim['corpus']]}"
            rows.setdefault(label, (claim["mean"], claim["low"], claim["high"]))
    lines = [(label, *values) for label, values in rows.items()]
    return intervals("CoSENT minus other losses, from mini", lines, "test Spearman x100")


def loss_of(row: str) -> str:
    """The loss of a row of a study, from its name: `[tower] recipe [variant]`."""
    return next(part for part in row.split() if part not in TOWERS).removesuffix("_mini")


@styled
def gap_by_budget() -> str:
    """CoSENT minus Sentence-BERT by corpus and pairs read, of studies with two seeds or more."""
    axes = canvas("CoSENT minus Sentence-BERT, from mini", "thousands of training pairs read, those of every epoch", 3)
    axes.set_ylabel("test Spearman x100", color=FAINT)
    axes.axhline(0, color=FAINT, linewidth=1.2)
    for place, (label, points) in enumerate(BUDGETS.items()):
        drawn = []
        for corpus, pairs, name, *rows in points:
            study = study_of(name)
            claim = {"claim": label, "source": "", "compared": rows, "corpus": corpus}
            found = of_studies(claim, (study, study)) if study else None
            if found and found["seeds"] > 1:
                drawn.append((pairs, found["mean"], found["mean"] - found["low"], found["high"] - found["mean"]))
        pairs, gaps, *spans = zip(*drawn, strict=True)
        shifted = [each / 1000 + 0.25 * place for each in pairs]  # so that intervals do not cover each other
        style = {"color": COLORS[place], "linestyle": DASHES[place % len(DASHES)]}
        axes.errorbar(shifted, gaps, yerr=spans, marker="o", markersize=4, capsize=3, label=label, **style)
    return saved(axes)


@styled
def by_rate() -> str:
    """Every loss on STS-B by learning rate."""
    result = read("learning_rates")
    axes = canvas("STS-B after one epoch, by learning rate", "learning rate", 3.4)
    axes.set_xscale("log")
    rates = result["rows"][0]["rates"]
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.set_ylabel("test Spearman x100", color=FAINT)
    lines = {"untrained": result["untrained"][1], "character overlap": overlap(result["corpus"])}
    for dash, (label, value) in zip(DASHES[1:], lines.items(), strict=False):
        axes.axhline(value, color=FAINT, linewidth=1.2, linestyle=dash, label=label)
    for place, row in enumerate(result["rows"]):
        style = {"color": COLORS[place], "linestyle": DASHES[place % len(DASHES)]}
        axes.plot(row["rates"], row["test"], marker="o", markersize=4, label=NAMES[row["loss"]], **style)
    return saved(axes)


@styled
def by_width() -> str:
    """Both metrics of shorter vectors by width: a panel each, and a line for each way to shorten them."""
    result = read("widths")
    left = canvas("Vectors shortened after training on STS-B", "", 3)
    figure = left.figure
    figure.set_size_inches(8, 3)
    left.set_position((0, 0, 0.42, 1))
    for axes, (metric, name) in zip((left, figure.add_axes((0.52, 0, 0.42, 1))), METRICS.items(), strict=True):
        axes.set_xscale("log")
        axes.set_xticks(result["widths"], result["widths"])
        axes.minorticks_off()
        axes.set_xlabel("width", color=FAINT)
        axes.set_ylabel(f"test {name} x100", color=FAINT)
        for place, (way, label) in enumerate(WAYS.items()):
            runs = 100 * np.array(values_by_width(result["rows"], way, metric))
            style = {"color": COLORS[place], "linestyle": DASHES[place]}
            axes.fill_between(result["widths"], runs.min(axis=1), runs.max(axis=1), color=COLORS[place], alpha=0.13)
            axes.plot(result["widths"], runs.mean(axis=1), marker="o", markersize=4, label=label, **style)
    return saved(axes)


def read(name: str) -> dict[str, Any]:
    return json.loads((ROOT / f"results/{name}.json").read_text(encoding="utf-8"))


def pictures() -> dict[Path, str]:
    images = ROOT / "docs/images"
    return {
        images / "cosent_against_others.svg": against_others(),
        images / "gap_by_budget.svg": gap_by_budget(),
        images / "learning_rates.svg": by_rate(),
        images / "widths.svg": by_width(),
    }


if __name__ == "__main__":
    for file, svg in pictures().items():
        write_atomically(file, svg)
