"""`cosent evaluate --mteb`: mteb's own tasks on prepared rows."""

import json
import re
import sys
from functools import partial
from pathlib import Path

import pytest
from datasets import Dataset
from sklearn.metrics import average_precision_score

from cosent.data.corpus import load_corpus
from cosent.data.manifest import sha256_of_file
from cosent.errors import InputError
from cosent.models.auto import load_model
from tests.conftest import prepare

pytestmark = pytest.mark.slow  # mteb alone takes seconds to import


@pytest.fixture(scope="module")
def corpora(pairs, tmp_path_factory):
    """A folder with ATEC of 0 and 1, and AFQMC, of which mteb reads the validation split."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder / "atec", {"train": pairs, "test": pairs[:40]}, "binary", 1.0)
    prepare(folder / "afqmc", {"validation": pairs[20:]}, "binary", 1.0)
    inferences = [
        (first, second, 2.0 * label if number % 3 else 1.0) for number, (first, second, label) in enumerate(pairs)
    ]
    prepare(folder / "ocnli", {"validation": inferences}, "nli", 2.0)
    return folder


@pytest.fixture
def evaluate(evaluate, corpora, tmp_path, monkeypatch):
    """As that of conftest, on those corpora; mteb writes its results to a temporary folder."""
    monkeypatch.chdir(tmp_path)
    return partial(evaluate, "--data_dir", corpora)


def test_mteb_and_evaluate_agree(evaluate):
    """Fails if a figure for the leaderboard is not the one that `evaluate` prints: other rows, prompts or lengths."""
    prompt = ("--prompt", "query: ")
    found, table = evaluate("--mteb", "sts", *prompt)
    assert list(found["tasks"]) == ["ATEC", "AFQMC"] and re.search("AFQMC +validation", table)
    for task, corpus, split in (("ATEC", "atec", "test"), ("AFQMC", "afqmc", "validation")):
        ours, _ = evaluate("--corpus", corpus, "--split", split, "--no_retrieval", *prompt)
        theirs = found["tasks"][task]
        assert (theirs["split"], theirs["pairs"]) == (split, ours["pairs"])
        assert theirs["cosine_spearman"] == pytest.approx(ours["spearman"], abs=1e-4)
        assert theirs["cosine_pearson"] == pytest.approx(ours["pearson"], abs=1e-4)
        assert abs(ours["spearman"]) > 0.01, "nothing was ranked"


def test_inference_leaves_out_neutral_pairs(evaluate, corpora, tmp_path):
    """Fails if Ocnli is measured on other pairs than C-MTEB's, or entailment is not the similar class."""
    found, table = evaluate("--mteb", "ocnli")
    rows = load_corpus("ocnli", str(corpora)).split("validation")
    ours = {"sentence1": [], "sentence2": [], "label": []}
    for row in rows:
        if row["label"] != 1:
            for name, value in (row | {"label": row["label"] / 2}).items():
                ours[name].append(value)
    one = found["tasks"]["Ocnli"]
    assert one["pairs"] == len(ours["label"]) < len(rows) and "max_accuracy" in table
    binary = prepare(tmp_path / "binary", {"test": list(zip(*ours.values(), strict=True))}, "binary", 1.0)
    expected = evaluate("--corpus", binary, "--no_retrieval")[0]["average_precision"]
    assert one["cosine_ap"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("tower", ["bi_encoder", "cross_encoder"])
def test_reranking(tower, evaluate, tiny_bi, tiny_cross, monkeypatch):
    """Fails if mteb gets other scores for a query's candidates than the model's own."""
    from mteb.tasks import T2Reranking

    queries = {"q1": "怎么还款", "q2": "今天天气不错"}
    documents = {"d1": "如何还款", "d2": "北京很大", "d3": "天气很好", "d4": "我想还款"}
    relevant = {"q1": {"d1": 1, "d4": 1, "d2": 0}, "q2": {"d3": 1, "d1": 0}}

    def load_data(task, **options):
        rows = [[{"id": key, "text": text} for key, text in texts.items()] for texts in (queries, documents)]
        task.dataset = {"default": {"dev": {
            "queries": Dataset.from_list(rows[0]), "corpus": Dataset.from_list(rows[1]), "relevant_docs": relevant,
            "top_ranked": {query: list(judged) for query, judged in relevant.items()},
        }}}  # fmt: skip
        task.data_loaded = True

    monkeypatch.setattr(T2Reranking, "load_data", load_data)
    folder = tiny_cross if tower == "cross_encoder" else tiny_bi
    model = load_model(str(folder))
    found, table = evaluate("--mteb", "T2Reranking", model=folder)
    precisions = []
    for query, judged in relevant.items():
        scores = model.similarity([queries[query]] * len(judged), [documents[name] for name in judged])
        precisions.append(average_precision_score(list(judged.values()), scores))
    assert found["tasks"]["T2Reranking"]["map_at_1000"] == pytest.approx(sum(precisions) / 2, abs=1e-5)
    assert "2 queries" in table and "T2Reranking" in table


def test_the_result_files_are_those_of_mteb(evaluate, tiny_model):
    """Fails if mteb cannot load what is written, or a file says that prepared rows are the published ones."""
    from mteb.results import TaskResult

    found, _ = evaluate("--mteb", "atec")
    folder = Path("mteb", "results", f"local__{tiny_model.name}", sha256_of_file(tiny_model / "model.safetensors")[:12])
    assert found["results"] == str(folder)
    written = TaskResult.from_disk(folder / "ATEC.json")
    assert written.scores["test"][0]["main_score"] == pytest.approx(found["tasks"]["ATEC"]["cosine_spearman"], abs=1e-6)
    assert written.dataset_revision.startswith("prepared-")
    meta = json.loads((folder / "model_meta.json").read_text(encoding="utf-8"))
    assert (meta["name"], meta["embed_dim"]) == (f"local/{tiny_model.name}", 32)


def test_what_cannot_be_run(evaluate, tiny_cross, monkeypatch):
    """Fails if a task that is not there, a missing package or a cross-encoder ends in a trace."""
    for flags, message in (
        (("--mteb", "T2Retrieval"), "--mteb .* T2Retrieval"),
        (("--mteb", "MMarcoReranking"), "MMarcoReranking.*Hub.*--qrels"),
        (("--mteb", "ATEC", "--prompt", "a: ", "b: "), "'a: ' and 'b: '"),
        (("--mteb", "BQ"), "'bq'"),
    ):
        with pytest.raises(InputError, match=message):
            evaluate(*flags)
    with pytest.raises(InputError, match="cross-encoder.*--corpus NAME"):
        evaluate("--mteb", "ATEC", model=tiny_cross)
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(InputError, match=r"\[mteb\]"):
        evaluate("--mteb", "ATEC")
