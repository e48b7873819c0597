"""TensorBoard, read back with its own reader: curves by corpus from the untrained model on, and score distributions."""

import importlib.util

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cosent.cli import parse
from cosent.errors import InputError
from cosent.run import read_record
from cosent.training.arguments import TRAIN_ARGUMENTS


def events(folder) -> EventAccumulator:
    (file,) = folder.glob("runs/*/events.out.tfevents.*")
    accumulator = EventAccumulator(str(file), size_guidance={"histograms": 0})  # all of them
    accumulator.Reload()
    return accumulator


def curve(board: EventAccumulator, tag: str) -> dict[int, float]:
    return {event.step: event.value for event in board.Scalars(tag)}


def counts(board: EventAccumulator, tag: str) -> dict[int, int]:
    """Number of scores by step, all within the range of a cosine."""
    found = board.Histograms(tag)
    assert all(-1.001 <= h.histogram_value.min <= h.histogram_value.max <= 1.001 for h in found)
    return {event.step: int(event.histogram_value.num) for event in found}


def test_curves_and_distributions_of_a_run(train, make_corpus, pairs):
    """Fails if the board of a run lacks its untrained model, its retrieval, or scores of one of the two groups."""
    folder = train(make_corpus({"train": pairs, "validation": pairs[:40]}), "--report_to", "tensorboard")
    board, record = events(folder), read_record(folder)
    evaluated = {entry["step"]: entry for entry in record.history if "eval_spearman" in entry}
    for name in ("spearman", "recall_at_10"):
        found, validation = curve(board, f"eval/{name}"), record.before["made_up"]["validation"]
        expected = {0: validation[name]} | {step: entry[f"eval_{name}"] for step, entry in evaluated.items()}
        assert found == pytest.approx(expected, abs=1e-6) and list(found) == [0, 4, 8]
    assert len(curve(board, "train/loss")) == 8
    similar = sum(label == 1 for *_, label in pairs[:40])
    assert 0 < similar < 40
    assert counts(board, "eval/scores_of_similar_pairs") == dict.fromkeys([0, 4, 8], similar)
    assert counts(board, "eval/scores_of_dissimilar_pairs") == dict.fromkeys([0, 4, 8], 40 - similar)
    buckets = board.Histograms("eval/scores_of_similar_pairs")[0].histogram_value.bucket_limit
    assert np.ptp(np.diff(buckets)[1:-1]) < 1e-6, "bins of equal width, since cosines lie close together"


def test_several_corpora_have_curves_of_their_own(train, make_corpus, pairs):
    """Fails if the corpora of a mixture share one curve."""
    corpora = tuple(
        make_corpus({"train": pairs, "validation": pairs[start : start + 32]}, name=name)
        for name, start in (("one", 0), ("other", 20))
    )
    folder = train(corpora, "--report_to", "tensorboard", "--num_train_epochs", "1", "--retrieval", "false")
    board, before = events(folder), read_record(folder).before
    for name in ("one", "other"):
        found = curve(board, f"eval/{name}_spearman")
        assert found[0] == pytest.approx(before[name]["validation"]["spearman"], abs=1e-6) and len(found) == 2
        assert set(counts(board, f"eval/{name}_scores_of_similar_pairs")) == set(found)
    assert curve(board, "eval/one_spearman") != curve(board, "eval/other_spearman")


def parsed(reporter: str):
    return parse(["--corpus", "demo", "--output_dir", "run", "--report_to", reporter], *TRAIN_ARGUMENTS)


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    """Fails if a user without TensorBoard sees a traceback, or learns of it after hours."""
    found = importlib.util.find_spec
    without = {"tensorboard": lambda *rest: None}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: without.get(name, found)(name, *rest))
    with pytest.raises(InputError, match=r"pip install 'cosent\[tensorboard\]'"):
        parsed("tensorboard")
    monkeypatch.undo()
    assert parsed("tensorboard")[-1].report_to == ["tensorboard"]


def test_an_unknown_reporter_is_refused():
    """Fails if a misspelt reporter ends in a traceback after the corpus was tokenised."""
    with pytest.raises(InputError, match="tensorbord is not supported"):
        parsed("tensorbord")
