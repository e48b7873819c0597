"""The collapse guard, on numbers by hand and on runs that really collapse."""

import json
import logging

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.evaluation.similarity import spread


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
def train(train, make_corpus, pairs):
    """Trains well for an epoch, then at a learning rate that grows until all embeddings point one way."""
    corpus = make_corpus({"train": pairs, "validation": pairs})

    def run(*flags, output="run"):
        drop = ("--collapse_drop", "0.2") if "--on_collapse" in flags and "off" not in flags else ()
        schedule = ("--learning_rate", "0.1", "--warmup_steps", "60", "--lr_scheduler_type", "constant_with_warmup")
        length = ("--per_device_train_batch_size", "8", "--num_train_epochs", "8", "--logging_steps", "4")
        folder = train(corpus, *schedule, *length, "--dropout", "0", *flags, *drop, output=output)
        return json.loads((folder / "run.json").read_text())["history"]

    return run


def spearmans(history):
    return [entry["eval_spearman"] for entry in history if "eval_spearman" in entry]


def rates(history):
    return [entry["learning_rate"] for entry in history if "learning_rate" in entry]


def test_a_run_that_collapses(train, caplog):
    """Fails if a collapse passes unseen, `stop` goes on, or `rollback` stays where the run collapsed."""
    with caplog.at_level(logging.WARNING):
        warned = train("--on_collapse", "warn", output="warn")
    values = spearmans(warned)
    assert max(values) - values[-1] > 0.2, f"the case does not collapse: {values}"
    assert "collapse. Validation Spearman is" in caplog.text and "effective_rank" in caplog.text
    assert any("sample_effective_rank" in entry for entry in warned)

    stopped = spearmans(train("--on_collapse", "stop", output="stop"))
    assert len(stopped) < len(values) and stopped == pytest.approx(values[: len(stopped)])

    caplog.clear()
    with caplog.at_level(logging.INFO, logger="cosent"):
        rolled = train("--on_collapse", "rollback", "--rollback_factor", "1e-6", output="rollback")
    assert "back to " in caplog.text and "learning rate times 1e-06" in caplog.text
    assert rates(rolled)[-1] < 0.05 * max(rates(rolled))  # the warm-up went on meanwhile
    # Nothing is learnt at such a rate: what was best has come back.
    assert spearmans(rolled)[-1] == pytest.approx(max(spearmans(rolled)), abs=0.02)


def test_a_healthy_run_is_left_alone(train, caplog):
    """Fails if the guard cries wolf, or changes the training that it watches."""
    calm = ("--learning_rate", "1e-3", "--num_train_epochs", "3")
    with caplog.at_level(logging.WARNING):
        watched = train(*calm, "--on_collapse", "stop", output="watched")
    assert "collapse" not in caplog.text
    assert not any("sample_spearman" in entry for entry in watched), "a check costs more than a comparison"
    assert spearmans(watched) == spearmans(train(*calm, output="alone"))


@pytest.mark.parametrize(
    "flags, warned",
    [
        (("--tower", "cross_encoder"), True),
        (("--tower", "cross_encoder", "--on_collapse", "off"), False),
        ((), False),
    ],
)
def test_cross_encoders_are_watched_unless_switched_off(train, flags, warned, caplog):
    """Fails if a reranker collapses to one number, as users of every library report, and nothing says so."""
    with caplog.at_level(logging.WARNING):
        history = train("--learning_rate", "0.3", "--warmup_steps", "12", *flags)
    values = spearmans(history)
    assert max(values) - values[-1] > 0.1 or np.isnan(values[-1]), f"the case does not collapse: {values}"
    assert ("collapse. Validation Spearman is" in caplog.text) == warned


def test_a_cross_encoder_without_validation_needs_no_flag(train, caplog):
    """Fails if the default guard refuses a run that evaluates nothing."""
    assert train("--tower", "cross_encoder", "--eval_strategy", "no", "--num_train_epochs", "1")


@pytest.mark.parametrize(
    "flags, words",
    [
        (("--on_collapse", "rollback", "--rollback_factor", "1.5"), "--rollback_factor must lie between"),
        (("--on_collapse", "warn", "--eval_strategy", "no"), "needs validation pairs"),
        (("--on_collapse", "rollback", "--load_best_model_at_end", "false"), "load_best_model_at_end true"),
    ],
)
def test_settings_that_cannot_work(train, flags, words):
    """Fails if a guard that never acts is accepted."""
    with pytest.raises(InputError, match=words):
        train(*flags)
