"""Every program of `examples/` does what it says."""

import csv
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from openpyxl import load_workbook

from cosent.compute.processes import end_tree
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.prompts import Prompts
from tests.support.launching import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXTS = ["怎么还款", "如何还款", "今天天气很好", "我喜欢北京" * 9]


@pytest.fixture
def example(monkeypatch, capsys):
    """A function that runs an example in this process, and returns its exit status or message, and what it prints."""

    def run(name: str, *words) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        try:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        except SystemExit as end:
            return end.code, capsys.readouterr().out
        return 0, capsys.readouterr().out

    return run


def test_soup(tiny_model, tmp_path, example):
    """Fails if a weight of the soup is not the mean, w + (0 + 1 + 2) / 3 = w + 1, or unlike models are averaged."""
    model = CrossEncoder.from_pretrained(str(tiny_model), num_labels=1)
    start = {name: weight.clone() for name, weight in model.state_dict().items()}
    for number in range(3):
        moved = {name: weight + number * weight.is_floating_point() for name, weight in start.items()}
        model.load_state_dict(moved)
        model.save_pretrained(tmp_path / f"{number}")
    assert example("soup.py", *(tmp_path / f"{number}" for number in range(3)), tmp_path / "soup")[0] == 0
    soup = CrossEncoder.from_pretrained(str(tmp_path / "soup")).state_dict()
    for name, weight in start.items():
        torch.testing.assert_close(soup[name], weight + weight.is_floating_point())
    refusal, _ = example("soup.py", tmp_path / "0", tiny_model, tmp_path / "other")
    assert str(tiny_model) in refusal and not (tmp_path / "other").exists()
    assert "exists" in example("soup.py", tmp_path / "0", tmp_path / "1", tmp_path / "soup")[0]


def test_compare_server(tiny_model, tmp_path, example):
    """Fails if right vectors are called different, wrong ones equal, or a usual mistake of a server is not named."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), pooling="mean", max_length=64)
    encoder.prompts = Prompts({"query": "问题："}, "query")
    encoder.save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    right = encoder.encode(TEXTS)
    with_nan, strange = right.copy(), np.random.default_rng(1).normal(size=right.shape)
    with_nan[1, 3] = np.nan
    other = SentenceEncoder.from_pretrained(str(tmp_path / "model"), pooling="cls")
    short = SentenceEncoder.from_pretrained(str(tmp_path / "model"), pooling="cls", max_length=32)
    cases = {
        "equal: largest difference": right * (1 + 1e-6),
        "equal but for length": right * 3,
        "nan or inf in row 2: '如何还款'": with_nan,
        "other shape: (4, 9)": right[:, :9],
        "pooling='cls', prompt=None, length=None": other.encode(TEXTS),
        "pooling='cls', prompt='', length=32": short.encode(TEXTS, prompt=""),
        "pooling=None, prompt='', length=None": encoder.encode(TEXTS, prompt=""),
        "other weights": strange,
    }
    for words, vectors in cases.items():
        np.save(tmp_path / "theirs.npy", vectors)
        status, line = example("compare_server.py", tmp_path / "model", tmp_path / "texts.txt", tmp_path / "theirs.npy")
        assert words in line and status == (not words.startswith("equal")), line


@pytest.mark.slow
@pytest.mark.matrix
def test_demo_in_a_browser(tiny_bi, tmp_path):
    """Fails if a tab of the page gives no answer in a browser, ends in an error there, or asks another host."""
    pytest.importorskip("gradio")
    driver = pytest.importorskip("playwright.sync_api")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium here")
    (tmp_path / "faq.csv").write_text("question,answer\n怎么还款,点还款\n今天天气,很好\n", encoding="utf-8")
    flags = ["--model", str(tiny_bi), "--text", str(tmp_path / "faq.csv"), "--text_column", "question"]
    address = f"http://127.0.0.1:{(port := free_port())}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "no_proxy": "127.0.0.1"}
    command = [sys.executable, EXAMPLES / "demo.py", *flags, "--student", "similar-writer", "--port", str(port)]
    wrong = []
    process = subprocess.Popen(command, env=environment)
    try:
        with driver.sync_playwright() as started:
            browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(locale="zh-CN")
            page.set_default_timeout(60_000)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on(
                "request", lambda request: request.url.startswith((address, "data:", "blob:")) or wrong.append(request)
            )
            for _ in range(300):
                try:
                    page.goto(address)
                    break
                except driver.Error:  # not up yet
                    assert process.poll() is None
                    time.sleep(1)

            def ask(tab: str, fields: dict[str, str]) -> None:
                page.get_by_role("tab", name=tab).click()
                for label, text in fields.items():
                    page.get_by_label(label).fill(text)
                page.get_by_role("button", name="Submit").locator("visible=true").click()

            score = SentenceEncoder.from_pretrained(str(tiny_bi)).similarity("怎么还款", "如何还款")
            ask("比较", {"句子一": "怎么还款", "句子二": "如何还款"})
            driver.expect(page.get_by_label("分数")).to_have_value(f"{score:.4f}", timeout=60_000)
            ask("搜索", {"要找什么": "怎么还款"})
            page.get_by_text("点还款").locator("visible=true").first.wait_for()
            ask("改写", {"句子 Sentence": "怎么还款"})
            page.get_by_text("还款").locator("visible=true").first.wait_for()
            browser.close()
    finally:
        end_tree(process)
    assert not wrong


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
    assert len(lines) >= 9 and len(shown) >= 12
    assert not [line for line in shown if line not in shape(printed)]
