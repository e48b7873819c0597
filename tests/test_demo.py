"""The demo job: what is refused before a model is loaded."""

import pytest

import cosent.demo
from cosent.cli import parse
from cosent.demo import DemoArguments, check
from cosent.demo_page import models
from cosent.errors import InputError


def test_flags_that_do_not_go_together():
    """Fails if a user waits for models to load, and then reads that a flag was wrong."""
    for words, message in ((("--index", "v.npy", "--text", "a.txt"), "not both"), (("--port", "0"), "1 to 65535")):
        with pytest.raises(InputError, match=message):
            check(*parse(["--model", "mini", *words], DemoArguments))
    check(*parse(["--model", "mini"], DemoArguments))


def test_a_missing_library_is_named(monkeypatch):
    """Fails if a user without Gradio reads a trace instead of what to install."""
    monkeypatch.setattr(cosent.demo, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'cosent\[demo\]'"):
        check(DemoArguments(model="mini"))


def test_a_file_that_is_too_long(tmp_path, monkeypatch):
    """Fails if a huge file fills the memory, when vectors on the disk would do."""
    (tmp_path / "a.txt").write_text("甲\n乙\n丙\n", encoding="utf-8")
    assert models.sentences_of(str(tmp_path / "a.txt")) == ["甲", "乙", "丙"]
    monkeypatch.setattr(models, "MOST_SENTENCES", 2)
    with pytest.raises(InputError, match="more than 2 sentences.*--index"):
        models.sentences_of(str(tmp_path / "a.txt"))


def test_judges_keep_the_rules_of_their_prompts(tiny_model, tmp_path):
    """Fails if the page gives a verdict by a threshold that was found behind another prompt."""
    from cosent.evaluation.calibration import Platt
    from cosent.models.bi_encoder import SentenceEncoder
    from cosent.run import Environment, RunRecord

    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    encoder.save_pretrained(tmp_path)
    rules = {"thresholds": {"faq": 0.9}, "calibrations": {"faq": Platt(pairs=98, slope=9.0, intercept=-8.0)}}
    for prompt, expected in (("", 1), ("query: ", 0)):
        measured = {"environment": Environment({}, None, "CPU", 1), "train_seconds": 1.0, "seconds": 2.0, "history": []}
        RunRecord(recipe={}, **measured, **rules, prompts=(prompt, prompt)).save(tmp_path)
        assert len(models.Judge.of(str(tmp_path), encoder).rules) == expected
