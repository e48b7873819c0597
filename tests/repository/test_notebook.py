"""docs/quickstart.ipynb: stored without outputs, in two languages, and executed."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs/quickstart.ipynb"


@pytest.fixture
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def printed(cell) -> str:
    """All text that a cell shows."""
    shown = [output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "".join(shown)


def test_what_is_stored(notebook):
    """Fails if outputs of some machine are committed, a cell speaks one language only, or a link leads nowhere."""
    nbformat.validate(notebook)
    assert set(notebook.metadata) == {"kernelspec", "language_info"} and len(notebook.cells) > 10
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
        text = re.sub(r"\[[^]]*\]\([^)]*\)", "", cell.source)  # the text of links aside
        comments = re.findall(r"# .*", text) if cell.cell_type == "code" else [text]
        assert any(re.search(r"[一-鿿]", comment) for comment in comments), cell.source
        assert any(re.search(r"[A-Za-z]{3,}", comment) for comment in comments), cell.source
    links = re.findall(r"\]\((?!http)([^)#]+)", json.dumps([cell.source for cell in notebook.cells]))
    assert len(links) > 4 and not [link for link in links if not (NOTEBOOK.parent / link).is_file()]


@pytest.mark.matrix
def test_it_runs(notebook, tmp_path, monkeypatch):
    """Fails if the first thing that somebody in Colab runs ends in an error: all cells, on fewer pairs."""
    monkeypatch.setenv("COSENT_QUICKSTART_FOLDER", str(tmp_path))
    monkeypatch.setenv("COSENT_QUICKSTART_PAIRS", "128")
    NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    uses = ("cosent.train", "dots(", "index.search", "cosent.evaluate", "pairs_8541")
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    by_use = {name: cell for cell in cells for name in uses if name in cell.source}
    assert re.search(r"^demo test +0\.\d{4} +0\.\d{4} +0\.1972", printed(by_use["cosent.train"]), re.MULTILINE)
    assert (tmp_path / "model/run.json").is_file()
    assert re.search(r"^Spearman: -?0\.\d{4}$", printed(by_use["pairs_8541"]), re.MULTILINE)
    assert "今天天气不错" in printed(by_use["pairs_8541"])
    assert "<svg" in by_use["dots("].outputs[0]["data"]["text/html"]
    assert "(7, 256)" in printed(by_use["index.search"])
    assert '"spearman"' in printed(by_use["cosent.evaluate"])
