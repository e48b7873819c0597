"""Which logits of somebody's classifier make a score."""

import json

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.modeling.class_names import scored_classes
from cosent.modeling.cross_encoder import CrossEncoder
from tests.families import LETTERS, save_family


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["LABEL_0"], (0, None)),
        (["LABEL_0", "LABEL_1"], (1, 0)),
        (["contradiction", "neutral", "entailment"], (2, 0)),
        (["entailment", "neutral", "contradiction"], (0, 2)),
        (["CONTRADICTION", "ENTAILMENT", "NEUTRAL"], (1, 0)),
        (["entailment", "not_entailment"], (0, 1)),
        (["not duplicate", "duplicate"], (1, 0)),
        (["other", "similar"], (1, 0)),
        (["yes", "no"], (0, 1)),
        ([0, 1], (1, 0)),
        (["mismatch", "match"], (1, 0)),
        (["related", "unrelated"], (0, 1)),
        (["same", "different"], (0, 1)),
        (["different", "same"], (1, 0)),
        (["contradict", "neutral", "entail"], (2, 0)),
        (["entails", "contradicts", "neutral"], (0, 1)),
        (["相似", "不相似"], (0, 1)),
        (["不相似", "相似"], (1, 0)),
        (["蕴含", "矛盾", "中立"], (0, 1)),
        (["中立", "矛盾", "蕴含"], (2, 1)),
        (["is duplicate", "not duplicate"], (0, 1)),
        (["is_not_duplicate", "is_duplicate"], (1, 0)),
        (["否", "是"], (1, 0)),
        (["无关", "相关"], (1, 0)),
    ],
)
def test_scores_follow_the_names_of_classes(names, expected):
    """Fails if a published NLI model ranks contradictions first because it numbers its classes otherwise."""
    assert scored_classes(dict(enumerate(names))) == expected


@pytest.mark.parametrize(
    "names",
    [
        ["a", "b"],
        ["positive", "negative"],
        ["LABEL_0", "LABEL_1", "LABEL_2"],
        ["maybe", "yes"],
        ["是", "也许"],
        ["相似", "相同"],
        ["same", "related"],
    ],
)
def test_classes_that_say_nothing_are_refused(names):
    """Fails if a score is guessed, and perhaps inverted."""
    with pytest.raises(InputError, match="which of them means similar is unclear"):
        scored_classes(dict(enumerate(names)))


def test_a_folder_with_its_classes_in_another_order(tmp_path):
    """Fails if the documented score, entailment minus contradiction, depends on the order of the classes."""
    folder = save_family("bert", tmp_path / "nli", num_labels=3)
    config = json.loads((folder / "config.json").read_text())
    scores = {}
    for order in (["entailment", "neutral", "contradiction"], ["contradiction", "neutral", "entailment"]):
        config |= {"id2label": dict(enumerate(order)), "label2id": {name: i for i, name in enumerate(order)}}
        (folder / "config.json").write_text(json.dumps(config))
        scores[order[0]] = CrossEncoder.from_pretrained(str(folder)).similarity(LETTERS[:8], LETTERS[8:16])
    assert np.abs(scores["entailment"]).max() > 0.1
    np.testing.assert_allclose(scores["entailment"], -scores["contradiction"], rtol=1e-6)


@pytest.mark.parametrize("names", [["entailment", "not_entailment"], ["a", "b"]])
def test_a_classifier_that_is_trained_scores_the_class_of_label_1(tmp_path, names):
    """Fails if `--loss ce` trains class 1 of somebody's classifier as similar, and scores class 0."""
    folder = save_family("bert", tmp_path / "two", num_labels=2)
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
    (folder / "config.json").write_text(json.dumps(config))
    CrossEncoder.from_pretrained(str(folder), num_labels=2).save_pretrained(tmp_path / "saved")
    assert scored_classes(CrossEncoder.from_pretrained(str(tmp_path / "saved")).model.config.id2label) == (1, 0)
