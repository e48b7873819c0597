"""What a run leaves is read back as it was written, and scores rank the pairs exactly as they did."""

import pytest

from cosent.atomic import SEAL, UNFINISHED
from cosent.errors import InputError
from cosent.record import (
    RECORD_NAME,
    CorpusRecord,
    Environment,
    Footprint,
    RunRecord,
    read_record,
)


def test_a_record_reads_back_as_it_was(tmp_path):
    """Fails if a field of a record is lost, or comes back as another type than it went."""
    record = RunRecord(
        recipe={"loss": "cosent", "lora_target_modules": ["query"], "pooling": None},
        environment=Environment({"cosent": "0.1.0"}, None, "CPU", 2),
        train_seconds=12.0,
        processes=2,
        footprint=Footprint(100, 10, 300.0),
        corpora={"stsb": CorpusRecord("data/stsb", "a" * 64)},
        start_sha256={"model.safetensors": "d" * 64},
        train_pairs=50,
        before={"stsb": {"test": {"spearman": 0.25}}},
        after={"stsb": {"test": {"spearman": 0.5}}},
        prompts=("query: ", ""),
        intervals={"stsb": {"test": {"map": [0.25, 0.5]}}},
        seconds=20.0,
        history=[{"loss": 1.0, "step": 1}],
        synonyms=7,
        pretraining={"text_sha256": {"a.txt": "b" * 64}, "compare_loss": 0.5},
        changes={"stsb": {"test": {"spearman": [-0.1, -0.2, 0.0]}}},
        warnings=["stsb test: Spearman is below its value before training: 0.6000 -> 0.5000"],
    )
    (tmp_path / UNFINISHED).touch()
    record.save(tmp_path)
    assert vars(read_record(tmp_path)) == vars(record)
    assert {file.name for file in tmp_path.iterdir()} == {RECORD_NAME, SEAL}, "the run still counts as unfinished"


@pytest.mark.parametrize("text", ["", "[]", '{"recipe": {}}', '{"after": 3}', "\ufeff"])
def test_what_cannot_be_read_says_so(tmp_path, text):
    """Fails if another version's record ends in a traceback, or in a model without its thresholds."""
    (tmp_path / RECORD_NAME).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=RECORD_NAME):
        read_record(tmp_path)
