"""Names, folders and Hub ids: the right model, or an error that says what to pass; foreign code is never run."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from cosent.errors import InputError
from cosent.models.auto import load_bi_encoder, load_model
from cosent.models.bi_encoder import BiEncoder, SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.modules import note_of_pooling
from cosent.models.student import Student
from lab.pretraining.model import initial_model
from tests.support.families import save_family

TOWERS = {"bi_encoder": SentenceEncoder, "cross_encoder": CrossEncoder, "student": Student}
LOADERS = {name: tower.from_pretrained for name, tower in TOWERS.items()}
each_loader = pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)


@pytest.fixture
def encoder(tiny_model):
    return CrossEncoder.from_pretrained(str(tiny_model), num_labels=1)


def test_the_towers_know_their_folders(encoder, tiny_model, tmp_path):
    """Fails if evaluate takes a cross-encoder for a bi-encoder, or a folder keeps pieces of both."""
    bi_encoder = BiEncoder(SentenceEncoder.from_pretrained(str(tiny_model), pooling="linear_cls"))
    bi_encoder.save_pretrained(tmp_path)
    assert isinstance(load_model(str(tmp_path)), SentenceEncoder)
    encoder.save_pretrained(tmp_path)
    assert isinstance(load_model(str(tmp_path)), CrossEncoder)
    assert not list(tmp_path.rglob("modules.json")) and not list(tmp_path.rglob("2_Dense"))
    for load in (load_bi_encoder, SentenceEncoder.from_pretrained):
        with pytest.raises(InputError, match="cross-encoder"):
            load(str(tmp_path))
    assert SentenceEncoder.from_pretrained(str(tmp_path), pooling="mean").pooling.mode == "mean"


def test_a_plain_folder_says_how_it_is_pooled(tiny_model, tiny_bi, caplog):
    """Fails if the pooling of a folder that names none stays unsaid, or is said at every load."""
    caplog.set_level("INFO", "cosent")
    note_of_pooling.cache_clear()
    for folder in (tiny_model, tiny_model, tiny_bi):
        load_model(str(folder))
    assert [record.getMessage() for record in caplog.records if "pooled by mean" in record.getMessage()] == [
        f"{tiny_model} has no modules.json: it is pooled by mean."
    ]


def test_every_model_loads_onto_a_device(encoder, tiny_model, tiny_student, tmp_path):
    """Fails if `device=` is unknown to a class, or leaves a part of a model on the CPU."""
    bi_encoder = SentenceEncoder.from_pretrained(str(tiny_model), pooling="linear_cls")
    for name, model in {"bi": bi_encoder, "cross": encoder}.items():
        model.save_pretrained(tmp_path / name)
        loaded = load_model(str(tmp_path / name), device="meta")
        assert {weight.device.type for weight in loaded.parameters()} == {"meta"}
    assert Student.from_pretrained(str(tiny_student), device="meta").device.type == "meta"


def test_wrong_arguments_are_explained(tiny_model):
    """Fails if a wrong pooling, length or path is accepted or ends in a stack trace of the Hub client."""
    for options, message in (
        ({"pooling": "avg"}, "--pooling .*cls, mean"),
        ({"max_length": 1000}, "max_length must be 3 to 512"),
    ):
        with pytest.raises(InputError, match=message):
            SentenceEncoder.from_pretrained(str(tiny_model), **options)
    for path in ("./nowhere", "/nowhere/model", "runs/a/b", "nobody/nothing", f"{tiny_model}/config.json"):
        with pytest.raises(InputError, match=path):
            SentenceEncoder.from_pretrained(path)


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
    "org/pickle": (404, {"X-Error-Code": "EntryNotFound"}),
    "org/none": (404, {"X-Error-Code": "RepoNotFound"}),
}


class Hub(BaseHTTPRequestHandler):
    """A Hub that drops the connection for names without an answer."""

    asked: Counter[str] = Counter()

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        name = self.path.removeprefix("/").split("/resolve/")[0]
        self.asked[name] += 1
        if name in ANSWERS:
            status, headers = ANSWERS[name]
            self.send_response(status)
            for header in headers.items():
                self.send_header(*header)
            self.end_headers()


def test_the_hub_is_asked_once_and_near_names_are_told(tmp_path):
    """Fails if a misspelt name waits minutes for retries, or an id without owner, or a downloaded model, is refused."""
    kept = tmp_path / "home/hub/models--org--kept"
    for file, text in {"refs/main": "c" * 40, f"snapshots/{'c' * 40}/config.json": "{}"}.items():
        (kept / file).parent.mkdir(parents=True)
        (kept / file).write_text(text)
    (tmp_path / "runs/faq").mkdir(parents=True)
    (tmp_path / "runs/faq/config.json").touch()
    names = ["bert-base-chinese", "org/gated", "org/pickle", "org/kept", "org/none"]
    names += ["mini-roforner", "runs/fqa", "模型"]
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        settings = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0"}
        settings["HF_HOME"] = str(tmp_path / "home")
        done = subprocess.run(
            [sys.executable, "-c", RESOLVE, *names, "mini-roforner"],
            env=os.environ | settings,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        server.shutdown()
    *found, none, misspelt, folder, no_id, again = done.stdout.splitlines()
    assert found == names[:4]
    assert "org/none" in none and "HF_ENDPOINT" not in none
    assert "'mini-roformer'" in misspelt and "HF_ENDPOINT" in misspelt and "HF_HUB_OFFLINE" in misspelt
    assert again == misspelt and "'runs/faq'" in folder and "模型" in no_id
    assert Hub.asked == dict.fromkeys([*ANSWERS, "mini-roforner"], 1)


@each_loader
def test_the_folder_of_a_run_that_was_stopped(tmp_path, load):
    """Fails if a user reads that runs/faq is no model, and not how to go on."""
    (tmp_path / "UNFINISHED").touch()
    with pytest.raises(InputError, match="--resume_from_checkpoint auto"):
        load(str(tmp_path))


OWN = {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}


@pytest.fixture
def model(tiny_model, tmp_path, monkeypatch):
    """Returns a function that copies the tiny BERT with changes of its config.json; nobody may be asked "[y/N]"."""

    def refuse(prompt=""):
        raise AssertionError(f"asked: {prompt}")

    def make(**changes) -> str:
        shutil.copytree(tiny_model, tmp_path / "model")
        config = json.loads((tmp_path / "model/config.json").read_text()) | changes
        (tmp_path / "model/config.json").write_text(json.dumps(config))
        return str(tmp_path / "model")

    monkeypatch.setattr("builtins.input", refuse)
    return make


@pytest.mark.parametrize(
    "load", [*LOADERS.values(), lambda path: initial_model(path, None)], ids=[*LOADERS, "pretrain"]
)
@pytest.mark.parametrize(("code", "words"), [(OWN, "OwnConfig.* never run.*type own"), ({}, "type own")])
def test_a_model_that_needs_code_is_refused_by_name(model, load, code, words):
    """Fails if a user is asked to run foreign code, or reads that the folder is no model at all."""
    with pytest.raises(InputError, match=words):
        load(model(model_type="own", auto_map=code))


def test_weights_for_foreign_code_are_no_weights(model):
    """Fails if a BERT that its own code turns into another model (Jina v2) is loaded with random layers."""
    with pytest.raises(InputError, match="needs code of its own.*transformers' bert lacks"):
        SentenceEncoder.from_pretrained(model(auto_map=OWN, num_hidden_layers=3))


def test_code_that_transformers_has_is_not_needed_afterwards(model, tmp_path, caplog):
    """Fails if a native architecture whose folder still names code (nomic, EuroBERT) passes the question on."""
    SentenceEncoder.from_pretrained(model(auto_map=OWN)).save_pretrained(tmp_path / "saved")
    assert caplog.text.count("comes with code, which is not run: transformers' own bert computes it") == 1
    assert "auto_map" not in json.loads((tmp_path / "saved/config.json").read_text())


def test_a_tokenizer_that_needs_code_is_refused(tmp_path):
    """Fails if the user is told that there is no model."""
    save_family("eurobert", tmp_path)
    names = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    with pytest.raises(InputError, match="tokenizer of .* needs its own code"):
        SentenceEncoder.from_pretrained(str(tmp_path))
