"""`cosent serve`: what clients of OpenAI, TEI, Jina and Cohere send and read, and what is refused."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import date
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.evaluation.calibration import Calibration
from cosent.jobs import serve
from cosent.jobs.serve import MOST_BYTES, MOST_TEXTS, ServeArguments, build, key_of
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cache import growing_vectors
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.decision import AnswerRule, DecisionRule
from cosent.models.embedding import quantized
from cosent.search.index import Index

testclient = pytest.importorskip("fastapi.testclient")
HEAD = "POST /similarity HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
TEXTS = ["怎么还款", "如何还款", "今天天气很好"]
LINES = [
    *TEXTS,
    "我喜欢北京",
    "我不喜欢北京",
    "给我推荐一款红色的车",
    "房车来一辆",
    "老师的个子高过爸爸",
    "好",
    "借款",
    "明天",
]
RULE = DecisionRule("faq", 0.5, Calibration(method="platt", pairs=98, base_rate=0.5, slope=4.0, intercept=-2.0))


@pytest.fixture(scope="module")
def models(tiny_model):
    return SentenceEncoder.from_pretrained(str(tiny_model)), CrossEncoder.from_pretrained(str(tiny_model), num_labels=1)


@pytest.fixture(scope="module")
def client(models):
    with testclient.TestClient(build("runs/faq", *models, RULE)) as client:
        yield client


def test_openai_embeddings(client, models):
    """Fails if a vector is another one than `encode` gives, in either format, or its place is lost."""
    answer = client.post("/v1/embeddings", json={"input": TEXTS, "model": "any"}).json()
    vectors = np.array([one["embedding"] for one in answer["data"]])
    np.testing.assert_allclose(vectors, models[0].encode(TEXTS, normalize_embeddings=True), atol=1e-6)
    assert [one["index"] for one in answer["data"]] == [0, 1, 2] and answer["usage"]["total_tokens"] > 6
    openai = pytest.importorskip("openai")
    own = openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client)
    assert np.allclose(own.embeddings.create(input=TEXTS[0], model="any").data[0].embedding, vectors[0], atol=1e-6)
    with pytest.raises(openai.UnprocessableEntityError, match="input.1"):
        own.embeddings.create(input=["好", ""], model="any")


def test_shorter_and_raw_vectors(models):
    """Fails if `dimensions` gives other numbers than a model of that width, is open to a model that was not made for
    it, or /embed scales vectors that are asked for as they are."""
    encoder = models[0]
    projected, narrow = (SentenceEncoder.from_pretrained(encoder.backbone.name_or_path) for _ in range(2))
    projected.truncate(8, LINES)
    narrow.truncate(3, LINES)
    expected = narrow.encode(TEXTS, normalize_embeddings=True)
    with testclient.TestClient(build("runs/faq8", projected, projected)) as client:
        for path, texts in (("/v1/embeddings", "input"), ("/embed", "inputs")):
            answer = client.post(path, json={texts: TEXTS, "dimensions": 3}).json()
            got = answer if path == "/embed" else [one["embedding"] for one in answer["data"]]
            np.testing.assert_allclose(got, expected, atol=1e-5)
        raw = client.post("/embed", json={"inputs": TEXTS, "normalize": False}).json()
        np.testing.assert_allclose(raw, projected.encode(TEXTS), atol=1e-5)
    assert np.abs(np.linalg.norm(raw, axis=1) - 1).max() > 0.01, "vectors of length 1 show nothing"
    cut = SentenceEncoder.from_pretrained(encoder.backbone.name_or_path)
    cut.truncate(8)
    assert not cut.nested and not encoder.nested
    assert quantized(projected).nested and not quantized(cut).nested, "serve --int8"
    with testclient.TestClient(build("runs/jina", encoder, encoder, dimensions=[16])) as client:
        (one,) = client.post("/v1/embeddings", json={"input": "好", "dimensions": 16}).json()["data"]
        half = encoder.encode(["好"])[0, :16]
        np.testing.assert_allclose(one["embedding"], half / np.linalg.norm(half), atol=1e-5)
        assert client.post("/v1/embeddings", json={"input": "好", "dimensions": 15}).status_code == 422
    with pytest.raises(InputError, match="--dimensions 33"):
        build("runs/faq", encoder, encoder, dimensions=[16, 33])


def test_rerank(client, models):
    """Fails if the order is not that of the reranker, or one of the three shapes is not what its clients read."""
    scores = models[1].similarity(["还款"] * 3, TEXTS)
    order = np.argsort(-scores, kind="stable").tolist()
    tei = client.post("/rerank", json={"query": "还款", "texts": TEXTS, "return_text": True}).json()
    assert [one["index"] for one in tei] == order and [one["text"] for one in tei] == [TEXTS[one] for one in order]
    assert [one["score"] for one in tei] == pytest.approx((1 / (1 + np.exp(-scores[order]))).tolist(), abs=1e-5)
    raw = client.post("/rerank", json={"query": "还款", "texts": TEXTS, "raw_scores": True}).json()
    assert [one["score"] for one in raw] == pytest.approx(scores[order].tolist(), abs=1e-5)
    objects = {
        "query": "还款",
        "documents": [TEXTS[0], {"text": TEXTS[1]}, {"text": TEXTS[2]}],
        "top_n": 0,
        "top_k": None,
    }
    for path in ("/v1/rerank", "/v2/rerank"):
        jina = client.post(path, json=objects | {"return_documents": True}).json()["results"]
        assert [one["index"] for one in jina] == order and jina[0]["relevance_score"] == tei[0]["score"]
        assert jina[0]["document"] == {"text": TEXTS[order[0]]}
        for limit in ("top_n", "top_k"):
            assert len(client.post(path, json=objects | {limit: 2}).json()["results"]) == 2


def test_scores_of_rerank(models):
    """Fails if --rerank_scores is not what is returned, or a cosine is put through a sigmoid."""
    body = {"query": "还款", "texts": TEXTS}
    cosines = np.sort(models[0].similarity(["还款"] * 3, TEXTS))[::-1]

    def scores(reranker, **options):
        with testclient.TestClient(build("runs/faq", models[0], reranker, **options)) as client:
            assert client.get("/info").json()["rerank_scores"] == options.get("rerank_scores", "sigmoid")
            return [one["score"] for one in client.post("/rerank", json=body).json()]

    assert scores(models[0]) == pytest.approx(((1 + cosines) / 2).tolist(), abs=1e-6)
    assert scores(models[0], rerank_scores="raw") == pytest.approx(cosines.tolist(), abs=1e-6)
    calibrated = scores(models[0], rerank_rule=RULE, rerank_scores="calibrated")
    assert calibrated == pytest.approx(RULE.probabilities(cosines).tolist(), abs=1e-6)
    with pytest.raises(InputError, match="--rerank_scores"):
        build("runs/faq", *models, rerank_scores="calibrated")


def test_what_other_clients_ask_first(client, models):
    """Fails if a client of OpenAI or TEI finds no model, or TEI's vectors are others."""
    assert client.get("/v1/models").json()["data"][0]["id"] == "runs/faq"
    info = client.get("/info").json()
    assert info["model_id"] == "runs/faq" and info["max_input_length"] == models[0].max_length
    vectors = client.post("/embed", json={"inputs": TEXTS, "truncate": True}).json()
    np.testing.assert_allclose(vectors, models[0].encode(TEXTS, normalize_embeddings=True), atol=1e-6)
    assert np.shape(client.post("/embed", json={"inputs": TEXTS[0]}).json()) == (1, 32)
    client.get("/nothing")
    metrics = client.get("/metrics").text
    assert 'cosent_requests_total{path="/embed",status="200"} 2' in metrics and "cosent_requests_waiting 0" in metrics
    assert "nothing" not in metrics


def test_pages_of_other_origins(models):
    """Fails if a page may read answers without --cors, or its preflight, which has no key, is refused with it."""
    preflight = {"Origin": "https://example.com", "Access-Control-Request-Method": "POST"}
    allowed = "access-control-allow-origin"
    with testclient.TestClient(build("runs/faq", *models, key="secret")) as closed:
        assert allowed not in closed.options("/rerank", headers=preflight).headers
    with testclient.TestClient(build("runs/faq", *models, key="secret", cors=["https://example.com"])) as opened:
        answer = opened.options("/rerank", headers=preflight)
        assert answer.status_code == 200 and answer.headers[allowed] == "https://example.com"


def test_similarity(client, models):
    """Fails if probability and verdict are not those of `cosent similarity`."""
    answer = client.post("/similarity", json={"pairs": [TEXTS[:2], TEXTS[1:]]}).json()
    scores = models[0].similarity(TEXTS[:2], TEXTS[1:])
    assert answer["scores"] == pytest.approx(scores.tolist(), abs=1e-6) and answer["corpus"] == "faq"
    assert answer["token_collisions"] == [False, False]
    assert answer["probabilities"] == pytest.approx(RULE.probabilities(scores).tolist(), abs=1e-6)
    assert set(answer["verdicts"]) <= {"similar", "not similar"}


def test_texts_that_the_model_cannot_tell_apart(client):
    """Fails if a client takes the score of two texts of equal tokens for an answer."""
    names = ["陈玙", "陈玕"]
    answer = client.post("/similarity", json={"pairs": [names, TEXTS[:2]]}).json()
    assert answer["token_collisions"] == [True, False] and answer["scores"][0] == 1
    results = client.post("/rerank", json={"query": names[0], "texts": [*TEXTS, names[1]]}).json()
    assert [result["index"] for result in results if "token_collision" in result] == [3]


def test_what_is_refused(client, models):
    """Fails if bad input ends in a trace, or in an error that does not name the field."""
    for path, body, status, word in (
        ("/v1/embeddings", {"input": []}, 422, "input"),
        ("/v1/embeddings", {"input": ""}, 422, "input"),
        ("/v1/embeddings", {"input": ["好", "\u200b "]}, 422, "input"),
        ("/v1/embeddings", {"input": ["好", " \u3000\n"]}, 422, "input.1"),
        ("/v1/embeddings", {"input": 3}, 422, "input"),
        ("/v1/embeddings", {"input": [[101, 102]]}, 422, "check_embedding_ctx_length=False"),
        ("/embed", {"inputs": [101, 102]}, 422, "token ids"),
        ("/embed", {"inputs": "好", "dimensions": 7}, 422, "dimensions"),
        ("/rerank", {"query": "好", "documents": [{"title": "好"}]}, 422, "documents.0"),
        ("/v1/embeddings", {"input": ["好"] * (MOST_TEXTS + 1)}, 422, "input"),
        ("/v1/embeddings", {"input": "好", "dimensions": 7}, 422, "dimensions"),
        ("/rerank", {"query": "好"}, 422, "texts"),
        ("/rerank", {"query": "好", "texts": ["好"], "documents": ["好"]}, 422, "documents"),
        ("/similarity", {"pairs": [["好"]]}, 422, "pairs"),
        ("/similarity", {"pairs": [["好", " "]]}, 422, "pairs"),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code == status and word in answer.json()["error"]["message"], (path, body)
    lone = client.post("/v1/embeddings", content=b'{"input": "\\ud83d"}', headers={"Content-Type": "application/json"})
    assert lone.status_code == 422
    assert client.post("/similarity", content=b" " * (MOST_BYTES + 1)).status_code == 413
    with testclient.TestClient(build("cross", models[1], models[1])) as cross:
        assert cross.post("/v1/embeddings", json={"input": "好"}).status_code == 400
        assert "probabilities" not in cross.post("/similarity", json={"pairs": [TEXTS[:2]]}).json()
        assert cross.get("/nothing").json()["error"]["code"] == 404
    broken = SimpleNamespace(max_length=8)
    with testclient.TestClient(build("none", broken, broken), raise_server_exceptions=False) as broken:
        assert broken.post("/similarity", json={"pairs": [TEXTS[:2]]}).json()["error"]["code"] == 500


ANSWERED = replace(RULE, answers=(AnswerRule(0.0, 0.97, 0.6, 0.9, 40, 80),))


@pytest.fixture(scope="module")
def faq(tiny_bi, tmp_path_factory):
    """A function that opens the `LiveIndex` of a table with questions and answers, and the folder of `faq.xlsx`."""
    folder = tmp_path_factory.mktemp("faq")
    book = pytest.importorskip("openpyxl").Workbook()
    for row in (["question", "answer", "since"], *([text, f"答{text}", date(2026, 1, 2)] for text in TEXTS)):
        book.active.append(row)
    book.save(folder / "faq.xlsx")
    patch = pytest.MonkeyPatch()
    cached = partial(growing_vectors, cache=folder / "cache")
    patch.setattr("cosent.models.cache.growing_vectors", cached)

    def opened(model, reranker=None, **flags):
        args = ServeArguments(text=[str(folder / "faq.xlsx")], text_column="question", **flags)
        return serve.open_live(args, model, reranker, ANSWERED)

    yield opened, folder
    patch.undo()


def test_a_search_is_that_of_the_command_and_of_python(faq, tiny_bi, job, monkeypatch):
    """Fails if the service, `cosent search` and `Index` find other rows, or decide otherwise about them."""
    opened, folder = faq
    monkeypatch.setattr("cosent.models.decision.decision_rules", lambda model: {"faq": ANSWERED})
    monkeypatch.setattr("cosent.search.index.decision_rules", lambda model: {"faq": ANSWERED})
    encoder, queries = SentenceEncoder.from_pretrained(str(tiny_bi)), ["怎么还款", "别的事"]
    index = Index.load(str(tiny_bi), [str(folder / "faq.xlsx")], text_column="question")
    live = opened(encoder, min_probability=0.5)
    app = build("runs/faq", encoder, encoder, ANSWERED, live=live, limits=(("min_probability", 0.5),))
    flags = (
        "--model",
        tiny_bi,
        "--text",
        folder / "faq.xlsx",
        "--text_column",
        "question",
        "--json",
        "--device",
        "cpu",
    )
    with testclient.TestClient(app) as client:
        for limit in ({}, {"precision": 0.55}, {"min_score": 0.98}, {"min_score": -1.0}):
            answer = client.post("/search", json={"queries": queries, "top": 2, **limit}).json()
            own = limit or {"min_probability": 0.5}
            hits = [[asdict(hit) for hit in some] for some in index.search(queries, 2, **own)]
            words = (f"--{next(iter(own))}", *own.values(), "--query", *queries, "--top", 2)
            printed = [json.loads(line)["hits"] for line in job("cosent.jobs.search", *flags, *words)[0].splitlines()]
            assert json.loads(json.dumps(hits, default=str)) == printed
            ranked = [[{"rank": n, **hit} for n, hit in enumerate(some, 1)] for some in printed]
            assert [result["hits"] for result in answer["results"]] == ranked and answer["model"] == "runs/faq"
            assert [result["found"] for result in answer["results"]] == [bool(some) for some in printed]
            assert [result["query"] for result in answer["results"]] == queries
        (one,) = client.post("/search", json={"query": queries[0], "precision": 0.55}).json()["results"]
        best = one["hits"][0]
        assert best["columns"] == {"question": TEXTS[0], "answer": "答怎么还款", "since": "2026-01-02 00:00:00"}
        assert (best["rank"], best["row"], best["verdict"]) == (1, 0, "similar") and best["probability"] > 0.8
        (none,) = client.post("/search", json={"query": "别的事", "min_score": 0.9999}).json()["results"]
        assert none == {"query": "别的事", "found": False, "hits": []}


def test_a_search_that_is_reranked(faq, models, tiny_bi):
    """Fails if --rerank does not order what /search returns."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_bi))
    with testclient.TestClient(build("faq", encoder, models[1], live=faq[0](encoder, models[1]))) as client:
        hits = client.post("/search", json={"query": "还款"}).json()["results"][0]["hits"]
        refused = client.post("/search", json={"query": "还款", "precision": 0.5})
    scores = models[1].similarity(["还款"] * 3, TEXTS)
    assert [hit["row"] for hit in hits] == np.argsort(-scores, kind="stable").tolist()
    assert [hit["rerank"] for hit in hits] == pytest.approx(np.sort(scores)[::-1].tolist(), abs=1e-5)
    assert refused.status_code == 422 and "--rerank" in refused.json()["error"]["message"]


def test_searches_that_are_refused(faq, models, client):
    """Fails if a search that cannot be answered gets an answer, a trace, or no word on what to change."""
    live = faq[0](models[0])
    with testclient.TestClient(build("faq", *models, live=live)) as searching:
        for body, word in (
            ({}, "query"),
            ({"query": "好", "queries": ["好"]}, "query"),
            ({"query": " "}, "query"),
            ({"queries": ["好", ""]}, "queries.1"),
            ({"query": "好", "top": 0}, "top"),
            ({"query": "好", "top": 101}, "top"),
            ({"queries": ["好"] * 2048, "top": 11}, "20,480"),
            ({"query": "好", "precision": 1}, "precision"),
            ({"query": "好", "precision": 0.7}, "at most 0.60"),
            ({"query": "好", "min_probability": 0.99}, "probability of 0.8"),
            ({"query": "好", "precision": 0.5, "min_score": 0.5}, "min_score and precision"),
        ):
            answer = searching.post("/search", json=body)
            assert answer.status_code == 422 and word in answer.json()["error"]["message"], body
        raw = searching.post(
            "/search", content=b'{"query": "x", "min_score": NaN}', headers={"Content-Type": serve.JSON}
        )
        assert raw.status_code == 422
    answer = client.post("/search", json={"query": "好"})
    assert answer.status_code == 400 and "--text" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("flags", "path"), [({}, "similarity"), ({"text": ["faq.txt"]}, "search")])
def test_the_server_says_what_to_ask(flags, path, monkeypatch, caplog):
    """Fails if the start of the server leaves out the address of a request, or names one that has nothing to answer."""
    monkeypatch.setattr("uvicorn.run", lambda *args, **kwargs: None)
    for name in ("open_model", "open_live", "build"):
        monkeypatch.setattr(serve, name, lambda *args, name=name, **kwargs: name)
    with caplog.at_level("INFO", "cosent"):
        serve.main(ServeArguments(model="mini", port=8080, **flags))
    assert f"http://127.0.0.1:8080/{path} answers {{" in caplog.text


def test_servers_that_cannot_search(faq, models):
    """Fails if the server starts with a promise that it cannot keep, or with a flag that does nothing."""
    for flags, word in (
        ({"precision": 0.5}, "--precision"),
        ({"text_column": "question"}, "--text_column"),
        ({"text": ["faq.txt"], "int8": True}, "--int8"),
        ({"text": ["faq.txt"], "precision": 0.5, "min_score": 0.5}, "--min_score and --precision"),
    ):
        with pytest.raises(InputError, match=word):
            serve.main(ServeArguments(**flags))
    for model, flags, word in (
        (models[0], {"precision": 0.7}, "at most 0.60"),
        (models[0], {"min_probability": 0.99}, "probability of 0.8"),
        (models[1], {}, "--text"),
    ):
        with pytest.raises(InputError, match=word):
            faq[0](model, **flags)


def test_a_key(models):
    """Fails if somebody without the key is answered, or a health check needs it."""
    with testclient.TestClient(build("runs/faq", *models, key="secret")) as client:
        body = {"input": "好"}
        assert client.get("/health").json()["status"] == "ok"
        assert client.get("/openapi.json").status_code == 401
        assert client.post("/v1/embeddings", json=body).status_code == 401
        assert client.post("/v1/embeddings", json=body, headers={"Authorization": "Bearer no"}).status_code == 401
        assert client.post("/v1/embeddings", json=body, headers={"Authorization": "Bearer secret"}).status_code == 200


def test_keys():
    """Fails if an empty variable lets everyone in, or a key is taken that no client can send."""
    assert key_of(None) is None and key_of(" secret\n") == "secret"
    for value in ("", " ", "密钥", "a\x00b"):
        with pytest.raises(InputError, match="COSENT_API_KEY"):
            key_of(value)


def test_the_loop_does_not_compute():
    """Fails if all other clients wait while the tokens of one's texts are counted, or its answer is written."""
    threads = set()

    class Model:
        max_length, embedding_dimension, nested = 8, 2, False

        def encode(self, texts, normalize_embeddings):
            threads.add(threading.current_thread())
            return np.ones((len(texts), 2))

        def token_ids(self, texts):
            threads.add(threading.current_thread())
            return [[1, 2, 3]] * len(texts)

    app = build("model", Model(), Model())

    @app.get("/loop")
    async def loop():
        threads.add(loop_thread := threading.current_thread())
        return loop_thread.name

    with testclient.TestClient(app) as client:
        assert client.post("/v1/embeddings", json={"input": TEXTS}).json()["usage"]["total_tokens"] == 9
        computing = set(threads)
        assert computing and client.get("/loop").json() not in {thread.name for thread in computing}


@pytest.mark.parametrize("sent", ["", "POST /similarity HTTP/1.1\r\nHost: x\r\n", f"{HEAD}Content-Length: 9\r\n\r\n{{"])
def test_slow_connections_end(sent, monkeypatch):
    """Fails if a client that never finishes its request keeps its connection for ever."""
    uvicorn = pytest.importorskip("uvicorn")
    monkeypatch.setattr(serve, "PATIENCE", 0.2)
    model = SimpleNamespace(max_length=8)

    async def ask():
        config = uvicorn.Config(build("model", model, model), port=0, http=serve.protocol(), log_level="error")
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent.encode())
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        server.should_exit = True
        await task

    asyncio.run(asyncio.wait_for(ask(), 60))


def test_too_much_work(client):
    """Fails if a short request may ask for the longest query with each of two thousand texts."""
    answer = client.post("/rerank", json={"query": "好" * 20_000, "texts": ["好"] * 2048})
    assert answer.status_code == 422 and "40,962,048" in answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def address(models):
    """A server of both models in a thread."""
    uvicorn = pytest.importorskip("uvicorn")
    server = uvicorn.Server(uvicorn.Config(build("runs/faq", *models, key="secret"), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.mark.matrix
@pytest.mark.parametrize("package", ["cohere", "langchain_openai", "langchain_cohere", "llama_index", "haystack"])
def test_clients_of_others(package, address, models):
    """Fails if the settings on the page do not make another library's client return our vectors or our order."""
    pytest.importorskip(package)
    key, expected = "secret", models[0].encode(TEXTS, normalize_embeddings=True)
    order = np.argsort(-models[1].similarity(["还款"] * 3, TEXTS), kind="stable").tolist()
    vectors, ranked = expected, [order]
    if package == "cohere":
        import cohere

        clients = [kind(api_key=key, base_url=address) for kind in (cohere.Client, cohere.ClientV2)]
        answers = [client.rerank(query="还款", documents=TEXTS, model="any") for client in clients]
        ranked = [[result.index for result in answer.results] for answer in answers]
    elif package == "langchain_cohere":
        from langchain_cohere import CohereRerank

        results = CohereRerank(base_url=address, cohere_api_key=key, model="any", top_n=3).rerank(TEXTS, "还款")
        ranked = [[result["index"] for result in results]]
    elif package == "langchain_openai":
        from langchain_openai import OpenAIEmbeddings

        own = {"api_key": key, "model": "any", "check_embedding_ctx_length": False}
        vectors = OpenAIEmbeddings(base_url=f"{address}/v1", **own).embed_documents(TEXTS)
    elif package == "llama_index":
        from llama_index.embeddings.openai_like import OpenAILikeEmbedding

        client = OpenAILikeEmbedding(model_name="any", api_base=f"{address}/v1", api_key=key)
        vectors = client.get_text_embedding_batch(TEXTS)
    else:
        from haystack.components.embedders import OpenAITextEmbedder
        from haystack.utils import Secret

        client = OpenAITextEmbedder(api_base_url=f"{address}/v1", api_key=Secret.from_token(key), model="any")
        vectors = [client.run(text)["embedding"] for text in TEXTS]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert all(one == order for one in ranked)


def test_clients_share_a_batch(models):
    """Fails if each of several clients waits for the others one by one, or gets the answer of another."""
    sizes = []

    class Slow:
        max_length = 8

        def similarity(self, first, second):
            sizes.append(len(first))
            time.sleep(0.2)
            return np.array([len(text) for text in first], float)

        def token_ids(self, texts):
            return texts

    answers = {}
    with testclient.TestClient(build("slow", Slow(), Slow())) as client:

        def ask(number):
            answers[number] = client.post("/similarity", json={"pairs": [["好" * number, "好"]]}).json()["scores"]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == {number: [number] for number in range(1, 9)}
    assert sum(sizes) == 8 and len(sizes) < 8


@pytest.mark.slow
def test_the_job_serves_until_it_is_stopped():
    """Fails if the command does not listen, or lives on after SIGTERM."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "cosent", "serve", "--model", "mini", "--port", str(port), "--device", "cpu"]
    process = subprocess.Popen(command, env=os.environ | {"NO_PROXY": "*"})
    try:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/similarity",
            json.dumps({"pairs": [["怎么还款", "如何还款"]]}).encode(),
            {"Content-Type": "application/json"},
        )
        for _ in range(600):
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    assert json.load(answer)["scores"][0] == pytest.approx(0.9662, abs=1e-3)
                break
            except OSError:
                assert process.poll() is None
                time.sleep(0.2)
        else:
            pytest.fail("nobody listens")
        process.terminate()
        process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
