"""Mining of training pairs: hard negatives, random pairs, and labels by teachers.

Hard negatives are the neighbours that `mine_hard_negatives` of sentence-transformers takes for every sentence of a
pool, here on several processes and without pairs that are labelled already.
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
from cosent.models.cache import fingerprint, pair_scores, sentence_vectors
from cosent.seal import sha256_of_file
from cosent.search.neighbours import nearest

QUERIES = 8192  # whose neighbours are in memory at a time
PAIRS = 65536  # whose vectors are in memory at a time
DRAWS = 100  # rounds of drawing random pairs before giving up
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

    def is_labelled(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Whether the corpus labels each pair, or its sentences differ only in their form; shape of `first`."""
        labelled = np.isin(self.keys(first, second), self.keys(self.first, self.second))
        return labelled | (self.forms[first] == self.forms[second])

    def most_labelled(self) -> int:
        """Upper bound of the labelled partners of one sentence of the pool."""
        inside = self.inside()
        partners = np.bincount(np.r_[self.first[inside], self.second[inside]], minlength=self.size)
        _, form, copies = np.unique(self.forms[: self.size], return_inverse=True, return_counts=True)
        return int((partners + copies[form] - 1).max())

    def inside(self) -> np.ndarray:
        """Which labelled pairs have both sentences among the first `size`: bool."""
        return (self.first < self.size) & (self.second < self.size)


def read_pool(corpus: Corpus, lines: Iterable[str]) -> Pool:
    """The sentences of a corpus' train split and of lines of text, without sentences of its other splits."""

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
    """Rules for the neighbour that forms a pair with a sentence, as in `mine_hard_negatives`; see `MineArguments`."""

    range_min: int  # counted among the neighbours that no other rule leaves out
    range_max: int
    margin: float | None = None
    max_score: float | None = None


def neighbour_pairs(pool: Pool, vectors: np.ndarray, ranks: Ranks, similar: np.ndarray, left_out: Counter) -> Pairs:
    """Pairs of a sentence with one of its neighbours, each pair once, none of them labelled.

    Processes share out the sentences.

    Args:
        vectors: unit vectors of the pool, float32 of shape `(pool.size, width)`.
        similar: bool of shape `(labelled pairs,)`, whether each is labelled similar.
        left_out: counts the neighbours that were left out, by reason.
    """
    limits = None if ranks.margin is None else lowest_similar(pool, vectors, similar) - ranks.margin
    k = min(ranks.range_max + pool.most_labelled(), pool.size - 1)
    counts: Counter[str] = Counter()
    blocks = {}
    for start in tqdm(range(0, pool.size, QUERIES)[rank() :: world_size()], desc="Neighbours", disable=rank() > 0):
        queries = np.arange(start, min(start + QUERIES, pool.size))
        rows, scores = nearest(vectors[queries], vectors, k, queries)
        remaining = rows >= 0  # (queries, k)
        reasons = {
            "neighbour that is labelled or the same sentence": pool.is_labelled(
                np.broadcast_to(queries[:, None], rows.shape), rows
            ),
            "neighbour within the margin": False if limits is None else scores > limits[queries, None],
            "neighbour above the highest cosine": False if ranks.max_score is None else scores > ranks.max_score,
        }
        for reason, excluded in reasons.items():
            counts[reason] += int((remaining & excluded).sum())
            remaining &= ~np.asarray(excluded)
        query, column = (remaining & (remaining.cumsum(axis=1) == ranks.range_min + 1)).nonzero()
        blocks[start] = (queries[query], rows[query, column])
    pairs: dict[int, Pairs] = {}
    for part, part_counts in gather_object((blocks, counts)):
        pairs |= part
        left_out.update(part_counts)
    first, second = (np.concatenate([pairs[start][side] for start in sorted(pairs)]) for side in (0, 1))
    once = np.sort(np.unique(pool.keys(first, second), return_index=True)[1])
    left_out["neighbour found from both sentences"] += len(first) - len(once)
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


def sample_rows(pairs: Pairs, count: int | None, rng: np.random.Generator) -> np.ndarray:
    """Sorted rows of `count` random pairs; all rows for None or a higher number."""
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
    return ScoredPairs(np.array(pair_scores(model, sentences1, sentences2, cache)), False, about)


def teacher_labels(scored: list[ScoredPairs]) -> tuple[np.ndarray, float, float, str]:
    """One label per pair: one teacher's score, the mean cosine of several bi-encoders, or else the mean rank.

    Ranks are scaled to 0..1, so that every teacher counts the same, whatever the scale of its scores.

    Returns:
        Labels, float32 of shape `(pairs,)`; the lowest and the highest that there can be; and what a label is.
    """
    scores = np.stack([each.scores for each in scored])
    if all(each.is_cosine for each in scored):
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
