"""Training batches of a student: both directions of each pair, corrupted sources, and the teacher's targets."""

from dataclasses import dataclass
from itertools import islice

import datasets
import numpy as np
import torch

from cosent.data.corpus import Corpus, labels_of, random_subset
from cosent.data.pairs import PairDataset
from cosent.data.prefix import NO_PREFIXES, Prefixes, skipped
from cosent.data.text import read_texts
from cosent.errors import InputError
from cosent.student.arguments import DistillArguments, StudentDataArguments


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
        if self.targets is None:
            target = None
        elif isinstance(self.targets, tuple):
            vectors, rows = self.targets
            target = vectors[rows[index]]  # (2, hidden)
        else:
            target = self.targets[index]
        return first, second, bool(positive), target


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
        prefixes: prompts of both sides; without generation only.
    """

    pad_token_id: int
    corruption: Corruption | None = None
    generation: bool = True
    prefixes: Prefixes = NO_PREFIXES

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
            batch |= skipped(self.prefixes, len(pairs))
        if pairs[0][3] is not None:
            teacher = np.stack([target for *_, target in pairs])
            batch["teacher"] = torch.from_numpy(teacher.reshape(-1, teacher.shape[-1]) if teacher.ndim > 1 else teacher)
        return batch


def training_rows(
    corpora: list[Corpus], data_args: StudentDataArguments, args: DistillArguments
) -> tuple[datasets.Dataset, np.ndarray]:
    """All pairs of sentences, and which of them are synonyms (bool of shape `(pairs,)`).

    Pairs that are not synonyms, and adjacent lines of text, are used only by the similarity term.

    Raises:
        InputError: text without a teacher, or pairs without synonyms.
    """
    parts, flags = [], []
    for corpus in corpora:
        rows = random_subset(corpus.split("train"), data_args.limit_train)
        positive = labels_of(rows) >= corpus.manifest.similar_from
        if not positive.any():
            least = f"{corpus.manifest.similar_from:g}"
            raise InputError(f"{corpus.manifest.name} has no synonyms in train: no label reaches {least}.")
        if args.teacher is None or args.synonyms_only:
            rows, positive = rows.select(np.flatnonzero(positive)), positive[positive]
        parts.append(rows)
        flags.append(positive)
    if data_args.text:
        if args.teacher is None:
            raise InputError("--text has no labels, so it needs a --teacher to learn similarity from. Name one.")
        lines = read_texts(data_args.text)
        lines = list(islice(lines, data_args.limit_text))
        lines = lines[: len(lines) // 2 * 2]
        columns = {"sentence1": lines[::2], "sentence2": lines[1::2], "label": [0.0] * (len(lines) // 2)}
        parts.append(datasets.Dataset.from_dict(columns, features=parts[0].features))
        flags.append(np.zeros(len(lines) // 2, dtype=bool))
    return (parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)), np.concatenate(flags)
