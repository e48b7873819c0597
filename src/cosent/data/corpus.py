"""A prepared corpus: its manifest, loading and checks, leaks between splits, and groups of its sentences and pairs.

A prepared corpus is a folder with up to one `<split>.parquet` per split and a `MANIFEST.json`. Labels are always
numbers that rise with similarity, so that every loss that only needs their order can use them unchanged.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cosent.atomic import sha256_of_file
from cosent.data.labels import Labels
from cosent.errors import InputError, reading
from cosent.evaluation.significance import resampled_spearman
from cosent.evaluation.similarity import overlaps
from cosent.flags import nearest, option

if TYPE_CHECKING:
    import datasets  # half a second, which models that serve do without

COLUMNS = ("sentence1", "sentence2", "label")  # string, string, float32
SPLITS = ("train", "validation", "test")
MANIFEST_NAME = "MANIFEST.json"
FEWEST_PAIRS, MOST_PAIRS, OVERLAP_RESAMPLES = 20, 2000, 500  # for an interval of character overlap
IGNORED = re.compile("[\u200b-\u200d\u2060\ufeff]|\\W+$")  # zero-width characters, punctuation at the end
UNKNOWN_TOKENS = ("[UNK]", "<unk>")


@dataclass
class Manifest(Labels):
    """Manifest of a prepared corpus: the meaning of its labels, and

    Args:
        max_length: tokens, by tower (`bi_encoder`: per sentence, `cross_encoder`: per pair), special tokens counted.
        splits: by split name: `rows`, `sha256` of the Parquet file, `label_histogram`, `source_files` (name, SHA-256,
            rows read), `published_rows` (or None), `left_out` (reason -> rows), `repeated_rows`, `contradictory_pairs`,
            `bad_rows` (file, line, text, reason); of made pairs `mined` or `made`: how `mine` or `probe` made them.
        absent_splits: splits that the source does not have.
        warnings: caveats for users of the figures, e.g. a partial corpus.
        source: origin of the rows, in words.
        terms: what the publisher allows; empty for pairs of one's own.
    """

    max_length: dict[str, int]
    splits: dict[str, dict]
    absent_splits: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    source: str = ""
    terms: str = ""

    def save(self, folder: str | Path) -> None:
        text = json.dumps(asdict(self), ensure_ascii=False, indent=2)
        Path(folder, MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> Manifest:
        """Reads the manifest of a prepared folder."""
        path = Path(folder, MANIFEST_NAME)
        with reading(path, advice="Copy it again, or prepare the corpus again."):
            raw = json.loads(path.read_text(encoding="utf-8"))
            manifest = cls(**{item.name: raw[item.name] for item in fields(cls) if item.name in raw})
            if not all({"rows", "sha256"} <= facts.keys() for facts in manifest.splits.values()):
                raise KeyError("rows or sha256")
            return manifest


@dataclass(kw_only=True)
class DataFolder:
    """Prepared corpora."""

    data_dir: str = option("data", "Folder of the prepared corpora.")


def corpus_folder(name_or_folder: str, data_dir: str | Path) -> Path | None:
    """Folder of a prepared corpus, by name under `data_dir` or as a folder; None if there is none."""
    places = (Path(data_dir, name_or_folder), Path(name_or_folder))
    return next((place for place in places if (place / MANIFEST_NAME).is_file()), None)


def existing_corpus(name_or_folder: str, data_dir: str | Path) -> Path:
    """As `corpus_folder`; where there is none, an error with the nearest name."""
    folder = corpus_folder(name_or_folder, data_dir)
    if folder is None:
        names = [manifest.parent.name for manifest in Path(data_dir).glob(f"*/{MANIFEST_NAME}")]
        raise InputError(
            f"There is no prepared corpus {name_or_folder!r}, neither under {data_dir}/ nor as a folder."
            f"{nearest(name_or_folder, names)} Run `cosent prepare {Path(name_or_folder).stem} --source FILES` first "
            "(demo needs no --source)."
        )
    return folder


@dataclass
class Corpus:
    """A prepared corpus: its manifest and its splits, each with the columns of the contract."""

    folder: Path
    manifest: Manifest
    splits: dict[str, datasets.Dataset]

    def split(self, name: str) -> datasets.Dataset:
        if name not in self.splits:
            raise InputError(f"{self.folder} has no {name} split, only {', '.join(self.splits)}. Name one that has.")
        return self.splits[name]

    def labels(self, split: str) -> np.ndarray:
        """float32 labels of a split, of shape `(pairs,)`."""
        return labels_of(self.split(split))


def labels_of(rows: datasets.Dataset) -> np.ndarray:
    """Labels of pairs, float32 of shape `(pairs,)`."""
    return np.asarray(rows.with_format("numpy")["label"][:], dtype=np.float32)


def load_corpus(name_or_folder: str, data_dir: str = "data") -> Corpus:
    """Reads a prepared corpus by name or folder and checks it against the contract."""
    folder = existing_corpus(name_or_folder, data_dir)
    manifest = Manifest.load(folder)
    splits = {}
    for split in (name for name in SPLITS if name in manifest.splits):
        file = folder / f"{split}.parquet"
        with reading(file):
            sha256 = sha256_of_file(file)
        if sha256 != manifest.splits[split]["sha256"]:
            raise InputError(f"{file} is damaged, or is of another {MANIFEST_NAME}. Copy or prepare the corpus again.")
        splits[split] = read_parquet(file, split, sha256)
    return Corpus(folder, manifest, splits)


def read_parquet(file: Path, split: str, sha256: str) -> datasets.Dataset:
    """Memory-maps a Parquet file through the cache of `datasets`, whose own key is the path and time of the file."""
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with reading(file, advice="Copy it again, or prepare the corpus again."):
            return datasets.Dataset.from_parquet(str(file), split=split, config_name=sha256[:32])
    finally:
        if shown:
            datasets.enable_progress_bars()


def random_subset(rows: datasets.Dataset, count: int | None, flag: str, seed: int) -> datasets.Dataset:
    """A random subset of `count` rows that depends only on `seed`; all rows if there are no more than that."""
    if count is not None and count < 1:
        raise InputError(f"{flag} must be at least 1 pair, got {count}. Leave it out to take all pairs.")
    if count is None or count >= len(rows):
        return rows
    return rows.select(np.sort(np.random.default_rng(seed).permutation(len(rows))[:count]))


def reversed_labels(rows: datasets.Dataset, manifest: Labels) -> str | None:
    """A question to the user, if similar pairs share fewer characters than dissimilar ones: labels may be distances.

    That is if the 95% interval of the Spearman correlation of labels and character overlap, on some pairs, is below 0.
    """
    if len(rows) < FEWEST_PAIRS:
        return None
    rows = random_subset(rows, MOST_PAIRS, "", seed=0)
    labels = labels_of(rows)
    values = overlaps(rows["sentence1"][:], rows["sentence2"][:])
    resampled = resampled_spearman(values, labels, OVERLAP_RESAMPLES)
    if np.isnan(resampled).all() or not np.nanpercentile(resampled, 97.5) < 0:
        return None
    remedy = f"are they distances? Subtract each label from {manifest.label_min + manifest.label_max:g}"
    if manifest.label_kind == "nli":
        remedy = "are entailment and contradiction exchanged? Correct the labels, or --label_values"
    elif manifest.label_kind == "binary":
        remedy = "are 0 and 1 (or neg and pos) exchanged? Exchange them, or prepare again with --label_values 0=1 1=0"
    low, high = np.nanpercentile(resampled, (2.5, 97.5))
    return f"similar pairs share fewer characters than dissimilar ones (Spearman {low:.2f} to {high:.2f}): {remedy}"


def text_key(text: str) -> str:
    """The same for texts that differ only in case, width, zero-width characters or punctuation at their end."""
    return IGNORED.sub("", unicodedata.normalize("NFKC", text).lower()) or text


def leaks(training: list[Corpus], measured: list[Corpus]) -> dict[str, int]:
    """Number of held-out pairs that occur in the training split of any corpus, in either order, if there are any.

    The keys are corpus and split, as in `lcqmc test`. Sentences count by their `text_key`, as in `data_scripts.audit`.
    """
    seen = {pair for corpus in training for pair in unordered_pairs(corpus.split("train"))}
    counts = {
        f"{corpus.manifest.name} {split}": sum(pair in seen for pair in unordered_pairs(corpus.split(split)))
        for corpus in measured
        for split in corpus.splits
        if split != "train"
    }
    return {name: count for name, count in counts.items() if count}


def unordered_pairs(rows: datasets.Dataset, key: Callable[[str], str] = text_key) -> list[tuple[str, str]]:
    """Pairs of rows by the `key` of their sentences, each with the lesser one first."""
    first, second = (map(key, rows[name][:]) for name in ("sentence1", "sentence2"))
    return [(min(pair), max(pair)) for pair in zip(first, second, strict=True)]


def unknown_characters(texts: Iterable[str], tokenizer) -> tuple[float, str]:
    """Share of characters that become the unknown token, and the most frequent ones with their counts.

    Args:
        tokenizer: a `tokenizers.Tokenizer`.
    """
    counts = Counter(chain.from_iterable(texts))
    unknown_ids = {tokenizer.token_to_id(token) for token in UNKNOWN_TOKENS}
    encodings = zip(counts, tokenizer.encode_batch(list(counts), add_special_tokens=False), strict=True)
    unknown = Counter({char: counts[char] for char, encoding in encodings if unknown_ids.intersection(encoding.ids)})
    most_frequent = ", ".join(f"{char} {count:,}" for char, count in unknown.most_common(10))
    return unknown.total() / max(1, counts.total()), most_frequent


def sentence_groups(rows: datasets.Dataset, similar_from: float) -> np.ndarray:
    """Number of the group of each sentence of labelled pairs, int64 of shape `(pairs, 2)`.

    Equal sentences are in one group, and so are two that are connected by pairs with a label of at least
    `similar_from`. Depends only on `rows`.
    """
    sentence = sentence_numbers(rows)
    first, second = sentence[:, similar(labels_of(rows), similar_from)]
    group = components(first, second, int(sentence.max()) + 1)
    return group.astype(np.int64)[sentence.T]


def pair_groups(rows: datasets.Dataset) -> np.ndarray:
    """Number from 0 of the group of each pair, int64 `(pairs,)`: pairs that share a sentence, also by others, have one.

    Such pairs are not independent: an interval draws whole groups.
    """
    first, second = sentence_numbers(rows)
    return np.unique(components(first, second, int(max(first.max(), second.max())) + 1)[first], return_inverse=True)[1]


def sentence_numbers(rows: datasets.Dataset) -> np.ndarray:
    """Number of each sentence, equal for equal ones, int32 of shape `(2, pairs)`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [rows.with_format("arrow")[name][:] for name in ("sentence1", "sentence2")]
    chunks = [chunk for column in columns for chunk in column.chunks]
    numbers = pc.dictionary_encode(pa.chunked_array(chunks))  # one dictionary for all chunks
    return np.concatenate([chunk.indices.to_numpy() for chunk in numbers.chunks]).reshape(2, -1)


def similar(labels: np.ndarray, least: float) -> np.ndarray:
    """Whether each label is at least `least`, compared in float32: a stored label of 0.7 is below 0.7 in float64."""
    return labels.astype(np.float32) >= np.float32(least)


def components(first: np.ndarray, second: np.ndarray, count: int) -> np.ndarray:
    """Connected components: the group of each of `count` nodes, `(count,)`, given edges `first`, `second`."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(first), bool), (first, second)), shape=(count, count))
    return connected_components(links, directed=False)[1]
