"""Load a bi-encoder and compare pairs with it."""

from pathlib import Path

import pytest

from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder

TEXTS = ["我喜欢北京", "今天天气不错，我们一起去公园散步吧" * 3, "好", "WiFi密码是123"]


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/model", "runs/a/b", "nobody/nothing"])
def test_a_model_that_does_not_exist(path):
    """Fails if a typo in a path ends in a stack trace of the Hub client."""
    with pytest.raises(InputError, match=path):
        SentenceEncoder.from_pretrained(path)


def test_wrong_arguments_are_explained(tiny_model):
    """Fails if a wrong pool, length or type is accepted or answered without the valid ones."""
    with pytest.raises(InputError, match="pooling must be one of cls, max, mean"):
        SentenceEncoder.from_pretrained(str(tiny_model), pooling="avg")
    with pytest.raises(InputError, match="max_length must be 3 to 512"):
        SentenceEncoder.from_pretrained(str(tiny_model), max_length=1000)
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    with pytest.raises(InputError, match="got 1 and 2"):
        encoder.similarity(["好"], ["好", "坏"])


def test_mini_is_there():
    """Fails if the embedded default is missing from the package, too large to ship, or not what it says."""
    encoder = SentenceEncoder.from_pretrained("mini")
    assert Path(resolve("mini"), "model.safetensors").stat().st_size <= 12 * 10**6
    assert len(set(encoder.tokenizer("我用iPhone12上网")["input_ids"])) >= 8
    assert encoder.tokenizer.unk_token_id not in encoder.tokenizer("谁的iPhone在2024年坏了？abcxyz")["input_ids"]
