"""How well a student writes: what it makes of held-out synonyms, and what its samples are worth to another model."""

import math
from collections import Counter

import numpy as np
import torch
from torch import nn

from cosent.decoding import Sampling, write_targets
from cosent.encoding import batch_bounds
from cosent.onednn import onednn_linears
from cosent.ranking import distinct, rank_candidates
from cosent.student import Student
from cosent.student_data import StudentCollator

SIMILAR_FROM = 0.8  # cosine
TOP = 5
BATCH_TOKENS = 2048  # sources and targets of a batch


@torch.inference_mode()
def perplexity(student: Student, sources: list[str], targets: list[str]) -> float:
    """`exp` of the mean cross entropy per token of the targets, their [SEP] included, given their clean sources.

    Both directions of each pair count. Models with different vocabularies cannot be compared by it.
    """
    options = {"truncation": True, "max_length": student.max_length, "return_attention_mask": False}
    sides = [student.tokenizer(sentences, **options)["input_ids"] for sentences in (sources, targets)]
    pairs = [(np.array(first), np.array(second), True, None) for first, second in zip(*sides, strict=True)]
    pairs.sort(key=lambda pair: -len(pair[0]) - len(pair[1]))
    collate = StudentCollator(student.tokenizer.pad_token_id)
    lengths = np.array([2 * (len(first) + len(second)) for first, second, *_ in pairs])
    losses, tokens, was_training = 0.0, 0.0, student.training
    student.eval()
    try:
        with onednn_linears(student):
            for start, stop in batch_bounds(lengths, len(pairs), BATCH_TOKENS):
                batch = {
                    name: tensor.to(student.backbone.device) for name, tensor in collate(pairs[start:stop]).items()
                }
                outputs = student(**batch)
                losses += float(outputs["target_losses"].sum())
                tokens += float(outputs["target_tokens"].sum())
    finally:
        student.train(was_training)
    return math.exp(losses / tokens)


def sample_report(student: Student, judge: nn.Module, sources: list[str], sampling: Sampling) -> dict[str, float]:
    """What samples for held-out sources are like.

    Args:
        judge: any model with `similarity(sentences1, sentences2)`. Not the student: it would grade its own work.

    Returns:
        `ended`: share of the samples that came to an end. `distinct`: share of the samples that are neither repeated
        nor the source. `similar`: share of those whose cosine to the source, by the student itself, is at least
        `SIMILAR_FROM`. Of the `TOP` highest ranked of each source: `overlap`, mean character 1+2-gram Dice with the
        source (1 = copied), and `judged`, the judge's mean similarity to it. `wordless`: share of the sources for which
        nothing was written.
    """
    tokenized = student.tokenize_sources(sources, [], [])
    written = [student.tokenizer.batch_decode(ids, skip_special_tokens=True)
               for ids in write_targets(student, tokenized, sampling)]  # fmt: skip
    drawn = len(sources) * sampling.num_samples
    ranked = rank_candidates(student, sources, written, sampling.num_samples, [])
    scores = np.array([score for candidates in ranked for _, score in candidates])
    top = [(source, sentence) for source, candidates in zip(sources, ranked, strict=True)
           for sentence, _ in candidates[:TOP]]  # fmt: skip
    judged = judge.similarity([source for source, _ in top], [sentence for _, sentence in top]) if top else []
    return {
        "ended": sum(map(len, written)) / drawn,
        "distinct": sum(len(distinct(*pair, [])) for pair in zip(sources, written, strict=True)) / drawn,
        "similar": float(np.mean(scores >= SIMILAR_FROM)) if len(scores) else 0.0,
        "overlap": float(np.mean([character_overlap(*pair) for pair in top])) if top else 0.0,
        "judged": float(np.mean(judged)) if top else 0.0,
        "wordless": sum(not candidates for candidates in ranked) / len(sources),
    }


def character_overlap(sentence1: str, sentence2: str) -> float:
    """Dice coefficient of the bags of characters and character pairs: 1 for equal sentences, 0 for nothing shared."""
    first, second = (Counter([*text, *zip(text, text[1:], strict=False)]) for text in (sentence1, sentence2))
    return 2 * (first & second).total() / max(1, first.total() + second.total())
