"""The collapse guard, on curves by hand and in a run."""

import logging
import math
from types import SimpleNamespace

import pytest
from transformers import TrainerCallback, TrainerControl, TrainerState

from cosent import train as job
from cosent.training.callbacks import CollapseGuard
from tests.launching import history


@pytest.mark.parametrize(
    ("curve", "collapsed"),
    [((0.5, 0.41), False), ((0.5, 0.39), True), ((0.1, 0.3), False), ((0.5, math.nan), True), ((math.nan,), True)],
)
@pytest.mark.parametrize("action", ["warn", "stop"])
def test_what_is_a_collapse(curve, collapsed, action, caplog):
    """Fails if a collapse passes unseen, `stop` goes on, `warn` stops, or the guard cries wolf."""
    args, control = SimpleNamespace(eval_strategy="epoch"), TrainerControl()
    log = [{"loss": 2.0}, *({"eval_spearman": value} for value in curve)]
    state = TrainerState(log_history=log, global_step=8)
    with caplog.at_level(logging.WARNING):
        CollapseGuard(args, action).on_log(args, state, control, logs=log[-1])
    assert ("collapse. Validation Spearman is" in caplog.text) == collapsed
    assert control.should_training_stop == (collapsed and action == "stop")


def test_a_guard_ends_a_run(train, made_up, monkeypatch):
    """Fails if the guard of a run does not see its validation, here with a drop that every epoch has."""
    monkeypatch.setattr(job, "CollapseGuard", lambda args, action: CollapseGuard(args, action, drop=-9))
    assert len(history(train(made_up, "--on_collapse", "stop"), "eval_spearman")) == 1


@pytest.mark.slow
def test_cross_encoders_are_watched_unless_switched_off(train, made_up, monkeypatch):
    """Fails if a reranker collapses to one number, as users of every library report, and nothing says so."""
    seen = []
    monkeypatch.setattr(job, "CollapseGuard", lambda args, action: seen.append(action) or TrainerCallback())
    tower = ("--tower", "cross_encoder")
    for number, flags in enumerate((tower, (*tower, "--on_collapse", "off"), (), ("--on_collapse", "stop"))):
        train(made_up, "--max_steps", "1", *flags, output=str(number))
    assert seen == ["warn", "stop"]
