"""Deduplicate sampled sentences and rank them by cosine to the source."""

import numpy as np
from torch import nn

from cosent.data.text import normalized_text


def rank_candidates(
    encoder: nn.Module, texts: list[str], candidates: list[list[str]], keep: int, required: list[str]
) -> list[list[tuple[str, float]]]:
    """Ranks each text's candidates by the encoder's cosine.

    Args:
        encoder: has `encode(sentences, normalize=True)`.
        candidates: by text, decoded sentences in any order.
        keep: the most to return per text.
        required: strings that a candidate must contain.

    Returns:
        By text, pairs `(sentence, cosine)`, most similar first; of equal ones only the first.
    """
    wanted = [without_spaces(part) for part in required]
    kept = [distinct(text, sentences, wanted) for text, sentences in zip(texts, candidates, strict=True)]
    vectors = encoder.encode([*texts, *(sentence for sentences in kept for sentence in sentences)], normalize=True)
    ranked, start = [], len(texts)
    for index, sentences in enumerate(kept):
        scores = vectors[start : start + len(sentences)] @ vectors[index]
        start += len(sentences)
        best = np.argsort(-scores, kind="stable")[:keep]
        ranked.append([(sentences[place], float(scores[place])) for place in best])
    return ranked


def distinct(text: str, sentences: list[str], required: list[str]) -> list[str]:
    """Candidates that differ from the text and from one another by `normalized_text`, without a tokenizer's spaces."""
    source, found = normalized_text(text), {}
    for sentence in sentences:
        form, compact = normalized_text(sentence), without_spaces(sentence)
        if form and form != source and all(part in compact for part in required):
            found.setdefault(form, remove_token_spaces(sentence))
    return list(found.values())


def without_spaces(sentence: str) -> str:
    """A sentence without case and spaces, which a tokenizer may lose."""
    return "".join(sentence.lower().split())


def remove_token_spaces(sentence: str) -> str:
    """Removes the spaces that a tokenizer's decoder puts between characters; those between Latin words stay."""
    sentence, kept = sentence.strip(), []
    for index, character in enumerate(sentence):
        if character == " " and not (is_latin(sentence[index - 1]) and is_latin(sentence[index + 1])):
            continue
        kept.append(character)
    return "".join(kept)


def is_latin(character: str) -> bool:
    return character.isascii() and character.isalnum()
