"""What a run leaves is read back as it was written, and what earlier versions left is read with the same numbers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cosent.errors import InputError
from cosent.evaluation.calibration import Isotonic, Platt
from cosent.run_record import (
    RECORD_NAME,
    UNFINISHED,
    CorpusRecord,
    Environment,
    Footprint,
    PretrainingRecord,
    RunRecord,
    Written,
    read_record,
)

ROOT = Path(__file__).parents[1]


def test_a_record_reads_back_as_it_was(tmp_path):
    """Fails if a field of a record is lost, or comes back as another type than it went."""
    record = RunRecord(
        recipe={"loss": "cosent", "lora_target_modules": ["query"], "pooling": None},
        environment=Environment({"cosent": "0.1.0"}, None, "CPU", 2),
        train_seconds=12.0,
        processes=2,
        footprint=Footprint(100, 10, 0.5, 300.0),
        corpora={"stsb": CorpusRecord("data/stsb", "a" * 64)},
        train_pairs=50,
        before={"stsb": {"test": {"spearman": 0.25}}},
        after={"stsb": {"test": {"spearman": 0.5}}},
        thresholds={"stsb": 0.5},
        calibrations={"stsb": Platt(pairs=9, slope=1.5, intercept=-1.0)}
        | {"lcqmc": Isotonic(pairs=9, log_loss={"platt": 0.5}, scores=[0.1, 0.2], fitted=[0.25, 0.5])},
        seconds=20.0,
        history=[{"loss": 1.0, "step": 1}],
        synonyms=7,
        written_before=Written(12.5),
        written_after=Written(10.0, {"distinct": 0.9}),
        pretraining=PretrainingRecord({"a.txt": "b" * 64}, 1, 2, 3, 4.0, compare_loss=0.5),
    )
    (tmp_path / UNFINISHED).touch()
    record.save(tmp_path)
    assert read_record(tmp_path) == record
    assert [file.name for file in tmp_path.iterdir()] == [RECORD_NAME], "the run still counts as unfinished"


def test_a_folder_of_others_has_no_record(tmp_path):
    """Fails if a model from the Hub cannot be evaluated for lack of a record."""
    assert read_record(tmp_path) is None


def test_the_records_of_the_shipped_encoders():
    """Fails if a record of pretraining is not read, also from before 2026-11-22, or with other numbers."""
    for name in ("mini", "mini-roformer"):
        folder = ROOT / "src/cosent/encoders" / name
        raw, record = json.loads((folder / RECORD_NAME).read_text(encoding="utf-8")), read_record(folder)
        numbers = raw.get("pretraining", raw)  # earlier records have them at the top level, as the parameters
        for key in ("text_sha256", "excluded_sentences", "tokens", "minutes", "mlm_loss", "neighbour_loss"):
            assert getattr(record.pretraining, key) == numbers[key]
        assert record.footprint.parameters == raw.get("footprint", raw)["parameters"]
        assert record.environment.commit == raw["commit"]
        assert record.history == raw["history"] and record.seconds == raw["seconds"]


def test_the_record_of_an_earlier_student(tmp_path):
    """Fails if a student from before 2026-11-22, whose Spearman was kept elsewhere, has none in a table."""
    reports = [{"spearman": {"lcqmc": {"test": value}}, "perplexity": 9.0, "samples": {"distinct": 0.8}}
               for value in (0.5, 0.6)]  # fmt: skip
    raw = {"recipe": {}, "corpora": {}, "train_pairs": 9, "synonyms": 3, "parameters": 70, "history": [], "seconds": 5}
    raw |= {"before": reports[0], "after": reports[1], "train_seconds": 4, "versions": {}, "commit": None}
    raw |= {"device": "CPU", "threads": 1}
    (tmp_path / RECORD_NAME).write_text(json.dumps(raw), encoding="utf-8")
    record = read_record(tmp_path)
    assert record.before == {"lcqmc": {"test": {"spearman": 0.5}}}
    assert record.after == {"lcqmc": {"test": {"spearman": 0.6}}}
    assert record.written_after == Written(9.0, {"distinct": 0.8}) and record.footprint.parameters == 70
    del raw["after"]["perplexity"], raw["after"]["samples"]
    (tmp_path / RECORD_NAME).write_text(json.dumps(raw), encoding="utf-8")
    assert read_record(tmp_path).written_after is None, "a student that does not write"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"recipe": {}}', '{"after": 3}', "\ufeff"])
def test_what_cannot_be_read_says_so(tmp_path, text):
    """Fails if another version's record ends in a traceback, or in a model without its thresholds."""
    (tmp_path / RECORD_NAME).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"run.json is not the result of a run that this version .*Another version"):
        read_record(tmp_path)


def test_records_are_read_without_torch():
    """Fails if a report first waits for torch."""
    code = "import sys, cosent.run_record, cosent.studies.results; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
