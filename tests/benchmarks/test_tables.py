"""The tables of README and docs are those of the committed results."""

import json

import pytest

from benchmarks import tables
from cosent.errors import InputError

KILLS = {"kind": "kills", "kills": 10, "kills_while_saving": 5, "torn_checkpoints": 4, "runs": 3, "bit_equal": 2}
KILLS |= {"device": "CPU", "commit": "abc"}


@pytest.fixture
def repository(tmp_path):
    """A repository with one result and two pages that show it, one of them stale and neither of them Chinese."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results/kills.json").write_text(json.dumps(KILLS))
    (tmp_path / "docs").mkdir()
    block = "# Title\n<!-- results:kills -->\n{}\n<!-- end -->\nText\n"
    (tmp_path / "README.md").write_text(block.format(tables.kills_table(KILLS)))
    (tmp_path / "docs/any.md").write_text(block.format("3 times SIGKILL"))
    return tmp_path


def run(root, *argv) -> None:
    tables.main(tables.parser().parse_args([str(argument) for argument in argv]), root)


def test_every_page_is_current():
    """Fails if a result changed and a page still shows the old figure: run `make tables`."""
    texts = {page: page.read_text(encoding="utf-8") for page in tables.pages()}
    assert {"README.md", "README.zh-CN.md"} < {page.name for page in texts} and len(texts) > 5
    assert sum(len(tables.BLOCK.findall(text)) for text in texts.values()) >= 16
    assert [page.name for page, text in texts.items() if tables.fill(text, tables.ROOT / "results") != text] == []


def test_stale_pages_are_filled(repository, capsys):
    """Fails if a page of docs keeps its old figure, text around a block is lost, or a current page is written anew."""
    current = repository / "README.md"
    before = current.stat().st_mtime_ns
    run(repository)
    text = (repository / "docs/any.md").read_text()
    assert text == current.read_text() and text.startswith("# Title\n") and text.endswith("<!-- end -->\nText\n")
    assert "10 times SIGKILL, 5 of them" in text and "2 of 3 runs" in text
    assert current.stat().st_mtime_ns == before
    assert capsys.readouterr().out == f"{repository / 'docs/any.md'}: filled\n"


def test_check_changes_nothing_and_names_what_is_stale(repository, capsys):
    """Fails if continuous integration passes a stale table, or fails a current one."""
    stale = repository / "docs/any.md"
    with pytest.raises(SystemExit) as stopped:
        run(repository, "--check")
    assert stopped.value.code == 1 and "3 times" in stale.read_text()
    out = capsys.readouterr().out
    assert "any.md: not current" in out and "README.md" not in out
    run(repository, "--check", repository / "README.md")
    run(repository, stale)
    run(repository, "--check")
    assert "not current" not in capsys.readouterr().out


def test_a_block_without_a_result_is_an_error(repository):
    """Fails if a misspelt block keeps what somebody typed, or a new kind of result is shown as if it were speed."""
    with pytest.raises(InputError, match="asks for results:nothing.*neither nothing.json nor nothing/"):
        tables.fill("<!-- results:nothing -->\n<!-- end -->", repository / "results")
    (repository / "results/new.json").write_text(json.dumps({"kind": "energy"}))
    with pytest.raises(InputError, match="of kind 'energy', and only exactness, .* speed, student have a table"):
        tables.fill("<!-- results:new -->\n<!-- end -->", repository / "results")
