"""Texts longer than a model reads: windows, their mean and the best of them, in pairs, vectors and search."""

import json
from functools import partial

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.models.auto import load_bi_encoder
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cache import growing_vectors
from cosent.models.embedding import windows
from cosent.search.index import Index

LENGTH = 12  # tokens, of which two are special
LONG = "我们昨天在公园里看到一只很大的红色气球飞过天空然后慢慢落到湖边的草地上孩子们都跑去看它"
TEXTS = ["怎么还款", LONG, "今天天气很好"]


@pytest.fixture
def folder(tiny_model, tmp_path):
    SentenceEncoder.from_pretrained(str(tiny_model), pooling="mean", max_length=LENGTH).save_pretrained(tmp_path / "bi")
    return tmp_path / "bi"


def test_windows_cover_a_text_and_overlap_by_half(folder):
    """Fails if a character is in no window, or a short sentence is changed."""
    encoder = load_bi_encoder(str(folder))
    texts, owner = windows(encoder, TEXTS)
    assert texts[0] == TEXTS[0] and texts[-1] == TEXTS[2] and owner.tolist() == [0, *[1] * (len(texts) - 2), 2]
    inner = texts[1:-1]
    assert [len(text) for text in inner[:-1]] == [10] * (len(inner) - 1)
    assert inner[0] == LONG[:10] and inner[1] == LONG[5:15] and LONG.endswith(inner[-1])
    assert max(map(encoder.count_tokens, texts)) <= LENGTH - 2


def test_the_mean_is_that_of_the_windows(folder, job, tmp_path):
    """Fails if the end of a long text does not count, or a short one has another vector than before."""
    plain, mean = load_bi_encoder(str(folder)), load_bi_encoder(str(folder), "mean")
    texts, owner = windows(plain, TEXTS)
    expected = plain.encode(texts, normalize_embeddings=True)[owner == 1].mean(axis=0)
    encoded, cut = mean.encode(TEXTS, normalize_embeddings=True), plain.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(encoded[1], expected / np.linalg.norm(expected), atol=1e-5)
    np.testing.assert_allclose(encoded[[0, 2]], cut[[0, 2]], atol=1e-5)
    assert np.abs(encoded[1] - cut[1]).max() > 1e-3

    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    words = ["--text", tmp_path / "texts.txt", "--output", tmp_path / "v.npy", "--normalize", "--long_texts", "mean"]
    job("cosent.jobs.encode", "--model", folder, *words)
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), encoded, atol=1e-5)
    Index.open(tmp_path / "v.npy", mean)
    with pytest.raises(InputError, match=r"v\.npy"):
        Index.open(tmp_path / "v.npy", plain)


def test_the_best_window_decides(folder, job, tmp_path, monkeypatch):
    """Fails if a sentence inside a long text is not found, or a text is found twice."""
    best = load_bi_encoder(str(folder), "best")
    inside = LONG[10:20]
    assert best.similarity([LONG, inside], [inside, "怎么还款"])[0] == pytest.approx(1, abs=1e-5)
    cached = partial(growing_vectors, cache=tmp_path / "cache")
    monkeypatch.setattr("cosent.models.cache.growing_vectors", cached)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    words = ("--text", tmp_path / "texts.txt", "--query", inside, "--top", "3", "--json", "--long_texts", "best")
    hits = json.loads(job("cosent.jobs.search", "--model", folder, *words)[0])["hits"]
    assert hits[0]["row"] == 1 and sorted(hit["row"] for hit in hits) == [0, 1, 2]
    assert hits[0]["cosine"] == pytest.approx(1, abs=1e-5)


def test_pairs_of_long_and_of_short_texts(folder, evaluate, job, tmp_path):
    """Fails if evaluate cuts texts in spite of --long_texts, or similarity compares vectors longer than asked for."""
    first, second = [LONG, *TEXTS], [LONG[30:], "如何还款", LONG[20:], "今天下雨"]
    rows = zip(first, second, "1010", strict=True)
    lines = ["\t".join(row) for row in [("sentence1", "sentence2", "label"), *rows]]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines), encoding="utf-8")
    words = ("--pairs", tmp_path / "pairs.tsv", "--long_texts", "mean", "--predictions", tmp_path / "p.tsv")
    evaluate(*words, "--no_retrieval", model=folder)
    written = [line.split("\t")[-1] for line in (tmp_path / "p.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    mean, cut = (load_bi_encoder(str(folder), how).similarity(first, second) for how in ("mean", "truncate"))
    np.testing.assert_allclose(np.array(written, dtype=float), mean, atol=2e-6)
    assert np.abs(mean - cut)[0] > 1e-3

    printed, _ = job("cosent.jobs.similarity", "--model", folder, "--truncate_dim", "8", "怎么还款", "今天下雨")
    short, full = (
        load_bi_encoder(str(folder), truncate_dim=dim).similarity("怎么还款", "今天下雨") for dim in (8, None)
    )
    assert float(printed.splitlines()[1].split()[0]) == pytest.approx(short, abs=1.01e-4) and abs(short - full) > 1e-3


def test_what_has_no_windows(tiny_cross, job):
    """Fails if a cross-encoder is asked for windows in silence, or for several vectors of a text in one file."""
    with pytest.raises(InputError, match="cross-encoder"):
        load_bi_encoder(str(tiny_cross), "mean")
    with pytest.raises(InputError, match="--long_texts"):
        job("cosent.jobs.search", "--index", "v.npy", "--long_texts", "best")
