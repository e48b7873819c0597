"""Streaming, pairing and masking of unlabelled text."""

import gzip
import itertools

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from cosent.data.text import read_texts
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.pretraining.batches import NeighbourBatches, mask_spans
from cosent.pretraining.vocabulary import SPECIAL_TOKENS, learn_tokenizer

LINES = ["我喜欢北京", "今天天气很好", "红色的苹果", "怎么还款", "如何还款", "推荐一辆红车", "好"]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(resolve("mini"))


def batches(tokenizer, lines=LINES, **changes):
    settings = {"max_length": 16, "batch_tokens": 1, "mask_ratio": 0.3, "buffer": 100} | changes
    return NeighbourBatches(lambda: iter(lines), tokenizer, **settings)


def test_every_format_gives_the_same_lines(tmp_path):
    """Fails if a format loses, splits or adds a line, or a byte-order mark becomes a character of the text."""
    plain = "\ufeff" + "\n".join(LINES[:3]) + "\n\n  " + LINES[3] + " \n"
    objects = "".join(f'{{"id": 1, "text": "{line}"}}\n' for line in LINES[:4])
    (tmp_path / "a.txt").write_text(plain, encoding="utf-8")
    (tmp_path / "b.jsonl").write_text(objects, encoding="utf-8")
    for name, text in (("c.txt.gz", plain), ("d.jsonl.gz", objects)):
        with gzip.open(tmp_path / name, "wt", encoding="utf-8") as file:
            file.write(text)
    for file in tmp_path.iterdir():
        assert list(read_texts([file])) == LINES[:4], file


@pytest.mark.parametrize(
    "name, content, told",
    [
        ("a.txt", "好\n".encode() + b"\xff\n", "line 2: expected UTF-8, got other bytes"),
        ("a.jsonl", b'{"text": "x"}\n{"body": "x"}\n', "line 2: expected"),
        ("a.jsonl", b'{"text": 5}\n', "line 1: expected text in text, got 5"),
        ("a.pdf", b"x\n", "expected a file that ends in"),
        ("a.txt.gz", gzip.compress(b"x" * 99, mtime=0)[:-9], "not a complete gzip file"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, told):
    """Fails if a damaged file ends in a trace, or is read in part without a word."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=told):
        list(read_texts([tmp_path / name]))
    with pytest.raises(InputError, match="there is no file"):
        list(read_texts([tmp_path / "absent.txt"]))


def test_a_learnt_vocabulary_reads_its_text():
    """Fails if a frequent character or a Latin word is lost, or upper case makes another word."""
    tokenizer = learn_tokenizer(["微信 App 支付", "微信app支付", "app"] * 20, size=60)
    assert tokenizer.convert_ids_to_tokens(range(5)) == SPECIAL_TOKENS
    assert tokenizer.tokenize("微信APP支付") == ["微", "信", "app", "支", "付"]
    assert tokenizer.tokenize("鳖") == ["[UNK]"]


def test_a_pass_pairs_neighbours_and_reads_every_line_once(tokenizer):
    """Fails if a pair joins lines that do not follow one another, or a pass repeats or drops one.

    Seven lines: (0 1) (2 3) (4 5) on the first pass, (1 2) (3 4) (5 6) on the second.
    """
    pieces = [tuple(tokenizer.encode(line, add_special_tokens=False)) for line in LINES]
    shuffled = batches(tokenizer).shuffled(np.random.default_rng(0))
    pairs = [tuple(pieces.index(tuple(piece)) for piece in pair) for pair in itertools.islice(shuffled, 6)]
    assert sorted(pairs[:3]) == [(0, 1), (2, 3), (4, 5)]
    assert sorted(pairs[3:]) == [(1, 2), (3, 4), (5, 6)]


def test_processes_share_out_the_pairs(tokenizer):
    """Fails if two processes learn from the same pair, or one pair from none."""
    first, second = (
        {tuple(pair[0]) for pair in batches(tokenizer, rank=rank, world=2).pairs(skip=0)} for rank in range(2)
    )
    assert len(first) == 2 and len(second) == 1 and not first & second


def test_long_lines_are_cut_into_neighbours(tokenizer):
    """Fails if the end of a long line is lost."""
    line = "一二三四五六七八九十"
    (pair,) = batches(tokenizer, [line], max_length=7).pairs(skip=0)
    assert [tokenizer.decode(piece).replace(" ", "") for piece in pair] == ["一二三四五", "六七八九十"]


def test_a_batch_is_packed_rows_of_its_pairs(tokenizer):
    """Fails if a piece is not laid out whole with its own positions, or a label stands elsewhere than its token."""
    held = batches(tokenizer, batch_tokens=30)
    batch = next(iter(held))
    assert set(batch) == {"input_ids", "labels", "position_ids", "token_type_ids", "segments"}
    assert not batch["token_type_ids"].any()
    assert len({tensor.shape for tensor in batch.values()}) == 1 and batch["input_ids"].shape[1] == 16
    originals = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    segments = int(batch["segments"].max())
    assert segments % 2 == 0 and int((batch["segments"] > 0).sum()) >= 30
    for segment in range(1, segments + 1):
        chosen = batch["segments"] == segment
        text = tokenizer.decode(originals[chosen]).replace(" ", "")
        assert text.removeprefix("[CLS]").removesuffix("[SEP]") in LINES and text.startswith("[CLS]")
        assert batch["position_ids"][chosen].tolist() == list(range(int(chosen.sum())))
    assert torch.equal(next(iter(held))["input_ids"], batch["input_ids"]), "the same seed gave another batch"


def test_too_little_text_is_an_error(tokenizer):
    """Fails if a single line makes the job wait for ever."""
    with pytest.raises(InputError, match="too little to read"):
        next(iter(batches(tokenizer, ["好"])))


def test_masking_hides_the_asked_share_in_spans(tokenizer):
    """Fails if the share is off, special tokens or padding are chosen, or 80/10/10 is not kept.

    With 400 x 38 eligible tokens the standard deviation of the share is below 0.006.
    """
    generator = np.random.default_rng(0)
    ids = generator.integers(200, 4000, (400, 50))
    lengths = np.full(400, 40)
    ids[:, 0], ids[:, [20, 39]] = tokenizer.cls_token_id, tokenizer.sep_token_id
    inputs, labels = mask_spans(ids, lengths, 0.3, tokenizer, generator)
    chosen = labels != -100
    assert not chosen[:, [0, 20]].any() and not chosen[:, 39:].any()
    assert np.array_equal(inputs[~chosen], ids[~chosen]) and np.array_equal(labels[chosen], ids[chosen])
    assert chosen[:, 1:39].mean() == pytest.approx(0.3 * 37 / 38, abs=0.02)
    hidden = inputs[chosen] == tokenizer.mask_token_id
    kept = inputs[chosen] == ids[chosen]
    assert hidden.mean() == pytest.approx(0.8, abs=0.03) and kept.mean() == pytest.approx(0.1, abs=0.02)
    after_chosen = chosen[:, 2:39][chosen[:, 1:38]].mean()
    assert after_chosen > 0.45, "tokens are chosen one by one, not in spans"
