"""`cosent serve`: what clients of OpenAI, Jina and Cohere send and read, and what is refused."""

import json
import os
import runpy
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from dataclasses import asdict
from datetime import date
from types import SimpleNamespace

import numpy as np
import pytest

from cosent import decision_rules
from cosent.errors import InputError
from cosent.evaluation.calibration import Calibration
from cosent.jobs import serve
from cosent.jobs.serve import MOST_BYTES, MOST_TEXTS, ServeArguments, Service, application, load
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.decision import DecisionRule, write_rules
from cosent.models.prompts import Prompts
from cosent.search.index import Index
from tests.support.launching import ROOT, free_port

testclient = pytest.importorskip("fastapi.testclient")
TEXTS = ["怎么还款", "如何还款", "今天天气很好"]
RULE = DecisionRule("faq", 0.5, Calibration(method="platt", pairs=98, base_rate=0.5, slope=4.0, intercept=-2.0))


@pytest.fixture(scope="module")
def models(tiny_model):
    return SentenceEncoder.from_pretrained(str(tiny_model)), CrossEncoder.from_pretrained(str(tiny_model), num_labels=1)


def opened(model, reranker=None, key=None, **options):
    """A client of a service."""
    service = Service(name="runs/faq", model=model, reranker=reranker or model, limits={}, **options)
    return testclient.TestClient(application(service, key), raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client(models):
    with opened(*models, rule=RULE) as client:
        yield client


@pytest.fixture(scope="module")
def address(models):
    """The address of a server of both models, whose key is `secret`."""
    uvicorn = pytest.importorskip("uvicorn")
    service = Service(name="runs/faq", model=models[0], reranker=models[1], limits={})
    server = uvicorn.Server(uvicorn.Config(application(service, "secret"), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def test_openai_embeddings(address, models, tmp_path, monkeypatch, capsys):
    """Fails if the openai client, or the example that compares servers, reads other vectors than `encode` gives."""
    openai = pytest.importorskip("openai")
    expected = models[0].encode(TEXTS, normalize_embeddings=True)
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="secret", max_retries=0)
    for options in ({}, {"encoding_format": "float"}, {"dimensions": expected.shape[1]}):
        answer = client.embeddings.create(input=TEXTS, model="any", **options)
        np.testing.assert_allclose([row.embedding for row in answer.data], expected, atol=1e-6)
        assert [row.index for row in answer.data] == [0, 1, 2] and answer.usage.total_tokens > 6
    assert client.embeddings.create(input=TEXTS[0], model="any").data[0].embedding == answer.data[0].embedding
    assert client.models.list().data[0].id == "runs/faq"
    for wrong, word in (({"input": ["好", ""]}, "input.1"), ({"input": "好", "dimensions": 7}, "dimensions")):
        with pytest.raises(openai.UnprocessableEntityError, match=word):
            client.embeddings.create(model="any", **wrong)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{address}/v1", api_key="no").embeddings.create(input="好", model="any")
    models[0].save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    words = ["compare_server.py", str(tmp_path / "model"), str(tmp_path / "texts.txt"), f"{address}/v1"]
    for name, value in (("OPENAI_API_KEY", "secret"), ("no_proxy", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", words)
    with suppress(SystemExit):
        runpy.run_path(str(ROOT / "examples/compare_server.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("equal but for length")


def test_rerank(client, models):
    """Fails if the order is not that of the reranker, or the shape is not what clients of Jina and Cohere read."""
    scores = models[1].similarity(["还款"] * 3, TEXTS)
    order = np.argsort(-scores, kind="stable").tolist()
    body = {"query": "还款", "documents": [TEXTS[0], {"text": TEXTS[1]}, {"text": TEXTS[2]}], "return_documents": True}
    for path in ("/v1/rerank", "/v2/rerank"):
        results = client.post(path, json=body).json()["results"]
        assert [result["index"] for result in results] == order
        expected = (1 / (1 + np.exp(-scores[order]))).tolist()
        assert [result["relevance_score"] for result in results] == pytest.approx(expected, abs=1e-5)
        assert results[0]["document"] == {"text": TEXTS[order[0]]}
        assert client.post(path, json=body | {"top_n": 2}).json()["results"] == results[:2]
        refusal = client.post(path, json=body | {"top_n": 0})
        assert refusal.status_code == 422 and "top_n" in refusal.json()["error"]["message"], "none, not all"


def test_scores_of_rerank(models):
    """Fails if a rule's probability is not what is returned, or a cosine is put through a sigmoid."""
    cosines = np.sort(models[0].similarity(["还款"] * 3, TEXTS))[::-1]
    for rule, expected in ((None, (1 + cosines) / 2), (RULE, RULE.probabilities(cosines))):
        with opened(models[0], rerank_rule=rule) as client:
            results = client.post("/v1/rerank", json={"query": "还款", "documents": TEXTS}).json()["results"]
        assert [result["relevance_score"] for result in results] == pytest.approx(expected.tolist(), abs=1e-6)


def test_similarity(client, models):
    """Fails if probability and verdict are not those of `cosent similarity`."""
    answer = client.post("/similarity", json={"pairs": [TEXTS[:2], TEXTS[1:]]}).json()
    scores = models[0].similarity(TEXTS[:2], TEXTS[1:])
    assert answer["scores"] == pytest.approx(scores.tolist(), abs=1e-6) and answer["corpus"] == "faq"
    assert answer["probabilities"] == pytest.approx(RULE.probabilities(scores).tolist(), abs=1e-6)
    assert answer["verdicts"] == ["similar" if similar else "not similar" for similar in RULE.similar(scores)]


@pytest.fixture(scope="module")
def faq(tiny_bi, tmp_path_factory):
    """A bi-encoder with a rule, and `faq.xlsx`, a table of questions and answers, in one folder."""
    folder = tmp_path_factory.mktemp("faq")
    SentenceEncoder.from_pretrained(str(tiny_bi)).save_pretrained(folder / "bi")
    write_rules(folder / "bi", {"faq": RULE})
    book = pytest.importorskip("openpyxl").Workbook()
    for row in (["question", "answer", "since"], *([text, f"答{text}", date(2026, 1, 2)] for text in TEXTS)):
        book.active.append(row)
    book.save(folder / "faq.xlsx")
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    yield folder
    patch.undo()


def loaded(folder, **flags):
    """The service of the folder of `faq`."""
    text = {"text": [str(folder / "faq.xlsx")], "text_column": "question"}
    return load(ServeArguments(**{"model": str(folder / "bi"), "device": "cpu"} | text | flags))


def test_a_rule_belongs_to_its_prompts(faq, tmp_path):
    """Fails if probabilities are given to texts that are read behind another prompt than the rule was found with."""
    encoder = SentenceEncoder.from_pretrained(str(faq / "bi"))
    encoder.prompts = Prompts({"query": "问题："}, "query")
    encoder.save_pretrained(tmp_path / "prompted")
    write_rules(tmp_path / "prompted", decision_rules(faq / "bi"))
    service = loaded(faq, model=str(tmp_path / "prompted"), rerank=str(tmp_path / "prompted"))
    assert service.rule is None and service.rerank_rule is None and service.index.rule is None
    with testclient.TestClient(application(service)) as client:
        assert "verdicts" not in client.post("/similarity", json={"pairs": [TEXTS[:2]]}).json()
        (result,) = client.post("/search", json={"query": TEXTS[0]}).json()["results"]
        assert result["hits"] and all(hit["probability"] is None for hit in result["hits"])
    service = loaded(faq)
    assert service.rule == service.rerank_rule == service.index.rule == RULE


def test_a_search_is_that_of_the_command_and_of_python(faq, job):
    """Fails if the service, `cosent search` and `Index` find other rows, or decide otherwise about them."""
    queries, table = ["怎么还款", "别的事"], faq / "faq.xlsx"
    index = Index.load(str(faq / "bi"), [str(table)], text_column="question")
    flags = ("--model", faq / "bi", "--text", table, "--text_column", "question", "--json", "--device", "cpu")
    with testclient.TestClient(application(loaded(faq, min_probability=0.5))) as client:
        for limit in ({}, {"min_score": 0.98}, {"min_score": -1.0}, {"min_probability": 0}):
            answer = client.post("/search", json={"queries": queries, "top": 2, **limit}).json()
            asked = limit or {"min_probability": 0.5}
            hits = [[asdict(hit) for hit in of_query] for of_query in index.search(queries, 2, **asked)]
            if asked != {"min_probability": 0}:
                words = (f"--{next(iter(asked))}", *asked.values(), "--query", *queries, "--top", 2)
                lines = job("cosent.jobs.search", *flags, *words)[0].splitlines()
                assert json.loads(json.dumps(hits, default=str)) == [json.loads(line)["hits"] for line in lines]
            ranked = [[{"rank": n, **hit} for n, hit in enumerate(of_query, 1)] for of_query in hits]
            assert [result["hits"] for result in answer["results"]] == json.loads(json.dumps(ranked, default=str))
            assert [result["found"] for result in answer["results"]] == [bool(of_query) for of_query in hits]
        (result,) = client.post("/search", json={"query": queries[0], "min_score": 0.5}).json()["results"]
        best = result["hits"][0]
        assert best["columns"] == {"question": TEXTS[0], "answer": "答怎么还款", "since": "2026-01-02 00:00:00"}
        assert (best["rank"], best["row"], best["verdict"]) == (1, 0, "similar") and best["probability"] > 0.8
        (none,) = client.post("/search", json={"query": "别的事", "min_score": 0.9999}).json()["results"]
        assert none == {"query": "别的事", "found": False, "hits": []}


def test_a_search_that_is_reranked(faq, models, tmp_path):
    """Fails if --rerank does not order what /search returns."""
    models[1].save_pretrained(tmp_path / "cross")
    with testclient.TestClient(application(loaded(faq, rerank=str(tmp_path / "cross")))) as client:
        hits = client.post("/search", json={"query": "还款"}).json()["results"][0]["hits"]
        refused = client.post("/search", json={"query": "还款", "min_probability": 0.5})
    scores = models[1].similarity(["还款"] * 3, TEXTS)
    assert [hit["row"] for hit in hits] == np.argsort(-scores, kind="stable").tolist()
    assert [hit["rerank"] for hit in hits] == pytest.approx(np.sort(scores)[::-1].tolist(), abs=1e-5)
    assert refused.status_code == 422 and "--min_probability" in refused.json()["error"]["message"]


def test_what_is_refused(client, models, faq):
    """Fails if bad input ends in a trace, or in an error that does not name the field."""
    with testclient.TestClient(application(loaded(faq))) as search:
        for path, body, word in (
            ("/v1/embeddings", {"input": []}, "input"),
            ("/v1/embeddings", {"input": ["好", " \u3000\n"]}, "input.1"),
            ("/v1/embeddings", {"input": [[101, 102]]}, "check_embedding_ctx_length=False"),
            ("/v1/embeddings", {"input": ["好"] * (MOST_TEXTS + 1)}, "input"),
            ("/v1/embeddings", {"input": "好" * 20_001}, "input"),
            ("/v1/rerank", {"query": "好", "documents": [{"title": "好"}]}, "documents.0"),
            ("/similarity", {"pairs": [["好", "\u200b "]]}, "pairs"),
            ("/search", {"queries": ["好", ""]}, "queries.1"),
            ("/search", {"query": "好", "top": 101}, "top"),
            ("/search", {"queries": ["好"] * 2048, "top": 11}, "20,480"),
            ("/search", {"query": "好", "min_probability": 0.99}, "probability of 0.8"),
            ("/search", {"query": "好", "min_probability": 0.5, "min_score": 0.5}, "min_score and min_probability"),
        ):
            answer = (search if path == "/search" else client).post(path, json=body)
            assert answer.status_code == 422 and word in answer.json()["error"]["message"], (path, body)
        form = {"Content-Type": "application/json"}
        for path, content in (
            ("/v1/embeddings", b'{"input": "\\ud83d"}'),
            ("/search", b'{"query": "x", "min_score": NaN}'),
        ):
            assert client.post(path, content=content, headers=form).status_code == 422
    assert client.post("/similarity", content=b" " * (MOST_BYTES + 1)).status_code == 413
    assert client.post("/similarity", content=iter([b"{}"])).status_code == 411
    assert client.get("/nothing").json()["error"]["code"] == 404
    assert "--text" in client.post("/search", json={"query": "好"}).json()["error"]["message"]
    with opened(models[1]) as cross:
        assert cross.post("/v1/embeddings", json={"input": "好"}).status_code == 400
        assert "verdicts" not in cross.post("/similarity", json={"pairs": [TEXTS[:2]]}).json()


def test_a_model_that_fails(models):
    """Fails if nan is sent as a score, if it is taken for a mistake of the client, or if it spoils other answers."""
    encoder = SentenceEncoder.from_pretrained(models[0].backbone.name_or_path)
    damaged = encoder.tokenizer.convert_tokens_to_ids("重")
    encoder.backbone.get_input_embeddings().weight.data[damaged] = np.nan
    with opened(encoder) as client:
        for path, body in (
            ("/v1/embeddings", {"input": ["好", "重要"]}),
            ("/similarity", {"pairs": [["好", "重要"]]}),
            ("/v1/rerank", {"query": "好", "documents": ["重要"]}),
        ):
            answer = client.post(path, json=body)
            assert answer.status_code == 500 and "nan or inf for" in answer.json()["error"]["message"], path
        assert client.post("/similarity", json={"pairs": [["好", "好"]]}).json()["scores"] == [1.0]
    with opened(SimpleNamespace(max_length=8)) as client:
        assert client.post("/similarity", json={"pairs": [TEXTS[:2]]}).json()["error"]["code"] == 500


def test_servers_that_cannot_search(faq, models, tmp_path):
    """Fails if the server starts with a promise that it cannot keep, or with a flag that does nothing."""
    for flags, word in (
        ({"min_score": 0.5}, "--min_score"),
        ({"text_column": "question"}, "--text_column"),
        ({"text": ["faq.txt"], "int8": True}, "--int8"),
    ):
        with pytest.raises(InputError, match=word):
            serve.main(ServeArguments(**flags))
    models[1].save_pretrained(tmp_path / "cross")
    for flags, word in (
        ({"min_probability": 0.99}, "probability of 0.8"),
        ({"model": str(tmp_path / "cross")}, "cross-encoder"),
    ):
        with pytest.raises(InputError, match=word):
            loaded(faq, **flags)


def test_a_key(models, monkeypatch):
    """Fails if somebody without the key is answered, a health check needs it, or a key can be sent by nobody."""
    with opened(models[0], key="secret") as client:
        assert client.get("/health").json()["status"] == "ok"
        assert client.get("/openapi.json").status_code == 401
        for token, status in ((None, 401), ("Bearer no", 401), ("Bearer secret", 200), ("bearer secret", 200)):
            headers = {} if token is None else {"Authorization": token}
            assert client.post("/v1/embeddings", json={"input": "好"}, headers=headers).status_code == status
    for value in ("", " ", "密钥", "a\nb"):
        monkeypatch.setenv("COSENT_API_KEY", value)
        with pytest.raises(InputError, match="COSENT_API_KEY"):
            serve.main(ServeArguments())


@pytest.mark.slow
@pytest.mark.matrix
def test_the_job_serves_until_it_is_stopped():
    """Fails if the command does not listen, or lives on after SIGTERM."""
    words = ["--model", "mini", "--port", str(port := free_port()), "--device", "cpu"]
    process = subprocess.Popen([sys.executable, "-m", "cosent", "serve", *words], env=os.environ | {"NO_PROXY": "*"})
    body = json.dumps({"pairs": [["怎么还款", "如何还款"]]}).encode()
    form = {"Content-Type": "application/json"}
    try:
        for _ in range(600):
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{port}/similarity", body, form)
                answer = json.load(urllib.request.urlopen(request, timeout=30))
                break
            except OSError:
                assert process.poll() is None
                time.sleep(0.2)
        assert answer["scores"][0] == pytest.approx(0.9662, abs=1e-3)
        process.terminate()
        process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
