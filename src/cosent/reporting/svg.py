"""Convert matplotlib figures to SVG for embedding: text stays text, ids are unique, nothing is loaded.

matplotlib is imported on first use, so that `import cosent.report` stays fast and `report --ensemble` never loads it.
"""

import io
import re
import unicodedata
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from xml.etree import ElementTree

COLUMNS = 54  # longest label or title; the description holds the full text
INK, FAINT, GRID = "#1c1f23", "#5b636c", "#e3e6ea"
# The reader's machine renders the text, so these are the fonts of common systems, Chinese ones included.
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Noto Sans CJK SC', 'PingFang SC', "
FONTS += "'Microsoft YaHei', sans-serif"
STYLE = {
    "axes.autolimit_mode": "round_numbers",
    "axes.axisbelow": True,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": FAINT,
    "axes.labelpad": 2.0,
    "axes.linewidth": 1.0,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.unicode_minus": False,
    "font.family": "DejaVu Sans",  # ships with matplotlib, so the layout is the same on every machine
    "font.size": 12,
    "grid.color": GRID,
    "grid.linewidth": 1.0,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "xtick.bottom": False,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "ytick.left": False,
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in the style of the reports, regardless of the user's matplotlibrc."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # DejaVu has no Chinese glyphs; the reader's font, not matplotlib, draws them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def new_figure(title: str, width: int, height: int, left: int, right: int, top: int, bottom: int):
    """A figure of `width` x `height` pixels with its title, and axes with the given margins in pixels."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(width / 72, height / 72), dpi=72)  # at 72 dpi, a point is a pixel
    figure.patch.set_visible(False)
    size = (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
    axes = figure.add_axes(size)
    axes.patch.set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    figure.text(0, 1 - 13 / height, shorten(title), fontsize=13.5, fontweight="bold")
    return figure, axes


def shorten(label: str, limit: int = COLUMNS) -> str:
    """Shortens a label to `limit` columns by cutting its middle, since names of variants differ at their ends."""
    text = "".join(character for character in label if character.isprintable())
    if columns(text) <= limit:
        return text
    start = end = len(text) // 2
    while columns(text[:start] + text[end:]) >= limit:
        start, end = (start - 1, end) if start + end >= len(text) else (start, end + 1)
    return f"{text[:start]}…{text[end:]}"


def columns(text: str) -> int:
    """Width of a text in columns: a Chinese character takes two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def to_svg(figure, title: str, description: str) -> str:
    """SVG text of a figure, with a text alternative; the same figure always yields the same bytes.

    matplotlib numbers its ids anew in every figure and writes a global style sheet; both would clash within a page.
    """
    import matplotlib

    name = f"{zlib.crc32(f'{title} {description}'.encode()):08x}"
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    referenced = set(re.findall(r"#(\w+)", buffer.getvalue().decode()))
    for element in list(root.iter()):
        for child in list(element):
            if child.tag.endswith(("}metadata", "}style")):
                element.remove(child)
        _clean(element, referenced)
    width, height = root.attrib["viewBox"].split()[2:]
    root.attrib = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {height}", "width": width}
    root.attrib |= {"height": height, "role": "img", "aria-labelledby": f"t{name} d{name}"}
    root.attrib |= {"font-family": FONTS, "stroke-linejoin": "round"}
    for tag, text in (("desc", description), ("title", title)):
        alternative = ElementTree.Element(tag, {"id": f"{tag[0]}{name}"})
        alternative.text = text
        root.insert(0, alternative)
    return ElementTree.tostring(root, encoding="unicode")


def _clean(element: ElementTree.Element, referenced: set[str]) -> None:
    """Remove what an element does not need: namespaces, line breaks, unused ids, fonts, digits after 1/100 pixel."""
    element.tag = element.tag.rpartition("}")[2]
    attributes = {name.rpartition("}")[2]: _short(value) for name, value in element.attrib.items()}
    if attributes.get("id") not in referenced:
        attributes.pop("id", None)
    if element.tag == "text":
        attributes["style"] = re.sub(r"font-family: [^;]*;? ?", "", attributes["style"])
        attributes.pop("transform", None)  # a rotation by 0
    else:
        element.text = None
    element.tail = None
    element.attrib = attributes


def _short(value: str) -> str:
    return re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", " ".join(value.split()))
