"""Every program of `examples/` does what it says."""

import csv
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from openpyxl import load_workbook

from cosent.models.bi_encoder import SentenceEncoder

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.matrix
def test_encode_with_ray(tiny_model, tmp_path, monkeypatch):
    """Fails if two workers lose a row, or a row gets the vector of another one."""
    ray = pytest.importorskip("ray", reason="pip install 'ray[data]'")
    texts = [f"第{number}个问题怎么还款" for number in range(10)]
    (tmp_path / "questions").mkdir()
    for part in (0, 1):
        rows = pa.table({"question": texts[part::2], "id": list(range(10))[part::2]})
        pq.write_table(rows, tmp_path / f"questions/part-{part}.parquet")
    words = [str(tmp_path / "questions"), "question", str(tmp_path / "vectors"), "--model", str(tiny_model)]
    monkeypatch.setattr(sys, "argv", ["encode_with_ray.py", *words, "--workers", "2", "--rows", "2"])
    ray.init(num_cpus=4)  # two for the workers, and some to read and write
    try:
        runpy.run_path(str(EXAMPLES / "encode_with_ray.py"), run_name="__main__")
    finally:
        ray.shutdown()
    made = pq.read_table(tmp_path / "vectors").sort_by("id")
    assert made["question"].to_pylist() == texts
    vectors = np.array([np.ravel(vector) for vector in made["vector"].to_pylist()])
    expected = SentenceEncoder.from_pretrained(str(tiny_model)).encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


def test_make_faq(tmp_path, monkeypatch):
    """Fails if the files of the tutorial have other pairs than its numbers, or a question without answer."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "make_faq.py"), run_name="__main__")
    with open("shop.csv", encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["sentence1", "sentence2", "label"] and len(rows) == 1200
    assert rows[0] == ["手表怎么安装", "手表有人上门装吗", "1"]
    assert sum(label == "1" for *_, label in rows) == 24 * 24 - 14 + 10  # of two products 4 questions, 6 pairs; flipped
    questions = list(load_workbook("shop.xlsx").active.iter_rows(values_only=True))
    assert len(set(questions)) == 1 + 480 and ("耳机怎么退货", "耳机：签收七天内可以退，运费由我们承担。") in questions


@pytest.mark.slow
@pytest.mark.matrix
def test_the_tutorial(tmp_path):
    """Fails if a command of the tutorial ends in an error, or prints other lines than the page shows, numbers aside."""
    page = (EXAMPLES.parent / "docs/tutorial.md").read_text(encoding="utf-8")
    blocks = {name: re.findall(rf"^```{name}\n(.*?)^```", page, re.DOTALL | re.MULTILINE) for name in ("bash", "text")}
    lines = [line for line in "".join(blocks["bash"]).splitlines() if not line.startswith(("curl", "cosent serve"))]
    printed = ""
    for line in lines:
        tool, *words = shlex.split(line)
        start = [EXAMPLES.parent / words.pop(0)] if tool == "python" else ["-m", tool]
        done = subprocess.run([sys.executable, *start, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        printed += done.stdout + done.stderr

    def shape(line: str) -> str:
        """A line with its numbers and blanks made equal."""
        return " ".join(re.sub(r"[+-]?\d+(\.\d+)?", "0", line).split())

    shown = [shape(line) for line in "".join(blocks["text"]).splitlines() if line]
    assert len(lines) >= 10 and len(shown) >= 12
    assert not [line for line in shown if line not in shape(printed)]
