"""Dots, intervals and learning curves, drawn by matplotlib as SVG.

Series differ in form as well as in colour; the colours are those of Okabe and Ito, which colour-blind readers can tell
apart. matplotlib is imported on first use, so that `import cosent.jobs.report` stays fast.
"""

import io
import unicodedata
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d00", "#56b4e9", "#444444", "#7a3fa0")
DASHES: tuple[Any, ...] = ("-", (0, (3, 1.5)), (0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)), (0, (6, 2)))
FAINT = "#5b636c"
# The reader's machine renders the text, so these are the fonts of common systems, Chinese ones included.
FONTS = "'Noto Sans', 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif"
Series = tuple[str, list[float], list[list[float]]]  # label, x of the points, and the values of all runs by x
STYLE = {
    "axes.grid": True,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": "large",
    "axes.unicode_minus": False,
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same layout on every machine
    "grid.color": "#e3e6ea",
    "svg.fonttype": "none",
    "svg.hashsalt": "cosent",  # the same figure always yields the same bytes
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "ytick.left": False,
}


def styled(draw: Callable[..., str]) -> Callable[..., str]:
    """Draws in the style of the reports, whatever the user's matplotlibrc says."""

    @wraps(draw)
    def drawn(*args, **options) -> str:
        import matplotlib

        with matplotlib.rc_context(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the reader's font draws them
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(STYLE)
            return draw(*args, **options)

    return drawn


def canvas(title: str, x_name: str, height: float):
    """Axes of 5 inches by `height`."""
    from matplotlib.figure import Figure

    axes = Figure(figsize=(5, height)).add_subplot()
    axes.set_axisbelow(True)
    axes.set_title(printable(title))
    axes.set_xlabel(x_name, color=FAINT)
    return axes


def saved(axes) -> str:
    """SVG of the axes, with room for all labels."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, handlelength=3)
    buffer = io.BytesIO()
    axes.figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    return buffer.getvalue().decode().replace("'DejaVu Sans'", FONTS)


def printable(label: str) -> str:
    """A label without the control characters that XML forbids, or the underscore that hides it from a legend."""
    text = "".join(character for character in label if unicodedata.category(character) != "Cc")
    return f"\u200b{text}" if text.startswith("_") else text


def rows_of(axes, labels: list[str]) -> None:
    """A labelled row for each entry, from top to bottom."""
    axes.set_yticks(range(len(labels)), [printable(label) for label in labels])
    axes.set_ylim(len(labels) - 0.5, -0.5)


@styled
def dots(title: str, rows: list[tuple[str, list[float]]], unit: str) -> str:
    """A row per method: a dot per run, a bar at their mean."""
    axes = canvas(title, unit, 0.8 + 0.35 * len(rows))
    rows_of(axes, [label for label, _ in rows])
    for place, (_, runs) in enumerate(rows):
        color = COLORS[place % len(COLORS)]
        axes.plot(runs, [place] * len(runs), "o", color=color, alpha=0.55)
        if runs:
            axes.plot([np.mean(runs)], [place], "|", color=color, markersize=16, markeredgewidth=2.5)
    return saved(axes)


@styled
def intervals(title: str, rows: list[tuple[str, float, float, float]], unit: str) -> str:
    """A row (label, mean, low, high) per difference; the dot is filled where the interval excludes 0."""
    axes = canvas(title, unit, 0.8 + 0.35 * len(rows))
    rows_of(axes, [row[0] for row in rows])
    axes.axvline(0, color=FAINT)
    for place, (_, mean, low, high) in enumerate(rows):
        significant = low > 0 or high < 0
        color = COLORS[0] if significant else FAINT
        axes.plot([low, high], [place, place], "|-", color=color, linewidth=2, markeredgewidth=2)
        fill = color if significant else "white"
        axes.plot([mean], [place], "o", color=fill, markeredgecolor=color, markersize=8, markeredgewidth=2)
    return saved(axes)


@styled
def curves(title: str, series: list[Series], x_name: str, y_name: str) -> str:
    """Curves over whole numbers, such as epochs."""
    axes = canvas(title, x_name, 3)
    axes.set_ylabel(y_name, color=FAINT)
    axes.locator_params(axis="x", integer=True)
    draw_curves(axes, series)
    return saved(axes)


def draw_curves(axes, series: list[Series]) -> None:
    """A line of means on a band of all runs, per series."""
    for place, (label, points, runs) in enumerate(series):
        color, dash = COLORS[place % len(COLORS)], DASHES[place % len(DASHES)]
        means = [float(np.mean(values)) for values in runs]
        axes.fill_between(points, list(map(min, runs)), list(map(max, runs)), color=color, alpha=0.13, linewidth=0)
        axes.plot(points, means, color=color, linestyle=dash, marker="o", markersize=4, label=printable(label))
