"""Finding sentences: the nearest ones first, reranked by another model, and what is refused."""

import io
import json
import sys
from dataclasses import asdict

import numpy as np
import pytest
import torch

from cosent.errors import InputError
from cosent.evaluation.calibration import Calibration
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.decision import DecisionRule
from cosent.models.prompts import Prompts
from cosent.search.index import Index

LINES = ["怎么还款", "如何还款", "今天天气很好", "红色的苹果", "我喜欢北京", "推荐一辆红车", "怎么还款"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A file of the sentences."""
    file = tmp_path_factory.mktemp("search") / "faq.txt"
    file.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def encoder(tiny_bi):
    return SentenceEncoder.from_pretrained(str(tiny_bi))


@pytest.fixture
def search(file, tiny_bi, job, tmp_path, monkeypatch):
    """A function that runs the job and returns its lines of stdout, and stderr."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*flags, text=file):
        printed, said = job("cosent.jobs.search", "--model", tiny_bi, "--text", text, "--device", "cpu", *flags)
        return printed.splitlines(), said

    return run


def test_the_most_similar_sentences_first(search, encoder):
    """Fails if a row has another sentence's text or cosine, or the order is not that of the cosines."""
    lines, said = search("--query", "还款怎么操作", "苹果", "--top", "8", "--json")
    for line, query in zip(lines, ("还款怎么操作", "苹果"), strict=True):
        answer = json.loads(line)
        cosines = encoder.similarity([query] * len(LINES), LINES)
        assert answer["query"] == query
        rows, values = [hit["row"] for hit in answer["hits"]], [hit["cosine"] for hit in answer["hits"]]
        assert sorted(rows) == list(range(7)) and values == sorted(values, reverse=True)
        assert values == pytest.approx(cosines[rows].tolist(), abs=1e-5)
        assert [hit["sentence"] for hit in answer["hits"]] == [LINES[row] for row in rows]
    assert "2 queries in 7 sentences: " in said


def test_a_session_of_queries(search, tmp_path, monkeypatch):
    """Fails if several queries cannot be asked of a model that is loaded once, or a file is embedded at every call."""

    def typed(queries: bytes, *flags):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(queries), "ascii"))
        return search("--top", "1", *flags)

    for encoding in ("gb18030", "utf-16"):
        with pytest.raises(InputError, match=f"line 1: .*--encoding {encoding}"):
            typed("a你好\n".encode(encoding))
    (head, *lines), said = typed("\ufeff还款\n\n苹果\n".encode())
    assert head.split() == ["rank", "cosine", "row", "sentence"]
    assert lines[0::2] == ["还款", "苹果"] and len(lines) == 4 and "2 queries in 7 sentences" in said
    monkeypatch.setattr("cosent.models.cache.shared", None)  # computes what is not in the cache
    assert search("--query", "还款", "苹果", "--top", "1")[0] == [head, *lines]
    assert len(list((tmp_path / "cache").rglob("*.npy"))) == 1


def test_reranking(search, encoder, tiny_cross, monkeypatch):
    """Fails if --rerank keeps the order of the cosines, reads other sentences, or drops a better one for --top."""
    monkeypatch.setattr("cosent.search.index.RERANKED_SENTENCES", 5)
    flags = ("--query", "还款", "--top", "2", "--rerank", tiny_cross)
    answer = json.loads(search(*flags, "--json")[0][0])
    hits = json.loads(search("--query", "还款", "--top", "5", "--json")[0][0])["hits"]
    cross = CrossEncoder.from_pretrained(str(tiny_cross))
    scores = cross.similarity(["还款"] * 5, [hit["sentence"] for hit in hits])
    best = np.argsort(-scores, kind="stable")[:2]
    assert [hit["row"] for hit in answer["hits"]] == [hits[place]["row"] for place in best]
    assert [hit["rerank"] for hit in answer["hits"]] == pytest.approx(scores[best].tolist(), abs=1e-5)
    index = Index.of(LINES, encoder)
    hits = index.search(["还款"], top=2, reranker=cross)[0]
    assert [hit.row for hit in hits] == [hit["row"] for hit in answer["hits"]]
    with torch.no_grad():
        next(cross.model.parameters()).fill_(torch.nan)
    with pytest.raises(InputError, match="nan"):
        index.search(["还款"], top=2, reranker=cross)


def test_prompts_of_queries_and_sentences(file, tiny_bi, tmp_path, job, monkeypatch):
    """Fails if queries or sentences are read without the prompt that the model has for them."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_bi))
    encoder.prompts = Prompts({"query": "问：", "passage": "答："})
    encoder.save_pretrained(tmp_path / "bi")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    vectors = encoder.encode(LINES, normalize_embeddings=True, prompt="答：")
    indices = Index.of(LINES, encoder), Index.read([str(file)], encoder), Index(encoder, vectors, LINES)
    words = ("--model", tmp_path / "bi", "--text", file, "--query", "还款", "--json")
    for prompt, flags in (
        (None, ()),
        ("", ("--prompt=",)),
        ("答：", ("--prompt_name", "passage")),
        ("答：", ("--prompt", "答：")),
    ):
        query = encoder.encode("还款", normalize_embeddings=True, prompt="问：" if prompt is None else prompt)
        best = pytest.approx(float((vectors @ query).max()), abs=1e-5)
        assert all(index.search("还款", 1, prompt)[0].cosine == best for index in indices)
        assert json.loads(job("cosent.jobs.search", *words, *flags)[0])["hits"][0]["cosine"] == best


UNCALIBRATED = DecisionRule("faq", 0.95, None)


def test_impossible_questions(encoder, tmp_path):
    """Fails if an impossible question gets an answer or a traceback, or an empty query gets hits."""
    index = Index.of(LINES, encoder)
    (tmp_path / "blank.txt").write_text("\n \n", encoding="utf-8")
    for call, message in (
        (lambda: Index.read([str(tmp_path / "blank.txt")], encoder), "blank.txt, line 1: .*an empty line"),
        (lambda: index.search(["还款", "\t"]), "Query 2 of 2"),
        (lambda: index.search(["还款"], top=0), "at least 1 sentence"),
        (lambda: Index.of([], encoder), "no sentence"),
        (lambda: index.search("还款", rule=UNCALIBRATED, min_probability=0.5), "--min_probability 0.5"),
    ):
        with pytest.raises(InputError, match=message):
            call()


RULE = DecisionRule("faq", 0.95, Calibration(method="platt", pairs=98, slope=9.0, intercept=-8.0))


def test_hits_by_the_rule_of_the_model(search, tiny_bi, tmp_path, monkeypatch):
    """Fails if the command and Python decide otherwise, a probability that no hit has is accepted, the row of a table
    is lost, or its sentences are not those of the column."""
    monkeypatch.setattr("cosent.models.decision.decision_rules", lambda model: {"faq": RULE})
    table, rows = tmp_path / "faq.csv", "".join(f"{n},{line},答{n}\n" for n, line in enumerate(LINES[:6]))
    table.write_text("id,question,answer\n" + rows, encoding="utf-8")
    flags = ("--text_column", "question", "--query", "怎么还款", "别的事")
    lines, _ = search(*flags, "--min_probability", 0.73, "--json", text=table)
    (hit, *_), nothing = (json.loads(line)["hits"] for line in lines)
    assert nothing == []
    assert hit["columns"] == {"id": "0", "question": "怎么还款", "answer": "答0"} and hit["verdict"] == "similar"
    assert hit["probability"] == pytest.approx(1 / (1 + np.exp(-1.0)), abs=1e-4)
    index = Index.load(str(tiny_bi), [str(table)], text_column="question")
    hits = index.search(["怎么还款", "别的事"], min_probability=0.73)
    assert json.loads(json.dumps([asdict(hit) for hit in hits[0]])) == json.loads(lines[0])["hits"] and hits[1] == []
    head, _, first, *_ = search(*flags, text=table)[0]
    assert head.split()[2:4] == ["probability", "verdict"] and first.split()[:4] == ["1", "1.0000", "0.7311", "similar"]
    with pytest.raises(InputError, match=r"0\.7311"):
        search(*flags, "--min_probability", 0.8, text=table)
    with pytest.raises(InputError, match="--rerank .* no cross-encoder"):
        search(*flags, "--rerank", tiny_bi, text=table)
