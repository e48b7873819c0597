"""What a loss is given, and which loss fits which labels."""

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.losses import LOSSES
from cosent.schema import Manifest
from cosent.training.objective import build_objective, loss_targets


@pytest.fixture
def corpus(make_corpus, pairs):
    return make_corpus({"train": pairs, "validation": pairs[:32], "test": pairs[32:]})


def test_labels_of_any_range_are_scaled_into_0_to_1(make_corpus):
    """Fails if a label leaves 0..1 by a rounding error and stops a run in the middle of an epoch."""
    manifest = Manifest("odd", "graded", -0.3, 0.6, {"bi_encoder": 32}, {})
    targets = loss_targets("cosine_squared", np.array([-0.3, 0.6, 0.1], dtype=np.float32), manifest)
    assert targets.min() == 0 and targets.max() == 1 and targets.dtype == np.float32


def test_classes_count_from_0():
    """Fails if labels 1..5 become classes 1..5 of a head that has 0..4."""
    manifest = Manifest("odd", "graded", 1.0, 5.0, {"bi_encoder": 32}, {})
    assert loss_targets("sbert", np.array([1, 3, 5], dtype=np.float32), manifest).tolist() == [0, 2, 4]


def test_grades_are_no_two_classes():
    """Fails if a graded corpus is cut into classes for `ce` without a word, or losses that can use grades refuse it."""
    graded = [Manifest("stsb", "graded", 0.0, 5.0, {}, {})]
    with pytest.raises(
        InputError, match="needs binary labels, and stsb has graded labels.* Use --loss cosent, bce or mse"
    ):
        build_objective("ce", {}, graded, "cross_encoder")
    for loss in ("cosent", "bce", "mse"):
        assert build_objective(loss, {}, graded, "cross_encoder").classes == 1


def test_every_loss_says_how_many_logits_it_needs():
    """Fails if a head of another size than the loss reads is built: scale is 1 on logits and 20 on cosines."""
    binary = [Manifest("lcqmc", "binary", 0.0, 1.0, {}, {})]
    fitting = {name for name, loss in LOSSES.items() if "cross_encoder" in loss.towers} - {"ce3"}
    classes = {name: build_objective(name, {}, binary, "cross_encoder").classes for name in fitting}
    assert classes == {"ce": 2, "bce": 1, "mse": 1, "cosent": 1}
    assert build_objective("cosent", {}, binary, "cross_encoder").loss.keywords == {"scale": 1.0}
    assert build_objective("cosent", {}, binary).loss.keywords == {}
    assert build_objective("cosent", {"scale": 5.0}, binary, "cross_encoder").loss.keywords == {"scale": 5.0}
