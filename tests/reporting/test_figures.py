"""Figures show the values they are given, to eyes and to screen readers, and text stays text."""

import re
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from cosent.reporting import figures
from cosent.reporting.svg import COLUMNS, columns, shorten

SVG = "{http://www.w3.org/2000/svg}"
NAMES = ["余弦排序", "<script>a & b</script>", "_private $x$"]
FIGURES = {
    "dots": lambda: figures.dots("数据: t", [(name, [50.0, 60.0, 70.0], 65.0) for name in NAMES], "Spearman"),
    "intervals": lambda: figures.intervals("数据: t", [(name, 1.0, 0.5, 1.5) for name in NAMES], "Spearman"),
    "curves": lambda: figures.curves(
        "数据: t", [(name, [1.0, 2.0], [[3.0, 5.0], [6.0, 8.0]]) for name in NAMES], "epoch", "Spearman"
    ),
    "histograms": lambda: figures.histograms("数据: t", [(name, np.arange(9.0)) for name in NAMES], "score"),
}


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def texts(svg: str) -> list[str]:
    return [element.text for element in parsed(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", FIGURES)
def test_names_are_text_that_nothing_interprets(name):
    """Fails if Chinese becomes boxes or paths, a name runs code, turns into mathematics, or is left out."""
    svg = FIGURES[name]()
    assert {"数据: t", *NAMES} <= set(texts(svg))
    assert "<script>" not in svg and "<style" not in svg and "DejaVu" not in svg
    assert "Noto Sans CJK SC" in parsed(svg).get("font-family")


@pytest.mark.parametrize("name", FIGURES)
def test_screen_readers_get_title_and_values(name):
    """Fails if a blind reader of a figure is told less than its title, its series and their means."""
    root = parsed(FIGURES[name]())
    title, description = (root.find(f"{SVG}{tag}") for tag in ("title", "desc"))
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert title.text == "数据: t" and all(label in description.text for label in NAMES)
    means = {"dots": "60.00", "intervals": "+1.00, from +0.50 to +1.50", "curves": "from 4.00 to 7.00"}
    assert means.get(name, "4.000") in description.text


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_figure_gives_the_same_bytes(name, monkeypatch):
    """Fails if reports differ from run to run, by a user's matplotlibrc, or change the style of a user's own plots."""
    first = FIGURES[name]()
    monkeypatch.setitem(matplotlib.rcParams, "axes.edgecolor", "red")
    monkeypatch.setitem(matplotlib.rcParams, "font.size", 40.0)
    assert FIGURES[name]() == first
    assert matplotlib.rcParams["font.size"] == 40.0


def test_ids_of_a_page_are_unique():
    """Fails if a figure borrows the clip path or the title of another one on the same page."""
    ids = [re.findall(r'\bid="(.*?)"', make()) for make in FIGURES.values()]
    together = sum(ids, [])
    assert all(len(each) > 2 for each in ids[:3]) and len(together) == len(set(together))
    for make, own in zip(FIGURES.values(), ids, strict=True):
        assert set(re.findall(r'(?:url\(|href=")#(\w+)', make())) <= set(own), "a reference leads nowhere"


def test_dots_lie_where_their_values_are():
    """Fails if the axis is not linear, a dot is missing, or lies outside the figure."""
    root = parsed(figures.dots("t", [("a", [50.0, 60.0, 75.0], None)], "Spearman"))
    dots = [float(use.get("x")) for use in root.iter(f"{SVG}use") if figures.COLORS[0] in use.get("style")]
    runs, mean = dots[:3], dots[3]
    assert (runs[1] - runs[0]) / (runs[2] - runs[0]) == pytest.approx(10 / 25, abs=1e-3)
    assert mean == pytest.approx(np.mean(runs), abs=0.01) and 0 < runs[0] < runs[2] < figures.WIDTH
    ticks = {element.text: float(element.get("x")) for element in root.iter(f"{SVG}text") if element.text.isdigit()}
    assert ticks["50"] == pytest.approx(runs[0], abs=0.01)


def test_an_interval_that_includes_0_is_hollow():
    """Fails if a difference that is not significant looks like one that is."""
    hollow = figures.intervals("t", [("a - b", 0.1, -0.5, 0.7)], "Spearman")
    filled = figures.intervals("t", [("a - b", 0.1, 0.05, 0.7)], "Spearman")
    assert figures.COLORS[0] in filled and figures.COLORS[0] not in hollow
    dots = [re.findall(r'<use [^>]*style="fill: (#\w+)', svg)[-1] for svg in (hollow, filled)]
    assert dots == ["#ffffff", figures.COLORS[0]]


def test_a_single_epoch_is_a_point():
    """Fails if a study of one epoch has an axis of epochs that do not exist, or no curve at all."""
    svg = figures.curves("t", [("a", [1.0], [[30.0, 50.0]])], "epoch", "Spearman")
    ticks = [text for text in texts(svg) if re.fullmatch(r"[\d.]+", text)]
    assert [tick for tick in ticks if float(tick) < 10] == ["1"] and {"30", "50"} <= set(ticks)
    assert figures.COLORS[0] in svg and "nan" not in svg


def test_equal_scores_are_drawn():
    """Fails if a collapsed encoder, whose scores are all one value, stops the report."""
    svg = figures.histograms("t", [("dissimilar", np.full(5, 0.99)), ("similar", np.array([]))], "score")
    assert "5 dissimilar, 0 similar" in svg and "nan" not in svg and "inf" not in svg


def test_a_long_label_keeps_both_ends():
    """Fails if a label runs out of the figure, or variants that differ at their ends look alike."""
    label = "cosent_mini learning_rate=2e-05 - cosent_mini learning_rate=5e-05, trained on atec"
    short = shorten(label)
    assert columns(short) <= COLUMNS and short.startswith("cosent_mini") and short.endswith("atec")
    assert shorten("余弦排序", 8) == "余弦排序" and columns("余弦ab") == 6
    assert shorten("余弦排序损失", 8) == "余…损失"
    assert shorten("a\x00b\nc") == "abc", "what XML forbids would end the report"
