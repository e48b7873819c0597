"""Pictures of README, docs and lab, drawn from the results: */images/*.svg.

`growth`, `roofline` and `widths` were drawn by scripts that ended (lab/LOG.md).

python -m lab.tables.pictures        after python -m lab.claims
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cosent.atomic import write_atomically
from cosent.comparing.figures import COLORS, FAINT, canvas, intervals, saved, styled
from cosent.comparing.results import Result, Study
from cosent.losses import TOWERS
from lab import RESULTS, ROOT
from lab.benchmarks.front import INKS, front_picture
from lab.claims.measures import of_studies, study_of
from lab.tables.compared import thresholds_picture
from lab.tables.curves import DASHES, draw_curves
from lab.tables.finished import adds_picture
from lab.tables.public import public_picture
from lab.tables.studies import audited

# By corpus: pairs that a run reads in all, the study, and its rows of CoSENT and Sentence-BERT.
BUDGETS = {
    "STS-B": [
        ("stsb", 5231, "primary", "cosent", "sbert"),
        ("stsb", 41848, "gap", "cosent", "sbert_two"),
    ],
    "ATEC": [
        ("atec", 1000, "gap_labels_atec", "cosent 1000", "sbert 1000"),
        ("atec", 4000, "gap_labels_atec", "cosent 4000", "sbert 4000"),
        ("atec", 10000, "retrieval_atec", "cosent_mini", "sbert"),
        ("atec", 16000, "gap_labels_atec", "cosent 16000", "sbert 16000"),
        ("atec", 20000, "primary", "cosent", "sbert"),
        ("atec", 40000, "native_mini", "cosent", "sbert"),
        ("atec", 62477, "gap_labels_atec", "cosent all", "sbert all"),
    ],
    "BQ": [
        ("bq", 20000, "primary", "cosent", "sbert"),
        ("bq", 27810, "native_mini", "cosent", "sbert"),
    ],
    "LCQMC": [
        ("lcqmc", pairs, "gap_labels", f"cosent {pairs}", f"sbert {pairs}") for pairs in (1000, 4000, 16000, 64000)
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
    "sbert": "Sentence-BERT (head of two classes)",
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
Points = dict[str, dict[float, list[float]]]  # by line and x, a value per run


def by(x: Callable[[Result], float]) -> Callable[[Study], Points]:
    """Test Spearman of every run, by recipe and a setting."""

    def points(study: Study) -> Points:
        found: Points = {}
        for run in study.results:
            label = run.method.removeprefix("any_loss_mini ").split()[0]
            found.setdefault(label, {}).setdefault(x(run), []).append(100 * (run.test(run.tested_on[0]) or 0.0))
        return found

    return points


EXPERIMENTS = {  # by study: title, x axis, values
    "noise": (
        "STS-B by wrong labels",
        "wrong labels, %",
        by(lambda run: int("0" + run.corpus.removeprefix("stsb").removeprefix("_wrong_"))),
    ),
}


@styled
def experiment(name: str, study: Study) -> str:
    """A line per method through the means of its seeds, in a band from the lowest to the highest."""
    title, x_name, points = EXPERIMENTS[name]
    series = [(label, sorted(found), [found[x] for x in sorted(found)]) for label, found in points(study).items()]
    axes = canvas(title, x_name, 3)
    axes.set_ylabel("Spearman x100", color=FAINT)
    axes.locator_params(axis="x", integer=True)
    draw_curves(axes, series)
    return saved(axes)


def against_others() -> str:
    """CoSENT minus the losses that it is compared with, by corpus, with 95% intervals.

    Of models from `mini`, tested on the corpus that they were trained on; where several claims measured one, the first
    of claims.yaml.
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


def picture(study: Study) -> str:
    """Markdown of the picture of an experiment."""
    return f"![{EXPERIMENTS[study.name][0]}](images/experiment_{study.name}.svg)"


@styled
def gap_by_budget() -> str:
    """CoSENT minus Sentence-BERT by corpus and pairs read, of studies with two seeds or more."""
    axes = canvas("CoSENT minus Sentence-BERT, from mini", "thousands of training pairs read, those of every epoch", 3)
    axes.set_ylabel("test Spearman x100", color=FAINT)
    axes.set_xscale("log")
    axes.set_xticks(ticks := [1, 4, 16, 64], ticks)
    axes.minorticks_off()
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
        shifted = [each / 1000 * 1.015**place for each in pairs]  # so that intervals do not cover each other
        style = {"color": COLORS[place], "linestyle": DASHES[place % len(DASHES)]}
        axes.errorbar(shifted, gaps, yerr=spans, marker="o", markersize=4, capsize=3, label=label, **style)
    return saved(axes)


@styled
def by_rate() -> str:
    """Every loss on the validation split of STS-B by learning rate, first seed."""
    study = study_of("losses_stsb")
    assert study is not None
    axes = canvas("STS-B after one epoch, by learning rate", "learning rate", 3.4)
    axes.set_xscale("log")
    rates = study.tune["learning_rate"]
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.set_ylabel("validation Spearman x100", color=FAINT)
    untrained = 100 * study.results[0].before["stsb"]["validation"]["spearman"]
    lines = {"untrained": untrained, "character overlap": audited("stsb", "validation", "overlap_spearman")}
    for dash, (label, value) in zip(DASHES[1:], lines.items(), strict=False):
        axes.axhline(value, color=FAINT, linewidth=1.2, linestyle=dash, label=label)
    for place, ((loss, _), tried) in enumerate(study.tried.items()):
        style = {"color": COLORS[place], "linestyle": DASHES[place % len(DASHES)]}
        values = [100 * tried[f"learning_rate={rate}"] for rate in rates]
        axes.plot(rates, values, marker="o", markersize=4, label=NAMES[loss], **style)
    return saved(axes)


def read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def pictures() -> dict[Path, str]:
    docs, images = ROOT / "docs/images", ROOT / "lab/images"
    studies = {name: study for name in EXPERIMENTS if (study := study_of(name))}
    fronts = {docs / f"front_{theme}.svg": front_picture(read("front"), read("encode"), theme) for theme in INKS}
    fronts |= {docs / f"published_{theme}.svg": public_picture(theme) for theme in INKS}
    experiments = {images / f"experiment_{name}.svg": experiment(name, study) for name, study in studies.items()}
    return (
        fronts
        | experiments
        | {
            docs / "cosent_against_others.svg": against_others(),
            images / "adds.svg": adds_picture(read("adds")),
            images / "gap_by_budget.svg": gap_by_budget(),
            images / "learning_rates.svg": by_rate(),
            images / "thresholds.svg": thresholds_picture(),
        }
    )


if __name__ == "__main__":
    for file, svg in pictures().items():
        write_atomically(file, svg)
