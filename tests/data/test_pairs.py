"""What the trainer sees is what the prepared corpus says."""

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from cosent.data.corpus import load_corpus
from cosent.data.pairs import JoinedPairCollator, JoinedPairDataset, PairDataset
from cosent.errors import InputError


@pytest.fixture
def tokenizer(tiny_model):
    return AutoTokenizer.from_pretrained(tiny_model)


def test_rows_arrive_in_order_with_their_labels(make_corpus, pairs, tokenizer):
    """Fails if tokens of one pair meet the label of another."""
    corpus = load_corpus(make_corpus({"train": pairs}))
    data = PairDataset(corpus.split("train"), tokenizer, 32)
    assert len(data) == len(pairs)
    for index in (0, 7, len(pairs) - 1):
        first, second, label = data[index]
        assert tokenizer.decode(first, skip_special_tokens=True).replace(" ", "") == pairs[index][0]
        assert tokenizer.decode(second, skip_special_tokens=True).replace(" ", "") == pairs[index][1]
        assert label == pairs[index][2]


def test_joined_pairs_are_what_the_tokenizer_gives(make_corpus, pairs, tokenizer):
    """Fails if a joined pair differs from the tokenizer's own batch, or one cut at the end of the longer sentence."""
    rows = [*pairs[:20], ("好" * 50, "坏", 1.0)]
    data = JoinedPairDataset(load_corpus(make_corpus({"train": rows})).split("train"), tokenizer, 24)
    batch = JoinedPairCollator.from_tokenizer(tokenizer)([data[index] for index in range(len(data))])
    first, second, _ = zip(*rows, strict=True)
    options = {"padding": True, "truncation": "longest_first", "max_length": 24, "return_tensors": "pt"}
    for name, expected in tokenizer(list(first), list(second), **options).items():
        assert batch[name].tolist() == expected.tolist(), name
    assert (data.truncated, data.sequences, data.unit) == (1, 21, "pairs")
    assert tokenizer.decode(batch["input_ids"][-1]).replace(" ", "") == f"[CLS]{'好' * 20}[SEP]坏[SEP]"


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


def test_too_long_sentences_are_cut_and_counted(make_corpus, tokenizer):
    """Fails if text is lost without a count."""
    corpus = load_corpus(make_corpus({"train": [("好" * 50, "好", 1.0), ("好" * 8, "好" * 9, 0.0)]}))
    data = PairDataset(corpus.split("train"), tokenizer, 10)
    assert data.truncated == 2  # 52 and 11 tokens; 10 tokens just fit
    assert len(data[0][0]) == 10 and data[0][0][-1] == tokenizer.sep_token_id


def test_edited_rows_are_tokenised_again(make_corpus, tokenizer):
    """Fails if the token cache returns old rows after a corpus was prepared anew."""
    folder = make_corpus({"train": [("红", "绿", 1.0)]})
    before = PairDataset(load_corpus(folder).split("train"), tokenizer, 32)[0][0].tolist()
    make_corpus({"train": [("蓝", "绿", 1.0)]})
    after = PairDataset(load_corpus(folder).split("train"), tokenizer, 32)[0][0].tolist()
    assert before != after
    assert PairDataset(load_corpus(folder).split("train"), tokenizer, 3)[0][0].tolist() == after


def test_another_tokenizer_or_length_is_not_served_from_the_cache(make_corpus, tokenizer):
    """Fails if the cache key forgets the maximum length."""
    rows = load_corpus(make_corpus({"train": [("好" * 20, "好", 1.0)]})).split("train")
    assert len(PairDataset(rows, tokenizer, 8)[0][0]) == 8
    assert len(PairDataset(rows, tokenizer, 16)[0][0]) == 16
