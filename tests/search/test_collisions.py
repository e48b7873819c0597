"""Different texts that are the same tokens to a model: no score of it may pass for its answer."""

import pytest

from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.search.differences import colliding, collisions

PAIRS = [
    ("陈玙的订单", "陈玕的订单", True),  # neither name is in the vocabulary of `mini`
    ("陈玙的订单", "陈玙的订单", False),
    ("陈玙的订单", "陈明的订单", False),
    ("mǎ怎么读", "mā怎么读", True),  # accents are stripped
    ("ABC公司", "abc公司", False),  # as everyone reads it, the same text
    ("國家圖書館", "国家图书馆", False),
    ("國家的玙", "国家的玕", True),
    ("怎么 还款", "怎么\u200b还款", False),
]
PAIRS_OF_EQUAL_TEXTS = [PAIRS[row][:2] for row in (1, 4, 5, 7)]


@pytest.fixture(scope="module", params=["bi_encoder", "cross_encoder"])
def model(request, tiny_model):
    if request.param == "bi_encoder":
        return SentenceEncoder.from_pretrained(str(tiny_model), max_length=64)
    return CrossEncoder.from_pretrained(str(tiny_model), num_labels=1, max_length=64)


def test_pairs_that_a_model_cannot_tell_apart(model):
    """Fails if a user takes the score of two texts for an answer where the model has not read what differs."""
    read = 62 if isinstance(model, SentenceEncoder) else 30  # of 64 tokens; of (64 - 3) / 2
    cut = [("好" * read + "天", "好" * read + "地", True), ("好" * (read - 1) + "天", "好" * (read - 1) + "地", False)]
    first, second, expected = zip(*PAIRS, *cut, strict=True)
    assert collisions(model, first, second) == list(expected)
    options = {"truncation": "longest_first", "max_length": 64, "add_special_tokens": True}
    for one, other, collide in zip(first, second, expected, strict=True):
        if isinstance(model, SentenceEncoder):
            sides = [model.tokenizer(text, **options)["input_ids"] for text in (one, other)]
        else:
            ids = model.tokenizer(one, other, **options)["input_ids"]
            middle = ids.index(model.tokenizer.sep_token_id)
            sides = [ids[1:middle], ids[middle + 1 : -1]]
        shorter = min(map(len, sides))  # a long pair leaves one side a token more
        assert (sides[0][:shorter] == sides[1][:shorter]) == (collide or (one, other) in PAIRS_OF_EQUAL_TEXTS)


def test_windows_read_texts_to_their_end(tiny_model):
    """Fails if texts that differ at their end are called equal where all of them is read."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), max_length=64)
    texts = ["好" * 100 + "天", "好" * 100 + "地"]
    assert colliding(encoder, texts) == {0: texts[0], 1: texts[1]}
    encoder.long_texts = "mean"
    assert colliding(encoder, texts) == {}


def test_rows_of_a_file(tiny_model, monkeypatch):
    """Fails if a third text hides that two collide, or chunks are compared each by itself."""
    monkeypatch.setattr("cosent.search.differences.CHUNK", 2)
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    lines = ["陈玙ABC", "怎么还款", "陈玙abc", "怎么还款", "陳玕abc", "怎麼还款", "陈玕abc"]
    assert colliding(encoder, lines) == dict.fromkeys([0, 2], "陈玙abc") | dict.fromkeys([4, 6], "陈玕abc")
