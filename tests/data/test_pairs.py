"""What the trainer sees is what the prepared corpus and the texts say."""

import gzip
import json
import os
import shutil

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from cosent.data.corpus import load_corpus
from cosent.data.files import read_rows, read_texts
from cosent.data.pairs import (
    CorpusSampler,
    JoinedPairCollator,
    JoinedPairDataset,
    PairCollator,
    PairDataset,
    tokenize_apart,
    tokenize_joined,
    tokenizer_rules,
    turns,
)
from cosent.errors import InputError
from tests.conftest import VOCABULARY


def test_rows_arrive_in_order_with_their_labels(make_corpus, pairs, tokenizer):
    """Fails if tokens of one pair meet the label of another, or text is lost without a count."""
    corpus = load_corpus(make_corpus({"train": pairs}))
    data = PairDataset(corpus.split("train"), tokenizer, 32)
    assert len(data) == len(pairs)
    for index in (0, 7, len(pairs) - 1):
        first, second, targets = data[index]
        assert tokenizer.decode(first, skip_special_tokens=True).replace(" ", "") == pairs[index][0]
        assert tokenizer.decode(second, skip_special_tokens=True).replace(" ", "") == pairs[index][1]
        assert targets == {"labels": pairs[index][2]}
    corpus = load_corpus(make_corpus({"train": [("好" * 50, "好", 1.0), ("好" * 8, "好" * 9, 0.0)]}))
    data = PairDataset(corpus.split("train"), tokenizer, 10)
    assert data.truncated == 2  # 52 and 11 tokens; 10 tokens just fit
    assert len(data[0][0]) == 10 and data[0][0][-1] == tokenizer.sep_token_id


def test_segments_that_are_not_zeros_before_ones(make_corpus, pairs, tiny_model):
    """Fails if a tokenizer with segments of its own is trained with others in silence."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    template = TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:1 [SEP]:1 $B:0 [SEP]:0",
        special_tokens=[(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.backend_tokenizer.post_processor = template
    with pytest.raises(InputError, match="expected zeros before ones"):
        JoinedPairDataset(load_corpus(make_corpus({"train": pairs})).split("train"), tokenizer, 24)


def test_edited_rows_are_tokenised_again(make_corpus, tokenizer):
    """Fails if a cache returns old rows after a corpus was replaced, even by one of the same time of change, as in an
    archive, or tokens of another length."""
    folder = make_corpus({"train": [("红", "绿", 1.0)]})
    os.utime(folder / "train.parquet", (0, 0))
    before = PairDataset(load_corpus(folder).split("train"), tokenizer, 32)[0][0].tolist()
    make_corpus({"train": [("蓝", "绿", 1.0)]})
    os.utime(folder / "train.parquet", (0, 0))
    after = PairDataset(load_corpus(folder).split("train"), tokenizer, 32)[0][0].tolist()
    assert before != after
    assert PairDataset(load_corpus(folder).split("train"), tokenizer, 3)[0][0].tolist() == after
    rows = load_corpus(make_corpus({"train": [("好" * 20, "好", 1.0)]})).split("train")
    assert [len(PairDataset(rows, tokenizer, length)[0][0]) for length in (8, 16)] == [8, 16]


# Changes of a tokenizer's files, by file and key.
TOKEN = {"id": 0, "content": "[PAD]", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
FIELDS = {
    "tokenizer_config.json": {
        **{"truncation_side": "left", "split_special_tokens": True, "model_input_names": ["input_ids"]},
        **{"padding_side": "left", "model_max_length": 9, "do_lower_case": False, "unk_token": "[MASK]"},
        **{"cls_token": "[SEP]", "sep_token": "[CLS]", "pad_token": "[UNK]", "add_prefix_space": True},
        **{"additional_special_tokens": ["喜"], "strip_accents": False, "tokenize_chinese_chars": False},
    },
    "tokenizer.json": {
        "truncation": {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            **{"strategy": {"Fixed": 9}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0},
            **{"pad_type_id": 0, "pad_token": "[PAD]"},
        },
        "added_tokens": [TOKEN | {"special": False}, TOKEN | {"id": 5, "content": "欢", "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 1, "我": 9, "[PAD]": 0}, "unk_token": "[UNK]"},
    },
}


def test_all_that_decides_tokens_is_in_the_key_of_their_cache(tmp_path):
    """Fails if a tokenizer with one other setting is given the tokens of another one from the cache."""

    def read(folder) -> tuple[str, list]:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        batch = {"sentence1": ["我Liké[MASK]天安门 [CLS]喜欢", "喜"], "sentence2": ["北京天安门[SEP]的Ünï欢 喜", "欢"]}
        joined = tokenize_joined(batch, tokenizer, 8)
        apart = tokenize_apart(batch, tokenizer, 6)
        ids = joined["input_ids"], joined["first_tokens"], apart["input_ids1"], apart["input_ids2"]
        return tokenizer_rules(tokenizer), ids

    rules, ids = read(VOCABULARY)
    changed = []
    for file, fields in FIELDS.items():
        for name, value in fields.items():
            folder = shutil.copytree(VOCABULARY, tmp_path / f"{file} {name}")
            content = json.loads((folder / file).read_text(encoding="utf-8")) | {name: value}
            (folder / file).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
            other_rules, other_ids = read(folder)
            changed += [name] if other_ids != ids else []
            assert other_ids == ids or other_rules != rules, f"{file}: {name}"
    assert {"truncation_side", "truncation", "split_special_tokens", "normalizer", "model"} <= set(changed)


def test_collators_give_the_tensors_of_their_docstrings():
    """Fails if padding, mask, pair order or segments are not what the collators say."""
    batch = PairCollator(0)([([2, 3], [2, 7, 3], {"labels": 1.0})])
    assert batch["input_ids"].tolist() == [[[2, 3, 0], [2, 7, 3]]]
    assert batch["attention_mask"].tolist() == [[[1, 1, 0], [1, 1, 1]]]
    assert batch["labels"].tolist() == [1.0]

    pairs = [([2, 3, 7, 3], 2, {"labels": 1.0}), ([2, 3, 3], 2, {"labels": 0.0})]
    batch = JoinedPairCollator(0, True)(pairs)
    assert batch["input_ids"].tolist() == [[2, 3, 7, 3], [2, 3, 3, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 1, 1], [0, 0, 1, 0]]
    assert batch["labels"].tolist() == [1.0, 0.0]
    assert "token_type_ids" not in JoinedPairCollator(0, False)(pairs)


def test_texts_of_every_kind_of_file(tmp_path):
    """Fails if a byte order mark or a line end of Windows becomes part of a sentence, an empty line is a text, or the
    number of a row is not that of its line."""
    content = "\ufeff好\r\n\r\n\u200b\n 坏 \n末".encode()
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(content))
    lines = "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in ("好", "", "坏", "\u3000\u200b", "末"))
    (tmp_path / "a.jsonl").write_text(lines + "\n", encoding="utf-8")
    (tmp_path / "a.csv").write_text("id,text\n1,好\n2,\n\n3, 坏\n4,末\n", encoding="utf-8")
    for name in ("a.txt", "a.txt.gz", "a.jsonl", "a.csv"):
        assert list(read_texts([tmp_path / name])) == ["好", "坏", "末"], name
    with pytest.raises(InputError, match="a.txt, line 2: .*an empty line"):
        list(read_rows([tmp_path / "a.txt"]))
    (tmp_path / "a.csv").write_text("a,b\n好,坏\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"text or sentence, got a, b\. (?!.*positions)"):  # no flag names a column
        list(read_texts([tmp_path / "a.csv"]))


def test_every_block_comes_from_one_corpus_and_every_row_of_the_longest_is_visited():
    """Fails if labels of different kinds are ranked against each other, or training pairs are never seen."""
    sampler = CorpusSampler([10, 3], block=4, seed=1)
    order = list(sampler)
    assert len(order) == len(sampler) == (3 + 2) * 4
    blocks = [order[start : start + 4] for start in range(0, len(order), 4)]
    for index, block in enumerate(blocks):
        assert all((row < 10) == (index % 2 == 0) for row in block), block
    assert set(range(10)) <= set(order) and {10, 11, 12} <= set(order)


def test_the_order_depends_on_seed_and_epoch_alone():
    """Fails if a run cannot be resumed, or sees every epoch in the same order."""
    sampler, again = CorpusSampler([50, 50], 5, seed=1), CorpusSampler([50, 50], 5, seed=1)
    first = list(sampler)
    assert first == list(again)
    sampler.set_epoch(1)
    second = list(sampler)
    assert second != first
    assert second != list(CorpusSampler([50, 50], 5, seed=2)), "the seeds of a study would share orders"


def test_weights_are_shares_of_the_batches():
    """Fails if --corpus_weights 2 1 gives other shares, an epoch ends before a corpus was read once, or would never
    end."""
    assert turns([4, 2], [2.0, 1.0]) == [0, 1, 0, 0, 1, 0]
    assert turns([1, 3], [2.0, 1.0]).count(1) == 3 and turns([1, 3], [2.0, 1.0]).count(0) in (5, 6)
    order = list(CorpusSampler([12, 12], block=4, seed=1, weights=[3, 1]))
    assert sum(row < 12 for row in order) == 3 * sum(row >= 12 for row in order) - 4  # it ends with the second corpus
    assert set(order) == set(range(24))
    assert len(turns([100, 100], [1.0, 199.0])) > 99 * 200
    with pytest.raises(InputError, match=r"--corpus_weights 1 201: .* 20,200 .* 200 "):
        turns([100, 100], [1.0, 201.0])
    with pytest.raises(InputError, match="--corpus_weights"):
        turns([100, 100], [1e-9, 1.0])
