"""The tables of README and docs are those of the committed results."""

import json
import re

import pytest

import cosent
from cosent.errors import InputError
from cosent.evaluation import significance
from cosent.losses import LOSSES
from lab.benchmarks.quickstart import quickstart_table
from lab.claims import measures
from lab.tables import __main__ as tables
from lab.tables import figures

RUNS = [{"seed": 1, "scores": [0.9, 0.4], "test_spearman": 0.75, "device": "CPU", "commit": "abc"}]
SHOWN = {"pairs": [["甲", "乙"], ["丙", "丁"]], "published": [0.977, 0.624], "runs": RUNS}


@pytest.fixture
def repository(tmp_path):
    """A repository with one result and two pages that show it, one of them stale and neither of them Chinese."""
    (tmp_path / "lab/results").mkdir(parents=True)
    (tmp_path / "lab/results/quickstart.json").write_text(json.dumps(SHOWN))
    (tmp_path / "docs").mkdir()
    block = "# Title\n<!-- results:quickstart -->\n{}\n<!-- end -->\nText\n"
    (tmp_path / "README.md").write_text(block.format(quickstart_table(SHOWN)))
    (tmp_path / "docs/any.md").write_text(block.format("0.333"))
    return tmp_path


def run(root, *argv) -> None:
    tables.main(tables.parser().parse_args([str(argument) for argument in argv]), root)


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


def test_stale_pages_are_named_and_filled(repository, capsys):
    """Fails if `--check` passes a stale page or changes it, text around a block is lost, or a current page is written
    anew."""
    current, stale = repository / "README.md", repository / "docs/any.md"
    before = current.stat().st_mtime_ns
    with pytest.raises(SystemExit, match="1"):
        run(repository, "--check")
    out = capsys.readouterr().out
    assert "any.md: not current" in out and "README.md" not in out and "0.333" in stale.read_text()
    run(repository)
    text = stale.read_text()
    assert text == current.read_text() and text.startswith("# Title\n") and text.endswith("<!-- end -->\nText\n")
    assert "| 甲 / 乙 | 0.977 | 0.900 |" in text
    assert current.stat().st_mtime_ns == before
    assert capsys.readouterr().out == f"{stale}: filled\n"
    run(repository, "--check")


def test_a_block_without_a_result_is_an_error(repository):
    """Fails if a misspelt block keeps what somebody typed, or a new kind of result is shown as if it were speed."""
    (repository / "lab/results/towers").mkdir()
    for block in ("nothing", "towers nothing"):
        with pytest.raises(InputError, match=f"results:{block}"):
            tables.fill(f"<!-- results:{block} -->\n<!-- end -->", repository / "lab/results")


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
