"""Options of losses on their way from flags to the loss."""

import pytest

from cosent.run import read_record
from tests.launching import history


@pytest.mark.parametrize(
    ("tower", "loss"), [("bi_encoder", "sbert"), pytest.param("cross_encoder", "ce", marks=pytest.mark.slow)]
)
def test_labels_are_smoothed(train, made_up, tower, loss):
    """Fails if the flag of transformers is read and does nothing, or its own smoother meets a model without config."""
    flags = ("--tower", tower, "--loss", loss, "--max_steps", "2")
    plain = train(made_up, *flags, output="plain")
    smooth = train(made_up, *flags, "--label_smoothing_factor", "0.3", output="smooth")
    assert history(plain, "loss") != history(smooth, "loss")
    assert read_record(smooth).recipe["label_smoothing_factor"] == 0.3
