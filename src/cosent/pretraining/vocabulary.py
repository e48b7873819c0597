"""A character vocabulary for Chinese, learnt from text."""

from collections.abc import Iterable

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertTokenizer

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORD_PIECES = 500  # entries kept for Latin word pieces and numbers; the others are single characters


def learn_tokenizer(texts: Iterable[str], size: int) -> BertTokenizer:
    """Learns a lower-cased `BertTokenizer`: the most frequent characters, then Latin word pieces and numbers.

    Every Chinese character is a token. A rare one that is not among the entries becomes [UNK].

    Args:
        size: entries, the five special tokens included; fewer if the text does not have as many.
    """
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer = normalizers.BertNormalizer(lowercase=True)
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        limit_alphabet=max(size - WORD_PIECES, size // 2),
        special_tokens=SPECIAL_TOKENS,
        continuing_subword_prefix="##",
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    tokens = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    return BertTokenizer(
        vocab={token: index for index, (token, _) in enumerate(tokens)},
        do_lower_case=True,
        model_max_length=512,
    )
