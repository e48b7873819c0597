"""If these fail, `prepare` destroys or half-writes a folder, or the Hub gives other rows than the pinned ones."""

import datasets
import pyarrow.parquet
import pytest
from cosent.data_scripts.corpora import CORPORA

from cosent.atomic import sha256_of_file
from cosent.data.corpus import Manifest
from cosent.errors import InputError

BINARY = ("--label_kind", "binary")


def test_the_manifest_describes_the_folder(bench, capsys):
    bench.write("ATEC/ATEC.train.data", "甲\t乙\t1\n丙\t丁\t0\n戊\t己\t0\n")
    path = bench.write("ATEC/ATEC.valid.data", "甲\t乙\t1\n")
    bench.prepare("atec", "--source", path.parent)
    first = bench.rows()
    bench.prepare("atec", "--source", bench.folder)
    assert bench.rows() == first
    assert "train                3      62,477  0: 2  1: 1" in capsys.readouterr().out
    manifest = Manifest.load(bench.output)
    train = manifest.splits["train"]
    assert (train["rows"], train["published_rows"], train["label_histogram"]) == (3, 62_477, {"0": 2, "1": 1})
    assert train["sha256"] == sha256_of_file(bench.output / "train.parquet")
    source = {"name": "ATEC/ATEC.train.data", "sha256": sha256_of_file(path.with_name("ATEC.train.data")), "rows": 3}
    assert train["source_files"] == [source]
    assert manifest.absent_splits == ["test"]
    assert "train has 3 rows, the published corpus has 62,477." in manifest.warnings
    schema = pyarrow.parquet.read_schema(bench.output / "train.parquet")
    expected = ["sentence1 string", "sentence2 string", "label float"]
    assert [f"{column.name} {column.type}" for column in schema] == expected
    names = sorted(path.name for path in bench.output.iterdir())
    assert names == ["MANIFEST.json", "train.parquet", "validation.parquet"]


def test_an_earlier_folder_is_replaced_only_when_told_and_as_a_whole(bench):
    """Fails if work is lost, a failure leaves half a folder, or a cache gives the rows of an earlier file."""
    path = bench.write("pairs.tsv", "甲\t乙\t1\n")
    bench.prepare("mine", "--source", path, *BINARY)
    path.write_text("丙\t丁\t0\n", encoding="utf-8")
    bench.overwrite = []
    bench.refuses("out .*--overwrite", path)
    assert bench.rows() == [("甲", "乙", 1.0)]
    bench.overwrite = ["--overwrite"]
    bench.prepare("mine", "--source", path, *BINARY)
    path.write_text("丙\t丁\n", encoding="utf-8")
    bench.refuses("each once", path)
    assert bench.rows() == [("丙", "丁", 0.0)]
    assert sorted(path.name for path in bench.folder.iterdir()) == ["out", "pairs.tsv"]
    bench.write("out/thesis.txt", "mine")
    bench.refuses("out .*--output", path)
    assert (bench.output / "thesis.txt").exists()


def test_a_wrong_name_or_source_is_named(bench):
    path = bench.write("pairs.tsv", "甲\t乙\t1\n")
    bench.stops("'lcqcm' .*lcqmc.*--label_kind", "lcqcm", "--source", path)
    bench.stops("lcqmc .*--label_kind", "lcqmc", "--source", bench.folder, *BINARY)
    path.unlink()
    nowhere = bench.folder / "nowhere"
    bench.stops("stsb needs --source.*`hub`", "stsb")
    bench.stops("demo_mine needs --source", "demo_mine", *BINARY)
    bench.stops("demo .*--source", "demo", "--source", bench.folder)
    bench.stops("--source .*nowhere", "stsb", "--source", nowhere)
    bench.refuses("--source .*nowhere", nowhere)
    bench.stops("STS-B.train.data.*holds nothing", "stsb", "--source", bench.folder)
    for name in ("../escape", "a/b", "-x", ""):  # none is the name of a folder below data/
        with pytest.raises((InputError, SystemExit)):
            bench.prepare(name, "--source", bench.folder, *BINARY)


def test_the_hub_is_asked_for_the_pinned_revision(bench, monkeypatch):
    """Fails if rows of another revision are prepared, or a Hub out of reach or with other columns is a traceback."""
    splits, asked = {}, {}

    def load_dataset(repository, revision=None):
        asked.update(repository=repository, revision=revision)
        if not splits:
            raise ConnectionError(f"Couldn't reach '{repository}' on the Hub")
        return datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in splits.items()})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    bench.stops("C-MTEB/BQ at revision e3dda5e.*--source FOLDER", "bq", "--source", "hub")
    bench.stops("snli_zh .*--source FOLDER", "snli_zh", "--source", "hub")
    row = {"sentence1": " 甲 ", "sentence2": "乙", "score": 1.0}
    splits |= {"train": [row, row | {"score": 0.0}], "validation": [row], "test": [row]}
    pinned = [corpus for corpus in CORPORA.values() if corpus.hub_repository]
    assert len(pinned) == 5 and all(len(corpus.hub_revision) == 40 for corpus in pinned)
    for corpus in pinned[:2]:
        manifest = bench.prepare(corpus.name, "--source", "hub")
        assert asked == {"repository": corpus.hub_repository, "revision": corpus.hub_revision}
        assert corpus.hub_revision in manifest["source"]
        assert bench.rows() == [("甲", "乙", 1.0), ("甲", "乙", 0.0)]
    splits |= {"test": [{"sentence1": "甲", "sentence2": "乙", "score": 7.5}]}
    bench.stops("STSB/test, line 1: .*0 to 5, got 7.5", "stsb", "--source", "hub")
    splits |= {"test": [{"premise": "甲", "sentence2": "乙", "score": 1.0}]}
    bench.stops("sentence1, sentence2, score, got split 'test'", "stsb", "--source", "hub")
