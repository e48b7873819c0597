"""The tables of README and docs are those of the committed results."""

import re

import pytest

import cosent
from cosent.errors import InputError
from cosent.evaluation import significance
from cosent.losses import LOSSES
from lab import RESULTS
from lab.claims import measures
from lab.tables import __main__ as tables
from lab.tables import figures

# `+1.2 [0.3, 2.1]`, with its brackets escaped or not, `(+0.1 to +0.5)`, bold type of what is significant, verdicts.
INTERVAL = re.compile(
    r"\\?\[[-+]?[\d.]+,\s[-+]?[\d.]+\\?\]|\([-+][\d.]+ to [-+][\d.]+\)|\*\*"
    r"|(, )?(better|worse)( in (Spearman|Recall@10))?|not significant"
)


def test_the_reference_is_of_the_code():
    """Fails if a public name has no line, or its signature has changed since: run `make tables`."""
    page = tables.ROOT / "docs/reference.md"
    text = page.read_text(encoding="utf-8")
    assert tables.filled(page, text) == text
    functions = {loss.function.__name__ for loss in LOSSES.values()}
    assert {name for name in [*cosent.__all__, *functions] if f"* **`{name}(" not in text} == set()


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_every_page_is_current(monkeypatch, whole):
    """Fails if a result changed and a page still shows the old figure: run `make tables`. Ends of intervals take a
    minute of resampling: they are compared at night."""
    if not whole:
        monkeypatch.setattr(measures, "CLAIM_RESAMPLES", 100)
        for resampled in (significance.resampled_spearman, significance.resampled_means):
            monkeypatch.setattr(resampled, "__defaults__", (100, *resampled.__defaults__[1:]))
    figures.figure.cache_clear()
    texts = {page: page.read_text(encoding="utf-8") for page in tables.pages()}
    assert {"README.md", "README.zh-CN.md"} < {page.name for page in texts} and len(texts) > 5
    assert sum(len(tables.BLOCK.findall(text)) for text in texts.values()) >= 12
    both = {str(page): (tables.filled(page, text), text) for page, text in texts.items()}
    figures.figure.cache_clear()
    assert [name for name, (now, kept) in both.items() if whole and now != kept] == []
    assert [name for name, texts in both.items() if len({INTERVAL.sub("", text) for text in texts}) > 1] == []


def test_a_block_without_a_result_is_an_error():
    """Fails if a misspelt block keeps what somebody typed, or a new kind of result is shown as if it were speed."""
    for block in ("nothing", "towers nothing"):
        with pytest.raises(InputError, match=f"results:{block}"):
            tables.fill(f"<!-- results:{block} -->\n<!-- end -->", RESULTS)
    filled = tables.fill("# A\n<!-- results:front -->\n0.333\n<!-- end -->\nText\n", RESULTS)
    assert filled.startswith("# A\n<!-- results:front -->\n|") and filled.endswith("\n<!-- end -->\nText\n")


def test_figures_of_a_page_on_paper():
    """Fails if a figure in a sentence keeps its old value, a line break is lost, or a full stop is a decimal point."""
    values = {"a": "9.6", "b": "3.0 ± 0.1", "c": "13.97"}
    text = "By 9.1 on\nATEC, 3.0 ±\n0.1 on BQ and 24.75. 12 seeds | 9.1 on BQ"
    filled = figures.fill_figures(text, ["By {a} on ATEC, {b} on BQ", "and {c}."], values.__getitem__)
    assert filled == "By 9.6 on\nATEC, 3.0 ±\n0.1 on BQ and 13.97. 12 seeds | 9.1 on BQ"
    for passage in ("By {a} in", "a {a} on"):  # nowhere, and twice
        with pytest.raises(InputError, match=r"times"):
            figures.fill_figures("By 1.0 on a 2 on, a 3 on", [passage], values.__getitem__)


def test_no_result_is_typed_by_hand():
    """Fails if lab/results.md says what a run measured and lab/tables/figures.yaml does not know where it is found."""
    page = tables.ROOT / "lab/results.md"
    text = tables.BLOCK.sub("", page.read_text(encoding="utf-8"))
    text = figures.fill_figures(text, figures.passages(page), lambda query: "N").split("\n## Published figures")[0]
    assert text.count(" N ") > 20 and re.findall(r".*\d\.\d.*", text.replace("A cosine of 0.8 means", "")) == []
