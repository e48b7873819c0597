"""The mean of weights, and which models have one."""

import logging
from copy import deepcopy

import pytest
import torch

from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.ensemble import average, common_start
from cosent.models.modules import Dense
from cosent.models.prompts import Prompts
from cosent.run import Environment, RunRecord
from tests.families import save_family


@pytest.fixture
def bi(tiny_model):
    return SentenceEncoder.from_pretrained(str(tiny_model), pooling="mean")


def moved(model, by: float):
    other = deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight += by
    return other


def test_on_paper(bi):
    """Fails if a weight of the soup is not the mean: w + (1 * 0 + 3 * 4) / 4 = w + 3."""
    start = {name: weight.clone() for name, weight in bi.state_dict().items()}
    soup = average([bi, moved(bi, 4.0)], ["a", "b"], [1, 3])
    assert isinstance(soup, SentenceEncoder) and len(start) > 20
    for name, weight in soup.state_dict().items():
        torch.testing.assert_close(weight, start[name] + 3 * start[name].is_floating_point())


def test_the_longest_sentences_are_read(tiny_model, bi):
    """Fails if the soup of runs from corpora of short and long sentences cuts the long ones."""
    short = SentenceEncoder.from_pretrained(str(tiny_model), pooling="mean", max_length=16)
    assert average([short, bi], ["a", "b"], [1, 1]).max_length == bi.max_length > 16


def test_models_of_another_kind_are_refused(tiny_model, bi, tmp_path):
    """Fails if the mean of models that are not alike is taken, whose vectors mean nothing."""
    prompted, wider = deepcopy(bi), deepcopy(bi)
    prompted.prompts = Prompts({"query": "问："}, "query")
    wider.tail.append(Dense(32, 8))
    save_family("bert", tmp_path / "letters")
    save_family("roberta", tmp_path / "roberta")
    other = deepcopy(bi)
    other.backbone.config.layer_norm_eps = 0.1
    cases = {
        "tower": CrossEncoder.from_pretrained(str(tiny_model), num_labels=1),
        "architecture \\(bert and roberta\\)": SentenceEncoder.from_pretrained(str(tmp_path / "roberta")),
        "pooling and modules.*mean.*cls": SentenceEncoder.from_pretrained(str(tiny_model), pooling="cls"),
        "pooling and modules": wider,
        "prompts": prompted,
        "tokenizer": SentenceEncoder.from_pretrained(str(tmp_path / "letters")),
        "config.json": other,
    }
    for what, model in cases.items():
        with pytest.raises(InputError, match=f"a and b differ in their {what}.*by vectors or scores"):
            average([bi, model], ["a", "b"], [1, 1])


def test_runs_of_other_starts_are_told(tmp_path, caplog):
    """Fails if the mean of unrelated runs is written without a word, or runs from one start are doubted."""
    for name, start in {"a": "mini", "b": "mini", "c": "other"}.items():
        (tmp_path / name).mkdir()
        measured = {"environment": Environment({}, None, "CPU", 1), "train_seconds": 1.0, "seconds": 2.0, "history": []}
        RunRecord(recipe={"model_name_or_path": start}, **measured).save(tmp_path / name)
    a, b, c, unknown = (str(tmp_path / name) for name in "abcd")
    with caplog.at_level(logging.WARNING):
        assert common_start([a, b]) == "mini" and not caplog.text
        assert common_start([a, c]) is None and "one start (mini, other)" in caplog.text
        assert common_start([unknown, unknown]) is None and "one start (unknown)" in caplog.text
