"""Figures as SVG text: dots, intervals, curves and histograms, drawn by hand, so that a page needs nothing else.

Each has a title and a description for those who cannot see it, tells its series apart by form as well as by colour
(Okabe and Ito's palette, which the colour-blind can tell apart), and escapes every text it is given.
"""

import math
import zlib
from html import escape

import numpy as np

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d00", "#56b4e9", "#444444", "#7a3fa0")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 4", "4 2 1 2", "1 2", "10 2 2 2")
INK, FAINT, GRID = "#1c1f23", "#5b636c", "#e3e6ea"
WIDTH, WIDE = 460, 760  # of a figure with short labels, and with those of pairs of methods
SHORT, LONG = 30, 60  # letters of a label; the rest is cut, and shown whole by hovering
CHARACTER = 6.9  # width of a letter of the 12 px font, roughly; Chinese ones take two


def dots(title: str, rows: list[tuple[str, list[float], float | None]], unit: str) -> str:
    """A line per row: a dot for every run, a bar at their mean, and a hollow diamond at the published number."""
    values = [v for _, runs, extra in rows for v in [*runs, *([] if extra is None else [extra])]]
    left, height = _label_width([label for label, _, _ in rows]), 26 * len(rows) + 62
    scale = _Scale(values, left, WIDTH - 16)
    body = [_x_axis(scale, 30, height - 34, unit)]
    for index, (label, runs, extra) in enumerate(rows):
        y, color = 44 + 26 * index, COLORS[index % len(COLORS)]
        body.append(_text(left - 8, y + 4, label, "end"))
        body += [f'<circle cx="{scale(v):.1f}" cy="{y}" r="4" fill="{color}" fill-opacity=".55"/>' for v in runs]
        if runs:
            x = scale(float(np.mean(runs)))
            body.append(f'<path d="M{x:.1f} {y - 9}v18" stroke="{color}" stroke-width="2.5"/>')
        if extra is not None:
            x = scale(extra)
            body.append(f'<path d="M{x:.1f} {y - 6}l6 6-6 6-6-6z" fill="#fff" stroke="{INK}" stroke-width="1.5"/>')
    summary = "; ".join(f"{label}: {np.mean(runs):.2f}" for label, runs, _ in rows if runs)
    return _svg(height, title, f"Mean {unit}: {summary}.", body)


def intervals(title: str, rows: list[tuple[str, float, float, float]], unit: str) -> str:
    """A line per difference (label, mean, low, high) against a line at 0; filled where the interval leaves 0 out."""
    left, height = _label_width([row[0] for row in rows], LONG), 26 * len(rows) + 62
    scale = _Scale([0.0, *(v for _, *values in rows for v in values)], left, WIDE - 16)
    body = [_x_axis(scale, 30, height - 34, unit)]
    body.append(f'<path d="M{scale(0):.1f} 30V{height - 34}" stroke="{FAINT}" stroke-width="1.5"/>')
    for index, (label, mean, low, high) in enumerate(rows):
        y, told_apart = 44 + 26 * index, low > 0 or high < 0
        color = COLORS[0] if told_apart else FAINT
        ends = f"M{scale(low):.1f} {y}H{scale(high):.1f}M{scale(low):.1f} {y - 4}v8M{scale(high):.1f} {y - 4}v8"
        body.append(_text(left - 8, y + 4, label, "end", limit=LONG))
        body.append(f'<path d="{ends}" stroke="{color}" stroke-width="2" fill="none"/>')
        fill = color if told_apart else "#fff"
        body.append(
            f'<circle cx="{scale(mean):.1f}" cy="{y}" r="4.5" fill="{fill}" stroke="{color}" stroke-width="2"/>'
        )
    summary = "; ".join(f"{label}: {mean:+.2f}, from {low:+.2f} to {high:+.2f}" for label, mean, low, high in rows)
    return _svg(height, title, f"Differences in {unit} with 95% intervals. {summary}.", body, WIDE)


def curves(title: str, series: list[tuple[str, list[float], list[list[float]]]], x_name: str, y_name: str) -> str:
    """A line per series through the mean of its runs, over a band from the lowest to the highest run.

    Args:
        series: label, x of the points, and per point the values of all runs.
    """
    height, left, right, top = 310, 48, WIDTH - 12, 46
    bottom = height - 44 - 18 * math.ceil(len(series) / 2)
    xs = _Scale([x for _, points, _ in series for x in points], left, right, round_ends=False)
    ys = _Scale([v for _, _, runs in series for values in runs for v in values], bottom, top)
    body = [_y_axis(ys, left, right, y_name)]
    body += [_text(xs(x), bottom + 16, f"{x:g}", "middle", FAINT) for x in _whole_ticks(xs)]
    body.append(_text(right, bottom + 30, x_name, "end", FAINT))
    for index, (label, points, runs) in enumerate(series):
        color, dash = COLORS[index % len(COLORS)], DASHES[index % len(DASHES)]
        top_edge = [f"{xs(x):.1f},{ys(max(values)):.1f}" for x, values in zip(points, runs, strict=True)]
        low_edge = [f"{xs(x):.1f},{ys(min(values)):.1f}" for x, values in zip(points, runs, strict=True)]
        body.append(f'<polygon points="{" ".join(top_edge + low_edge[::-1])}" fill="{color}" fill-opacity=".13"/>')
        means = [(xs(x), ys(float(np.mean(values)))) for x, values in zip(points, runs, strict=True)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in means)
        style = f'stroke="{color}" stroke-width="2.2" stroke-dasharray="{dash}"'
        body.append(f'<polyline points="{line}" fill="none" {style}/>')
        body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{color}"/>' for x, y in means]
        x, y = left + (right - left) / 2 * (index % 2), bottom + 46 + 18 * (index // 2)
        body.append(f'<path d="M{x:.1f} {y - 4}h26" {style}/>')
        body.append(_text(x + 32, y, label, limit=int((right - left) / 2 / CHARACTER) - 5))
    ends = "; ".join(f"{label}: from {np.mean(runs[0]):.2f} to {np.mean(runs[-1]):.2f}" for label, _, runs in series)
    return _svg(height, title, f"{y_name} by {x_name}. {ends}.", body)


def histograms(title: str, groups: list[tuple[str, np.ndarray]], x_name: str) -> str:
    """Two distributions over each other, each with an area of its own; a tick at every median.

    Args:
        groups: label and values; groups of other sizes are compared by share.
    """
    height, left, right, top, bottom, bins = 212, 12, WIDTH - 104, 34, 140, 48
    values = np.concatenate([group for _, group in groups])
    scale = _Scale([float(values.min()), float(values.max())], left, right, round_ends=False)
    edges = np.linspace(scale.low, scale.high, bins + 1)
    shares = [np.histogram(group, edges)[0] / max(len(group), 1) for _, group in groups]
    highest = max(share.max() for share in shares) or 1.0
    body = [_x_axis(scale, bottom, bottom, x_name, grid=False)]
    for index, ((label, group), share) in enumerate(zip(groups, shares, strict=True)):
        color, dash = COLORS[1 - index % 2], DASHES[index % len(DASHES)]
        heights = bottom - (bottom - top) * share / highest
        steps = [f"H{scale(edge):.1f}V{y:.1f}" for edge, y in zip(edges[:-1], heights, strict=True)]
        path = f"M{left} {bottom}{''.join(steps)}H{scale(edges[-1]):.1f}V{bottom}"
        body.append(f'<path d="{path}Z" fill="{color}" fill-opacity=".22"/>')
        body.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.6" stroke-dasharray="{dash}"/>')
        if len(group):
            x = scale(min(max(float(np.median(group)), scale.low), scale.high))
            body.append(f'<path d="M{x:.1f} {bottom}l-5 9h10z" fill="{color}"/>')
        y = top + 12 + 20 * index
        body.append(f'<path d="M{right + 6} {y - 4}h16" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>')
        body.append(_text(right + 26, y, label, limit=11))
    medians = "; ".join(f"{label}: {np.median(group):.3f}" for label, group in groups if len(group))
    sizes = ", ".join(f"{len(group)} {label}" for label, group in groups)
    return _svg(height - 28, title, f"Distribution of {x_name} of {sizes} pairs. Medians: {medians}.", body)


class _Scale:
    """A linear scale from data to pixels, with round ticks."""

    def __init__(self, values: list[float], start: float, stop: float, round_ends: bool = True):
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if high - low < 1e-12:
            low, high = low - (abs(low) or 1) / 20, high + (abs(high) or 1) / 20
        rough = (high - low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        self.step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
        if round_ends:
            low, high = math.floor(low / self.step) * self.step, math.ceil(high / self.step) * self.step
        self.low, self.high, self.start, self.stop = low, high, start, stop

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        first, last = math.ceil(self.low / self.step - 1e-9), math.floor(self.high / self.step + 1e-9)
        return [index * self.step for index in range(first, last + 1)]

    def name(self, tick: float) -> str:
        return f"{tick:.{max(0, -math.floor(math.log10(self.step) + 1e-9))}f}"


def _whole_ticks(scale: _Scale) -> list[float]:
    """Ticks at whole numbers: there is no epoch 1.5 on an axis."""
    step = max(1, round(scale.step))
    return [float(x) for x in range(math.ceil(scale.low), math.floor(scale.high) + 1) if x % step == 0]


def _x_axis(scale: _Scale, top: float, bottom: float, name: str, grid: bool = True) -> str:
    parts = [f'<path d="M{scale.start} {bottom}H{scale.stop}" stroke="{FAINT}"/>']
    for tick in scale.ticks():
        x = scale(tick)
        line = f"M{x:.1f} {top}V{bottom}" if grid else f"M{x:.1f} {bottom}v4"
        parts.append(f'<path d="{line}" stroke="{GRID if grid else FAINT}"/>')
        parts.append(_text(x, bottom + 17, scale.name(tick), "middle", FAINT))
    parts.append(_text(scale.stop, bottom + 31, name, "end", FAINT))
    return "".join(parts)


def _y_axis(scale: _Scale, left: float, right: float, name: str) -> str:
    parts = [_text(left - 40, 30, name, "start", FAINT)]
    for tick in scale.ticks():
        y = scale(tick)
        parts.append(f'<path d="M{left} {y:.1f}H{right}" stroke="{GRID}"/>')
        parts.append(_text(left - 6, y + 4, scale.name(tick), "end", FAINT))
    return "".join(parts)


def _label_width(labels: list[str], limit: int = SHORT) -> float:
    return 20 + CHARACTER * min(limit, max((_columns(label) for label in labels), default=0))


def _columns(text: str) -> int:
    return sum(2 if ord(character) > 0x2E80 else 1 for character in text)


def _text(x: float, y: float, text: str, anchor: str = "start", fill: str = INK, limit: int = SHORT) -> str:
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    whole = "" if shown == text else f"<title>{escape(text)}</title>"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{escape(shown)}{whole}</text>'


def _svg(height: float, title: str, description: str, body: list[str], width: int = WIDTH) -> str:
    name = zlib.crc32(f"{title} {description}".encode())  # one page holds many figures: ids must differ
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" '
        f'height="{height:.0f}" role="img" aria-labelledby="t{name} d{name}" '
        'font-family="system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, Noto Sans CJK SC, sans-serif" '
        f'font-size="12"><title id="t{name}">{escape(title)}</title><desc id="d{name}">{escape(description)}</desc>'
        f'<text x="0" y="14" font-size="13.5" font-weight="600" fill="{INK}">{escape(title)}</text>'
        f"{''.join(body)}</svg>"
    )
