"""Training of a student: pairs with a teacher's targets, noisy batches of both directions, and the trainer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import datasets
import numpy as np
import torch
from torch.nn.functional import normalize

from cosent.compute.packing import max_tokens
from cosent.data.corpus import labels_of
from cosent.data.labels import Labels
from cosent.data.pairs import NO_PREFIXES, PairCollator, PairDataset, collated_targets
from cosent.errors import InputError
from cosent.evaluation.similarity import pair_cosines
from cosent.losses.distillation import pair_ranking_loss, similarity_matrix_loss, synonym_loss
from cosent.models import load_model
from cosent.models.bi_encoder import BiEncoder, SentenceEncoder
from cosent.models.cache import pair_scores, pair_vectors
from cosent.models.folder import refuse_adapter
from cosent.models.student import Student
from cosent.models.text_model import TextModel
from cosent.training.arguments import StudentTrainingArguments
from cosent.training.global_batch import GlobalBatchTrainer
from cosent.training.global_loss import Outputs
from cosent.training.pairs import Datasets, EvaluationSet, Rows, meanings, pair_dataset, rows_by_name

HELD_OUT_SYNONYMS = 500  # of a split, for the perplexity


@dataclass(frozen=True)
class TeacherVectors:
    """The vectors of a teacher for both sentences of pair i: `values[rows[i]]`, of shape `(2, hidden)`."""

    values: np.ndarray
    rows: np.ndarray

    def __getitem__(self, pair: int) -> np.ndarray:
        return self.values[self.rows[pair]]


def held_out_synonyms(labels: np.ndarray, similar_from: float) -> np.ndarray:
    """At most `HELD_OUT_SYNONYMS` random similar pairs of a split, as flags of shape `(pairs,)`."""
    synonyms = np.random.default_rng(0).permutation(np.flatnonzero(labels >= similar_from))[:HELD_OUT_SYNONYMS]
    return np.isin(np.arange(len(labels)), synonyms)


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
    def from_tokenizer(cls, tokenizer, share: float = 0.5) -> "Corruption":
        tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        continues = np.array([token.startswith("##") for token in tokens])
        writable = np.setdiff1d(np.flatnonzero(~continues), tokenizer.all_special_ids)
        return cls(continues, writable, tokenizer.mask_token_id, share)

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
class StudentCollator(PairCollator):
    """Puts both directions of each pair next to each other and pads them on the right.

    Example, with `pad_token_id` 0 and a pair of synonyms `[2, 7, 3]` and `[2, 8, 9, 3]`::

        {"input_ids":      [[2, 7, 3, 8, 9, 3], [2, 8, 9, 3, 7, 3]],    # (2 * batch, tokens), int64
         "token_type_ids": [[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1]],
         "attention_mask": [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]],
         "labels":         [1.0]}                                       # (batch,)

    Sentences that are not synonyms are sources without a target. With a teacher, the batch also has `teacher`: float32
    of shape `(2 * batch, hidden)` for vectors, `(batch,)` for scores.

    Args:
        generation: whether synonyms are targets; otherwise batches are as from `PairCollator`.
        corruption: noise on the sources; None for none. That of a pair follows from `seed`, `epoch` and its `row`, so
            that a resumed run repeats it, whatever its workers have read ahead.
        epoch: int64 of shape `()`, in memory that workers share.
    """

    generation: bool = True
    corruption: Corruption | None = None
    seed: int = 0
    epoch: torch.Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64).share_memory_())

    def __call__(self, pairs: list[tuple]) -> dict[str, torch.Tensor]:
        targets = collated_targets(pairs)
        teacher = targets.get("teacher")
        batch = (
            self.both_directions(pairs) if self.generation else super().__call__([(*pair[:2], {}) for pair in pairs])
        )
        batch["labels"] = targets["labels"]
        if teacher is not None:
            batch["teacher"] = teacher.flatten(0, 1) if teacher.ndim > 2 else teacher  # (2 * batch, hidden)
        return batch

    def both_directions(self, pairs: list[tuple]) -> dict[str, torch.Tensor]:
        sources, targets = [], []
        for first, second, pair_targets in pairs:
            if self.corruption is not None:
                generator = np.random.default_rng((self.seed, int(self.epoch), int(pair_targets["row"])))
            for source, target in ((first, second), (second, first)):
                sources.append(source if self.corruption is None else self.corruption(source, generator))
                targets.append(target[1:] if pair_targets["synonyms"] else target[:0])
        starts = np.array([len(source) for source in sources])
        ends = starts + [len(target) for target in targets]
        place = np.arange(ends.max())
        mask = place < ends[:, None]  # (2 * batch, tokens)
        ids = np.full(mask.shape, self.pad_token_id, dtype=np.int64)
        ids[mask] = np.concatenate([part for both in zip(sources, targets, strict=True) for part in both])
        columns = {"input_ids": ids, "attention_mask": mask, "token_type_ids": mask & (place >= starts[:, None])}
        return {name: torch.from_numpy(values.astype(np.int64)) for name, values in columns.items()}


class StudentTrainer(GlobalBatchTrainer):
    """Trains a small student: on synonyms, which it generates from one another, and on the similarities of a teacher.

    `loss = cross entropy per target token + similarity loss`, which is `similarity_matrix_loss` with a teacher that
    embeds, `pair_ranking_loss` with a cross-encoder, and `synonym_loss` without a teacher.

    Args:
        model: a `Student`, which generates, or a `SentenceEncoder`, which only embeds; or the name of a student.
        args: `StudentTrainingArguments`.
        teacher: a `SentenceEncoder`, a `CrossEncoder` or the name of one; default: none.
        teacher_prompt: text in front of what the teacher reads; default: its own.
        generation: learn to generate too; default: whether the model can.
        corruption_share: share of the sources with hidden or replaced words.
        train_dataset: columns `sentence1`, `sentence2` and `label`, or a dict of several, which are read as one. Pairs
            that are not synonyms (`Labels.similar_from`) are read only with a teacher.
        eval_dataset, labels, prompt, prompt_name, kwargs: as of `PairTrainer`.
    """

    targets = ("labels", "teacher")

    data_collator: Any  # of transformers' trainer, whose types are not read

    def __init__(
        self,
        model: SentenceEncoder | str,
        args: StudentTrainingArguments,
        *,
        teacher: TextModel | str | None = None,
        teacher_prompt: list[str] | None = None,
        generation: bool | None = None,
        corruption_share: float = 0.5,
        train_dataset: Datasets,
        eval_dataset: Datasets | None = None,
        labels: Labels | Mapping[str, Labels] | None = None,
        prompt: str | Sequence[str] | None = None,
        prompt_name: str | Sequence[str] | None = None,
        **kwargs,
    ):
        encoder = Student.from_pretrained(model) if isinstance(model, str) else model
        self.generation = isinstance(encoder, Student) if generation is None else generation
        if self.generation and not isinstance(encoder, Student):
            raise InputError(f"A {type(encoder).__name__} does not generate. Pass a Student, or generation=False.")
        refuse_adapter(encoder.state_dict())
        rows, held_out = rows_by_name(train_dataset), rows_by_name(eval_dataset, " validation")
        self.meanings = meanings(labels, rows, held_out)
        self.set_encoder(encoder, prompt, prompt_name)
        if self.generation and self.prefixes != NO_PREFIXES:
            raise InputError(
                f"The prompt {self.prefixes[0] or self.prefixes[1]!r} is for a student that only embeds. Add "
                "--generation false, or switch it off with --prompt ''."
            )
        joined, synonyms = self.joined(rows, teacher is not None)
        self.synonyms = int(synonyms.sum())
        batch = args.train_batch_size * args.world_size
        if args.dataloader_drop_last and len(joined) < batch:
            raise InputError(
                f"{len(joined)} pairs do not fill a batch of {batch}. Lower --per_device_train_batch_size."
            )
        with args.main_process_first(desc="tokenising"):  # the other processes read its cache
            labels_read = synonyms.astype(np.float32)
            targets = {"synonyms": synonyms, "row": np.arange(len(joined))}
            pairs = pair_dataset(joined, encoder, self.prefixes, "train", labels_read, **targets)
        self.check_positions(pairs)
        self.similarity_loss: Callable[..., torch.Tensor] = lambda embeddings, teacher: synonym_loss(embeddings)
        if teacher is not None:
            teacher = (load_model(teacher) if isinstance(teacher, str) else teacher).to(args.device)
            embeds = isinstance(teacher, SentenceEncoder)
            self.similarity_loss = similarity_matrix_loss if embeds else pair_ranking_loss
            pairs.targets["teacher"] = teacher_targets(teacher, joined, teacher_prompt)
        corruption = Corruption.from_tokenizer(encoder.tokenizer, corruption_share)
        super().__init__(
            encoder if self.generation else BiEncoder(encoder),
            args,
            train_dataset=pairs,
            held_out=held_out,
            data_collator=StudentCollator(encoder.tokenizer.pad_token_id, self.generation, corruption, args.data_seed),
            **kwargs,
        )

    def joined(self, rows: Mapping[str, Rows], with_teacher: bool) -> tuple[Rows, np.ndarray]:
        """The pairs of all datasets, without a teacher only synonyms, and which are (bool of shape `(pairs,)`)."""
        parts, flags = [], []
        for name, pairs in rows.items():
            least = self.meanings[name].similar_from
            positive = labels_of(pairs) >= least
            if not positive.any() and not with_teacher:
                raise InputError(f"{name} has no synonyms in train: no label reaches {least:g}. Name a --teacher.")
            if not with_teacher:
                pairs, positive = pairs.select(np.flatnonzero(positive)), positive[positive]
            parts.append(pairs)
            flags.append(positive)
        if self.generation and not any(flag.any() for flag in flags):
            raise InputError(f"{', '.join(rows)}: no pair is labelled as synonyms, from which a student learns.")
        return (parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)), np.concatenate(flags)

    def evaluation_set(self, rows: Rows, where: str, meaning: Labels | None = None) -> EvaluationSet:
        found = super().evaluation_set(rows, where, meaning)
        self.check_positions(found.pairs)
        return found

    def check_positions(self, pairs: PairDataset) -> None:
        """Refuses synonyms that are together longer than the student has positions for."""
        positions = max_tokens(self.encoder.backbone.config)
        tokens = sum(np.diff(offsets) for _, offsets in pairs.columns)[pairs.targets["synonyms"]]
        longest = tokens.max(initial=1) - 1  # the target has no [CLS]
        if self.generation and longest > positions:
            raise InputError(
                f"The student reads both sentences of a pair in a row: {longest} tokens, and it has {positions} "
                f"positions. Lower max_length to {(positions + 1) // 2}."
            )

    def evaluation_targets(self, rows: Rows, meaning: Labels) -> dict[str, np.ndarray]:
        return {"synonyms": held_out_synonyms(labels_of(rows), meaning.similar_from)}  # for the perplexity

    def _run_epoch(self, *, epoch, **kwargs):
        self.data_collator.epoch.fill_(epoch)
        super()._run_epoch(epoch=epoch, **kwargs)

    def loss_inputs(self, outputs: Outputs) -> Outputs:
        return {name: outputs[name] for name in ("embeddings", "target_losses", "target_tokens") if name in outputs}

    def batch_loss(self, outputs: Outputs, targets: Outputs) -> torch.Tensor:
        embeddings = outputs["embeddings"].flatten(0, -2)  # (2 * pairs, hidden)
        parts = {"similarity_loss": self.similarity_loss(embeddings, targets.get("teacher"))}
        if "target_losses" in outputs:
            tokens = outputs["target_tokens"].sum().clamp(min=1)
            parts["generation_loss"] = outputs["target_losses"].sum() / tokens
        for name, value in parts.items():
            self.parts.setdefault(name, []).append(value.detach())
        return sum(parts.values())

    def predictions_of(self, outputs: Outputs) -> Outputs:
        """Of a student that generates also `target_losses` and `target_tokens` of both directions, for perplexity."""
        if "target_losses" not in outputs:
            return super().predictions_of(outputs)
        embeddings = outputs["embeddings"].unflatten(0, (-1, 2))  # (pairs, 2, hidden)
        scores = pair_cosines(*normalize(embeddings, dim=-1).unbind(1))
        written = {name: outputs[name].unflatten(0, (-1, 2)).sum(1) for name in ("target_losses", "target_tokens")}
        return super().predictions_of({"embeddings": embeddings, "scores": scores}) | written

    @contextmanager
    def measuring(self) -> Iterator[None]:
        collator, self.data_collator = self.data_collator, replace(self.data_collator, corruption=None)
        try:
            with super().measuring():
                yield
        finally:
            self.data_collator = collator


def teacher_targets(teacher: TextModel, rows: Rows, prompt: list[str] | None) -> TeacherVectors | np.ndarray:
    """Targets of a teacher, through the cache on disk: vectors, or a cross-encoder's score of each pair."""
    sides = rows["sentence1"][:], rows["sentence2"][:]
    if isinstance(teacher, SentenceEncoder):
        return TeacherVectors(*pair_vectors(teacher, *sides, prompt=prompt))
    return pair_scores(teacher, *sides, prompt=prompt)
