"""Dots, intervals, learning curves and histograms as SVG.

Each figure has a title and a description for screen readers. Series differ in form as well as in colour; the colours
are those of Okabe and Ito, which colour-blind readers can tell apart.
"""

import numpy as np

from cosent.reporting.svg import FAINT, GRID, INK, columns, new_figure, shorten, style, to_svg

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d00", "#56b4e9", "#444444", "#7a3fa0")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 4", "4 2 1 2", "1 2", "10 2 2 2")
WIDTH, ROW = 460, 40  # pixels of a figure, and of a row with its label above it
NARROW = 24  # columns of a label that leaves room for another next to it


def dots(title: str, rows: list[tuple[str, list[float], float | None]], unit: str) -> str:
    """A row per method: a dot per run, a bar at their mean, a hollow diamond at the published number.

    Args:
        rows: label, value of each run, published number.
    """
    with style():
        figure, axes = _row_axes(title, [label for label, _, _ in rows], unit)
        for place, (_, runs, published) in enumerate(rows):
            color = COLORS[place % len(COLORS)]
            axes.plot(runs, [place] * len(runs), "o", color=color, alpha=0.55, markersize=8, markeredgewidth=0)
            if runs:
                axes.plot([float(np.mean(runs))], [place], "|", color=color, markersize=18, markeredgewidth=2.5)
            if published is not None:
                axes.plot([published], [place], "D", color="#fff", markeredgecolor=INK, markersize=8)
        means = "; ".join(f"{label}: {np.mean(runs):.2f}" for label, runs, _ in rows if runs)
        return to_svg(figure, title, f"Mean {unit}: {means}.")


def intervals(title: str, rows: list[tuple[str, float, float, float]], unit: str) -> str:
    """A row per difference against a line at 0; the dot is filled where the interval excludes 0.

    Args:
        rows: label, mean, low and high end of the interval.
    """
    with style():
        figure, axes = _row_axes(title, [row[0] for row in rows], unit)
        axes.axvline(0, color=FAINT, linewidth=1.5, zorder=0.9)
        for place, (_, mean, low, high) in enumerate(rows):
            significant = low > 0 or high < 0
            color = COLORS[0] if significant else FAINT
            ends = {"marker": "|", "markersize": 8, "markeredgewidth": 2}
            axes.plot([low, high], [place, place], color=color, linewidth=2, **ends)
            fill = color if significant else "#fff"
            axes.plot([mean], [place], "o", color=fill, markeredgecolor=color, markersize=9, markeredgewidth=2)
        summary = "; ".join(f"{label}: {mean:+.2f}, from {low:+.2f} to {high:+.2f}" for label, mean, low, high in rows)
        return to_svg(figure, title, f"Differences in {unit} with 95% intervals. {summary}.")


def curves(title: str, series: list[tuple[str, list[float], list[list[float]]]], x_name: str, y_name: str) -> str:
    """A line per series through the mean of its runs, on a band from the lowest to the highest run.

    Args:
        series: label, x of the points, and per point the values of all runs.
    """
    from matplotlib.ticker import MaxNLocator

    per_line = 2 if all(columns(label) <= NARROW for label, _, _ in series) else 1
    legend = 18 * -(-len(series) // per_line)
    with style():
        figure, axes = new_figure(title, WIDTH, 250 + legend, left=40, right=12, top=42, bottom=52 + legend)
        axes.grid(axis="y")
        xs = [x for _, points, _ in series for x in points]
        if min(xs) < max(xs):
            axes.set_xlim(min(xs), max(xs))
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))  # no tick at epoch 1.5
        else:
            axes.set_xlim(xs[0] - 0.5, xs[0] + 0.5)
            axes.set_xticks(xs[:1], [f"{xs[0]:g}"])
        axes.set_xlabel(x_name, loc="right")
        figure.text(0, 1 - 32 / figure.bbox.height, y_name, color=FAINT)
        for place, (label, points, runs) in enumerate(series):
            color, dash = COLORS[place % len(COLORS)], _dash(place)
            means = [float(np.mean(values)) for values in runs]
            axes.fill_between(points, list(map(min, runs)), list(map(max, runs)), color=color, alpha=0.13, linewidth=0)
            axes.plot(points, means, color=color, linestyle=dash, linewidth=2.2)
            axes.plot(points, means, "o", color=color, markersize=5, markeredgewidth=0, clip_on=False)
            line, column = divmod(place, per_line)
            _legend_entry(figure, 40 + column * 204, legend - 10 - 18 * line, label, color, dash)
        ends = "; ".join(
            f"{label}: from {np.mean(runs[0]):.2f} to {np.mean(runs[-1]):.2f}" for label, _, runs in series
        )
        return to_svg(figure, title, f"{y_name} by {x_name}. {ends}.")


def histograms(title: str, groups: list[tuple[str, np.ndarray]], x_name: str) -> str:
    """Overlaid histograms, each normalised separately; a triangle at every median.

    Args:
        groups: label and values.
    """
    values = np.concatenate([group for _, group in groups])
    low, high = float(values.min()), float(values.max())
    if high - low < 1e-12:  # equal up to rounding: bins need a width
        low, high = low - (abs(low) or 1) / 20, high + (abs(high) or 1) / 20
    edges = np.linspace(low, high, 49)
    with style():
        figure, axes = new_figure(title, WIDTH, 184, left=8, right=106, top=28, bottom=44)
        axes.set(xlim=(low, high), yticks=[])
        axes.set_xlabel(x_name, loc="right")
        axes.tick_params(axis="x", bottom=True, length=4, pad=6)
        for place, (label, group) in enumerate(groups):
            color, dash = COLORS[1 - place % 2], _dash(place)
            shares = np.histogram(group, edges)[0] / max(len(group), 1)
            axes.stairs(shares, edges, fill=True, color=color, alpha=0.22)
            axes.stairs(shares, edges, baseline=0, color=color, linestyle=dash, linewidth=1.6)
            if len(group):
                median = min(max(float(np.median(group)), low), high)
                axes.plot([median], [-0.04], "^", color=color, markersize=9, markeredgewidth=0, clip_on=False,
                          transform=axes.get_xaxis_transform())  # fmt: skip
            _legend_entry(figure, WIDTH - 98, 138 - 20 * place, label, color, dash, length=16)
        axes.set_ylim(bottom=0)
        medians = "; ".join(f"{label}: {np.median(group):.3f}" for label, group in groups if len(group))
        sizes = ", ".join(f"{len(group)} {label}" for label, group in groups)
        return to_svg(figure, title, f"Distribution of {x_name} of {sizes} pairs. Medians: {medians}.")


def diagonal(title: str, series: list[tuple[str, np.ndarray, np.ndarray]], x_name: str, y_name: str) -> str:
    """Lines through points of 0..1 x 0..1, next to the diagonal on which they should lie.

    Args:
        series: label, x and y of the points; the first is dashed, as in `histograms`.
    """
    with style():
        figure, axes = new_figure(title, WIDTH, 300, left=40, right=106, top=42, bottom=52)
        axes.grid()
        axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.set_xlabel(x_name, loc="right")
        figure.text(0, 1 - 32 / figure.bbox.height, y_name, color=FAINT)
        axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1.2)
        for place, (label, xs, ys) in enumerate(series):
            color, dash = COLORS[1 - place % 2], _dash(1 - place)
            axes.plot(xs, ys, color=color, linestyle=dash, linewidth=2.2)
            axes.plot(xs, ys, "o", color=color, markersize=5, markeredgewidth=0, clip_on=False)
            _legend_entry(figure, WIDTH - 98, 238 - 20 * place, label, color, dash, length=16)
        gaps = "; ".join(f"{label}: {np.abs(xs - ys).max():.2f}" for label, xs, ys in series)
        return to_svg(figure, title, f"{y_name} by {x_name}. Largest distance from the diagonal: {gaps}.")


def _row_axes(title: str, labels: list[str], unit: str):
    """Axes with a row per label, from top to bottom; labels are above their rows: long ones need no margin."""
    figure, axes = new_figure(title, WIDTH, ROW * len(labels) + 76, left=14, right=16, top=28, bottom=44)
    axes.grid(axis="x")
    axes.set(ylim=(len(labels) - 0.6, -0.78), yticks=[])
    axes.set_xlabel(unit, loc="right")
    for place, label in enumerate(labels):
        reach = min(1, 7.5 * columns(label) / (WIDTH - 30))  # 7.5 pixels per column: no grid line crosses a label
        axes.axhspan(place - 0.66, place - 0.26, xmax=reach, color="#fff", linewidth=0, zorder=1)
        axes.text(0, place - 0.34, shorten(label), transform=axes.get_yaxis_transform())
        axes.axhline(place, color=GRID, linewidth=1, zorder=0.5)
    return figure, axes


def _legend_entry(figure, x: float, y: float, label: str, color: str, dash, length: int = 26) -> None:
    """A line and its label at pixels from the lower left corner.

    matplotlib's own legend omits labels that begin with `_`, and spaces columns by the widths of its own font.
    """
    from matplotlib.lines import Line2D

    width, height = figure.bbox.size
    ends = [x / width, (x + length) / width]
    figure.add_artist(Line2D(ends, [(y + 4) / height] * 2, color=color, linestyle=dash, linewidth=2))
    figure.text((x + length + 6) / width, y / height, shorten(label), va="baseline")


def _dash(place: int):
    """Line style of a series; matplotlib counts dashes in line widths, about 2 pixels."""
    pixels = DASHES[place % len(DASHES)].split()
    return (0, [int(length) / 2 for length in pixels]) if pixels else "-"
