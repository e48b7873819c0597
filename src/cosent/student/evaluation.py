"""Evaluate a student's similarity and generation: Spearman, perplexity, and statistics of judged samples."""

import math
from copy import deepcopy

import numpy as np
import torch
from torch import nn

from cosent.compute.contexts import evaluating
from cosent.compute.onednn import onednn_linears
from cosent.compute.threads import run_tokenizer
from cosent.data.corpus import Corpus
from cosent.evaluation.metrics import SimilarityMetrics
from cosent.evaluation.overlap import character_overlap
from cosent.inference.batches import batch_bounds
from cosent.modeling.bi_encoder import BiEncoder, SentenceEncoder
from cosent.run import Metrics, RunRecord, Written
from cosent.student.candidates import distinct, rank_candidates
from cosent.student.data import StudentCollator
from cosent.student.decoding import Sampling, write_targets
from cosent.student.model import Student
from cosent.training.held_out import corpora_that_rank

SIMILAR_FROM = 0.8  # cosine
TOP = 5
BATCH_TOKENS = 2048  # sources and targets of a batch
HELD_OUT_SYNONYMS = 500  # pairs for the perplexity


@torch.inference_mode()
def perplexity(student: Student, sources: list[str], targets: list[str]) -> float:
    """Perplexity: `exp` of the mean cross entropy per target token, [SEP] included, given the clean sources.

    Both directions of each pair count. Not comparable between vocabularies.
    """
    options = {"truncation": True, "max_length": student.max_length, "return_attention_mask": False}
    sides = [run_tokenizer(student.tokenizer, sentences, **options)["input_ids"] for sentences in (sources, targets)]
    pairs = [(np.array(first), np.array(second), True, None) for first, second in zip(*sides, strict=True)]
    pairs.sort(key=lambda pair: -len(pair[0]) - len(pair[1]))
    collate = StudentCollator(student.tokenizer.pad_token_id)
    lengths = np.array([2 * (len(first) + len(second)) for first, second, *_ in pairs])
    losses, tokens, device = 0.0, 0.0, student.backbone.device
    with evaluating(student), onednn_linears(student):
        for start, stop in batch_bounds(lengths, len(pairs), BATCH_TOKENS):
            batch = {name: tensor.to(device) for name, tensor in collate(pairs[start:stop]).items()}
            outputs = student(**batch)
            losses += float(outputs["target_losses"].sum())
            tokens += float(outputs["target_tokens"].sum())
    return math.exp(losses / tokens)


def sample_report(student: Student, judge: nn.Module, sources: list[str], sampling: Sampling) -> dict[str, float]:
    """Statistics of samples for held-out sources.

    Args:
        judge: any model with `similarity(sentences1, sentences2)`, but not the student, which would grade itself.

    Returns:
        `ended`: share of the samples that ended within the limit. `distinct`: share of the samples that are neither
        repeated nor the source. `similar`: share of those whose cosine to the source, by the student itself, is at
        least `SIMILAR_FROM`. Of the `TOP` highest-ranked ones of each source: `overlap`, mean character 1+2-gram Dice
        with the source (1 = copied), and `judged`, the judge's mean similarity to it. `wordless`: share of the sources
        without any sample left.
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


class StudentEvaluation:
    """Evaluates a student on held-out data: pairs for Spearman, synonyms for perplexity, sources for samples.

    It measures a copy of its own, which takes over the weights each time: what is saved, whole and in float32, however
    the model in training is sharded or cast.

    Args:
        model: the model in training.
        generation: whether it generates, and therefore is a `Student`.
        judge: see `sample_report`; None to draw no samples.
        sources: number of sources to draw samples for.
        prompts: texts in front of the first and the second sentence of every pair.
    """

    def __init__(
        self,
        model: SentenceEncoder | BiEncoder,
        corpora: list[Corpus],
        generation: bool,
        judge: nn.Module | None,
        sources: int,
        sampling: Sampling,
        prompts: tuple[str, str] = ("", ""),
    ):
        self.prompts = prompts
        self.copy = deepcopy(model)
        self.encoder = self.copy.encoder if isinstance(self.copy, BiEncoder) else self.copy
        self.corpora, self.judge, self.sampling = corpora, judge, sampling
        self.validation = corpora_that_rank(corpora)
        self.synonyms, self.sources = [], []
        if generation:
            for corpus in self.validation:
                rows = corpus.split("validation")
                chosen = np.flatnonzero(corpus.labels("validation") >= corpus.manifest.similar_from)
                chosen = np.random.default_rng(0).permutation(chosen)[: HELD_OUT_SYNONYMS // len(self.validation)]
                self.synonyms += [(row["sentence1"], row["sentence2"]) for row in rows.select(np.sort(chosen))]
            if judge is not None:
                self.sources = list(dict.fromkeys(a for a, _ in self.synonyms))[:sources]

    def validate(self, weights: dict[str, torch.Tensor]) -> dict[str, float]:
        """Mean validation Spearman over the corpora and, with generation, perplexity of held-out synonyms.

        Args:
            weights: state dict of the model.
        """
        self.copy.load_state_dict(weights)
        scores = [self.spearman(corpus, "validation") for corpus in self.validation]
        metrics = {"spearman": float(np.mean(scores))} if scores else {}
        return metrics | ({"perplexity": self.perplexity()} if self.synonyms else {})

    def spearman(self, corpus: Corpus, split: str) -> float:
        rows = corpus.split(split)
        scores = self.encoder.similarity(rows["sentence1"][:], rows["sentence2"][:], prompt=self.prompts)
        return SimilarityMetrics().compute(predictions=scores, references=corpus.labels(split))["spearman"]

    def report(self, weights: dict[str, torch.Tensor]) -> tuple[Metrics, Written | None]:
        """Spearman of every corpus and split and, with generation, statistics of generated sentences."""
        self.copy.load_state_dict(weights)
        metrics = {
            corpus.manifest.name: {s: {"spearman": self.spearman(corpus, s)} for s in corpus.splits if s != "train"}
            for corpus in self.corpora
        }
        if not self.synonyms:
            return metrics, None
        samples = sample_report(self.encoder, self.judge, self.sources, self.sampling) if self.sources else None
        return metrics, Written(self.perplexity(), samples)

    def perplexity(self) -> float:
        return perplexity(self.encoder, *map(list, zip(*self.synonyms, strict=True)))


def summary(record: RunRecord, floor: Metrics) -> str:
    """Table of a student's metrics before and after training, and the floor of Spearman."""
    lines = [f"{'':<28}{'before':>9}{'after':>9}{'floor':>9}   (floor: characters in common, without a model)"]
    for name, splits in record.after.items():
        for split, metrics in splits.items():
            value = record.before[name][split]["spearman"]
            lowest = floor.get(name, {}).get(split, {}).get("spearman", math.nan)
            line = f"{f'{name} {split} Spearman':<28}{value:9.4f}{metrics['spearman']:9.4f}{lowest:9.4f}"
            lines.append(line)
    before, after = record.written_before, record.written_after
    if before is not None and after is not None:
        lines.append(f"{'perplexity':<28}{before.perplexity:9.2f}{after.perplexity:9.2f}")
        for name, value in (after.samples or {}).items():
            lines.append(f"{f'samples: {name}':<28}{before.samples[name]:9.4f}{value:9.4f}")
    return "\n".join(lines)
