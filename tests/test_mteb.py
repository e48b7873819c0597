"""`cosent evaluate --mteb`: mteb's own tasks on prepared rows."""

import json
import shutil
import sys

import datasets
import pytest

from cosent.cli import parse
from cosent.errors import InputError
from cosent.evaluate import ARGUMENTS, main
from cosent.inference.mteb import BENCHMARK, default_name, default_revision
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.run import Environment, RunRecord
from tests.conftest import prepare


@pytest.fixture(scope="module")
def corpora(pairs, tmp_path_factory):
    """A folder with ATEC of 0 and 1, and AFQMC, of which mteb reads the validation split."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder / "atec", {"train": pairs, "test": pairs[:40]}, "binary", 1.0)
    prepare(folder / "afqmc", {"validation": pairs[20:]}, "binary", 1.0)
    return folder


@pytest.fixture
def evaluate(tiny_model, corpora, capsys):
    """Returns a function that runs the job on those corpora and gives back the JSON of stdout, and stderr."""

    def run(*flags, model=tiny_model):
        main(*parse(["--model", str(model), "--data_dir", str(corpora), *map(str, flags)], *ARGUMENTS))
        shown = capsys.readouterr()
        return json.loads(shown.out), shown.err

    return run


@pytest.mark.parametrize("prompt", [(), ("--prompt", "query: ")])
def test_mteb_and_evaluate_agree(evaluate, tmp_path, prompt):
    """Fails if a figure for the leaderboard is not the one that `evaluate` prints: other rows, prompts or lengths."""
    found, table = evaluate("--mteb", "sts", "--mteb_output", tmp_path, "--mteb_name", "me/faq", *prompt)
    assert list(found["tasks"]) == ["ATEC", "AFQMC"] and "AFQMC   validation" in table
    for task, corpus, split in (("ATEC", "atec", "test"), ("AFQMC", "afqmc", "validation")):
        ours, _ = evaluate("--corpus", corpus, "--split", split, "--no_retrieval", *prompt)
        theirs = found["tasks"][task]
        assert (theirs["split"], theirs["pairs"]) == (split, ours["pairs"])
        assert theirs["cosine_spearman"] == pytest.approx(ours["spearman"], abs=1e-4)
        assert theirs["cosine_pearson"] == pytest.approx(ours["pearson"], abs=1e-4)
        assert abs(ours["spearman"]) > 0.01, "nothing was ranked"


def test_mteb_on_sentence_transformers_agrees(evaluate, tiny_model, corpora, tmp_path):
    """Fails if somebody who runs mteb on a published folder gets another figure than we print."""
    import mteb
    from sentence_transformers import SentenceTransformer

    from cosent.inference.mteb import MtebArguments, chosen_tasks, figures, with_rows

    SentenceEncoder.from_pretrained(str(tiny_model), pooling="cls").save_pretrained(tmp_path / "model")
    found, _ = evaluate("--mteb", "ATEC", "--mteb_output", tmp_path / "mteb", model=tmp_path / "model")
    other, _ = evaluate("--mteb", "ATEC", "--mteb_output", tmp_path / "mteb")
    (task,) = chosen_tasks(mteb, MtebArguments(mteb=["ATEC"]), str(corpora))
    with_rows(task, str(corpora))
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    done = mteb.evaluate(model, task, cache=None, co2_tracker=False)
    theirs = figures(task, done.task_results[0])["cosine_spearman"]
    assert found["tasks"]["ATEC"]["cosine_spearman"] == pytest.approx(theirs, abs=1e-4)
    assert other["tasks"]["ATEC"]["cosine_spearman"] != pytest.approx(theirs, abs=1e-3), "pooling makes no difference"


def test_the_result_files_are_those_of_mteb(evaluate, tiny_model, tmp_path, caplog):
    """Fails if mteb cannot load what is submitted, or a file says that other rows are the published ones."""
    from mteb.results import TaskResult

    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    RunRecord(recipe={"corpus": ["atec", "mine"]}, environment=Environment({}, None, "CPU", 1), train_seconds=1.0,
              seconds=2.0, history=[]).save(model)  # fmt: skip
    flags = ("--mteb", "atec", "AFQMC", "--mteb_name", "me/faq", "--mteb_revision", "abc", "--mteb_output")
    found, _ = evaluate(*flags, tmp_path / "mteb", model=model)
    folder = tmp_path / "mteb" / "results" / "me__faq" / "abc"
    assert found["results"] == str(folder)
    written = TaskResult.from_disk(folder / "ATEC.json")
    assert written.scores["test"][0]["main_score"] == pytest.approx(found["tasks"]["ATEC"]["cosine_spearman"], abs=1e-6)
    assert written.dataset_revision.startswith("prepared-") and "not the rows of the leaderboard" in caplog.text
    assert found["tasks"]["ATEC"]["rows"] == "test: rows 40, published 20000"
    meta = json.loads((folder / "model_meta.json").read_text(encoding="utf-8"))
    assert (meta["name"], meta["revision"], meta["embed_dim"]) == ("me/faq", "abc", 32)
    assert meta["training_datasets"] == ["ATEC"]
    assert "AFQMC shares thousands of pairs with ATEC" in caplog.text and "ATEC shares" not in caplog.text


def test_rows_of_the_hub_are_read_as_mteb_reads_them(evaluate, pairs, tmp_path, monkeypatch):
    """Fails if `--mteb_data hub` reads prepared rows, or no result comes of those that mteb loads."""
    import mteb

    (task,) = (task for task in mteb.get_benchmark(BENCHMARK).tasks if task.metadata.name == "ATEC")
    folder = tmp_path / task.metadata.dataset["path"]  # load_dataset reads a folder of this name before the Hub
    columns = zip(("sentence1", "sentence2", "score"), zip(*pairs[:30], strict=True), strict=True)
    rows = datasets.Dataset.from_dict({name: list(column) for name, column in columns})
    (folder / "data").mkdir(parents=True)
    rows.to_parquet(folder / "data/test-00000-of-00001.parquet")
    monkeypatch.chdir(tmp_path)
    result, _ = evaluate("--mteb", "ATEC", "--mteb_data", "hub", "--mteb_output", tmp_path / "out")
    assert result["tasks"]["ATEC"]["pairs"] == 30  # of the prepared corpus 40
    assert result["tasks"]["ATEC"]["rows"] != "published"
    assert list((tmp_path / "out").rglob("ATEC.json"))


def test_other_settings_get_a_folder_of_their_own(evaluate, tmp_path):
    """Fails if figures of int8 or of another prompt replace those of the model as it is."""
    flags = ("--mteb", "ATEC", "--mteb_output", tmp_path)
    folders = {evaluate(*flags, *more)[0]["results"] for more in ((), ("--int8",), ("--prompt", "query: "))}
    assert len(folders) == 3


def test_what_cannot_be_run(evaluate, tiny_model, tmp_path, monkeypatch):
    """Fails if a flag is ignored in silence, or a task that is not there or a cross-encoder ends in a trace."""
    CrossEncoder.from_pretrained(str(tiny_model), num_labels=1).save_pretrained(tmp_path / "cross")
    monkeypatch.chdir(tmp_path)
    for flags, message in (
        (("--mteb", "T2Retrieval"), "--mteb .* T2RETRIEVAL"),
        (("--mteb", "sts", "--corpus", "atec"), "--corpus NAME"),
        ((), "--corpus NAME"),
        (("--mteb", "ATEC", "--threshold", "0.5"), "--threshold"),
        (("--corpus", "atec", "--mteb_name", "me/faq"), "--mteb_name"),
        (("--mteb", "ATEC", "--mteb_name", "faq"), "OWNER/NAME"),
        (("--mteb", "ATEC", "--prompt", "a: ", "b: "), "'a: ' and 'b: '"),
        (("--mteb", "BQ"), "'bq'"),
    ):
        with pytest.raises(InputError, match=message):
            evaluate(*flags)
    with pytest.raises(InputError, match="cross-encoder.*--corpus NAME"):
        evaluate("--mteb", "ATEC", model=tmp_path / "cross")


def test_without_mteb_the_extra_is_named(evaluate, monkeypatch):
    """Fails if a missing package ends in a trace."""
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(InputError, match=r"\[mteb\]"):
        evaluate("--mteb", "ATEC")


def test_the_revision_follows_the_weights(tiny_model, tmp_path):
    """Fails if two models of one folder share their results, or a new run.json makes another model of it."""
    shutil.copytree(tiny_model, tmp_path / "model")
    first = default_revision(str(tmp_path / "model"))
    (tmp_path / "model" / "run.json").write_text("{}", encoding="utf-8")
    assert default_revision(str(tmp_path / "model")) == first == default_revision(str(tiny_model))
    with open(tmp_path / "model" / "model.safetensors", "ab") as file:
        file.write(b"x")
    assert default_revision(str(tmp_path / "model")) != first
    assert default_name(str(tmp_path / "model"), str(tmp_path / "model")) == "local/model"
    assert default_name("mini", str(tiny_model)) == "cosent/mini"
    assert default_name("BAAI/bge-base-zh", "BAAI/bge-base-zh") == "BAAI/bge-base-zh"
