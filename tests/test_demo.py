"""The demo job: what is refused before a model is loaded, and which decision rules a model brings."""

import pytest

import cosent.demo
from cosent.cli import parse
from cosent.demo import DemoArguments, check
from cosent.errors import InputError


def test_what_is_refused_at_once(monkeypatch):
    """Fails if a user waits for models to load, and then reads that a flag was wrong or a library is missing."""
    monkeypatch.setattr(cosent.demo, "find_spec", lambda name: name)
    check(*parse(["--model", "mini"], DemoArguments))
    with pytest.raises(InputError, match="--index and --text"):
        check(*parse(["--model", "mini", "--index", "v.npy", "--text", "a.txt"], DemoArguments))
    monkeypatch.setattr(cosent.demo, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"\[demo\]"):
        check(DemoArguments(model="mini"))


def test_judges_keep_the_rules_of_their_prompts(tiny_model, tmp_path):
    """Fails if the page gives a verdict by a threshold that was found behind another prompt."""
    from cosent.demo_page.answers import Judge
    from cosent.evaluation.calibration import Platt
    from cosent.models.bi_encoder import SentenceEncoder
    from cosent.run import Environment, RunRecord

    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    encoder.save_pretrained(tmp_path)
    rules = {"thresholds": {"faq": 0.9}, "calibrations": {"faq": Platt(pairs=98, slope=9.0, intercept=-8.0)}}
    for prompt, expected in (("", 1), ("query: ", 0)):
        measured = {"environment": Environment({}, None, "CPU", 1), "train_seconds": 1.0, "seconds": 2.0, "history": []}
        RunRecord(recipe={}, **measured, **rules, prompts=(prompt, prompt)).save(tmp_path)
        assert len(Judge.of(str(tmp_path), encoder).rules) == expected
