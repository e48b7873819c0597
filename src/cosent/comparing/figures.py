"""Intervals, drawn by matplotlib as SVG, which is imported on first use.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart.
"""

import io
import warnings
from collections.abc import Callable
from functools import wraps

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d00", "#56b4e9", "#444444", "#7a3fa0")
FAINT = "#5b636c"
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
    axes.set_title(title)
    axes.set_xlabel(x_name, color=FAINT)
    return axes


def saved(axes) -> str:
    """SVG of the axes, with room for all labels."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, handlelength=3)
    buffer = io.BytesIO()
    axes.figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    return buffer.getvalue().decode().replace("'DejaVu Sans'", FONTS)


def rows_of(axes, labels: list[str]) -> None:
    """A labelled row for each entry, from top to bottom."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)


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
