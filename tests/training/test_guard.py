"""The collapse guard, on numbers by hand and on runs that really collapse."""

import logging

import numpy as np
import pytest

from cosent import train as job
from cosent.errors import InputError
from cosent.evaluation.similarity import spread
from cosent.training.callbacks import CollapseGuard
from tests.launching import history


def test_spread_by_hand():
    """Fails if a collapsed space looks healthy: one direction, two orthogonal ones, and all of them."""
    one = spread(np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]))
    assert one["mean_cosine"] == pytest.approx(1) and one["effective_rank"] == pytest.approx(1)
    assert one["uniformity"] == pytest.approx(0)
    both = spread(np.array([[1.0, 0.0], [0.0, 1.0]]))
    assert both["mean_cosine"] == pytest.approx(0) and both["effective_rank"] == pytest.approx(2)
    assert both["uniformity"] == pytest.approx(-4)  # log exp(-2 * |e1 - e2|^2), squared distance 2
    assert spread(np.eye(5))["effective_rank"] == pytest.approx(5)
    uneven = spread(np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))  # singular values sqrt 3 and 1
    share = np.sqrt(3) / (np.sqrt(3) + 1)
    expected = np.exp(-share * np.log(share) - (1 - share) * np.log(1 - share))
    assert uneven["effective_rank"] == pytest.approx(expected)


@pytest.fixture
def train(train, make_corpus, pairs, monkeypatch):
    """Trains well for an epoch, then at a learning rate that grows until all embeddings point one way."""
    corpus = make_corpus({"train": pairs, "validation": pairs})
    monkeypatch.setattr(job, "CollapseGuard", lambda args, action: CollapseGuard(args, action, drop=0.2))
    flags = ("--learning_rate", "0.1", "--warmup_steps", "60", "--lr_scheduler_type", "constant_with_warmup")
    flags += ("--per_device_train_batch_size", "8", "--num_train_epochs", "8", "--logging_steps", "4", "--dropout", "0")
    return lambda *more, output="run": train(corpus, *flags, *more, output=output)


def test_a_run_that_collapses(train, caplog):
    """Fails if a collapse passes unseen, or `stop` goes on."""
    with caplog.at_level(logging.WARNING):
        warned = train("--on_collapse", "warn", output="warn")
    values = history(warned, "eval_spearman")
    assert np.nanmax(values) - np.nanmin(values) > 0.2, f"the case does not collapse: {values}"
    assert "collapse. Validation Spearman is" in caplog.text and "--on_collapse stop" in caplog.text
    stopped = history(train("--on_collapse", "stop", output="stop"), "eval_spearman")
    assert len(stopped) < len(values) and stopped == pytest.approx(values[: len(stopped)], nan_ok=True)


def test_a_healthy_run_is_left_alone(train, caplog):
    """Fails if the guard cries wolf, or changes the training that it watches."""
    calm = ("--learning_rate", "1e-3", "--num_train_epochs", "3")
    with caplog.at_level(logging.WARNING):
        watched = train(*calm, "--on_collapse", "stop", output="watched")
    assert "collapse" not in caplog.text
    assert history(watched, "eval_spearman") == history(train(*calm, output="alone"), "eval_spearman")


def test_cross_encoders_are_watched_unless_switched_off(train, caplog):
    """Fails if a reranker collapses to one number, as users of every library report, and nothing says so."""
    tower = ("--tower", "cross_encoder")
    for number, (flags, warned) in enumerate(((tower, True), ((*tower, "--on_collapse", "off"), False), ((), False))):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            folder = train("--learning_rate", "0.3", "--warmup_steps", "12", *flags, output=str(number))
        values = history(folder, "eval_spearman")
        assert max(values) - values[-1] > 0.1 or np.isnan(values[-1]), f"the case does not collapse: {values}"
        assert ("collapse. Validation Spearman is" in caplog.text) == warned


def test_a_guard_without_validation(train):
    """Fails if a guard that never acts is accepted."""
    with pytest.raises(InputError, match="--on_collapse warn .*--eval_strategy"):
        train("--on_collapse", "warn", "--eval_strategy", "no", "--num_train_epochs", "1")
