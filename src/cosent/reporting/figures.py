"""Dots, intervals, learning curves, histograms and reliability diagrams, drawn by matplotlib as SVG.

Series differ in form as well as in colour; the colours are those of Okabe and Ito, which colour-blind readers can tell
apart. matplotlib is imported on first use, so that `import cosent.report` stays fast.
"""

import io
import unicodedata
import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from cosent.reporting.document import Figure

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d00", "#56b4e9", "#444444", "#7a3fa0")
DASHES: tuple[Any, ...] = ("-", (0, (3, 1.5)), (0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)), (0, (6, 2)))
FAINT = "#5b636c"
DOTS = 60  # of a strip
# The reader's machine renders the text, so these are the fonts of common systems, Chinese ones included.
FONTS = "'Noto Sans', 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif"
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


def styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Draws in the style of the reports, whatever the user's matplotlibrc says."""

    @wraps(draw)
    def drawn(*args, **options) -> Figure:
        import matplotlib

        with matplotlib.rc_context(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the reader's font draws them
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(STYLE)
            return draw(*args, **options)

    return drawn


def canvas(title: str, x_name: str, height: float):
    """Axes of 5 inches by `height`."""
    from matplotlib.figure import Figure as Canvas

    axes = Canvas(figsize=(5, height)).add_subplot()
    axes.set_axisbelow(True)
    axes.set_title(printable(title))
    axes.set_xlabel(x_name, color=FAINT)
    return axes


def saved(axes, title: str, description: str) -> Figure:
    """The figure of the axes, with room for all labels."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, handlelength=3)
    buffer = io.BytesIO()
    axes.figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    return Figure(buffer.getvalue().decode().replace("'DejaVu Sans'", FONTS), f"{title}. {description}")


def printable(label: str) -> str:
    """A label without the control characters that XML forbids, or the underscore that hides it from a legend."""
    text = "".join(character for character in label if unicodedata.category(character) != "Cc")
    return f"\u200b{text}" if text.startswith("_") else text


def rows_of(axes, labels: list[str]) -> None:
    """A labelled row for each entry, from top to bottom."""
    axes.set_yticks(range(len(labels)), [printable(label) for label in labels])
    axes.set_ylim(len(labels) - 0.5, -0.5)


@styled
def dots(title: str, rows: list[tuple[str, list[float]]], unit: str) -> Figure:
    """A row per method: a dot per run, a bar at their mean."""
    axes = canvas(title, unit, 0.8 + 0.35 * len(rows))
    rows_of(axes, [label for label, _ in rows])
    for place, (_, runs) in enumerate(rows):
        color = COLORS[place % len(COLORS)]
        axes.plot(runs, [place] * len(runs), "o", color=color, alpha=0.55)
        if runs:
            axes.plot([np.mean(runs)], [place], "|", color=color, markersize=16, markeredgewidth=2.5)
    means = "; ".join(f"{label}: {np.mean(runs):.2f}" for label, runs in rows if runs)
    return saved(axes, title, f"Mean {unit}: {means}.")


@styled
def intervals(title: str, rows: list[tuple[str, float, float, float]], unit: str) -> Figure:
    """A row per difference against a line at 0; the dot is filled where the interval excludes 0.

    Args:
        rows: label, mean, low and high end of the interval.
    """
    axes = canvas(title, unit, 0.8 + 0.35 * len(rows))
    rows_of(axes, [row[0] for row in rows])
    axes.axvline(0, color=FAINT)
    for place, (_, mean, low, high) in enumerate(rows):
        significant = low > 0 or high < 0
        color = COLORS[0] if significant else FAINT
        axes.plot([low, high], [place, place], "|-", color=color, linewidth=2, markeredgewidth=2)
        fill = color if significant else "white"
        axes.plot([mean], [place], "o", color=fill, markeredgecolor=color, markersize=8, markeredgewidth=2)
    summary = "; ".join(f"{label}: {mean:+.2f}, from {low:+.2f} to {high:+.2f}" for label, mean, low, high in rows)
    return saved(axes, title, f"Differences in {unit} with 95% intervals. {summary}.")


@styled
def curves(title: str, series: list[tuple[str, list[float], list[list[float]]]], x_name: str, y_name: str) -> Figure:
    """A line per series through the mean of its runs, on a band from the lowest to the highest run.

    Args:
        series: label, x of the points, and per point the values of all runs.
    """
    axes = canvas(title, x_name, 3)
    axes.set_ylabel(y_name, color=FAINT)
    axes.locator_params(axis="x", integer=True)
    for place, (label, points, runs) in enumerate(series):
        color, dash = COLORS[place % len(COLORS)], DASHES[place % len(DASHES)]
        means = [float(np.mean(values)) for values in runs]
        axes.fill_between(points, list(map(min, runs)), list(map(max, runs)), color=color, alpha=0.13, linewidth=0)
        axes.plot(points, means, color=color, linestyle=dash, marker="o", markersize=4, label=printable(label))
    ends = "; ".join(f"{label}: from {np.mean(runs[0]):.2f} to {np.mean(runs[-1]):.2f}" for label, _, runs in series)
    return saved(axes, title, f"{y_name} by {x_name}. {ends}.")


@styled
def histograms(title: str, groups: list[tuple[str, np.ndarray]], x_name: str) -> Figure:
    """Overlaid histograms, each normalised separately; a triangle at every median."""
    values = np.concatenate([group for _, group in groups])
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-12:  # equal up to rounding: bins need a width
        low, high = low - (abs(low) or 1) / 20, high + (abs(high) or 1) / 20
    edges = np.linspace(low, high, 49)
    axes = canvas(title, x_name, 1.8)
    axes.set_yticks([])
    for place, (label, group) in enumerate(groups):
        color, dash = COLORS[1 - place % 2], DASHES[place % len(DASHES)]
        shares = np.histogram(group, edges)[0] / max(len(group), 1)
        axes.stairs(shares, edges, fill=True, color=color, alpha=0.22)
        axes.stairs(shares, edges, color=color, linestyle=dash, linewidth=1.6, label=printable(label))
        if len(group):
            axes.plot([np.median(group)], [0], "^", color=color, markersize=9, clip_on=False)
    axes.set_ylim(bottom=0)
    medians = "; ".join(f"{label}: {np.median(group):.3f}" for label, group in groups if len(group))
    sizes = ", ".join(f"{len(group)} {label}" for label, group in groups)
    return saved(axes, title, f"Distribution of {x_name} of {sizes} pairs. Medians: {medians}.")


@styled
def strips(title: str, rows: list[tuple[str, np.ndarray, np.ndarray]], names: tuple[str, str], x_name: str) -> Figure:
    """Two strips of dots per row, the first above the second, with a bar at each median.

    Args:
        rows: label, and the values of both strips, of which at most `DOTS` evenly spaced quantiles are drawn.
        names: what the two strips are.
    """
    axes = canvas(title, x_name, 0.9 + 0.34 * len(rows))
    rows_of(axes, [label for label, _, _ in rows])
    for side, (name, marker) in enumerate(zip(names, "o^", strict=True)):
        color, height = COLORS[side], 0.34 * side - 0.17
        axes.plot([], [], marker, color=color, label=printable(name))
        for place, (_, *both) in enumerate(rows):
            values = both[side]
            drawn = np.quantile(values, np.linspace(0, 1, min(DOTS, len(values))))
            axes.plot(drawn, [place + height] * len(drawn), marker, color=color, alpha=0.35, markersize=3.5,
                      markeredgewidth=0)  # fmt: skip
            axes.plot([np.median(values)], [place + height], "|", color=color, markersize=10, markeredgewidth=2.5)
    medians = "; ".join(f"{row[0]}: {np.median(row[1]):.2f} and {np.median(row[2]):.2f}" for row in rows)
    return saved(axes, title, f"Distribution of {x_name}, {names[0]} and {names[1]}. Medians: {medians}.")


@styled
def diagonal(title: str, series: list[tuple[str, np.ndarray, np.ndarray]], x_name: str, y_name: str) -> Figure:
    """Lines through points of 0..1 x 0..1, next to the diagonal on which they should lie."""
    axes = canvas(title, x_name, 3)
    axes.set_ylabel(y_name, color=FAINT)
    axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1.2)
    for place, (label, xs, ys) in enumerate(series):
        dash = DASHES[1 - place % 2]
        axes.plot(xs, ys, color=COLORS[1 - place % 2], linestyle=dash, marker="o", markersize=4, label=label)
    gaps = "; ".join(f"{label}: {np.abs(xs - ys).max():.2f}" for label, xs, ys in series)
    return saved(axes, title, f"{y_name} by {x_name}. Largest distance from the diagonal: {gaps}.")
