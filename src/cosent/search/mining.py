"""Mining of training pairs: neighbours of a sentence, random pairs, and labels by teachers.

Neighbours are chosen as `mine_hard_negatives` of sentence-transformers chooses them, of every sentence of a pool, on
several processes and without a pair that is labelled already.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import parquet
from tqdm.auto import tqdm

from cosent import __version__
from cosent.atomic import complete_folder
from cosent.compute.distributed import gather_object, rank, world_size
from cosent.data.corpus import Corpus
from cosent.data.files import normalized_text
from cosent.data.manifest import COLUMNS, SPLITS, Manifest
from cosent.errors import InputError
from cosent.evaluation.significance import mean_of_ranks
from cosent.evaluation.similarity import pair_cosines
from cosent.models.auto import load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cache import fingerprint, sentence_vectors, teacher_scores
from cosent.seal import sha256_of_file
from cosent.search.neighbours import nearest

QUERIES = 8192  # whose neighbours are in memory at a time
PAIRS = 65536  # whose vectors are in memory at a time
DRAWS = 100  # rounds of drawing random pairs, before they are said to be too many
BINS = 10  # of a histogram of more different labels than that

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
    left_out: Counter  # reason -> number of sentences or labelled pairs

    def keys(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """A number for each unordered pair; shape of `first`."""
        return np.minimum(first, second) * len(self.texts) + np.maximum(first, second)

    def known(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Whether the corpus labels a pair, or its sentences are the same but for their form; shape of `first`."""
        labelled = np.isin(self.keys(first, second), self.keys(self.first, self.second))
        return labelled | (self.forms[first] == self.forms[second])

    def most_known(self) -> int:
        """Upper bound of the sentences of the pool that form a known pair with the same sentence."""
        inside = self.inside()
        partners = np.bincount(np.r_[self.first[inside], self.second[inside]], minlength=self.size)
        _, form, copies = np.unique(self.forms[: self.size], return_inverse=True, return_counts=True)
        return int((partners + copies[form] - 1).max())

    def inside(self) -> np.ndarray:
        """Which labelled pairs have both sentences among the first `size`: bool."""
        return (self.first < self.size) & (self.second < self.size)


def read_pool(corpus: Corpus, lines: Iterable[str]) -> Pool:
    """The sentences of a corpus' train split and of plain text, without those of its other splits."""

    def columns(split: str) -> list[list[str]]:
        return [corpus.split(split)[name][:] for name in ("sentence1", "sentence2")]

    pairs, others = columns("train"), [name for name in corpus.splits if name != "train"]
    held_out = {form_of(text) for split in others for column in columns(split) for text in column}
    own = dict.fromkeys(text for pair in zip(*pairs, strict=True) for text in pair)
    every = own | dict.fromkeys(lines)
    texts = [text for text in every if form_of(text) not in held_out]
    size = len(texts)
    if size < 2:
        raise InputError(f"{corpus.folder} train has {size} sentences that no other split has. Add some by --text.")
    texts += [text for text in own if form_of(text) in held_out]
    place = {text: index for index, text in enumerate(texts)}
    numbers: dict[str, int] = {}
    forms = np.array([numbers.setdefault(form_of(text), len(numbers)) for text in texts])
    first, second = (np.array([place[text] for text in column], np.int64) for column in pairs)
    different = first != second
    _, once = np.unique(np.minimum(first, second) * len(texts) + np.maximum(first, second), return_index=True)
    once = np.sort(once[different[once]])
    left_out = {
        "sentence of a held-out split": len(every) - size,
        "labelled pair of one sentence": int((~different).sum()),
        "labelled pair repeated": int(different.sum()) - len(once),
    }
    return Pool(texts, size, forms, first[once], second[once], corpus.labels("train")[once], Counter(left_out))


def form_of(text: str) -> str:
    """The sentence without punctuation, spaces and case; as it is where nothing would be left."""
    return normalized_text(text) or text


@dataclass(frozen=True)
class Ranks:
    """Which neighbours of a sentence form a pair with it: see `MineArguments`, and `mine_hard_negatives`.

    Ranks are counted among the neighbours that remain after all others were left out.
    """

    range_min: int
    range_max: int
    per_sentence: int
    margin: float | None = None
    relative_margin: float | None = None
    max_score: float | None = None
    min_score: float | None = None
    seed: int | None = None  # of a random draw; None for the nearest ones

    def limits(self, lowest: np.ndarray) -> np.ndarray:
        """Highest cosines of neighbours, given those of the least similar labelled ones; inf without a margin."""
        absolute = np.inf if self.margin is None else lowest - self.margin
        return np.minimum(absolute, np.inf if self.relative_margin is None else lowest * (1 - self.relative_margin))


def neighbour_pairs(pool: Pool, vectors: np.ndarray, ranks: Ranks, similar: np.ndarray, left_out: Counter) -> Pairs:
    """Pairs of a sentence with its neighbours, none that is known, each once; processes share out the sentences.

    Args:
        vectors: unit vectors of the pool, float32 of shape `(pool.size, width)`.
        similar: bool of shape `(labelled pairs,)`, which of them are similar.
        left_out: counts the neighbours that were left out, by reason.
    """
    by_margin = ranks.margin is not None or ranks.relative_margin is not None
    limits = ranks.limits(lowest_similar(pool, vectors, similar)) if by_margin else None
    k = min(ranks.range_max + pool.most_known(), pool.size - 1)
    last = min(ranks.range_max, ranks.range_min + ranks.per_sentence)
    counted: Counter[str] = Counter()
    blocks = {}
    for start in tqdm(range(0, pool.size, QUERIES)[rank() :: world_size()], desc="Neighbours", disable=rank() > 0):
        queries = np.arange(start, min(start + QUERIES, pool.size))
        rows, scores = nearest(vectors[queries], vectors, k, queries)
        kept = rows >= 0  # (queries, k)
        known = pool.known(np.broadcast_to(queries[:, None], rows.shape), rows)
        leave_out = {
            "neighbour that is labelled or the same sentence": known,
            "neighbour within the margin": False if limits is None else scores > limits[queries, None],
            "neighbour above the highest cosine": False if ranks.max_score is None else scores > ranks.max_score,
            "neighbour below the lowest cosine": False if ranks.min_score is None else scores < ranks.min_score,
        }
        for reason, those in leave_out.items():
            counted[reason] += int((kept & those).sum())
            kept &= ~np.asarray(those)
        place = kept.cumsum(axis=1) - 1
        kept &= (place >= ranks.range_min) & (place < (ranks.range_max if ranks.seed is not None else last))
        if ranks.seed is not None:
            order = np.where(kept, np.random.default_rng((ranks.seed, start)).random(kept.shape), np.inf)
            kept &= order.argsort(axis=1).argsort(axis=1) < ranks.per_sentence
        query, column = kept.nonzero()
        blocks[start] = (queries[query], rows[query, column])
    found: dict[int, Pairs] = {}
    for part, some in gather_object((blocks, counted)):
        found |= part
        left_out.update(some)
    first, second = (np.concatenate([found[start][side] for start in sorted(found)]) for side in (0, 1))
    once = np.sort(np.unique(pool.keys(first, second), return_index=True)[1])
    left_out["neighbour found from both sentences"] += len(first) - len(once)
    return first[once], second[once]


def lowest_similar(pool: Pool, vectors: np.ndarray, similar: np.ndarray) -> np.ndarray:
    """Cosine of each sentence of the pool with the least similar one that is labelled similar: float32 `(size,)`.

    -inf for a sentence without one, so that all neighbours are above it.
    """
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
    """`count` random pairs of the pool, each once, none that is known or taken."""
    used = pool.keys(*taken)
    first, second = np.empty(0, np.int64), np.empty(0, np.int64)
    for _ in range(DRAWS):
        if len(first) >= count:
            break
        new = rng.integers(pool.size, size=(2, 2 * (count - len(first)) + 16))
        new = new[:, ~(pool.known(*new) | np.isin(pool.keys(*new), used))]
        first, second = np.r_[first, new[0]], np.r_[second, new[1]]
        once = np.sort(np.unique(pool.keys(first, second), return_index=True)[1])
        first, second = first[once], second[once]
    if len(first) < count:
        raise InputError(f"--random {count}: only {len(first)} new pairs were found. Lower it, or add --text.")
    return first[:count], second[:count]


def some_of(pairs: Pairs, count: int | None, rng: np.random.Generator) -> np.ndarray:
    """Sorted places of `count` random pairs; of all for None or a higher number."""
    if count is None or count >= len(pairs[0]):
        return np.arange(len(pairs[0]))
    return np.sort(rng.choice(len(pairs[0]), count, replace=False))


@dataclass(frozen=True)
class ScoredPairs:
    """Scores of pairs by one model."""

    scores: np.ndarray  # cosines or logits, float32 (pairs,)
    is_cosine: bool
    model: dict[str, str]  # its name and hash, for the manifest


def score_by(
    path: str, texts: list[str], first: np.ndarray, second: np.ndarray, device: str, cache: Path
) -> ScoredPairs:
    """Scores of pairs by a model of either tower, from the cache if it has read them before."""
    model = load_model(path).to(device)
    about = {"model": path, "sha256": fingerprint(model, [])}
    if isinstance(model, SentenceEncoder):
        places, rows = np.unique(np.r_[first, second], return_inverse=True)
        if 2 * len(places) > len(texts):  # then it has read all of them, or may soon
            vectors, rows = sentence_vectors(model, texts, cache), np.r_[first, second]
        else:
            vectors = sentence_vectors(model, [texts[place] for place in places], cache)
        return ScoredPairs(cosines(vectors, rows[: len(first)], rows[len(first) :]).clip(-1, 1), True, about)
    sentences1, sentences2 = ([texts[place] for place in side] for side in (first, second))
    return ScoredPairs(np.array(teacher_scores(model, sentences1, sentences2, cache)), False, about)


def teacher_labels(scored: list[ScoredPairs]) -> tuple[np.ndarray, float, float, str]:
    """One label per pair: the score of one teacher, the mean of the cosines of several bi-encoders, or else of ranks.

    Ranks are scaled to 0..1. A cross-encoder's count as much as those of the others, whatever its scale.

    Returns:
        Labels, float32 of shape `(pairs,)`; the lowest and the highest that there can be; and what a label is.
    """
    scores = np.stack([one.scores for one in scored])
    if all(one.is_cosine for one in scored):
        how = "cosine" if len(scores) == 1 else f"mean of the cosines of {len(scores)} teachers"
        return scores.mean(axis=0, dtype=np.float64).astype(np.float32), -1.0, 1.0, how
    if len(scores) == 1:
        return scores[0], float(scores.min()), float(scores.max()), "logit"
    ranks = (mean_of_ranks(scores) - 1) / max(1, scores.shape[1] - 1)
    return ranks.astype(np.float32), 0.0, 1.0, f"mean of the ranks of {len(scores)} teachers, scaled to 0..1"


def write_corpus(
    folder: Path, manifest: Manifest, texts: list[str], splits: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]
) -> None:
    """Writes a prepared corpus whose folder is complete or absent; `splits` have places in `texts`, and labels."""
    with complete_folder(folder) as partial_folder:
        for name, (first, second, labels) in splits.items():
            file = partial_folder / f"{name}.parquet"
            columns = [[texts[place] for place in first], [texts[place] for place in second], labels.astype(np.float32)]
            parquet.write_table(pyarrow.table(dict(zip(COLUMNS, columns, strict=True))), file)
            facts = {"rows": len(labels), "sha256": sha256_of_file(file), "label_histogram": histogram(labels)}
            manifest.splits[name] = facts | manifest.splits.get(name, {})
        manifest.absent_splits = [split for split in SPLITS if split not in splits]
        manifest.builder_version = f"cosent {__version__}"
        manifest.save(partial_folder)


def histogram(labels: np.ndarray) -> dict[str, int]:
    """Number of pairs by label, or by range of labels."""
    values, counts = np.unique(labels, return_counts=True)
    names = [f"{value:g}" for value in values]
    if len(values) > BINS:
        counts, edges = np.histogram(labels, BINS)
        names = [f"{low:.3g} to {high:.3g}" for low, high in pairwise(edges)]
    return dict(zip(names, counts.tolist(), strict=True))
