"""From a prepared corpus to batches: tokenised once, read from memory-mapped Arrow.

A bi-encoder reads the two sentences of a pair apart (`PairDataset`, batches of shape `(batch, 2, tokens)`), a
cross-encoder reads them joined in one sequence (`JoinedPairDataset`, `(batch, tokens)`).
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import torch

from cosent.modeling.loading import rules_of
from cosent.schema import COLUMNS, MANIFEST_NAME, SPLITS, InputError, Manifest


@dataclass
class Corpus:
    """A prepared corpus: its manifest and its splits, each with the columns of the contract."""

    folder: Path
    manifest: Manifest
    splits: dict[str, datasets.Dataset]

    def split(self, name: str) -> datasets.Dataset:
        if name not in self.splits:
            raise InputError(f"{self.folder} has no {name} split, only {', '.join(self.splits)}.")
        return self.splits[name]

    def labels(self, split: str) -> np.ndarray:
        """float32 labels of a split, of shape `(pairs,)`."""
        return labels_of(self.split(split))


def labels_of(rows: datasets.Dataset) -> np.ndarray:
    return rows.with_format("numpy")["label"][:]


def load_corpus(name_or_folder: str, data_dir: str = "data") -> Corpus:
    """Reads a prepared corpus by name or folder and checks it against the contract.

    Raises:
        InputError: nothing is prepared there, a file is missing, or its columns are not those of the contract.
    """
    places = [Path(data_dir, name_or_folder), Path(name_or_folder)]
    folder = next((place for place in places if (place / MANIFEST_NAME).is_file()), None)
    if folder is None:
        name = Path(name_or_folder).stem
        raise InputError(
            f"There is no prepared corpus {name_or_folder!r}, neither under {data_dir}/ nor as a folder; raw files are "
            f"never read here. Run `python -m data_scripts.prepare {name} --source RAW` first (--source hub for the "
            "Hub; --label_kind binary, graded or nli for pairs of your own; no --source for demo)."
        )
    manifest = Manifest.load(folder)
    files = {split: folder / f"{split}.parquet" for split in SPLITS if split in manifest.splits}
    missing = [str(file) for file in files.values() if not file.is_file()]
    if missing:
        raise InputError(f"{folder}: the manifest names {', '.join(missing)}, which is not there. Prepare it again.")
    splits = {}
    for split, file in files.items():
        rows = read_parquet(file, split)
        if tuple(rows.column_names) != COLUMNS:
            raise InputError(f"{file} has the columns {rows.column_names}, expected {list(COLUMNS)}. Prepare it again.")
        if len(rows) != manifest.splits[split]["rows"]:
            raise InputError(
                f"{file} has {len(rows)} rows and its manifest says {manifest.splits[split]['rows']}: the file was "
                "changed after it was prepared. Prepare it again."
            )
        splits[split] = rows
    return Corpus(folder, manifest, splits)


def read_parquet(file: Path, split: str) -> datasets.Dataset:
    """Memory-maps a Parquet file through the cache of `datasets`, without its progress bar of a split second."""
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        return datasets.Dataset.from_parquet(str(file), split=split)
    finally:
        if shown:
            datasets.enable_progress_bars()


def limit(rows: datasets.Dataset, count: int | None, seed: int = 42) -> datasets.Dataset:
    """A random subset of `count` rows that depends on `seed` alone; all rows when there are no more than that."""
    if count is not None and count < 1:
        raise InputError(f"--limit_train must be at least 1 pair, got {count}. Leave it out to train on all pairs.")
    if count is None or count >= len(rows):
        return rows
    return rows.select(np.sort(np.random.default_rng(seed).permutation(len(rows))[:count]))


def random_negatives(rows: datasets.Dataset, manifest: Manifest, seed: int = 42) -> datasets.Dataset:
    """Training rows whose negative pairs got another second sentence, drawn from all second sentences of `rows`.

    What is drawn is neither of the pair's own sentences, nor one that `rows` call similar to the first, so that labels
    stay true. Rows and labels keep their order. Depends on `seed` alone.

    Source: kexue.fm 8847, which holds that naive cosine losses fail on hard negatives only.

    Raises:
        InputError: labels that are not binary, or fewer sentences than a negative needs.
    """
    if manifest.label_kind != "binary":
        raise InputError(
            f"--random_negatives needs to know which pairs are negative, and {manifest.name} has {manifest.label_kind} "
            "labels. Leave it out, or take a corpus with labels of 0 and 1."
        )
    first, second, labels = rows["sentence1"][:], rows["sentence2"][:], labels_of(rows)
    similar = {pair for a, b, label in zip(first, second, labels, strict=True) if label for pair in ((a, b), (b, a))}
    drawn, rng = list(second), np.random.default_rng(seed)
    for row in np.flatnonzero(labels == 0):
        candidates = (second[index] for index in rng.integers(len(second), size=100))
        own = (first[row], second[row])
        drawn[row] = next((c for c in candidates if c not in own and (first[row], c) not in similar), None)
        if drawn[row] is None:
            raise InputError(
                f"--random_negatives: a hundred drawn sentences are all similar to {first[row]!r}, the first sentence "
                f"of row {row} of {manifest.name} train. {len(set(second))} different sentences are too few."
            )
    return rows.remove_columns("sentence2").add_column("sentence2", drawn).select_columns(list(COLUMNS))


def tokenize_apart(batch: dict, tokenizer, max_length: int) -> dict[str, list]:
    """Token ids of both sentences, each cut at `max_length`, and how many of the two were cut."""
    options = {"truncation": True, "max_length": max_length, "return_attention_mask": False}
    sides = [tokenizer(batch[name], **options) for name in COLUMNS[:2]]
    cut = np.array([[bool(row.overflowing) for row in side.encodings] for side in sides])
    return {"input_ids1": sides[0]["input_ids"], "input_ids2": sides[1]["input_ids"], "truncated": cut.sum(axis=0)}


def tokenize_joined(batch: dict, tokenizer, max_length: int) -> dict[str, list]:
    """Token ids of `[CLS] sentence1 [SEP] sentence2 [SEP]`, cut at the end of the longer sentence.

    Returns:
        `input_ids`; `first_tokens`, how many of them have segment id 0 (all, where the tokenizer gives no segments);
        `truncated`, whether the pair was cut.

    Raises:
        InputError: the tokenizer numbers segments otherwise than zeros before ones.
    """
    options = {"truncation": "longest_first", "max_length": max_length, "return_attention_mask": False}
    pairs = tokenizer(batch["sentence1"], batch["sentence2"], **options)
    ids, first_tokens = pairs["input_ids"], [len(ids) for ids in pairs["input_ids"]]
    for row, segments in enumerate(pairs.get("token_type_ids", [])):
        first_tokens[row] = len(segments) - sum(segments)
        if segments != [0] * first_tokens[row] + [1] * sum(segments):
            raise InputError(
                f"This tokenizer gives a pair the segment ids {segments}, expected zeros before ones: another model "
                "would be trained than was pretrained. Pass --segment_ids zero, or take another encoder."
            )
    truncated = [bool(row.overflowing) for row in pairs.encodings]
    return {"input_ids": ids, "first_tokens": first_tokens, "truncated": truncated}


IDS = datasets.Sequence(datasets.Value("int32"))
TOKEN_FEATURES = {
    tokenize_apart: {"input_ids1": IDS, "input_ids2": IDS},
    tokenize_joined: {"input_ids": IDS, "first_tokens": datasets.Value("int32")},
}


class PairDataset(torch.utils.data.Dataset):
    """Tokenised pairs, the two sentences apart, read as slices of memory-mapped columns.

    Args:
        labels: float32 of shape `(pairs,)`, what a loss is given; default: the labels of the rows.

    Attributes:
        truncated: how many of `sequences` (`unit` says what they are) were longer than the maximum and lost their end.
    """

    tokenize = staticmethod(tokenize_apart)
    unit = "sentences"

    def __init__(self, rows: datasets.Dataset, tokenizer, max_length: int, labels: np.ndarray | None = None):
        table = tokenized(rows, tokenizer, max_length, self.tokenize).data
        self.columns = [contents(table.column(name)) for name in TOKEN_FEATURES[self.tokenize]]
        self.labels = labels_of(rows) if labels is None else labels
        self.truncated = int(np.sum(table.column("truncated")))

    @property
    def sequences(self) -> int:
        return 2 * len(self)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray, np.float32]:
        first, second = (ids[offsets[index] : offsets[index + 1]] for ids, offsets in self.columns)
        return first, second, self.labels[index]


class JoinedPairDataset(PairDataset):
    """Tokenised pairs, both sentences in one sequence: `(token ids, tokens of segment 0, label)`."""

    tokenize = staticmethod(tokenize_joined)
    unit = "pairs"

    @property
    def sequences(self) -> int:
        return len(self)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int32, np.float32]:
        (ids, offsets), first_tokens = self.columns
        return ids[offsets[index] : offsets[index + 1]], first_tokens[index], self.labels[index]


def tokenized(rows: datasets.Dataset, tokenizer, max_length: int, tokenize: Callable) -> datasets.Dataset:
    """Runs `tokenize` over rows, into an Arrow cache keyed by rows, tokenizer, length and kind of tokenising."""
    return rows.map(
        lambda batch: tokenize(batch, tokenizer, max_length),
        batched=True,
        remove_columns=list(COLUMNS),
        features=datasets.Features(**TOKEN_FEATURES[tokenize], truncated=datasets.Value("int8")),
        new_fingerprint=fingerprint(rows, tokenizer, f"{tokenize.__name__}|{max_length}"),
        writer_batch_size=len(rows),  # one chunk, which is read without a copy
        desc="Tokenising",
    )


def contents(column) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """Views of a memory-mapped column: numbers, or for lists `(values, offsets)`.

    `values[offsets[i] : offsets[i + 1]]` is row i.
    """
    column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return (column.values.to_numpy(), column.offsets.to_numpy()) if hasattr(column, "offsets") else column.to_numpy()


def fingerprint(rows: datasets.Dataset, tokenizer, how: str) -> str:
    """Key of the token cache."""
    return hashlib.sha256(f"{rows._fingerprint}|{how}|{rules_of(tokenizer)}".encode()).hexdigest()[:32]


@dataclass
class PairCollator:
    """Pads pairs on the right to the longest sentence of the batch.

    Example, with `pad_token_id` 0 and one pair of 2 and 3 tokens::

        PairCollator(0)([([2, 3], [2, 7, 3], 1.0)])
        {"input_ids":      [[[2, 3, 0], [2, 7, 3]]],    # (batch, 2, tokens), int64
         "attention_mask": [[[1, 1, 0], [1, 1, 1]]],    # (batch, 2, tokens), int64
         "labels":         [1.0]}                       # (batch,), float32
    """

    pad_token_id: int

    @classmethod
    def of(cls, tokenizer) -> "PairCollator":
        return cls(tokenizer.pad_token_id)

    def __call__(self, pairs: list[tuple]) -> dict[str, torch.Tensor]:
        padded = pad([ids for first, second, _ in pairs for ids in (first, second)], self.pad_token_id)
        batch = {name: tensor.view(len(pairs), 2, -1) for name, tensor in padded.items()}
        return batch | {"labels": torch.tensor([label for _, _, label in pairs], dtype=torch.float32)}


@dataclass
class JoinedPairCollator:
    """Pads joined pairs on the right to the longest of the batch, and numbers their segments where a model wants it.

    Example, with `pad_token_id` 0, segments, and pairs of 2 + 2 and 2 + 1 tokens::

        JoinedPairCollator(0, True)([([2, 3, 7, 3], 2, 1.0), ([2, 3, 3], 2, 0.0)])
        {"input_ids":      [[2, 3, 7, 3], [2, 3, 3, 0]],    # (batch, tokens), int64
         "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0]],    # (batch, tokens), int64
         "token_type_ids": [[0, 0, 1, 1], [0, 0, 1, 0]],    # (batch, tokens), int64; absent without segments
         "labels":         [1.0, 0.0]}                      # (batch,), float32
    """

    pad_token_id: int
    segments: bool

    @classmethod
    def of(cls, tokenizer) -> "JoinedPairCollator":
        return cls(tokenizer.pad_token_id, "token_type_ids" in tokenizer.model_input_names)

    def __call__(self, pairs: list[tuple]) -> dict[str, torch.Tensor]:
        batch = pad([ids for ids, _, _ in pairs], self.pad_token_id)
        if self.segments:
            first_tokens = torch.tensor([int(first) for _, first, _ in pairs])[:, None]
            is_second = torch.arange(batch["input_ids"].shape[1]) >= first_tokens
            batch["token_type_ids"] = is_second * batch["attention_mask"]
        return batch | {"labels": torch.tensor([label for _, _, label in pairs], dtype=torch.float32)}


def pad(sequences: list[np.ndarray], pad_token_id: int) -> dict[str, torch.Tensor]:
    """`input_ids` and `attention_mask` of shape `(sequences, longest)`, int64, padded on the right."""
    lengths = np.array([len(ids) for ids in sequences])
    mask = np.arange(lengths.max()) < lengths[:, None]
    input_ids = np.full(mask.shape, pad_token_id, dtype=np.int64)
    input_ids[mask] = np.concatenate(sequences)
    return {"input_ids": torch.from_numpy(input_ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}
