"""Mining of training pairs: hard negatives, random pairs, and labels by a teacher.

Hard negatives are the neighbours that `mine_hard_negatives` of sentence-transformers takes for every sentence of a
pool, without pairs that are labelled already.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import parquet
from tqdm.auto import tqdm

from cosent.atomic import complete_folder, sha256_of_file
from cosent.data.corpus import COLUMNS, SPLITS, Corpus, Manifest
from cosent.data.files import normalized_text
from cosent.errors import InputError
from cosent.evaluation.similarity import pair_cosines
from cosent.models import load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cache import fingerprint, pair_scores, sentence_vectors
from cosent.search.neighbours import nearest

QUERIES = 8192  # whose neighbours are in memory at a time
PAIRS = 65536  # whose vectors are in memory at a time
DRAWS = 100  # rounds of drawing random pairs before giving up

Pairs = tuple[np.ndarray, np.ndarray]  # places of the first and second sentences, int64 of shape (pairs,) each


@dataclass(frozen=True)
class Pool:
    """Distinct sentences, and the labelled pairs of a train split by their places."""

    texts: list[str]  # pairs are made of the first `size`; a held-out split has the others too
    size: int
    forms: np.ndarray  # int64 (texts,), equal for sentences that differ only in punctuation, spaces and case
    first: np.ndarray  # int64 (labelled pairs,), places of the two different sentences of each pair, once
    second: np.ndarray
    labels: np.ndarray  # float32 (labelled pairs,)

    def keys(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """A number for each unordered pair; shape of `first`."""
        return np.minimum(first, second) * len(self.texts) + np.maximum(first, second)

    def is_labelled(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Whether the corpus labels each pair, or its sentences differ only in their form; shape of `first`."""
        labelled = np.isin(self.keys(first, second), self.keys(self.first, self.second))
        return labelled | (self.forms[first] == self.forms[second])

    def inside(self) -> np.ndarray:
        """Which labelled pairs have both sentences among the first `size`: bool."""
        return (self.first < self.size) & (self.second < self.size)


def read_pool(corpus: Corpus, lines: Iterable[str]) -> Pool:
    """The sentences of a corpus' train split and of lines of text, without sentences of its other splits."""

    def columns(split: str) -> list[list[str]]:
        return [corpus.split(split)[name][:] for name in ("sentence1", "sentence2")]

    pairs, held_out_splits = columns("train"), [name for name in corpus.splits if name != "train"]
    held_out = {form_of(text) for split in held_out_splits for column in columns(split) for text in column}
    sentences = dict.fromkeys(text for pair in zip(*pairs, strict=True) for text in pair)
    every = sentences | dict.fromkeys(lines)
    texts = [text for text in every if form_of(text) not in held_out]
    size = len(texts)
    if size < 2:
        raise InputError(f"{corpus.folder} train has {size} sentences that no other split has. Add some by --text.")
    texts += [text for text in sentences if form_of(text) in held_out]
    place = {text: index for index, text in enumerate(texts)}
    numbers: dict[str, int] = {}
    forms = np.array([numbers.setdefault(form_of(text), len(numbers)) for text in texts])
    first, second = (np.array([place[text] for text in column], np.int64) for column in pairs)
    _, once = np.unique(np.minimum(first, second) * len(texts) + np.maximum(first, second), return_index=True)
    once = np.sort(once[first[once] != second[once]])
    return Pool(texts, size, forms, first[once], second[once], corpus.labels("train")[once])


def form_of(text: str) -> str:
    """The sentence without punctuation, spaces and case; as it is where nothing would be left."""
    return normalized_text(text) or text


def neighbour_pairs(
    pool: Pool, vectors: np.ndarray, ranks: tuple[int, int], margin: float | None, similar: np.ndarray
) -> Pairs:
    """Pairs of each sentence with the first neighbour between `ranks` that no rule excludes, none of them labelled.

    Args:
        vectors: unit vectors of the pool, float32 of shape `(pool.size, width)`.
        ranks: nearest neighbours to skip and to consider, as `range_min` and `range_max` of `mine_hard_negatives`,
            counted among those that no rule excludes.
        margin: least distance of a neighbour's cosine below the lowest one of a pair labelled similar.
        similar: bool of shape `(labelled pairs,)`, whether each is labelled similar.
    """
    limits = None if margin is None else lowest_similar(pool, vectors, similar) - margin
    inside = pool.inside()
    partners = np.bincount(np.r_[pool.first[inside], pool.second[inside]], minlength=pool.size)
    _, form, copies = np.unique(pool.forms[: pool.size], return_inverse=True, return_counts=True)
    k = min(ranks[1] + int((partners + copies[form] - 1).max()), pool.size - 1)  # so many may be excluded
    parts: list[Pairs] = []
    for start in tqdm(range(0, pool.size, QUERIES), desc="Neighbours"):
        queries = np.arange(start, min(start + QUERIES, pool.size))
        rows, scores = nearest(vectors[queries], vectors, k, queries)
        remaining = rows >= 0  # (queries, k)
        remaining &= ~pool.is_labelled(np.broadcast_to(queries[:, None], rows.shape), rows)
        if limits is not None:
            remaining &= scores <= limits[queries, None]
        query, column = (remaining & (remaining.cumsum(axis=1) == ranks[0] + 1)).nonzero()
        parts.append((queries[query], rows[query, column]))
    first, second = (np.concatenate(side) for side in zip(*parts, strict=True))
    once = np.sort(np.unique(pool.keys(first, second), return_index=True)[1])
    return first[once], second[once]


def lowest_similar(pool: Pool, vectors: np.ndarray, similar: np.ndarray) -> np.ndarray:
    """Lowest cosine of each sentence with one that is labelled similar, -inf without one: float32 `(size,)`."""
    first, second = (side[similar & pool.inside()] for side in (pool.first, pool.second))
    lowest = np.full(pool.size, np.inf, np.float32)
    scores = cosines(vectors, first, second)
    np.minimum.at(lowest, first, scores)
    np.minimum.at(lowest, second, scores)
    lowest[np.isinf(lowest)] = -np.inf
    return lowest


def cosines(vectors: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """`pair_cosines` of pairs of rows of unit vectors, which may be a memory map, float32 of shape `(pairs,)`."""
    scores = np.empty(len(first), np.float32)
    for start in range(0, len(first), PAIRS):
        part = slice(start, start + PAIRS)
        scores[part] = pair_cosines(vectors[first[part]], vectors[second[part]])
    return scores


def random_pairs(pool: Pool, count: int, taken: Pairs, rng: np.random.Generator) -> Pairs:
    """`count` random pairs of the pool, each once, none that is labelled or taken."""
    used = pool.keys(*taken)
    first, second = np.empty(0, np.int64), np.empty(0, np.int64)
    for _ in range(DRAWS):
        if len(first) >= count:
            break
        new = rng.integers(pool.size, size=(2, 2 * (count - len(first)) + 16))
        new = new[:, ~(pool.is_labelled(*new) | np.isin(pool.keys(*new), used))]
        first, second = np.r_[first, new[0]], np.r_[second, new[1]]
        once = np.sort(np.unique(pool.keys(first, second), return_index=True)[1])
        first, second = first[once], second[once]
    if len(first) < count:
        raise InputError(f"--random {count}: only {len(first)} new pairs were found. Lower it, or add --text.")
    return first[:count], second[:count]


def labels_by(path: str, texts: list[str], pairs: Pairs, device: str) -> tuple[np.ndarray, tuple[float, float], dict]:
    """Scores of pairs by a teacher, float32 `(pairs,)`, from the cache if it has read them before; their bounds; facts.

    Cosines, or logits of a cross-encoder. Facts for the manifest: name, hash and kind of score.
    """
    model = load_model(path).to(device)
    facts = {"model": path, "sha256": fingerprint(model)}
    if isinstance(model, SentenceEncoder):
        scores = cosines(sentence_vectors(model, texts), *pairs).clip(-1, 1)
        return scores, (-1.0, 1.0), facts | {"labels": "cosine"}
    first, second = ([texts[place] for place in side] for side in pairs)
    scores = np.array(pair_scores(model, first, second))
    return scores, (float(scores.min()), float(scores.max())), facts | {"labels": "logit"}


def write_corpus(folder: Path, manifest: Manifest, texts: list[str], pairs: Pairs, labels: np.ndarray) -> None:
    """Writes a prepared corpus of a train split, whose folder is complete or absent; `pairs` are places in `texts`."""
    with complete_folder(folder) as partial_folder:
        file = partial_folder / "train.parquet"
        columns = [*([texts[place] for place in side] for side in pairs), labels.astype(np.float32)]
        parquet.write_table(pyarrow.table(dict(zip(COLUMNS, columns, strict=True))), file)
        manifest.splits["train"] |= {"rows": len(labels), "sha256": sha256_of_file(file)}
        manifest.absent_splits = [split for split in SPLITS if split != "train"]
        manifest.save(partial_folder)
