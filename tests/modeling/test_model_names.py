"""A name of a model that leads nowhere: one request to the Hub at most, and the name that was meant."""

import os
import subprocess
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.student import Student

RESOLVE = """
import sys
from cosent.encoders import resolve
for name in sys.argv[1:]:
    try:
        print(resolve(name))
    except ValueError as error:
        print(error)
"""
ANSWERS = {
    "bert-base-chinese": (200, {"X-Repo-Commit": "c" * 40, "ETag": "e"}),
    "org/gated": (403, {"X-Error-Code": "GatedRepo"}),
    "org/ensemble": (404, {"X-Error-Code": "EntryNotFound"}),
    "org/none": (404, {"X-Error-Code": "RepoNotFound"}),
}


@pytest.fixture
def hub():
    """Yields the address of a Hub that drops the connection for names without an answer, and its requests by name."""
    requests: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_HEAD(self):
            name = self.path.removeprefix("/").split("/resolve/")[0]
            requests[name] += 1
            if name in ANSWERS:
                status, headers = ANSWERS[name]
                self.send_response(status)
                for header in headers.items():
                    self.send_header(*header)
                self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_hub_is_asked_once_and_near_names_are_told(hub, tmp_path):
    """Fails if a misspelt name waits minutes for retries, or an id without owner, or a downloaded model, is refused."""
    address, requests = hub
    kept = tmp_path / "home/hub/models--org--kept"
    for file, text in {"refs/main": "c" * 40, f"snapshots/{'c' * 40}/config.json": "{}"}.items():
        (kept / file).parent.mkdir(parents=True)
        (kept / file).write_text(text)
    (tmp_path / "runs/faq").mkdir(parents=True)
    (tmp_path / "runs/faq/config.json").touch()
    names = ["bert-base-chinese", "org/gated", "org/ensemble", "org/kept", "org/none"]
    names += ["mini-roforner", "runs/fqa", "模型"]
    settings = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run([sys.executable, "-c", RESOLVE, *names, "mini-roforner"], env=os.environ | settings,
                          cwd=tmp_path, capture_output=True, text=True, check=True)  # fmt: skip
    *found, none, misspelt, folder, no_id, again = done.stdout.splitlines()
    assert found == names[:4]
    assert "org/none" in none and "HF_ENDPOINT" not in none
    assert "'mini-roformer'" in misspelt and "HF_ENDPOINT" in misspelt and "HF_HUB_OFFLINE" in misspelt
    assert again == misspelt and "'runs/faq'" in folder and "模型" in no_id
    assert requests == {**dict.fromkeys(ANSWERS, 1), "mini-roforner": 2}, "one for each time that it is named"


@pytest.mark.parametrize(
    "load", [SentenceEncoder.from_pretrained, CrossEncoder.from_pretrained, Student.from_pretrained]
)
def test_the_folder_of_a_run_that_was_stopped(tmp_path, load):
    """Fails if a user reads that runs/faq is no model, and not how to go on."""
    (tmp_path / "UNFINISHED").touch()
    with pytest.raises(InputError, match=r"--resume_from_checkpoint auto\.$"):
        load(str(tmp_path))
    for step in (5, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
    with pytest.raises(InputError, match="--resume_from_checkpoint auto.*checkpoint-10"):
        load(str(tmp_path))
