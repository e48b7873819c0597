"""`cosent evaluate --qrels`: queries, documents and judgements of a user's own files."""

import json

import pytest

from cosent.data.files import table_writer
from cosent.errors import InputError
from cosent.models.cross_encoder import CrossEncoder

QUERIES = {"q1": "怎么还款", "q2": "今天天气不错", "q3": "北京很大", "q4": "好"}
DOCUMENTS = {"d1": "如何还款", "d2": "天气很好", "d3": "北京是一座大城市", "d4": "我想还款", "d5": "手机多少钱"}
JUDGED = [("q1", "d1", 2), ("q1", "d4", 1), ("q1", "d5", 0), ("q2", "d2", 1), ("q3", "d3", 3), ("q4", "d5", 0)]


@pytest.fixture
def written(tmp_path):
    """Returns a function that writes the three files with that ending, and gives back the flags that name them."""

    def write(ending=".jsonl", queries=QUERIES, documents=DOCUMENTS, judged=JUDGED, title=None):
        of_documents = [{"_id": key, "title": title, "text": text} for key, text in documents.items()]
        rows = {
            "queries": (["_id", "text"], [{"_id": key, "text": text} for key, text in queries.items()]),
            "documents": (["_id", "title", "text"], of_documents),
            "qrels": (["query-id", "corpus-id", "score"], judged),
        }
        flags = []
        for name, (columns, some) in rows.items():
            path = tmp_path / f"{name}{ending}"
            path.unlink(missing_ok=True)
            some = [row if isinstance(row, dict) else dict(zip(columns, row, strict=True)) for row in some]
            with table_writer(path, columns) as append:
                append(some)
            flags += [f"--{name}", str(path)]
        return flags

    return write


METRICS = {"recall_at_1": "accuracy@1", "recall_at_5": "recall@5", "mrr_at_10": "mrr@10", "map": "map@100"}


def reference(tiny_model):
    """The values of sentence-transformers on the same files; its recall@1 of q1 is a half, since two are relevant."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    relevant = {query: {d for q, d, gain in JUDGED if q == query and gain} for query in ("q1", "q2", "q3")}
    options = {"accuracy_at_k": [1], "precision_recall_at_k": [1, 5], "mrr_at_k": [10], "map_at_k": [100]}
    queries = {key: QUERIES[key] for key in relevant}
    evaluator = InformationRetrievalEvaluator(queries, DOCUMENTS, relevant, ndcg_at_k=[10], **options)
    values = evaluator(SentenceTransformer(str(tiny_model), device="cpu"))
    return {name: values[f"cosine_{theirs}"] for name, theirs in (METRICS | {"recall_at_1": "recall@1"}).items()}


@pytest.mark.parametrize("ending", [".jsonl", ".tsv"])
def test_a_bi_encoder_searches(evaluate, written, tiny_bi, ending):
    """Fails if the metrics of one's own files are not those of sentence-transformers, in any format."""
    found, table = evaluate(*written(ending), model=tiny_bi)
    assert evaluate(*written(ending, title="如何还款"), model=tiny_bi)[0]["ndcg_at_10"] != found["ndcg_at_10"]
    assert (found["queries"], found["pool"]) == (3, 5) and "3 queries among 5 sentences" in table
    expected = reference(tiny_bi)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def test_a_cross_encoder_puts_in_order(evaluate, written, tiny_model, tiny_cross):
    """Fails if the order of the candidates is not that of the cross-encoder's scores, or theirs before it is lost."""
    found, table = evaluate(*written(), "--retriever", tiny_model, model=tiny_cross)
    model = CrossEncoder.from_pretrained(str(tiny_cross))
    ranks = []
    for query in ("q1", "q2", "q3"):
        scores = model.similarity([QUERIES[query]] * len(DOCUMENTS), list(DOCUMENTS.values()))
        best_first = [list(DOCUMENTS)[place] for place in (-scores).argsort(kind="stable")]
        ranks.append(1 + min(best_first.index(d) for q, d, gain in JUDGED if q == query and gain))
    assert found["mrr_at_10"] == pytest.approx(sum(1 / rank for rank in ranks) / 3)
    assert found["retriever"]["mrr_at_10"] == evaluate(*written())[0]["mrr_at_10"] and "the 5 nearest" in table


def test_what_cannot_be_judged(evaluate, written, tiny_cross, tiny_model):
    """Fails if a judgement without its text, a text twice or a missing model ends in a trace or in a wrong figure."""
    for changed, message in (
        ({"judged": [("q9", "d1", 1)]}, "qrels.jsonl, line 1: .*queries.jsonl has no 'q9'"),
        ({"judged": [("q1", "d1", -1)]}, "qrels.jsonl, line 1: .* score, got -1"),
        ({"documents": DOCUMENTS | {"d6": " "}}, "documents.jsonl, line 6: .*empty"),
    ):
        with pytest.raises(InputError, match=message):
            evaluate(*written(**changed))
    for flags, model, message in (
        ((*written(), "--retriever", tiny_model), tiny_model, "leave --retriever out"),
        (written(), tiny_cross, "--retriever similar"),
    ):
        with pytest.raises(InputError, match=message):
            evaluate(*flags, model=model)
    flags = written()
    with open(flags[1], "a", encoding="utf-8") as queries:
        queries.write(json.dumps({"_id": "q1", "text": "又一次"}) + "\n")
    with pytest.raises(InputError, match="line 5: .*'q1'"):
        evaluate(*flags)
