"""A cross-encoder must score as the stock classifier does, packed or not, here or served by sentence-transformers."""

import copy
import logging

import numpy as np
import pytest
import sentence_transformers
import torch
from tokenizers.processors import TemplateProcessing

from cosent.errors import InputError
from cosent.models import load_model
from cosent.models.cross_encoder import CrossEncoder, scored_classes
from cosent.models.folder import read_json, write_json
from tests.support.families import LETTERS, save_family

FIRST = ["我喜欢北京", "今天天气不错，我们一起去公园散步吧", "好", "怎么还款", "WiFi密码是123", "红色的苹果"]
SECOND = ["我不喜欢北京", "天气好", "今天天气不错，我们一起去公园散步吧" * 2, "如何还款", "密码", "推荐一辆红车"]


@pytest.fixture
def encoder(tiny_model):
    return CrossEncoder.from_pretrained(str(tiny_model), num_labels=1)


NAMES = {1: ["LABEL_0"], 2: ["dissimilar", "similar"], 3: ["contradiction", "neutral", "entailment"]}


@pytest.mark.parametrize(("num_labels", "segment_ids"), [(1, "tokenizer"), (2, "zero"), (3, "tokenizer")])
def test_sentence_transformers_gives_the_same_scores(tiny_model, tmp_path, num_labels, segment_ids):
    """Fails if a served model answers differently: a sigmoid, other segments, another cut of too long pairs; or TEI
    refuses a folder without names of classes, which transformers drops where there are two."""
    encoder = CrossEncoder.from_pretrained(str(tiny_model), num_labels, segment_ids, max_length=16)
    with torch.no_grad():
        for name, weight in encoder.backbone.encoder.named_parameters():
            weight.mul_(6 if name.endswith("weight") and weight.ndim == 2 else 1)  # [CLS] shall see the other tokens
        encoder.model.classifier.weight.mul_(300)
    ours = encoder.similarity(FIRST, SECOND)
    encoder.save_pretrained(tmp_path)
    theirs = sentence_transformers.CrossEncoder(str(tmp_path), device="cpu")
    served = theirs.predict(list(zip(FIRST, SECOND, strict=True)))
    served = served if num_labels == 1 else served[:, -1] - served[:, 0]
    np.testing.assert_allclose(served, ours, rtol=1e-5, atol=1e-5)
    assert ours.std() > 0.1, "all scores are alike: nothing was compared"
    again = load_model(str(tmp_path))
    assert again.max_length == 16 < len(FIRST[1]) + len(SECOND[1])
    np.testing.assert_array_equal(again.similarity(FIRST, SECOND), ours)
    config = read_json(str(tmp_path), "config.json")
    assert config["id2label"] == {str(number): name for number, name in enumerate(NAMES[num_labels])}
    assert config["label2id"] == {name: number for number, name in enumerate(NAMES[num_labels])}
    other = CrossEncoder.from_pretrained(str(tmp_path), segment_ids="zero").similarity(FIRST, SECOND)
    assert (np.abs(other - ours).max() > 1e-5) == (segment_ids == "tokenizer"), "forgotten, or it does nothing"


def test_scores_follow_the_names_of_classes():
    """Fails if a published NLI model ranks contradictions first because it numbers its classes otherwise, or a score
    is guessed, and perhaps inverted."""
    cases = [
        (["LABEL_0"], (0, None)),
        (["contradiction", "neutral", "entailment"], (2, 0)),
        (["CONTRADICTION", "ENTAILMENT", "NEUTRAL"], (1, 0)),
        (["entailment", "not_entailment"], (0, 1)),
        (["not duplicate", "duplicate"], (1, 0)),
        (["yes", "no"], (0, 1)),
        ([0, 1], (1, 0)),
        (["mismatch", "match"], (1, 0)),
        (["irrelevant", "Relevant"], (1, 0)),
        (["same", "different"], (0, 1)),
        (["相似", "不相似"], (0, 1)),
        (["蕴含", "矛盾", "中立"], (0, 1)),
        (["不是", "是"], (1, 0)),
    ]
    wrong = [(names, expected) for names, expected in cases if scored_classes(dict(enumerate(names))) != expected]
    assert not wrong
    for names in ("a b", "positive negative", "maybe yes", "相似 相同", "LABEL_0 LABEL_1 LABEL_2"):
        with pytest.raises(InputError, match="id2label"):
            scored_classes(dict(enumerate(names.split())))


def test_the_classes_of_somebody_elses_classifier(tmp_path):
    """Fails if `--loss ce` trains class 1 as similar and scores class 0, starts from a head upside down, or the score
    of two unnamed classes is no longer logit 1 - logit 0."""
    folder = save_family("bert", tmp_path / "start", num_labels=2)
    scores = CrossEncoder.from_pretrained(str(folder)).similarity(LETTERS[:8], LETTERS[8:16])
    assert np.abs(scores).min() > 1e-3  # logit 1 - logit 0, see test_families.py
    names = {"id2label": {0: "similar", 1: "dissimilar"}, "label2id": {"similar": 0, "dissimilar": 1}}
    write_json(folder / "config.json", read_json(str(folder), "config.json") | names)
    inverted = CrossEncoder.from_pretrained(str(folder)).similarity(LETTERS[:8], LETTERS[8:16])
    np.testing.assert_array_equal(inverted, -scores)
    trained = CrossEncoder.from_pretrained(str(folder), num_labels=2)
    np.testing.assert_array_equal(trained.similarity(LETTERS[:8], LETTERS[8:16]), inverted)
    assert trained.model.config.id2label == {0: "dissimilar", 1: "similar"}
    folder, names = save_family("bert", tmp_path / "nli", num_labels=3), ("entailment", "neutral", "contradiction")
    names = {"id2label": dict(enumerate(names)), "label2id": {name: place for place, name in enumerate(names)}}
    write_json(folder / "config.json", read_json(str(folder), "config.json") | names)
    nli, trained = (CrossEncoder.from_pretrained(str(folder), number) for number in (None, 3))
    np.testing.assert_array_equal(*(each.similarity(LETTERS[:8], LETTERS[8:16]) for each in (nli, trained)))
    logits = [each(**each.tokenizer(["好"], ["坏"], return_tensors="pt"))["logits"] for each in (nli, trained)]
    assert torch.equal(logits[0].flip(1), logits[1])
    names = {"id2label": {0: "0", 1: "1", 2: "2"}, "label2id": {"0": 0, "1": 1, "2": 2}}
    write_json(folder / "config.json", read_json(str(folder), "config.json") | names)
    numbered = CrossEncoder.from_pretrained(str(folder), 3)
    assert torch.equal(numbered.model.classifier.weight, nli.model.classifier.weight)


@pytest.mark.matrix
def test_a_compiled_model_scores_as_before(encoder):
    """Fails if --torch_compile stops at a head that leaves autocast, or computes its logits in bfloat16."""
    encoder.packing, inputs = False, encoder.tokenizer(["好天气"], ["天气好"], return_tensors="pt")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = encoder(**inputs)["logits"]
        logits = torch.compile(encoder, backend="eager")(**inputs)["logits"]
    assert torch.equal(logits, expected) and not torch.equal(logits, logits.bfloat16().float())


def test_a_fresh_head_depends_on_the_seed_alone(tiny_model):
    """Fails if two runs of one seed start from different heads, or the global random state is used up."""
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = (CrossEncoder.from_pretrained(str(tiny_model), 1, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first.model.classifier.weight, again.model.classifier.weight)
    assert not torch.equal(first.model.classifier.weight, other.model.classifier.weight)
    inputs = first.tokenizer(["好天气"], ["天气好"], return_tensors="pt")
    for module in first.train().modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5 * (module is first.model.dropout)
    assert not torch.equal(first(**inputs)["logits"], first(**inputs)["logits"]), "the dropout of the head is left out"


def test_a_head_that_is_missing_or_of_another_size_is_new_aloud(encoder, tiny_model, tmp_path, caplog):
    """Fails if a folder without a head gives random scores in silence, a model of three classes cannot be trained
    further with one logit or loses its head without a word, or two empty sentences end in a ZeroDivisionError."""
    encoder.save_pretrained(tmp_path)
    with caplog.at_level(logging.WARNING):
        CrossEncoder.from_pretrained(str(tiny_model), num_labels=1)
        assert "holds no cross-encoder" not in caplog.text  # training asks for a new head
        CrossEncoder.from_pretrained(str(tiny_model))
        wider = CrossEncoder.from_pretrained(str(tmp_path), num_labels=3)
    assert f"{tiny_model} holds no cross-encoder" in caplog.text and "has no head of 3 logit(s)" in caplog.text
    assert wider.model.classifier.out_features == 3
    bare = copy.deepcopy(encoder)
    bare.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B")
    for pairs, position in (([""], 0), (["好", ""], 1)):
        with pytest.raises(InputError, match=f"position {position}"):
            bare.similarity(pairs, pairs)
