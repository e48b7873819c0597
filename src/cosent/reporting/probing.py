"""Sections of the page of a probe: order by phenomenon, scores, failures, vectors and the worst pairs of a corpus."""

from typing import Any

import numpy as np

from cosent.reporting import figures
from cosent.reporting.document import Cell, folded, inline_image, markdown_table, plain, section

EXAMPLES = 3  # failures shown of each phenomenon
GEOMETRY = {
    "sentences": "sentences",
    "mean_cosine": "mean cosine of random pairs",
    "hubness": "hubness",
    "alignment": "alignment",
    "uniformity": "uniformity",
    "effective_rank": "effective rank",
    "width": "width",
    "directions_90": "directions with 90%",
}


def percent(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.1f}"


def table(caption: str, header: list[str], rows: list[list[Cell]]) -> str:
    return f"{plain(caption)}\n\n{markdown_table(header, rows)}"


def between(ends: list[float]) -> str:
    return f"{100 * ends[0]:.0f} to {100 * ends[1]:.0f}"


def order(result: dict[str, Any]) -> str:
    """Accuracy of the order by phenomenon with intervals, per model, and the difference of two."""
    models, names = result["models"], list(result["overlap"])
    about = (
        "An item is a sentence, a rewording of it, and the sentence with one thing changed. Accuracy is the share of "
        "items whose rewording scores above the changed sentence; ties fail, and a coin would pass 50. Intervals are "
        "95%, take a template (or one of your sentences) as the unit, and are not adjusted for the number of "
        "phenomena. Overlap, for comparison, is the accuracy of a score that counts shared characters."
    )
    header = ["phenomenon", "items", "templates", "overlap"]
    header += [part for model in models for part in (model["name"], "95%")]
    rows: list[list[Cell]] = []
    for name in names:
        first = models[0]["phenomena"][name]
        row: list[Cell] = [name, first["items"], first["templates"], percent(result["overlap"][name])]
        for found in (model["phenomena"][name] for model in models):
            row += [percent(found["accuracy"]), between(found["interval"])]
        rows.append(row)
    blocks = [plain(about), table("Accuracy x100", header, rows)]
    if gaps := result["differences"]:
        title = f"{models[1]['name']} minus {models[0]['name']}"
        drawn = [(name, *(100 * end for end in (gap["difference"], *gap["interval"]))) for name, gap in gaps.items()]
        blocks.append(inline_image(title, figures.intervals(title, drawn, "difference in accuracy x100")))
    return section("Order by phenomenon", *blocks)


def scores(result: dict[str, Any], scored: list[dict[str, tuple[np.ndarray, np.ndarray]]]) -> str:
    """Strips of the scores, their means, and the share of verdicts."""
    plots, rows = [], []
    alike = len({model["score"] for model in result["models"]}) == 1  # cosines and logits share no axis
    for model, values in zip(result["models"], scored, strict=True):
        drawn = [(name, *values[name]) for name in values]
        shown = np.concatenate(
            [side for one in (scored if alike else [values]) for both in one.values() for side in both]
        )
        ends = (float(shown.min()), float(shown.max()))
        strips = figures.strips(model["name"], drawn, ("reworded", "changed"), model["score"], ends)
        plots.append(inline_image(model["name"], strips))
        for name, found in model["phenomena"].items():
            means = [f"{found[side]:.3f}" for side in ("same", "different")]
            lost = f"{1 - found['same']:.3f}" if model["score"] == "cosine" else None
            verdicts = [percent(found[key]) for key in ("similar_same", "similar_different")]
            rows.append([f"{name}, {model['name']}", *means, lost, *verdicts])
    header = ["phenomenon, model", "reworded", "changed", "1 - reworded", "reworded called similar x100",
              "changed called similar x100"]  # fmt: skip
    caption = "Scores of each sentence with its rewording (blue) and its changed form (orange); a bar at the median."
    details = folded("Mean scores, and verdicts of models that have a threshold", markdown_table(header, rows))
    return section("Scores", plain(caption), *plots, details)


def failures(result: dict[str, Any]) -> str:
    """The items whose order is the most wrong."""
    tables = []
    for model in result["models"]:
        rows = [
            [name, one["anchor"], one["same"], f"{one['score_same']:.3f}", one["different"],
             f"{one['score_different']:.3f}"]
            for name, found in model["phenomena"].items() for one in found["failures"][:EXAMPLES]
        ]  # fmt: skip
        header = ["phenomenon", "sentence", "rewording", "score", "changed", "score"]
        caption = f"{model['name']}: where the changed sentence scores highest above the rewording"
        tables += [table(caption, header, rows)] if rows else []
    return section("Failures", *tables)


def vectors(result: dict[str, Any]) -> str:
    """Geometry of the vectors of bi-encoders, and their spectrum."""
    having = [model for model in result["models"] if model["geometry"] is not None]
    if not having:
        return ""
    about = (
        "Hubness is the skewness of how often a sentence is among the 10 nearest of the others: above 1, a few are "
        "neighbours of many. Alignment is the mean squared distance of similar sentences, lower is closer; uniformity "
        "is the log of the mean of exp(-2 d^2), lower is more spread out. The spectrum is the share of the squared "
        f"length in the first principal directions. Sentences: those of {source_of(result)}."
    )
    rows = [[label, *(cell_of(model["geometry"][key]) for model in having)] for key, label in GEOMETRY.items()]
    series = [
        (model["name"], list(range(1, len(shares) + 1)), [[100 * share] for share in shares])
        for model, shares in ((model, model["geometry"]["spectrum"]) for model in having)
    ]
    plot = figures.curves("Spectrum", series, "principal directions", "share x100")
    geometry = table("Geometry", ["of vectors", *(model["name"] for model in having)], rows)
    return section("Vectors", plain(about), geometry, inline_image("The first 32 directions", plot))


def source_of(result: dict[str, Any]) -> str:
    text = result["sentences"]
    return result["corpus"] or ("the items" if text == "grammars" else " ".join(text))


def cell_of(value: float | int | None) -> Cell:
    return value if value is None or isinstance(value, int) else f"{value:.{3 if abs(value) < 10 else 1}f}"


def worst(result: dict[str, Any]) -> str:
    """The pairs of a labelled corpus whose score has another rank than their label."""
    tables = []
    for model in result["models"]:
        rows = [
            [number, f"{pair['score']:.3f}", f"{pair['label']:g}", f"{100 * pair['gap']:+.0f}", pair["sentence1"],
             pair["sentence2"]]
            for number, pair in enumerate(model["worst"], start=1)
        ]  # fmt: skip
        caption = f"{model['name']}: rank of the score minus rank of the label, x100 of all pairs"
        if rows:
            header = ["", "score", "label", "gap", "sentence1", "sentence2"]
            tables.append(folded(caption, markdown_table(header, rows)))
    return section(f"Worst pairs of {plain(str(result['corpus']))}", *tables)


def page(title: str, result: dict[str, Any], scored: list[dict[str, tuple[np.ndarray, np.ndarray]]]) -> str:
    """Markdown of all sections that have something to show."""
    sections = [order(result), scores(result, scored), failures(result), vectors(result), worst(result)]
    return "\n\n".join([f"# {plain(title)}", *filter(None, sections)])
