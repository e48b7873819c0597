"""From a prepared corpus to batches of shape `(batch, 2, tokens)`: tokenised once, read from memory-mapped Arrow."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import torch

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
        splits[split] = rows
    return Corpus(folder, manifest, splits)


def read_parquet(file: Path, split: str) -> datasets.Dataset:
    """Memory-maps a Parquet file through the cache of `datasets`, without its progress bar of a split second."""
    datasets.disable_progress_bars()
    try:
        return datasets.Dataset.from_parquet(str(file), split=split)
    finally:
        datasets.enable_progress_bars()


def limit(rows: datasets.Dataset, count: int | None, seed: int = 42) -> datasets.Dataset:
    """A random subset of `count` rows that depends on `seed` alone; all rows when there are no more than that."""
    if count is not None and count < 1:
        raise InputError(f"--limit_train must be at least 1 pair, got {count}. Leave it out to train on all pairs.")
    if count is None or count >= len(rows):
        return rows
    return rows.select(np.sort(np.random.default_rng(seed).permutation(len(rows))[:count]))


class PairDataset(torch.utils.data.Dataset):
    """Tokenised pairs, read as slices of two memory-mapped columns.

    Args:
        labels: float32 of shape `(pairs,)`, what a loss is given; default: the labels of the rows.

    Attributes:
        truncated: sentences that were longer than the maximum and lost their end.
    """

    def __init__(self, rows: datasets.Dataset, tokenizer, max_length: int, labels: np.ndarray | None = None):
        tokenised = tokenize(rows, tokenizer, max_length)
        columns = [tokenised.data.column(name) for name in ("input_ids1", "input_ids2")]
        columns = [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in columns]
        # Views of the memory map; offsets[i] : offsets[i + 1] are the tokens of row i.
        self.columns = [(column.values.to_numpy(), column.offsets.to_numpy()) for column in columns]
        self.labels = labels_of(rows) if labels is None else labels
        self.truncated = int(np.sum(tokenised.data.column("truncated")))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray, np.float32]:
        first, second = (ids[offsets[index] : offsets[index + 1]] for ids, offsets in self.columns)
        return first, second, self.labels[index]


def tokenize(rows: datasets.Dataset, tokenizer, max_length: int) -> datasets.Dataset:
    """Adds token ids of both sentences, cut at `max_length`, in an Arrow cache keyed by rows, tokenizer and length.

    Returns:
        Columns `input_ids1`, `input_ids2` (int32 lists) and `truncated` (how many of the two sentences were cut).
    """

    def encode(batch: dict) -> dict:
        sides = [
            tokenizer(batch[name], truncation=True, max_length=max_length, return_attention_mask=False)
            for name in COLUMNS[:2]
        ]
        cut = np.array([[bool(row.overflowing) for row in side.encodings] for side in sides])
        return {"input_ids1": sides[0]["input_ids"], "input_ids2": sides[1]["input_ids"], "truncated": cut.sum(axis=0)}

    ids = datasets.Sequence(datasets.Value("int32"))
    return rows.map(
        encode,
        batched=True,
        remove_columns=list(COLUMNS),
        features=datasets.Features(input_ids1=ids, input_ids2=ids, truncated=datasets.Value("int8")),
        new_fingerprint=fingerprint(rows, tokenizer, max_length),
        writer_batch_size=len(rows),  # one chunk, which is read without a copy
        desc="Tokenising",
    )


def fingerprint(rows: datasets.Dataset, tokenizer, max_length: int) -> str:
    """Key of the token cache: a tokenizer's rules and vocabulary, without what its last call left set in it."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    key = f"{rows._fingerprint}|{max_length}|{json.dumps(backend)}"
    return hashlib.sha256(key.encode()).hexdigest()[:32]


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

    def __call__(self, pairs: list[tuple]) -> dict[str, torch.Tensor]:
        sentences = [ids for first, second, _ in pairs for ids in (first, second)]
        lengths = np.array([len(ids) for ids in sentences])
        mask = np.arange(lengths.max()) < lengths[:, None]  # (2 * batch, tokens)
        input_ids = np.full(mask.shape, self.pad_token_id, dtype=np.int64)
        input_ids[mask] = np.concatenate(sentences)
        shape = (len(pairs), 2, -1)
        return {
            "input_ids": torch.from_numpy(input_ids).view(shape),
            "attention_mask": torch.from_numpy(mask.astype(np.int64)).view(shape),
            "labels": torch.tensor([label for _, _, label in pairs], dtype=torch.float32),
        }
