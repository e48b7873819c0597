"""Rules of a model that was not trained here: found once, kept in its folder, and read by every job."""

import json
import shutil

import pytest

from cosent import decision_rules, load_model
from cosent.errors import InputError
from cosent.models.decision import JOINT, DecisionRule


def test_the_rules_of_a_foreign_model_are_read_by_the_jobs(tiny_model, made_up, pairs, make_corpus, job, tmp_path):
    """Fails if the rules are not those of the validation scores, or `similarity`, `evaluate` or Python do not know
    them, or the copy scores otherwise than the model."""
    other = make_corpus({"validation": pairs[:32]}, name="other")
    flags = ("--model", tiny_model, "--corpus", made_up, other, "--output", tmp_path / "copy")
    printed, said = job("cosent.jobs.calibrate", *flags)
    assert json.loads(printed)["corpora"] == ["made_up", "other", JOINT]
    model, rules = load_model(str(tmp_path / "copy")), decision_rules(tmp_path / "copy")
    first, second, labels = map(list, zip(*pairs[:32], strict=True))
    scores = load_model(str(tiny_model)).similarity(first, second)
    assert model.similarity(first, second).tolist() == scores.tolist()
    expected = DecisionRule.of("made_up", scores, labels)
    assert rules["made_up"].threshold == pytest.approx(expected.threshold, abs=1e-6)
    assert f"made_up: similar from {expected.threshold:.4f}" in said
    answer = json.loads(job("cosent.jobs.evaluate", "--model", tmp_path / "copy", "--corpus", made_up)[0])
    assert answer["threshold"] == rules["made_up"].threshold and answer["brier"] > 0
    assert (
        f"(at {rules[JOINT].threshold:.4f})"
        in job("cosent.jobs.similarity", "--model", tmp_path / "copy", first[0], second[0])[1]
    )


def test_what_is_refused(tiny_model, made_up, make_corpus, pairs, job, tmp_path):
    """Fails if a folder that is there gets other rules, or labels without a rule pass."""
    shutil.copytree(tiny_model, tmp_path / "mine")
    graded = make_corpus({"validation": pairs[:8]}, "graded", 5.0, name="graded")
    same = make_corpus({"validation": [(a, b, 1.0) for a, b, _ in pairs[:8]]}, name="same")
    for corpus, output, message in (
        (made_up, "mine", "--output .*mine exists"),
        (graded, "new", "graded labels"),
        (same, "new", "validation label is 1"),
    ):
        with pytest.raises(InputError, match=message):
            job("cosent.jobs.calibrate", "--model", tiny_model, "--corpus", corpus, "--output", tmp_path / output)
    assert not (tmp_path / "new").exists() and not decision_rules(tmp_path / "mine")
