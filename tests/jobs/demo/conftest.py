"""The page of tiny models, served by a process of its own, and a browser that looks at it."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import pytest
import torch

from cosent.compute.processes import PARENT_VARIABLE, end_tree
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.student import Student
from tests.conftest import SENTENCES, save_record
from tests.support.launching import ROOT, free_port

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")
HOSTILE_ROW = '<img src=x onerror="window.ran=1">怎么还款'


@pytest.fixture(scope="session")
def shown(tiny_model, tiny_student, tmp_path_factory) -> Path:
    """A folder with `bi`, `cross` and `student`, and the sentences `faq.txt`."""
    folder = tmp_path_factory.mktemp("demo")
    SentenceEncoder.from_pretrained(str(tiny_model), pooling="mean").save_pretrained(folder / "bi")
    save_record(folder / "bi", {"made_up": 0.9})
    CrossEncoder.from_pretrained(str(tiny_model), num_labels=1).save_pretrained(folder / "cross")
    student = Student.from_pretrained(str(tiny_student))
    with torch.no_grad():  # which ends its sentences, unlike a random one
        student.head.predictions.decoder.bias[student.tokenizer.sep_token_id] += 4
    student.save_pretrained(folder / "student")
    (folder / "faq.txt").write_text("\n".join([*SENTENCES, HOSTILE_ROW]) + "\n", encoding="utf-8")
    return folder


@contextmanager
def served(*flags: str):
    """The address of the page while it is served; the process is stopped as by Ctrl-C, and must end."""
    settings = {PARENT_VARIABLE: str(os.getpid()), "PYTHONPATH": os.pathsep.join([f"{ROOT}/src", *sys.path[1:]])}
    settings |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "http_proxy": "http://127.0.0.1:9"}
    port = free_port()
    command = [sys.executable, "-m", "cosent", "demo", *flags, "--device", "cpu", "--port", str(port)]
    process = subprocess.Popen(command, env=os.environ | settings, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    lines: list[str] = []
    ready: Queue[bool] = Queue()

    def listen():
        for line in process.stderr:
            lines.append(line)
            if "Ctrl-C" in line:
                ready.put(True)
        ready.put(False)

    Thread(target=listen, daemon=True).start()
    try:
        try:
            assert ready.get(timeout=600), "".join(lines)
        except Empty:
            pytest.fail(f"no page after 600 s: {''.join(lines)}")
        yield f"http://127.0.0.1:{port}/"
        if os.name != "nt":
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        assert "Traceback" not in "".join(lines), "".join(lines)
    finally:
        end_tree(process)


@pytest.fixture(scope="module")
def page_address(shown):
    pytest.importorskip("gradio", reason="the page needs gradio: pip install -r requirements-dev.txt")
    flags = ["--model", str(shown / "bi"), "--cross", str(shown / "cross"), "--student", str(shown / "student")]
    with served(*flags, "--text", str(shown / "faq.txt")) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium of this machine."""
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -r requirements-dev.txt")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser here: none of {', '.join(BROWSERS)} is installed")
    with driver.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=found, args=["--no-sandbox"])  # a container has no sandbox
        yield opened
        opened.close()
