"""Finding sentences: the nearest ones first, reranked by another model, and what is refused."""

import io
import json
import re
import sys
from dataclasses import asdict, replace
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch

from cosent.errors import InputError
from cosent.evaluation.calibration import Calibration
from cosent.jobs.encode import EncodeArguments
from cosent.jobs.encode import main as encode
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cache import growing_vectors
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.decision import AnswerRule, DecisionRule
from cosent.models.prompts import Prompts
from cosent.seal import sha256_of_file
from cosent.search.differences import COLLISION
from cosent.search.index import Hit, Index, open_index, reranked
from cosent.search.vectors import VectorManifest

LINES = ["怎么还款", "如何还款", "今天天气很好", "红色的苹果", "我喜欢北京", "推荐一辆红车", "怎么还款"]


@pytest.fixture(scope="module")
def folder(tiny_bi, tmp_path_factory):
    """A folder with the sentences `faq.txt`, and `index/vectors.npy` that `cosent encode` made of them."""
    folder = tmp_path_factory.mktemp("search")
    (folder / "faq.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    (folder / "index").mkdir()
    encoded(folder / "faq.txt", folder / "index/vectors.npy", tiny_bi)
    return folder


@pytest.fixture(scope="module")
def encoder(tiny_bi):
    return SentenceEncoder.from_pretrained(str(tiny_bi))


def encoded(text, output, model, **changes):
    encode(
        EncodeArguments(
            text=str(text), output=str(output), model=str(model), **{"normalize": True, "device": "cpu"} | changes
        )
    )


@pytest.fixture
def search(folder, tiny_bi, job, tmp_path, monkeypatch):
    """A function that runs the job and returns its lines of stdout, and stderr."""
    cached = partial(growing_vectors, cache=tmp_path / "cache")
    monkeypatch.setattr("cosent.models.cache.growing_vectors", cached)

    def run(*flags, index=folder / "index/vectors.npy"):
        words = ["--index", index] if index else []
        printed, said = job("cosent.jobs.search", "--model", tiny_bi, *words, "--device", "cpu", *flags)
        return printed.splitlines(), said

    return run


def test_the_most_similar_sentences_first(search, encoder):
    """Fails if a row has another sentence's text or cosine, or the order is not that of the cosines."""
    lines, said = search("--query", "还款怎么操作", "苹果", "--top", "8", "--json")
    for line, query in zip(lines, ("还款怎么操作", "苹果"), strict=True):
        answer = json.loads(line)
        cosines = encoder.similarity([query] * len(LINES), LINES)
        assert answer["query"] == query
        assert [hit["row"] for hit in answer["hits"]] == np.argsort(-cosines, kind="stable").tolist()
        for hit in answer["hits"]:
            assert hit["sentence"] == LINES[hit["row"]] and hit["cosine"] == pytest.approx(
                cosines[hit["row"]], abs=1e-5
            )
    assert "2 queries in 7 sentences: " in said


def test_a_hit_that_the_model_cannot_tell_from_the_query(search, tmp_path):
    """Fails if another person's order is found with a cosine of 1, and nothing says why."""
    (tmp_path / "orders.txt").write_text("陈玙的订单\n陈明的订单\n", encoding="utf-8")
    flags = ("--text", tmp_path / "orders.txt", "--query", "陈玕的订单", "陈玙的订单")
    lines, _ = search(*flags, "--json", index=None)
    found = [[hit["token_collision"] for hit in json.loads(line)["hits"]] for line in lines]
    assert found == [[True, False], [False, False]]
    lines, _ = search(*flags, index=None)
    assert [COLLISION in line for line in lines] == [False, False, True, False, False, False, False]


def test_ways_to_ask(search, folder, tmp_path, monkeypatch):
    """Fails if searching one's own file takes more than one command or finds something else than its index does, or a
    session cannot ask several queries of a model that is loaded once."""
    expected, _ = search("--query", "还款", "--top", "3")
    (tmp_path / "queries.txt").write_text("还款\n", encoding="utf-8")
    for query in (("--query", "还款"), ("--queries", tmp_path / "queries.txt")):
        assert search("--text", folder / "faq.txt", *query, "--top", "3", index=None)[0] == expected
    assert expected[1] == "还款" and len(expected) == 5 and expected[2].split()[0] == "1"
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 1, "the vectors are not cached"
    monkeypatch.setattr(sys, "stdin", io.StringIO("还款\n\n苹果\n"))
    (head, *lines), said = search("--top", "1")
    assert head.split() == ["rank", "cosine", "row", "sentence"]
    assert lines[0::2] == ["还款", "苹果"] and len(lines) == 4 and said.count("1 query in 7 sentences") == 2


def test_reranking(search, folder, encoder, tiny_cross, monkeypatch):
    """Fails if --rerank keeps the order of the cosines, reads other sentences, or drops a better one for --top."""
    monkeypatch.setattr(Index.search, "__defaults__", (10, None, None, 5))
    flags = ("--query", "还款", "--top", "2", "--rerank", tiny_cross)
    answer = json.loads(search(*flags, "--json")[0][0])
    head, _, hit = search(*flags)[0][:3]
    names, values = ([match.end() for match in re.finditer(r"\S+", line)] for line in (head, hit))
    assert names[:-1] == values[:-1] and "rerank" in head, "columns stand under their names"
    hits = json.loads(search("--query", "还款", "--top", "5", "--json")[0][0])["hits"]
    cross = CrossEncoder.from_pretrained(str(tiny_cross))
    scores = cross.similarity(["还款"] * 5, [hit["sentence"] for hit in hits])
    best = np.argsort(-scores, kind="stable")[:2]
    assert [hit["row"] for hit in answer["hits"]] == [hits[place]["row"] for place in best]
    assert [hit["rerank"] for hit in answer["hits"]] == pytest.approx(scores[best].tolist(), abs=1e-5)
    index = Index.open(folder / "index/vectors.npy", encoder)
    found = index.search(["还款"], top=2, reranker=cross, candidates=5)[0]
    assert [hit.row for hit in found] == [hit["row"] for hit in answer["hits"]]
    assert reranked(cross, ["a"], [[]]) == [[]] and isinstance(found[0], Hit)
    with torch.no_grad():
        next(cross.model.parameters()).fill_(torch.nan)
    with pytest.raises(InputError, match="nan"):
        index.search(["还款"], top=2, reranker=cross, candidates=5)


def test_prompts_of_queries_and_sentences(folder, tiny_bi, tmp_path, caplog, job):
    """Fails if queries or sentences are read without the prompt that the model has for them."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_bi))
    encoder.prompts = Prompts({"query": "问：", "passage": "答："})
    encoder.save_pretrained(tmp_path / "bi")
    encoded(folder / "faq.txt", tmp_path / "vectors.npy", tmp_path / "bi", prompt_name=["passage"])
    index = Index.open(tmp_path / "vectors.npy", encoder)
    np.testing.assert_allclose(
        index.embed(["还款"]), encoder.encode(["问：还款"], normalize_embeddings=True), atol=1e-6
    )
    np.testing.assert_allclose(
        index.embed(["还款"], ""), encoder.encode(["还款"], normalize_embeddings=True), atol=1e-6
    )
    for embed in (None, partial(growing_vectors, cache=tmp_path / "cache")):
        own = Index.of(LINES, encoder, embed)
        np.testing.assert_allclose(own.vectors, index.vectors[: len(LINES)], atol=1e-6)
    assert "--prompt_name" not in caplog.text
    words = ("--model", tmp_path / "bi", "--index", tmp_path / "vectors.npy", "--query", LINES[0], "--json")
    best = [json.loads(job("cosent.jobs.search", *words, *flags)[0])["hits"][0]["cosine"]
            for flags in (("--prompt_name", "passage"), ("--prompt", "答："), ())]  # fmt: skip
    assert best[:2] == [pytest.approx(1, abs=1e-5)] * 2 and best[2] < 0.9999
    index.prompt = ""
    index.embed(["还款"])
    assert "'答：'" in caplog.text and "--prompt_name document" in caplog.text


def test_an_index_that_does_not_fit_is_refused(folder, encoder, tiny_bi, tiny_model, tmp_path):
    """Fails if vectors of another model, or of any length, are searched: what is found would mean nothing."""
    with pytest.raises(InputError, match="another model"):
        Index.open(folder / "index/vectors.npy", SentenceEncoder.from_pretrained(str(tiny_model), pooling="cls"))
    encoded(folder / "faq.txt", tmp_path / "long.npy", tiny_bi, normalize=False)
    with pytest.raises(InputError, match="length .* --normalize"):
        Index.open(tmp_path / "long.npy", encoder)
    with pytest.raises(InputError, match=r"no vectors at .*bi"):
        Index.open(tiny_bi, encoder)
    vectors = np.load(folder / "index/vectors.npy")
    vectors[2] = np.nan
    np.save(tmp_path / "nan.npy", vectors)
    about = VectorManifest.read(folder / "index/vectors.npy")
    replace(about, sha256=sha256_of_file(tmp_path / "nan.npy")).save(tmp_path / "nan.npy")
    with pytest.raises(InputError, match=r"nan\.npy: row 2 .* length nan"):
        Index.open(tmp_path / "nan.npy", encoder)


def test_a_table_without_a_header(search, tiny_bi, tmp_path):
    """Fails if vectors of a table without column names cannot be searched, because its column has a made-up one."""
    expected, _ = search("--query", "还款", "--top", "3")
    for name, rows, column in (("one.csv", LINES, None), ("two.tsv", [f"{n}\t{s}" for n, s in enumerate(LINES)], "1")):
        (tmp_path / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
        encoded(tmp_path / name, tmp_path / "v.npy", tiny_bi, text_column=column, overwrite=True)
        assert search("--query", "还款", "--top", "3", index=tmp_path / "v.npy")[0] == expected


def test_impossible_questions(folder, encoder, tmp_path):
    """Fails if an impossible question gets an answer or a traceback, or an empty query gets hits."""
    index = Index.open(folder / "index/vectors.npy", encoder)
    (tmp_path / "blank.txt").write_text("\n \n", encoding="utf-8")
    for call, message in (
        (lambda: open_index(None, [str(tmp_path / "blank.txt")], encoder), "blank.txt, line 1: .*an empty line"),
        (lambda: index.search(["还款", "\t"]), "Query 2 of 2"),
        (lambda: index.search(["还款"], top=0), "1 to 7 sentences"),
        (lambda: Index.of([], encoder), "no sentence"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_only_new_lines_are_embedded(search, folder, tmp_path, monkeypatch):
    """Fails if a file that grew is embedded again as a whole, or a line gets the vector of another."""
    text, embedded, stock = tmp_path / "faq.txt", [], SentenceEncoder.encode
    monkeypatch.setattr(
        SentenceEncoder, "encode", lambda *args, **options: embedded.append(list(args[1])) or stock(*args, **options)
    )
    for lines in (LINES, ["怎么借钱", *LINES[1:]], LINES[1:3]):
        text.write_text("\n".join(lines) + "\n", encoding="utf-8")
        embedded.clear()
        out, _ = search("--text", text, "--query", lines[-1], "--top", "1", "--json", index=None)
        hit = json.loads(out[0])["hits"][0]
        assert hit["sentence"] == lines[-1] and hit["cosine"] == pytest.approx(1, abs=1e-5)
        if lines is not LINES:
            assert set(chain(*embedded)) <= {"怎么借钱", lines[-1]}


@pytest.mark.parametrize("stored", [True, False])
def test_faiss_of_an_edited_file(search, tiny_bi, tmp_path, monkeypatch, stored):
    """Fails if the index of faiss of an earlier text answers: other sentences, or the right rows of the wrong text."""
    pytest.importorskip("faiss")
    monkeypatch.setattr("cosent.search.index.LENGTHS", 3)  # samples leave out most rows, as in a file of any length
    for edited in ("如何还款", "怎么借钱"):
        (tmp_path / "faq.txt").write_text("\n".join([LINES[0], edited, *LINES[2:]]) + "\n", encoding="utf-8")
        flags, index = ["--text", tmp_path / "faq.txt"], None
        if stored:
            flags, index = [], tmp_path / "vectors.npy"
            encoded(tmp_path / "faq.txt", index, tiny_bi, overwrite=True)
        flags += ["--query", edited, "--top", "1", "--faiss", "HNSW32,Flat", "--json"]
        (hit,) = json.loads(search(*flags, index=index)[0][0])["hits"]
        assert (hit["row"], hit["sentence"]) == (1, edited) and hit["cosine"] == pytest.approx(1, abs=1e-5)
    assert len(list(tmp_path.glob("*.faiss"))) == stored, "an index that nothing reads any more is kept"


RULE = DecisionRule(
    "faq",
    0.95,
    Calibration(method="platt", pairs=98, slope=9.0, intercept=-8.0),
    answers=(AnswerRule(0.0, 0.5, 0.6, 0.9, 40, 80), AnswerRule(1.0, 0.999999, 0.8, 0.5, 40, 80)),
)


def test_hits_by_the_rule_of_the_model(search, tiny_bi, tmp_path, monkeypatch):
    """Fails if the command and Python decide otherwise, a rule with too low a precision is taken, a promise that no
    rule keeps is made, the answer of a table is lost, or its sentences are not those of the column."""
    monkeypatch.setattr("cosent.models.decision.decision_rules", lambda model: {"faq": RULE})
    monkeypatch.setattr("cosent.search.index.decision_rules", lambda model: {"faq": RULE})
    with open(tmp_path / "faq.csv", "w", encoding="utf-8") as file:
        file.write("id,question,answer\n" + "".join(f"{n},{line},答{n}\n" for n, line in enumerate(LINES[:6])))
    flags = ("--text", tmp_path / "faq.csv", "--text_column", "question", "--query", "怎么还款", "别的事")
    lines, said = search(*flags, "--precision", 0.7, "--json", index=None)
    (hit, *_), nothing = (json.loads(line)["hits"] for line in lines)
    assert nothing == [] and "cosine + 1 x lead >= 1.0000: at least 80.0% right and 50.0% of answerable" in said
    assert hit["columns"] == {"id": "0", "question": "怎么还款", "answer": "答0"} and hit["verdict"] == "similar"
    assert hit["probability"] == pytest.approx(1 / (1 + np.exp(-1.0)), abs=1e-4)
    index = Index.load(str(tiny_bi), [str(tmp_path / "faq.csv")], text_column="question")
    found = index.search(["怎么还款", "别的事"], precision=0.7)
    assert json.loads(json.dumps([asdict(one) for one in found[0]])) == json.loads(lines[0])["hits"] and found[1] == []
    head, _, first, *_ = search(*flags, index=None)[0]
    assert head.split()[2:4] == ["probability", "verdict"] and first.split()[:4] == ["1", "1.0000", "0.7311", "similar"]
    for wanted, message in (("--precision 0.9", r"at most 0\.80"), ("--min_probability 0.8", "probability of 0.7311")):
        with pytest.raises(InputError, match=message):
            search(*flags, *wanted.split(), index=None)
    likely = search(*flags, "--min_probability", 0.73, "--json", index=None)[0]
    assert [len(json.loads(line)["hits"]) for line in likely] == [1, 0]
    for other in (("--prompt", "q: "), ("--rerank", tiny_bi)):
        with pytest.raises(InputError, match="--precision 0.7 needs .* no --rerank, --faiss or --prompt"):
            search(*flags, "--precision", 0.7, *other, index=None)


def test_a_search_can_find_nothing(search):
    """Fails if something is returned whatever the query, a hit below the limit is shown, or JSON hides the query."""
    lines, _ = search("--top", "3", "--query", "怎么还款", "--min_score", "0.99")
    assert [line.split()[-1] for line in lines[2:]] == ["怎么还款", "怎么还款"]
    lines, _ = search("--top", "3", "--query", "别的事", "--min_score", "0.999999")
    assert lines[1:] == ["别的事", "      nothing found"]
    (found,), _ = search("--top", "3", "--query", "别的事", "--min_score", "0.999999", "--json")
    assert json.loads(found) == {"query": "别的事", "hits": []}
