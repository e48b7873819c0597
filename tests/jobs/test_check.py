"""`cosent check`: a server that makes each of the usual mistakes, and what the command calls it."""

import json
import threading
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers.normalizers import BertNormalizer
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from cosent.errors import InputError
from cosent.evaluation.calibration import sigmoid
from cosent.jobs.check import PASSAGE, SHORT, CheckArguments, main
from cosent.jobs.serve import build
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.mistakes import Form, as_probabilities, compare, recomputed
from cosent.models.modules import IDENTITY, Dense, Normalize
from cosent.models.prompts import Prompts

PROMPT = "find: "


@pytest.fixture(scope="module")
def folder(tiny_model, tmp_path_factory):
    """A bi-encoder with all that can be forgotten: a prompt, a tokenizer that keeps capitals, Dense and Normalize."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), pooling="mean")
    for layer in encoder.backbone.encoder.layer:  # where gelu and its approximation differ
        layer.intermediate.dense.weight.data *= 20
        layer.output.dense.weight.data *= 20
    tokenizer = AutoTokenizer.from_pretrained(tiny_model, model_max_length=40)
    tokenizer.backend_tokenizer.normalizer = BertNormalizer(lowercase=False)
    modules = [Dense(32, 16, activation_function=IDENTITY), Normalize()]
    encoder = SentenceEncoder(encoder.backbone, tokenizer, encoder.pooling, modules)
    encoder.prompts = Prompts({"find": PROMPT, "ask": "ask: "}, "find")
    encoder.save_pretrained(folder := tmp_path_factory.mktemp("check") / "bi")
    return folder


class Naive:
    """What the folder says, one text at a time by transformers alone, with mistakes on demand."""

    def __init__(self, folder):
        self.models = {torch.float32: AutoModel.from_pretrained(folder).eval()}
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.dense = load_file(folder / "2_Dense" / "model.safetensors")

    @torch.inference_mode()
    def __call__(self, text, prompt=PROMPT, change=str, most=40, ends=(1, 1), cut_last=False, **after):
        ids = self.tokenizer(prompt + change(text), add_special_tokens=False)["input_ids"]
        first, last = [self.tokenizer.cls_token_id] * ends[0], [self.tokenizer.sep_token_id] * ends[1]
        ids = [*first, *ids, *last][:most] if cut_last else [*first, *ids[: most - sum(ends)], *last]
        return self.vector(ids, **after)

    def vector(self, ids, dtype=torch.float32, pooling="mean", dense=True, unit=True, gelu="none", bias=0.0):
        model = self.models.setdefault(dtype, deepcopy(self.models[torch.float32]).to(dtype))
        for layer in model.encoder.layer:
            layer.intermediate.intermediate_act_fn = torch.nn.GELU(gelu)
        tokens = model(input_ids=torch.tensor([ids])).last_hidden_state[0].float()
        ends = {"cls": tokens[0], "lasttoken": tokens[-1], "inner": tokens[1:-1].mean(0)}
        vector = ({"mean": tokens.mean(0), "max": tokens.amax(0)} | ends)[pooling]
        vector = self.dense["linear.weight"] @ vector + self.dense["linear.bias"] if dense else vector
        vector[3] += bias
        return (vector / vector.norm() if unit else vector).tolist()


@pytest.fixture(scope="module")
def naive(folder):
    return Naive(folder)


@pytest.fixture(scope="module")
def server():
    """A server whose `answer(path, body)` gives a status and what is sent as JSON; `models` are listed."""
    state = SimpleNamespace(answer=None, models=["any"], asked=[])

    class Handler(BaseHTTPRequestHandler):
        def reply(self, status, answer):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def do_GET(self):
            self.reply(*((200, {"data": [{"id": name} for name in state.models]}) if state.models else (404, {})))

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.asked.append((self.path, body, self.headers["Authorization"]))
            self.reply(*state.answer(self.path, body))

        def log_message(self, *args):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    state.url = f"http://127.0.0.1:{http.server_port}"
    yield state
    http.shutdown()


@pytest.fixture
def check(capsys):
    """Returns a function that runs the job, and gives back its exit status and report."""

    def run(model, against, **flags):
        capsys.readouterr()
        status = main(CheckArguments(model=str(model), against=str(against), json=True, device="cpu", **flags))
        return status, json.loads(capsys.readouterr().out)

    return run


def as_openai(vector):
    """Answers of the shape of OpenAI's, which are not in order."""

    def answer(path, body):
        if path != "/v1/embeddings":
            return 404, {}
        rows = [{"index": place, "embedding": vector(text)} for place, text in enumerate(body["input"])]
        return 200, {"data": rows[::-1]}

    return answer


MISTAKES = [
    ({"pooling": "cls"}, ["pooled by cls"]),
    ({"pooling": "lasttoken"}, ["pooled by lasttoken"]),
    ({"pooling": "max"}, ["pooled by max"]),
    ({"pooling": "inner"}, ["pooled by mean without special tokens"]),
    ({"dense": False}, ["Dense is left out"]),
    ({"unit": False}, ["Normalize is left out"]),
    ({"prompt": ""}, ["the prompt is missing"]),
    ({"prompt": 2 * PROMPT}, ["the prompt is added twice"]),
    ({"prompt": "ask: "}, ["the prompt 'ask'"]),
    ({"most": 29}, ["read up to 29 tokens, not 40"]),
    ({"most": 77}, ["read up to 77 tokens, not 40"]),
    ({"ends": (1, 0)}, ["the last special token is missing"]),
    ({"ends": (0, 0)}, ["the special tokens are missing"]),
    ({"ends": (2, 2)}, ["the special tokens are added twice"]),
    ({"cut_last": True}, ["long texts lose their last special token"]),
    ({"change": str.lower}, ["texts are lower-cased"]),
    ({"gelu": "tanh"}, ["gelu is approximated by tanh"]),
    ({"dtype": torch.float16}, ["rounded as in float16"]),
    ({"dtype": torch.bfloat16}, ["rounded as in bfloat16"]),
    ({"bias": 0.004}, ["other weights"]),  # of a size that rounding has, but in one number of a vector
    ({"pooling": "cls", "prompt": ""}, ["pooled by cls", "the prompt is missing"]),
    ({"change": str.lower, "most": 29, "unit": False}, ["lower-cased", "29 tokens", "Normalize is left out"]),
    ({"change": lambda text: text[::-1], "ends": (0, 1)}, ["other weights"]),
]


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A file of a dozen texts, of which each mistake changes some."""
    long = [*(PASSAGE[:length] for length in (20, 28, 40)), 2 * PASSAGE]
    texts = [*SHORT[:5], "iPhone 15 Pro Max", "HELLO, hello", "好", *long]
    (file := tmp_path_factory.mktemp("few") / "few.txt").write_text("\n".join(texts), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize(("mistake", "names"), MISTAKES, ids=lambda value: " ".join(value))
def test_a_mistake_is_named(mistake, names, check, server, naive, folder, few):
    """Fails if a user whose server makes this mistake is told nothing, or of another mistake."""
    server.answer = as_openai(lambda text: naive(text, **mistake))
    status, report = check(folder, server.url, text=few, tolerance=1e-5)
    causes = [cause["name"] for cause in report["causes"]]
    assert status == 1 and len(causes) == len(names), causes
    assert all(any(name in cause for cause in causes) for name in names), causes
    assert report["left"] <= 1e-5 or names[-1].startswith(("rounded", "other"))


def test_equal_everywhere(check, server, naive, folder):
    """Fails if right software is called wrong, in any shape of an endpoint, folder or file that is promised."""
    shapes = {
        "/embeddings": lambda body: as_openai(naive)("/v1/embeddings", body)[1],
        "/embed": lambda body: [naive(text) for text in body["inputs"]],
        "/api/embed": lambda body: {"embeddings": [naive(text) for text in body["input"]]},
    }
    for path, shape in shapes.items():
        server.answer = lambda asked, body, own=path, shape=shape: (200, shape(body)) if asked == own else (404, {})
        status, report = check(folder, server.url + path * (path == "/api/embed"))
        assert status == 0 and report["against"].endswith(path) and report["differ"] == 0 < report["items"] - 38
    server.answer = as_openai(lambda text: naive(text, prompt=""))  # a server that adds no prompt
    assert check(folder, server.url, send_prompt=True)[0] == 0
    assert all(body["input"][0].startswith(PROMPT) for path, body, _ in server.asked[-8:] if path == "/v1/embeddings")
    pytest.importorskip("sentence_transformers")
    assert check(folder, folder)[0] == 0


def test_a_file_of_vectors(check, naive, folder, few, tmp_path):
    """Fails if rows go with other texts, or a length is not found where the text cannot be asked for again."""
    texts = Path(few).read_text(encoding="utf-8").splitlines()
    np.save(tmp_path / "right.npy", np.array([naive(text) for text in texts], np.float32))
    assert check(folder, tmp_path / "right.npy", text=few)[0] == 0
    np.save(tmp_path / "cut.npy", np.array([naive(text, most=32) for text in texts]))
    assert "32 tokens" in check(folder, tmp_path / "cut.npy", text=few)[1]["causes"][0]["name"]
    np.save(tmp_path / "short.npy", np.ones((3, 16)))
    with pytest.raises(InputError, match=r"\(3, 16\), --text 12"):
        check(folder, tmp_path / "short.npy", text=few)
    with pytest.raises(InputError, match="--text"):
        check(folder, tmp_path / "right.npy")


def test_own_server(check, server, folder, tiny_cross):
    """Fails if `cosent serve` is called wrong, refuses more than the empty text, or its reranker is not read."""
    testclient = pytest.importorskip("fastapi.testclient")
    cross = CrossEncoder.from_pretrained(str(tiny_cross))
    with testclient.TestClient(build("bi", SentenceEncoder.from_pretrained(str(folder)), cross)) as client:

        def answer(path, body):
            response = client.post(path, json=body)
            return response.status_code, response.json()

        server.answer = answer
        status, report = check(folder, server.url)
        assert status == 0 and list(report["refused"].values()) == [1] and report["cosines"] < 1e-5
        status, report = check(tiny_cross, server.url)
        assert status == 0 and report["form"] == "as sigmoid" and report["against"].endswith("/v1/rerank")


RERANKERS = [
    ({}, []),
    ({"raw": True}, []),
    ({"sigmoids": 2}, ["the sigmoid is applied twice"]),
    ({"swapped": True}, ["the pair is swapped"]),
    ({"segments": 0, "raw": True}, ["the segment ids are missing"]),
    ({"most": 31, "swapped": True, "raw": True}, ["31 tokens", "the pair is swapped"]),
]


@pytest.mark.parametrize(("mistake", "names"), RERANKERS, ids=lambda value: " ".join(value))
def test_a_mistake_of_a_reranker_is_named(mistake, names, check, server, tiny_cross, few):
    """Fails if raw scores or a sigmoid are taken for a mistake, or a mistake for another one."""
    model = AutoModelForSequenceClassification.from_pretrained(tiny_cross).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_cross)

    @torch.inference_mode()
    def score(query, text, raw=False, sigmoids=1, swapped=False, segments=1, most=512):
        pair = (text, query) if swapped else (query, text)
        inputs = tokenizer(*pair, truncation="longest_first", max_length=most, return_tensors="pt")
        inputs["token_type_ids"] *= segments
        logit = model(**inputs).logits[0, 0]
        for _ in range(0 if raw else sigmoids):
            logit = logit.sigmoid()
        return logit.item()

    def answer(path, body):  # as TEI's
        if "texts" not in body or path != "/rerank":
            return 422, {"error": "missing field `texts`"}
        scores = [score(body["query"], text, **mistake) for text in body["texts"]]
        return 200, [{"index": place, "score": scores[place]} for place in np.argsort(scores).tolist()]

    server.answer = answer
    status, report = check(tiny_cross, server.url, text=few, tolerance=1e-5)
    causes = [cause["name"] for cause in report["causes"]]
    assert status == bool(names) and len(causes) == len(names), report
    assert all(any(name in cause for cause in causes) for name in names), causes


def test_scores_near_0_are_told_apart():
    """Logits of -9 and -11 differ, though their sigmoids are 0.0001 and 0.00002. Fails if a reranker that reads less of
    what does not match counts as equal."""
    ours, theirs = np.array([-9.0, 4.0]), np.array([-11.0, 4.0])
    forms = {"as ours": Form(), "as sigmoid": as_probabilities(sigmoid)}
    for given in (theirs, sigmoid(theirs)):
        rows, form = compare(ours, given, forms)
        assert rows[0] > 0.05 and rows[1] < 1e-6, form
    assert compare(ours, sigmoid(ours), forms)[0].max() < 1e-6


def test_what_stops_it(check, server, naive, folder, monkeypatch, few, tmp_path):
    """Fails if a wrong address, key, name or model ends in a trace or in a verdict on vectors."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    server.answer = lambda path, body: (401, {"error": "no"})
    with pytest.raises(InputError, match=r"\(401\).*OPENAI_API_KEY"):
        check(folder, server.url)
    assert server.asked[-1][2] == "Bearer secret"
    server.answer = lambda path, body: (404, {"error": "no such model"})
    with pytest.raises(InputError, match="404.*/api/embed.*--name"):
        check(folder, server.url)
    with pytest.raises(InputError, match="127.0.0.1:1/"):
        check(folder, "http://127.0.0.1:1/")
    (tmp_path / "one.txt").write_text("好", encoding="utf-8")
    with pytest.raises(InputError, match="one.txt"):
        check(folder, server.url, text=str(tmp_path / "one.txt"))
    with pytest.raises(InputError, match="nowhere"):
        check(folder, "nowhere")
    server.answer = as_openai(naive)
    monkeypatch.setattr(server, "models", ["one", "two"])
    with pytest.raises(InputError, match="one, two.*--name"):
        check(folder, server.url)
    assert check(folder, server.url, name="two", text=few)[0] == 0 and server.asked[-1][1]["model"] == "two"
    monkeypatch.setattr(server, "models", ["others/bi", "two"])
    assert check(folder, server.url, text=few)[0] == 0 and server.asked[-1][1]["model"] == "others/bi"
    server.answer = as_openai(lambda text: [1.0] * 48)
    with pytest.raises(InputError, match="48 numbers, ours 16"):
        check(folder, server.url, text=few)


def test_what_one_text_alone_hides(check, server, naive, folder, few, tmp_path):
    """Fails if a server counts as equal that answers nan, in another order, or hardly at all."""

    def causes():
        status, report = check(folder, server.url, text=few)
        return status, [cause["name"] for cause in report["causes"]]

    server.answer = as_openai(lambda text: [None] * 16 if len(text) > 80 else naive(text))
    assert causes() == (1, ["nan or inf for 1"])
    server.answer = lambda path, body: as_openai(lambda text: naive(text) if len(body["input"]) == 1 else [None] * 16)(
        path, body
    )
    assert causes() == (1, ["padding changes the answers"])
    server.answer = lambda path, body: as_openai(naive)(path, body | {"input": body["input"][::-1]})
    assert causes() == (1, ["answers to several texts at once are those of others among them"])
    server.answer = lambda path, body: (413, {}) if len(body["input"]) > 1 else as_openai(naive)(path, body)
    assert "413" in next(iter(check(folder, server.url, text=few)[1]["refused"]))
    server.answer = lambda path, body: (400, {}) if len(body["input"][0]) > 4 else as_openai(naive)(path, body)
    with pytest.raises(InputError, match="400"):
        check(folder, server.url, text=few)
    (tmp_path / "twice.txt").write_text("好\n怎么还款\n好\n", encoding="utf-8")
    np.save(tmp_path / "twice.npy", [naive(text) for text in ("坏", "怎么还款", "好")])
    with pytest.raises(InputError, match=r"twice.npy.*'好'"):
        check(folder, tmp_path / "twice.npy", text=str(tmp_path / "twice.txt"))


def test_some_texts(check, server, naive, folder, few, capsys):
    """Fails if a refused text or a short vector ends the check, padding is overlooked, or --tolerance does nothing."""

    def causes():
        return [cause["name"] for cause in check(folder, server.url, text=few)[1]["causes"]]

    server.answer = lambda path, body: (400, {}) if len(body["input"][0]) > 80 else as_openai(naive)(path, body)
    status, report = check(folder, server.url, text=few)
    assert status == 0 and report["items"] == 11 and "400" in next(iter(report["refused"]))
    server.answer = as_openai(lambda text: naive(text)[:8])
    assert causes() == ["vectors are cut to 8 numbers"]
    server.answer = lambda path, body: as_openai(lambda text: naive(text, ends=(1, len(body["input"]))))(path, body)
    assert causes() == ["padding changes the answers"]
    server.answer = as_openai(lambda text: naive(text.replace("好", "坏")))
    assert causes() == ["3 of 12 texts are read otherwise, as '好'"]
    server.answer = as_openai(lambda text: naive(text, dtype=torch.float16))
    assert check(folder, server.url, text=few, tolerance=0.02)[0] == 0
    assert main(CheckArguments(model=str(folder), against=server.url, text=few, device="cpu")) == 1
    assert "cause: rounded as in float16" in capsys.readouterr().out


@pytest.mark.slow
def test_a_bundle_and_its_graph(check, job, folder, tiny_cross, tmp_path):
    """Fails if what `cosent export` wrote is called wrong, as a bundle or as a graph alone."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    for model in (folder, tiny_cross):
        job("cosent.jobs.export", "--model", model, "--output", tmp_path / model.name)
        for against in (tmp_path / model.name, next((tmp_path / model.name).rglob("*.onnx"))):
            status, report = check(model, against)
            assert status == 0 and report["items"] > 30, report


def test_made_right_nothing_changes(folder, tiny_cross):
    """Fails if the mistakes are made to other vectors or scores than those of the model."""
    encoder, cross = SentenceEncoder.from_pretrained(str(folder)), CrossEncoder.from_pretrained(str(tiny_cross))
    texts = [*SHORT, PASSAGE]
    np.testing.assert_allclose(recomputed(encoder, [(text,) for text in texts])(), encoder.encode(texts), atol=1e-6)
    pairs = [(PASSAGE[:9], text) for text in texts]
    scores = cross.similarity([PASSAGE[:9]] * len(texts), texts)
    np.testing.assert_allclose(recomputed(cross, pairs)(), scores, atol=1e-6)
