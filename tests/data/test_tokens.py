"""Token ids equal the tokenizer's own for texts and pairs."""

import random

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cosent.data import tokens
from cosent.data.tokens import run_tokenizer, tokenize_pairs, tokenize_texts
from cosent.encoders import resolve

CORPUS = ["怎么还款 如何还款 the quick brown fox 123456 it's naïve ", "花呗可以提前还款吗？怎样提高额度 12,345.67"] * 50
SPECIAL = ["<s>", "</s>", "<pad>", "<unk>", "<mask>", "<end_of_text>"]
QWEN = r"(?i:'s|'t|'ll)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DIGITS_FROM_THE_END = r"\d{1,3}(?=(?:\d{3})*\b)|\p{L}+|[^\s\p{L}\p{N}]+|\s+"
NASTY = [
    *["怎么还款", "好", " ", "    ", "\n\n  ", "x", "xxxxxxx", "1", "12345", "，", "。", "it's", "'ll", "é", "e\u0301"],
    *["\u0301", "\u0323", "璟", "🙂", "👨\u200d👩\u200d👧", "\u200b", "\u3000", "<mask>", "<end_of_text>", "[SEP]"],
    *["the quick brown fox ", "--", "Ⅷ", "ﬁ", "Σ", "\u1100\u1161", "\t", "\0", "ß", "İ", "▁", "##", "?!"],
]


def shipped(name, **options):
    return AutoTokenizer.from_pretrained(resolve(name), **options)


def byte_level(pattern: str, post_processor):
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.post_processor = post_processor
    return trained(tokenizer, trainers.BpeTrainer)


def sentence_piece():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = template("<s> $A </s>", "<s> $A </s> </s> $B </s>")
    return trained(tokenizer, trainers.UnigramTrainer, unk_token="<unk>")


def template(single: str, pair: str):
    return processors.TemplateProcessing(single, pair, [(token, place) for place, token in enumerate(SPECIAL)])


def trained(tokenizer, trainer, **options):
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    how = {"vocab_size": 500, "special_tokens": SPECIAL, "initial_alphabet": alphabet, "show_progress": False}
    tokenizer.train_from_iterator(CORPUS, trainer(**how, **options))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", mask_token="<mask>")


TOKENIZERS = {
    "WordPiece": lambda: shipped("mini"),
    "cut on the left": lambda: shipped("mini", truncation_side="left"),
    "one segment": lambda: shipped("mini", model_input_names=["input_ids", "attention_mask"]),
    "Qwen": lambda: byte_level(QWEN, template("$A <end_of_text>", "$A </s> $B <end_of_text>")),
    "nothing around": lambda: byte_level(QWEN, None),
    "RoBERTa": lambda: byte_level(DIGITS_FROM_THE_END, processors.RobertaProcessing(("</s>", 1), ("<s>", 0))),
    "SentencePiece": sentence_piece,
}


def texts(draw: random.Random, count: int) -> list[str]:
    """Texts of some hundred characters, of one, three or all of the nasty pieces each, and an end of another kind."""

    def text() -> str:
        pieces = draw.sample(NASTY, draw.choice([1, 1, 3, len(NASTY)]))
        body = "".join(draw.choice(pieces) for _ in range(draw.choice([0, 1, 10, 400])))
        return body[: draw.choice([80, 600])] + draw.choice(NASTY)

    return [text() for _ in range(count)]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_are_those_of_whole_texts(name):
    """Fails if a text shared by pairs, or the cut of a pair, changes a token that the model reads."""
    tokenizer, draw = TOKENIZERS[name](), random.Random(name)
    for max_length in (12, 17):
        first, second = texts(draw, 10), texts(draw, 10)
        second[:5] = draw.sample(first, 5)
        single = tokenizer(first, truncation=True, max_length=max_length)
        ids, cut = tokenize_texts(tokenizer, first, max_length)
        assert ids == single["input_ids"] and cut == [bool(row.overflowing) for row in single.encodings]
        assert tokenize_texts(tokenizer, first, None)[0] == tokenizer(first)["input_ids"]
        whole = tokenizer(first, second, truncation="longest_first", max_length=max_length)
        pairs = tokenize_pairs(tokenizer, first, second, max_length)
        assert pairs["input_ids"] == whole["input_ids"]
        segments = whole.get("token_type_ids", [[0] * len(ids) for ids in whole["input_ids"]])
        assert pairs["first_tokens"] == [row.count(0) for row in segments]
        assert pairs["truncated"] == [bool(row.overflowing) for row in whole.encodings]


def test_a_text_of_many_pairs_is_read_once(monkeypatch):
    """Fails if a long query is tokenised again with each of its documents."""
    characters = []

    def counting(tokenizer, *columns, **options):
        characters.append(sum(len(text) for column in columns for text in column))
        return run_tokenizer(tokenizer, *columns, **options)

    monkeypatch.setattr(tokens, "run_tokenizer", counting)
    tokenizer = shipped("mini")
    documents = [f"文档{number}" for number in range(100)]
    tokenize_pairs(tokenizer, ["好 " * 1_000] * 100, documents, 16)
    assert sum(characters) < 2_000 + 1_000


def test_texts_without_tokens():
    """Fails if texts of which nothing is left lose the tokens around them."""
    tokenizer = shipped("mini")
    pairs = tokenize_pairs(tokenizer, ["", "\u200b"], ["\u200b", ""], 16)
    assert pairs == {"input_ids": [[2, 3, 3]] * 2, "first_tokens": [2, 2], "truncated": [False, False]}
    assert tokenize_texts(tokenizer, [], 16) == ([], [])
