"""Which logits of somebody's classifier make a score."""

import json

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.models.cross_encoder import CrossEncoder, scored_classes
from tests.families import LETTERS, save_family


def test_scores_follow_the_names_of_classes():
    """Fails if a published NLI model ranks contradictions first because it numbers its classes otherwise."""
    cases = [
        (["LABEL_0"], (0, None)),
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
        (["irrelevant", "Relevant"], (1, 0)),
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
    ]
    wrong = [(names, expected) for names, expected in cases if scored_classes(dict(enumerate(names))) != expected]
    assert not wrong


def test_classes_that_say_nothing_are_refused():
    """Fails if a score is guessed, and perhaps inverted."""
    two = ("a b", "positive negative", "maybe yes", "是 也许", "相似 相同", "same related")
    for names in (*map(str.split, two), ["LABEL_0", "LABEL_1", "LABEL_2"]):
        with pytest.raises(InputError, match="id2label"):
            scored_classes(dict(enumerate(names)))


@pytest.mark.parametrize("num_labels", [1, 2, 3])
def test_a_saved_classifier_says_what_its_classes_are(tmp_path, num_labels):
    """Fails if config.json has no `id2label`: transformers drops two classes without a name, and TEI stops then."""
    folder = save_family("bert", tmp_path / "start", num_labels=num_labels)
    saved = json.loads((folder / "config.json").read_text())
    assert ("id2label" in saved) == (num_labels != 2), "transformers saves other names now"
    trained = CrossEncoder.from_pretrained(str(folder), num_labels=num_labels)
    trained.save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved/config.json").read_text())
    expected = [["LABEL_0"], ["dissimilar", "similar"], ["contradiction", "neutral", "entailment"]][num_labels - 1]
    assert saved["id2label"] == {str(number): name for number, name in enumerate(expected)}
    assert saved["label2id"] == {name: number for number, name in enumerate(expected)}
    again = CrossEncoder.from_pretrained(str(tmp_path / "saved"))
    np.testing.assert_array_equal(
        again.similarity(LETTERS[:8], LETTERS[8:16]), trained.similarity(LETTERS[:8], LETTERS[8:16])
    )


def test_two_classes_without_a_name_stay_loadable(tmp_path):
    """Fails if the score of somebody's unnamed classifier is no longer logit 1 - logit 0, or its classes get lost."""
    folder = save_family("bert", tmp_path / "start", num_labels=2)
    encoder = CrossEncoder.from_pretrained(str(folder))
    inputs = encoder.tokenizer(LETTERS[:8], LETTERS[8:16], return_tensors="pt")
    logits = encoder.model(**inputs).logits.detach().numpy()
    assert np.abs(logits[:, 1] - logits[:, 0]).min() > 1e-3
    np.testing.assert_allclose(encoder.similarity(LETTERS[:8], LETTERS[8:16]), logits[:, 1] - logits[:, 0], atol=1e-5)
    encoder.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved/config.json").read_text())["label2id"] == {"dissimilar": 0, "similar": 1}


def test_two_classes_of_an_architecture_that_has_three_by_default(tmp_path):
    """transformers saves no number of classes if it is two: BART, whose default is three, does not load any more."""
    folder = save_family("bart", tmp_path / "two", num_labels=2)
    with pytest.raises(InputError, match="id2label"):
        CrossEncoder.from_pretrained(str(folder))
    trained = CrossEncoder.from_pretrained(str(folder), num_labels=2)
    trained.save_pretrained(tmp_path / "saved")
    saved = CrossEncoder.from_pretrained(str(tmp_path / "saved"))
    scores = saved.similarity(LETTERS[:4], LETTERS[4:8])
    np.testing.assert_array_equal(scores, trained.similarity(LETTERS[:4], LETTERS[4:8]))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"id2label": {"0": "dissimilar", "1": "similar"}}))
    named = CrossEncoder.from_pretrained(str(folder)).similarity(LETTERS[:4], LETTERS[4:8])
    np.testing.assert_array_equal(scores, named)  # its own head, not a new one


def test_the_classes_of_a_trained_classifier(tmp_path, caplog):
    """Fails if `--loss ce` trains class 1 of somebody's classifier as similar and scores class 0, or renames classes
    that are in the order of the labels, which its users look up."""
    cases = [
        (["entailment", "not_entailment"], ["dissimilar", "similar"]),
        (["a", "b"], ["dissimilar", "similar"]),
        (["不相似", "相似"], ["不相似", "相似"]),
        (["Contradiction", "Neutral", "Entailment"], ["Contradiction", "Neutral", "Entailment"]),
    ]
    for number, (names, expected) in enumerate(cases):
        folder = save_family("bert", tmp_path / f"start{number}", num_labels=len(names))
        config = json.loads((folder / "config.json").read_text())
        config |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
        (folder / "config.json").write_text(json.dumps(config))
        caplog.clear()
        CrossEncoder.from_pretrained(str(folder), num_labels=len(names)).save_pretrained(tmp_path / f"{number}")
        saved = json.loads((tmp_path / f"{number}" / "config.json").read_text())
        assert saved["id2label"] == {str(number): name for number, name in enumerate(expected)}
        assert saved["label2id"] == {name: number for number, name in enumerate(expected)}
        assert ("its head is trained as" in caplog.text) == (names != expected)
