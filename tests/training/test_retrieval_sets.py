"""Retrieval next to Spearman, in training and evaluation: the figures are those of sentence-transformers."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from cosent.data.corpus import load_corpus
from cosent.data.retrieval import retrieval_task
from cosent.evaluation.retrieval import METRICS
from cosent.models.bi_encoder import SentenceEncoder
from cosent.record import read_queries, read_record
from tests.conftest import SENTENCES

QUERY, DOCUMENT = "问：", "答："


@pytest.fixture
def corpus(make_corpus):
    """Each of 24 sentences is similar to the next one and the one after, and unlike the one after that."""
    texts = [f"{a}{b}" for a in SENTENCES for b in ("", "吗", "了")]
    rows = [(a, texts[(i + step) % 24], float(step < 3)) for i, a in enumerate(texts) for step in (1, 2, 3)]
    return make_corpus({"train": rows[:60], "validation": rows[:30], "test": rows})


def theirs(model, corpus, split: str, prompts: tuple[str, str] = ("", "")) -> dict[str, float]:
    """The metrics of sentence-transformers' evaluator; a query is no document of its own, as it would find itself."""
    loaded = load_corpus(str(corpus))
    task = retrieval_task(loaded.split(split), loaded.manifest, split)
    pool, relevance = task.pool, task.relevance
    encoder = SentenceTransformer(str(model), device="cpu")
    vectors = [encoder.encode([prompt + text for text in pool], normalize_embeddings=True) for prompt in prompts]
    scores = vectors[0] @ vectors[1].T
    np.fill_diagonal(scores, -np.inf)
    evaluator = InformationRetrievalEvaluator(
        queries={str(row): pool[row] for row in relevance.queries},
        corpus={str(row): text for row, text in enumerate(pool)},
        relevant_docs={
            str(query): set(map(str, relevance.items[a:b]))
            for query, a, b in zip(relevance.queries, relevance.starts, relevance.starts[1:], strict=False)
        },
        precision_recall_at_k=[1, 5, 10],
    )
    order = [np.argsort(-scores[query], kind="stable")[: len(pool) - 1] for query in relevance.queries]
    found = evaluator.compute_metrics(
        [
            [{"corpus_id": str(row), "score": float(scores[query][row])} for row in rows]
            for query, rows in zip(relevance.queries, order, strict=True)
        ]
    )
    values = {}
    for name in METRICS:
        kind, _, k = name.partition("_at_")
        values[name] = float(np.mean(found[f"{kind}@k"][int(k or 100)]))
    return values


def test_training_and_evaluation_measure_what_sentence_transformers_does(train, evaluate, corpus, capsys):
    """Fails if retrieval of a run or of `cosent evaluate` is that of another model, moment, split or formula."""
    folder = train(corpus, "--pooling", "mean")
    printed = capsys.readouterr().out
    record, kept = read_record(folder), read_queries(folder / "queries.npz")["made_up"]
    for split in ("validation", "test"):
        found, rows = record.after["made_up"][split], load_corpus(str(corpus)).split(split)
        assert {name: found[name] for name in METRICS} == pytest.approx(theirs(folder, corpus, split), abs=1e-6), split
        assert 0 < found["recall_at_1"] < found["recall_at_10"] <= 1
        assert found["pool"] == len({*rows["sentence1"], *rows["sentence2"]})
        for name in METRICS:
            for moment, metrics in (("before", record.before), ("after", record.after)):
                values = kept[split].moments[moment][name]
                assert values.mean() == pytest.approx(metrics["made_up"][split][name], abs=1e-6)
                assert len(values) == found["queries"]
            low, high = record.intervals["made_up"][split][name]
            assert low <= found[name] <= high and (low < high or np.ptp(values) < 1e-9)  # of the queries after
    test = record.after["made_up"]["test"]
    assert record.before["made_up"]["test"]["map"] != test["map"]
    assert len([entry for entry in record.history if "eval_recall_at_10" in entry]) == 2
    assert f"{test['recall_at_10']:.4f}" in printed and "Recall@1 before -> after" in printed

    result, shown = evaluate("--corpus", corpus, model=folder)
    compared = (*METRICS, "spearman")
    assert {name: result[name] for name in compared} == pytest.approx({name: test[name] for name in compared}, abs=1e-6)
    assert result["intervals"]["map"] == record.intervals["made_up"]["test"]["map"]
    assert "24 queries among 24 sentences" in shown and f"{result['ndcg_at_10']:.4f}" in shown
    without, shown = evaluate("--corpus", corpus, "--retrieval", "false", model=folder)
    assert "map" not in without and "retrieval" not in shown
    assert without["spearman"] == pytest.approx(result["spearman"], abs=1e-6)


def test_two_prompts_are_those_of_queries_and_documents(train, evaluate, corpus):
    """Fails if a pool is embedded as queries, or a query as a document, where a model tells them apart, or
    sentence-transformers does not find the two prompts in its folder."""
    folder = train(corpus, "--pooling", "mean", "--num_train_epochs", "1", "--prompt", QUERY, DOCUMENT)
    record, ours = read_record(folder), SentenceEncoder.from_pretrained(str(folder))
    served, found = SentenceTransformer(str(folder), device="cpu"), record.after["made_up"]["test"]
    assert record.prompts == (QUERY, DOCUMENT)
    np.testing.assert_allclose(served.encode_query(["好"]), ours.encode(["好"], prompt_name="query"), atol=1e-6)
    np.testing.assert_allclose(served.encode_document(["好"]), ours.encode(["好"], prompt_name="document"), atol=1e-6)
    expected = theirs(folder, corpus, "test", (QUERY, DOCUMENT))
    assert {name: found[name] for name in METRICS} == pytest.approx(expected, abs=1e-6)
    result, _ = evaluate("--corpus", corpus, "--prompt_name", "query", "document", model=folder)
    assert {name: result[name] for name in METRICS} == pytest.approx(expected, abs=1e-6)
    assert result["spearman"] == pytest.approx(found["spearman"], abs=1e-6)
    assert expected != pytest.approx(theirs(folder, corpus, "test", (QUERY, QUERY)), abs=1e-6)


def test_two_corpora_select_by_their_mean(train, corpus, make_corpus, pairs, caplog):
    """Fails if the mean is that of other corpora, or one in which nothing is similar stops the run, or has no figures
    without a reason."""
    nothing = [("甲乙", "丙丁", 1.0), ("甲乙", "戊己", 0.0), ("丙丁", "戊己", 2.0)]
    graded = make_corpus({"train": nothing * 8, "validation": nothing}, "graded", 5.0, name="graded")
    second = make_corpus({"validation": pairs[:32]}, name="second")
    folder = train(
        (corpus, graded), "--eval_corpora", str(corpus), str(graded), str(second), "--metric_for_best_model", "map"
    )
    record = read_record(folder)
    history = [entry for entry in record.history if "eval_map" in entry]
    each = [
        [e[f"eval_{name}_map"] for e in record.history if f"eval_{name}_map" in e] for name in ("made_up", "second")
    ]
    assert [entry["eval_map"] for entry in history] == pytest.approx(np.mean(each, axis=0).tolist())
    assert "map" not in record.after["graded"]["validation"] and "graded" not in record.intervals
    assert "No retrieval metrics" in caplog.text


def test_similar_pairs_alone_select_an_epoch(train, make_corpus):
    """Fails if a corpus without dissimilar pairs, which Spearman cannot rank, keeps an epoch that finds less."""
    rows = [(f"{text}{end}", f"{text}{other}", 1.0) for text in SENTENCES for end, other in (("", "吗"), ("了", "吗"))]
    positives = make_corpus({"train": rows, "validation": rows}, name="positives")
    flags = ("--loss", "infonce", "--pooling", "mean", "--num_train_epochs", "3")
    folder = train(positives, *flags, "--metric_for_best_model", "map", output="selected")
    record = read_record(folder)
    epochs = [entry["eval_map"] for entry in record.history if "eval_map" in entry]
    assert len(epochs) == 3 and len(set(epochs)) > 1
    assert record.after["positives"]["validation"]["map"] == pytest.approx(max(epochs), abs=1e-6)
