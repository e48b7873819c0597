"""Training of a student: batches, the trainer, and evaluation of similarity and generation."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from cosent.compute.distributed import evaluating
from cosent.compute.onednn import onednn_linears, run_tokenizer
from cosent.data.corpus import Corpus
from cosent.data.pairs import PairDataset
from cosent.evaluation.metrics import SimilarityMetrics
from cosent.evaluation.similarity import character_overlap
from cosent.inference.embedding import batch_bounds
from cosent.models.bi_encoder import BiEncoder, SentenceEncoder
from cosent.models.decoding import Sampling, rank_candidates, write_targets
from cosent.models.student import Student
from cosent.run import Written
from cosent.training.evaluation import Evaluation, corpora_that_rank, spearman_interval
from cosent.training.objective import Objective
from cosent.training.sharding import whole_state
from cosent.training.trainer import Outputs, PairTrainer

SIMILAR_FROM = 0.8  # cosine
TOP = 5
BATCH_TOKENS = 2048  # sources and targets of a batch
HELD_OUT_SYNONYMS = 500  # pairs for the perplexity
SAMPLES = 20  # for each source


class StudentDataset(torch.utils.data.Dataset):
    """Tokenised pairs with a synonym flag and the teacher's targets.

    Args:
        pairs: the tokenised sentences; labels are 1 for synonyms, which are generated from one another, else 0.
        targets: None without a teacher; of a bi-encoder `(vectors, rows)`, its vectors of shape
            `(distinct sentences, hidden)` and which of them belong to each pair, shape `(pairs, 2)`; of a
            cross-encoder its scores of shape `(pairs,)`.
    """

    def __init__(self, pairs: PairDataset, targets: tuple[np.ndarray, np.ndarray] | np.ndarray | None = None):
        self.pairs = pairs
        self.targets = targets

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray, bool, np.ndarray | None]:
        first, second, positive = self.pairs[index]
        if isinstance(self.targets, tuple):
            vectors, rows = self.targets
            return first, second, bool(positive), vectors[rows[index]]  # (2, hidden)
        return first, second, bool(positive), None if self.targets is None else self.targets[index]


@dataclass
class Corruption:
    """Noise on sources, so that generation is more than copying (as in BART; kexue.fm 8454).

    A word is a Chinese character, or a Latin word with all its pieces. Of the chosen words, 80% become [MASK], 10% stay
    and 10% become random ones.

    Args:
        continues: bool of shape `(vocabulary,)`, which tokens continue a word (`##...`).
        writable: ids to draw random words from.
        mask_token_id: id of [MASK].
        share: share of the sources that are corrupted.
        ratio: expected share of chosen words in such a source.
    """

    continues: np.ndarray
    writable: np.ndarray
    mask_token_id: int
    share: float = 0.5
    ratio: float = 0.15

    @classmethod
    def from_tokenizer(cls, tokenizer, share: float = 0.5, ratio: float = 0.15) -> "Corruption":
        tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        continues = np.array([token.startswith("##") for token in tokens])
        writable = np.setdiff1d(np.flatnonzero(~continues), tokenizer.all_special_ids)
        return cls(continues, writable, tokenizer.mask_token_id, share, ratio)

    def __call__(self, ids: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """A copy of `[CLS] ... [SEP]` with some words changed, or `ids` itself."""
        if generator.random() >= self.share:
            return ids
        word = np.cumsum(~self.continues[ids]) - 1  # (tokens,), the number of the word
        kind = generator.random(int(word[-1]) + 1)[word] / self.ratio  # the same for all tokens of a word
        kind[[0, -1]] = np.inf  # [CLS] and [SEP] stay
        corrupted = ids.copy()
        corrupted[kind < 0.8] = self.mask_token_id
        replaced = (kind >= 0.9) & (kind < 1)
        corrupted[replaced] = generator.choice(self.writable, size=int(replaced.sum()))
        return corrupted


@dataclass
class StudentCollator:
    """Puts both directions of each pair next to each other and pads them on the right.

    Example, with `pad_token_id` 0 and a pair of synonyms `[2, 7, 3]` and `[2, 8, 9, 3]`::

        {"input_ids":      [[2, 7, 3, 8, 9, 3], [2, 8, 9, 3, 7, 3]],    # (2 * batch, tokens), int64
         "token_type_ids": [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1]],
         "attention_mask": [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]}

    Sentences that are not synonyms are sources without a target. With a teacher, the batch also has `teacher`: float32
    of shape `(2 * batch, hidden)` for vectors, `(batch,)` for scores.

    Args:
        corruption: noise on the sources; None for none.
        generation: whether synonyms are targets; otherwise the batch is that of `PairCollator`, `(batch, 2, tokens)`,
            and has no `token_type_ids`.
    """

    pad_token_id: int
    corruption: Corruption | None = None
    generation: bool = True

    def __call__(self, pairs: list[tuple]) -> dict[str, torch.Tensor]:
        # From torch's generator, whose state a checkpoint holds: a resumed run corrupts as an uninterrupted one would.
        generator = np.random.default_rng(int(torch.randint(2**62, ())))
        sources, targets = [], []
        for first, second, positive, _ in pairs:
            for source, target in ((first, second), (second, first)):
                sources.append(source if self.corruption is None else self.corruption(source, generator))
                targets.append(target[1:] if positive and self.generation else target[:0])
        starts = np.array([len(source) for source in sources])
        ends = starts + [len(target) for target in targets]
        place = np.arange(ends.max())
        mask = place < ends[:, None]  # (2 * batch, tokens)
        input_ids = np.full(mask.shape, self.pad_token_id, dtype=np.int64)
        input_ids[mask] = np.concatenate([part for both in zip(sources, targets, strict=True) for part in both])
        batch = {"input_ids": torch.from_numpy(input_ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}
        if self.generation:
            batch["token_type_ids"] = torch.from_numpy((mask & (place >= starts[:, None])).astype(np.int64))
        else:
            batch = {name: tensor.unflatten(0, (-1, 2)) for name, tensor in batch.items()}
        if pairs[0][3] is not None:
            teacher = np.stack([target for *_, target in pairs])
            batch["teacher"] = torch.from_numpy(teacher.reshape(-1, teacher.shape[-1]) if teacher.ndim > 1 else teacher)
        return batch


class StudentTrainer(PairTrainer):
    """Trains a `Student` (or, without generation, a `BiEncoder`) on batches of `StudentCollator`.

    `loss = cross entropy per target token + similarity_loss(embeddings, teacher)`

    Args:
        similarity_loss: `(embeddings, teacher) -> scalar`: embeddings of shape `(2 * pairs, hidden)`; `teacher` as
            collated, None without one.
        validate: state dict of the model -> validation metrics, `spearman` among them.
        kwargs: arguments of `transformers.Trainer`.
    """

    targets = ("teacher",)

    def __init__(
        self,
        *,
        similarity_loss: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor],
        validate: Callable[[dict[str, torch.Tensor]], dict[str, float]] = lambda weights: {},
        **kwargs,
    ):
        super().__init__(objective=Objective(similarity_loss, reads="embeddings", compares_pairs=False), **kwargs)
        self.validate = validate
        self.parts: dict[str, list[torch.Tensor]] = {}

    def pairs_in(self, inputs: Outputs) -> int:
        mask = inputs["attention_mask"]  # (pairs, 2, tokens), or (2 * pairs, tokens) with targets behind the sources
        return len(mask) if mask.ndim == 3 else len(mask) // 2

    def read(self, outputs: Outputs) -> Outputs:
        return {name: outputs[name] for name in ("embeddings", "target_losses", "target_tokens") if name in outputs}

    def batch_loss(self, read: Outputs, targets: Outputs) -> torch.Tensor:
        embeddings = read["embeddings"].flatten(0, -2)  # (2 * pairs, hidden)
        parts = {"similarity_loss": self.objective.loss(embeddings, targets.get("teacher"))}
        if "target_losses" in read:
            tokens = read["target_tokens"].sum().clamp(min=1)
            parts["generation_loss"] = read["target_losses"].sum() / tokens
        self.batch_parts = {name: value.detach() for name, value in parts.items()}
        return sum(parts.values())

    def count_batch(self) -> None:
        for name, value in self.batch_parts.items():
            self.parts.setdefault(name, []).append(value)

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        measured = self.validate(whole_state(self.model))
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in measured.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs, *args, **kwargs):
        if "loss" in logs:
            logs |= {name: float(torch.stack(values).mean()) for name, values in self.parts.items()}
            self.parts.clear()
        super().log(logs, *args, **kwargs)


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
    targets = write_targets(student, tokenized, sampling)
    written = [student.tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in targets]
    drawn = len(sources) * sampling.num_samples
    ranked = rank_candidates(student, sources, written, sampling.num_samples, [])
    scores = np.array([score for candidates in ranked for _, score in candidates])
    top = [(source, text) for source, best in zip(sources, ranked, strict=True) for text, _ in best[:TOP]]
    judged = judge.similarity(*map(list, zip(*top, strict=True))) if top else []
    return {
        "ended": sum(map(len, written)) / drawn,
        "distinct": len(scores) / drawn,
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
        sources: number of sources to draw `SAMPLES` samples each for.
        prompts: texts in front of the first and the second sentence of every pair.
    """

    def __init__(
        self,
        model: SentenceEncoder | BiEncoder,
        corpora: list[Corpus],
        generation: bool,
        judge: nn.Module | None,
        sources: int,
        prompts: tuple[str, str] = ("", ""),
    ):
        self.corpora, self.judge, self.prompts = corpora, judge, prompts
        self.copy = deepcopy(model)
        self.encoder = self.copy.encoder if isinstance(self.copy, BiEncoder) else self.copy
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
        scores = [spearman_of(self.scores(c, "validation"), c.labels("validation")) for c in self.validation]
        metrics = {"spearman": float(np.mean(scores))} if scores else {}
        return metrics | ({"perplexity": self.perplexity()} if self.synonyms else {})

    def scores(self, corpus: Corpus, split: str) -> np.ndarray:
        rows = corpus.split(split)
        return self.encoder.similarity(rows["sentence1"][:], rows["sentence2"][:], prompt=self.prompts)

    def report(self, weights: dict[str, torch.Tensor]) -> Evaluation:
        """Scores and Spearman of every corpus and split and, with generation, statistics of generated sentences."""
        self.copy.load_state_dict(weights)
        result = Evaluation()
        for corpus in self.corpora:
            name = corpus.manifest.name
            for split in [name for name in corpus.splits if name != "train"]:
                scores, labels = self.scores(corpus, split), corpus.labels(split)
                result.scores.setdefault(name, {})[split] = {"labels": labels, "scores": scores}
                result.metrics.setdefault(name, {})[split] = {"spearman": spearman_of(scores, labels)}
                if interval := spearman_interval(scores, labels):
                    result.intervals.setdefault(name, {})[split] = {"spearman": interval}
        if self.synonyms:
            sampling = Sampling(num_samples=SAMPLES)
            samples = sample_report(self.encoder, self.judge, self.sources, sampling) if self.sources else None
            result.written = Written(self.perplexity(), samples)
        return result

    def perplexity(self) -> float:
        return perplexity(self.encoder, *map(list, zip(*self.synonyms, strict=True)))


def spearman_of(scores: np.ndarray, labels: np.ndarray) -> float:
    return SimilarityMetrics().compute(predictions=scores, references=labels)["spearman"]
