"""Models handed to other libraries: the keywords of sentence-transformers."""

import datasets
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import paraphrase_mining
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder

TEXTS = ["怎么还款", "今天天气很好", "怎么还款", "如何还款"]


@pytest.fixture(scope="module")
def encoder(tiny_bi):
    return SentenceEncoder.from_pretrained(str(tiny_bi))


@pytest.fixture(scope="module")
def theirs(tiny_bi):
    """The same folder as sentence-transformers loads it."""
    return SentenceTransformer(str(tiny_bi), device="cpu")


@pytest.fixture(scope="module")
def cross(tiny_cross):
    return CrossEncoder.from_pretrained(str(tiny_cross))


def test_encode_takes_what_other_libraries_pass(encoder):
    """Fails if `encode` of a single string or as a tensor differs from rows of the plain array."""
    plain = encoder.encode(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS[0]), plain[0], atol=1e-6)
    np.testing.assert_array_equal(encoder.encode(TEXTS, show_progress_bar=None, convert_to_numpy=True), plain)
    np.testing.assert_array_equal(encoder.encode(TEXTS, convert_to_tensor=True), torch.from_numpy(plain))


def test_paraphrase_mining_takes_the_encoder_itself(encoder):
    """Fails if sentence-transformers' functions, which pass `convert_to_tensor`, end in a TypeError."""
    score, first, second = paraphrase_mining(encoder, TEXTS)[0]
    assert score == pytest.approx(1) and {first, second} == {0, 2}


def test_queries_and_documents_have_their_prompts(tiny_bi):
    """Fails if an encoder with two prompts reads queries as documents in another library."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_bi))
    encoder.prompts = encoder.prompts.trained_with(("问：", "答："))
    np.testing.assert_array_equal(encoder.encode_query(TEXTS), encoder.encode(TEXTS, prompt="问："))
    np.testing.assert_array_equal(encoder.encode_document(TEXTS), encoder.encode(TEXTS, prompt="答："))
    np.testing.assert_array_equal(encoder.encode_query(TEXTS, prompt=""), encoder.encode(TEXTS, prompt=""))


def test_predict_and_rank_are_similarity_in_another_form(cross):
    """Fails if a reranker's scores depend on the method that asks for them, or its best document is not the first."""
    scores = cross.similarity(["怎么还款"] * len(TEXTS), TEXTS)
    pairs = [("怎么还款", text) for text in TEXTS]
    np.testing.assert_array_equal(cross.predict(pairs), scores)
    assert cross.predict(pairs[1]) == pytest.approx(float(scores[1]), abs=1e-6)
    ranked = cross.rank("怎么还款", TEXTS, top_k=3, return_documents=True)
    best = np.argsort(-scores, kind="stable")[:3]
    assert [one["corpus_id"] for one in ranked] == list(best)
    assert [one["text"] for one in ranked] == [TEXTS[place] for place in best]
    with pytest.raises(ValueError, match="position 1"):
        cross.predict([("怎么", "还款"), ("怎么还款",)])


@pytest.mark.matrix
def test_keybert_and_bertopic_embed_with_the_saved_model(encoder, theirs):
    """Fails if they fall back to a model of theirs, which they would download."""
    plain = encoder.encode(TEXTS)
    keybert = pytest.importorskip("keybert").KeyBERT(model=theirs)
    np.testing.assert_allclose(keybert.model.embed(TEXTS), plain, atol=1e-5)
    ((word, _), *_) = keybert.extract_keywords("怎么还款 今天天气很好 如何还款", top_n=1)
    assert word in ("怎么还款", "今天天气很好", "如何还款")
    options = {"umap_model": PCA(2), "hdbscan_model": KMeans(2, random_state=0)}
    topics = pytest.importorskip("bertopic").BERTopic(embedding_model=theirs, **options)
    numbers, _ = topics.fit_transform(TEXTS * 4)
    assert len(set(numbers)) == 2 and numbers[0] == numbers[2]
    np.testing.assert_allclose(topics.embedding_model.embed_documents(TEXTS), plain, atol=1e-5)


@pytest.mark.matrix
def test_chroma_finds_with_the_model_in_memory(encoder):
    """Fails if a vector store does not take what `encode` gives."""
    chroma = pytest.importorskip("chromadb").EphemeralClient()
    store = chroma.create_collection("faq", embedding_function=None, metadata={"hnsw:space": "cosine"})
    store.add(ids=[str(place) for place in range(3)], documents=TEXTS[1:], embeddings=encoder.encode(TEXTS[1:]))
    hit = store.query(query_embeddings=encoder.encode_query(TEXTS[:1]), n_results=1)
    assert hit["documents"] == [[TEXTS[0]]] and hit["distances"][0][0] == pytest.approx(0, abs=1e-5)


@pytest.mark.matrix
def test_mteb_scores_the_saved_model(encoder, theirs):
    """Fails if mteb's figures of a folder are not those of its cosines."""
    mteb = pytest.importorskip("mteb")
    task, gold = mteb.get_task("STSB"), [0.0, 1.0, 0.5]
    rows = {"sentence1": TEXTS[:3], "sentence2": TEXTS[1:], "score": gold}
    task.dataset, task.data_loaded = dict.fromkeys(("validation", "test"), datasets.Dataset.from_dict(rows)), True
    (result,) = mteb.evaluate(theirs, task, cache=None).task_results
    expected = np.corrcoef(encoder.similarity(TEXTS[:3], TEXTS[1:]), gold)[0, 1]
    assert result.scores["test"][0]["cosine_pearson"] == pytest.approx(expected, abs=1e-5)
