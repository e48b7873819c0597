"""Curves of several series, which differ in form as well as in colour."""

from typing import Any

import numpy as np

from cosent.comparing.figures import COLORS

DASHES: tuple[Any, ...] = ("-", (0, (3, 1.5)), (0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)), (0, (6, 2)))
Series = tuple[str, list[float], list[list[float]]]  # label, x of the points, and the values of all runs by x


def draw_curves(axes, series: list[Series]) -> None:
    """A line of means on a band of all runs, per series."""
    for place, (label, points, runs) in enumerate(series):
        color, dash = COLORS[place % len(COLORS)], DASHES[place % len(DASHES)]
        means = [float(np.mean(values)) for values in runs]
        axes.fill_between(points, list(map(min, runs)), list(map(max, runs)), color=color, alpha=0.13, linewidth=0)
        axes.plot(points, means, color=color, linestyle=dash, marker="o", markersize=4, label=label)
