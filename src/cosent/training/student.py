"""Training of a student: pairs with a teacher's targets, noisy batches of both directions, and the trainer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.functional import normalize

from cosent.data.pairs import PairCollator, PairDataset
from cosent.evaluation.similarity import pair_cosines
from cosent.training.objective import Objective
from cosent.training.trainer import Outputs, PairTrainer

HELD_OUT_SYNONYMS = 500  # of a split, for the perplexity


class StudentDataset(PairDataset):
    """Tokenised pairs `(first, second, label, whether they are synonyms, target of the teacher)`.

    Attributes:
        synonyms: bool of shape `(pairs,)`: pairs that are generated from one another.
        targets: `(values, rows)`, the target of pair i being `values[rows[i]]`: a bi-encoder's vectors with rows
            `(pairs, 2)`, or a cross-encoder's scores with rows `(pairs,)`; None without a teacher.
    """

    synonyms: np.ndarray
    targets: tuple[np.ndarray, np.ndarray] | None = None

    def __getitem__(self, index: int) -> tuple:
        target = None if self.targets is None else self.targets[0][self.targets[1][index]]
        return (*super().__getitem__(index), bool(self.synonyms[index]), target)


def held_out_synonyms(labels: np.ndarray, similar_from: float) -> np.ndarray:
    """At most `HELD_OUT_SYNONYMS` random similar pairs of a split, as flags of shape `(pairs,)`."""
    chosen = np.random.default_rng(0).permutation(np.flatnonzero(labels >= similar_from))[:HELD_OUT_SYNONYMS]
    return np.isin(np.arange(len(labels)), chosen)


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
        generation: whether synonyms are targets; otherwise the batch is that of `PairCollator`.
        corruption: noise on the sources; None for none.
    """

    generation: bool = True
    corruption: Corruption | None = None

    def __call__(self, pairs: list[tuple]) -> dict[str, torch.Tensor]:
        batch = self.both_directions(pairs) if self.generation else super().__call__([pair[:3] for pair in pairs])
        batch["labels"] = torch.tensor([label for _, _, label, *_ in pairs], dtype=torch.float32)
        if pairs[0][4] is not None:
            teacher = np.stack([target for *_, target in pairs])
            batch["teacher"] = torch.from_numpy(teacher.reshape(-1, teacher.shape[-1]) if teacher.ndim > 1 else teacher)
        return batch

    def both_directions(self, pairs: list[tuple]) -> dict[str, torch.Tensor]:
        sources, targets = [], []
        if self.corruption is not None:
            # From torch's generator, whose state a checkpoint holds: a resumed run corrupts as an uninterrupted one.
            generator = np.random.default_rng(int(torch.randint(2**62, ())))
        for first, second, _, synonyms, _ in pairs:
            for source, target in ((first, second), (second, first)):
                sources.append(source if self.corruption is None else self.corruption(source, generator))
                targets.append(target[1:] if synonyms else target[:0])
        starts = np.array([len(source) for source in sources])
        ends = starts + [len(target) for target in targets]
        place = np.arange(ends.max())
        mask = place < ends[:, None]  # (2 * batch, tokens)
        ids = np.full(mask.shape, self.pad_token_id, dtype=np.int64)
        ids[mask] = np.concatenate([part for both in zip(sources, targets, strict=True) for part in both])
        columns = {"input_ids": ids, "attention_mask": mask, "token_type_ids": mask & (place >= starts[:, None])}
        return {name: torch.from_numpy(values.astype(np.int64)) for name, values in columns.items()}


class StudentTrainer(PairTrainer):
    """Trains a `Student` (or, without generation, a `BiEncoder`) on batches of `StudentCollator`.

    `loss = cross entropy per target token + similarity_loss(embeddings, teacher)`

    Args:
        similarity_loss: `(embeddings, teacher) -> scalar`: embeddings of shape `(2 * pairs, hidden)`; `teacher` as
            collated, None without one.
        kwargs: arguments of `transformers.Trainer`.
    """

    targets = ("labels", "teacher")

    def __init__(self, *, similarity_loss: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor], **kwargs):
        super().__init__(objective=Objective(similarity_loss, reads="embeddings", compares_pairs=False), **kwargs)
        self.parts: dict[str, list[torch.Tensor]] = {}

    def read(self, outputs: Outputs) -> Outputs:
        return {name: outputs[name] for name in ("embeddings", "target_losses", "target_tokens") if name in outputs}

    def batch_loss(self, read: Outputs, targets: Outputs) -> torch.Tensor:
        embeddings = read["embeddings"].flatten(0, -2)  # (2 * pairs, hidden)
        parts = {"similarity_loss": self.criterion.loss(embeddings, targets.get("teacher"))}
        if "target_losses" in read:
            tokens = read["target_tokens"].sum().clamp(min=1)
            parts["generation_loss"] = read["target_losses"].sum() / tokens
        self.batch_parts = {name: value.detach() for name, value in parts.items()}
        return sum(parts.values())

    def count_batch(self) -> None:
        for name, value in self.batch_parts.items():
            self.parts.setdefault(name, []).append(value)

    def log(self, logs, *args, **kwargs):
        if "loss" in logs:
            logs |= {name: float(torch.stack(values).mean()) for name, values in self.parts.items()}
            self.parts.clear()
        super().log(logs, *args, **kwargs)

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
