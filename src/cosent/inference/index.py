"""`Index`: sentences that can be found by their meaning.

index = Index.open("vectors.npy", "runs/faq")                 # what `cosent encode --normalize` wrote
index = Index.of(["怎么还款", "如何借款"], "runs/faq")           # sentences at hand, embedded once and cached
for hit in index.search(["还款怎么操作"], top=2)[0]:
    print(hit.cosine, hit.sentence)
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from cosent.cli import REQUIRED, option
from cosent.compute.onednn import choose_device
from cosent.data.groups import components as linked
from cosent.data.pairs import read_texts
from cosent.errors import InputError
from cosent.inference.neighbours import Vectors, approximate, nearest
from cosent.inference.vectors import VectorSet, open_vectors
from cosent.models.auto import load_bi_encoder
from cosent.models.bi_encoder import Embedder, TextModel
from cosent.models.teacher import DEFAULT_CACHE, fingerprint, sentence_vectors


@dataclass
class IndexArguments:
    """The sentences, and the model that compares them."""

    model: str = option(REQUIRED, "Bi-encoder: folder of a trained model, a shipped encoder or a Hub id.")
    index: str | None = option(None, "Vectors that `cosent encode` wrote with --normalize, or a folder of them.")
    text: list[str] | None = option(
        None, "Instead: text files, a sentence per line; embedded once, and cached by model and text."
    )
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available.")


logger = logging.getLogger(__name__)

LENGTHS = 1000  # vectors whose length is looked at


@dataclass(frozen=True)
class Hit:
    """A sentence that was found.

    Args:
        row: its place in the index from 0.
        cosine: with the query.
        rerank: score of the model that reranked; None without one.
    """

    row: int
    sentence: str
    cosine: float
    rerank: float | None = None


class Index:
    """Unit vectors of sentences, and the bi-encoder that reads queries.

    Args:
        encoder: the bi-encoder that embedded the sentences.
        vectors: float32 of shape `(sentences, width)`, of length 1.
        sentences: theirs, in this order.
        prompt: text that was in front of every sentence; a warning where the model has another one for them.
        folder, key, name: of an index of faiss, see `approximate`.
    """

    def __init__(self, encoder: Embedder, vectors: Vectors, sentences: Sequence[str], prompt: str = "",
                 folder: Path = DEFAULT_CACHE, key: str = "", name: str | None = None):  # fmt: skip
        self.encoder, self.vectors, self.sentences, self.prompt = encoder, vectors, sentences, prompt
        self.folder, self.key, self.name = folder, key, name
        self.find: Callable = lambda queries, k: nearest(queries, vectors, k)

    @classmethod
    def open(cls, path: str | Path, model: str, device: str = "cpu") -> "Index":
        """An index of the vectors that `cosent encode --normalize` wrote: one file, or a folder of shards.

        Raises:
            InputError: vectors of another model, of other lengths than 1, or not complete; sentences that have changed.
        """
        encoder = load_bi_encoder(model)
        vectors = open_vectors(path, fingerprint(encoder, []))
        check_lengths(path, vectors)
        key = sha256(repr(vectors.manifests).encode()).hexdigest()[:16]
        return cls(encoder.to(device), vectors, vectors.sentences(), vectors.manifests[0].prompt,
                   vectors.files[0].parent, key, Path(path).resolve().name)  # fmt: skip

    @classmethod
    def of(cls, sentences: Sequence[str], model: str, device: str = "cpu", cache: Path | None = None) -> "Index":
        """An index of sentences, whose vectors are computed once and cached by model and sentences."""
        cache = cache or DEFAULT_CACHE
        if not sentences:
            raise InputError("There is no sentence to find. Give at least one.")
        encoder = load_bi_encoder(model).to(device)
        prompt = encoder.prompts.for_search()[1]
        vectors = sentence_vectors(encoder, list(sentences), cache, prompt)
        return cls(encoder, vectors, sentences, prompt, cache, Path(vectors.filename).stem)

    def __len__(self) -> int:
        return len(self.sentences)

    def use_faiss(self, kind: str = "auto") -> None:
        """Finds approximately from now on, see `approximate`; the index of faiss is stored next to the vectors."""
        self.find = approximate(self.vectors, kind, self.folder, self.key, self.name).nearest

    def embed(self, queries: Sequence[str], prompt: str | None = None) -> np.ndarray:
        """Unit vectors of queries, float32 of shape `(queries, width)`.

        Args:
            prompt: text in front of every query; default: the model's prompt called `query`, or its default prompt.

        Raises:
            InputError: an empty query.
        """
        for place, query in enumerate(queries, start=1):
            if not query.strip():
                raise InputError(
                    f"Query {place} of {len(queries)} is empty: anything could be found. Write what is looked for."
                )
        if prompt is None:
            prompt, documents = self.encoder.prompts.for_search()
            if documents != self.prompt:
                logger.warning(
                    "The sentences were embedded with %s, but the model's prompt for them is %r. Encode them with "
                    "--prompt_name document, or name the queries' prompt yourself.",
                    f"the prompt {self.prompt!r}" if self.prompt else "no prompt",
                    documents,
                )
        return self.encoder.encode(list(queries), normalize=True, prompt=prompt)

    def nearest(self, vectors: np.ndarray, top: int) -> list[list[Hit]]:
        """The `top` sentences with the highest cosines for each vector of a query, best first.

        Raises:
            InputError: more than there are.
        """
        if not 1 <= top <= len(self):
            raise InputError(f"Expected 1 to {len(self)} sentences to find, as many as there are, got {top}.")
        rows, cosines = self.find(vectors, top)
        return [
            [Hit(int(row), self.sentences[row], float(cosine)) for row, cosine in zip(*pair, strict=True) if row >= 0]
            for pair in zip(rows, cosines, strict=True)
        ]

    def search(
        self,
        queries: Sequence[str],
        top: int = 10,
        prompt: str | None = None,
        reranker: TextModel | None = None,
        candidates: int = 50,
    ) -> list[list[Hit]]:
        """The sentences that fit each query best, best first.

        Args:
            prompt: see `embed`.
            reranker: reads each query together with its `candidates` nearest sentences, and orders them.
        """
        found = self.nearest(self.embed(queries, prompt), top if reranker is None else max(top, candidates))
        return found if reranker is None else [hits[:top] for hits in reranked(reranker, queries, found)]


def reranked(reranker: TextModel, queries: Sequence[str], found: list[list[Hit]]) -> list[list[Hit]]:
    """The hits of each query in the order of another model's scores, highest first."""
    asked = [query for query, hits in zip(queries, found, strict=True) for _ in hits]
    hits = [hit for hits in found for hit in hits]
    scores = iter(reranker.similarity(asked, [hit.sentence for hit in hits]).tolist() if hits else [])
    judged = [[Hit(hit.row, hit.sentence, hit.cosine, next(scores)) for hit in some] for some in found]
    return [sorted(some, key=lambda hit: -hit.rerank) for some in judged]


def check_lengths(path: str | Path, vectors: VectorSet) -> None:
    """Refuses vectors whose dot product is no cosine; zeros, of a sentence without tokens, are none either way.

    Raises:
        InputError: a length other than 1, or a vector that is not finite, in a sample.
    """
    rows = np.linspace(0, len(vectors) - 1, min(LENGTHS, len(vectors))).astype(np.int64)
    lengths = np.linalg.norm(vectors[rows], axis=1)
    wrong = np.flatnonzero(~((np.abs(lengths - 1) <= 0.001) | (lengths == 0)))  # NaN too
    if len(wrong):
        raise InputError(
            f"{path}: row {rows[wrong[0]]} from 0 is a vector of length {lengths[wrong[0]]:.4g}, and only of length 1 "
            "the dot product is the cosine. Encode the sentences again with --normalize."
        )


def open_index(args: IndexArguments) -> Index:
    """The index of `--index` or `--text`, on its device.

    Raises:
        InputError: neither, or both.
    """
    if (args.index is None) == (args.text is None):
        raise InputError("Name what to search: either --index, vectors of `cosent encode`, or --text, files of text.")
    device = choose_device(args.device)
    if args.text is not None:
        return Index.of(list(read_texts(args.text)), args.model, device)
    return Index.open(args.index, args.model, device)


PAIRS = 10_000_000  # in memory before they are merged into groups
LARGEST = 50_000  # sentences of HDBSCAN, which takes sentences² * width operations on one core


def components(pairs: Iterable[tuple[np.ndarray, np.ndarray]], rows: int) -> np.ndarray:
    """Number of the group of each row: rows that are linked by pairs, directly or by others; int64 of shape `(rows,)`.

    Groups are numbered by their first row.
    """
    groups, held, count = np.arange(rows), [(np.arange(0), np.arange(0))], 0
    for pair in pairs:
        held.append(pair)
        count += len(pair[0])
        if count > PAIRS:
            groups, held, count = merged(groups, held), held[:1], 0
    return merged(groups, held)


def merged(groups: np.ndarray, pairs: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The groups, with those of the rows of each pair joined."""
    first, second = (groups[np.concatenate([pair[side] for pair in pairs])] for side in (0, 1))
    return by_first_row(linked(first, second, len(groups))[groups])


def dense_clusters(vectors: Vectors, least: int) -> np.ndarray:
    """Group of each row by HDBSCAN, as for `components`; a row that belongs to none is one of its own.

    Args:
        vectors: unit vectors, whose Euclidean distance falls with their cosine.
        least: sentences of the smallest group.

    Raises:
        InputError: too many rows, or fewer than `least`.
    """
    if not least <= len(vectors) <= LARGEST:
        raise InputError(
            f"HDBSCAN groups {least} to {LARGEST:,} sentences here, got {len(vectors):,}: it takes time and memory by "
            "their square. Group by a threshold instead: leave --min_cluster_size out."
        )
    from sklearn.cluster import HDBSCAN

    found = HDBSCAN(min_cluster_size=least, copy=True).fit_predict(vectors[0 : len(vectors)])
    alone = found < 0
    found[alone] = found.max(initial=-1) + 1 + np.arange(alone.sum())
    return by_first_row(found)


def by_first_row(groups: np.ndarray) -> np.ndarray:
    """The same groups, numbered in the order of their first rows."""
    _, first, number = np.unique(groups, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number]
