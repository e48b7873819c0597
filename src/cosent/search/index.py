"""`Index`: sentences that can be found by their meaning.

encoder = SentenceEncoder.from_pretrained("runs/faq")
index = Index.open("vectors.npy", encoder)                 # what `cosent encode --normalize` wrote
index = Index.of(["怎么还款", "如何借款"], encoder)           # sentences at hand
for hit in index.search(["还款怎么操作"], top=2)[0]:
    print(hit.cosine, hit.sentence)
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cosent.data.files import read_texts
from cosent.data.formats import is_blank
from cosent.errors import InputError
from cosent.models.cache import fingerprint
from cosent.models.embedding import windows
from cosent.search.differences import collisions
from cosent.search.neighbours import approximate, nearest
from cosent.search.vectors import open_vectors

if TYPE_CHECKING:
    from cosent.models.bi_encoder import SentenceEncoder, TextModel

logger = logging.getLogger(__name__)

RERANKED_SENTENCES = 50  # nearest sentences that a reranker reads
LENGTHS = 1000  # vectors whose length is checked


@dataclass(frozen=True)
class Hit:
    """A sentence that was found."""

    row: int  # in the index, from 0
    sentence: str
    cosine: float
    rerank: float | None = None  # score of the model that reranked
    token_collision: bool = False  # whether the model cannot tell it from the query, see `collisions`

    @property
    def score(self) -> float:
        """What orders the hits: the score of the reranker, or the cosine."""
        return self.cosine if self.rerank is None else self.rerank


class Index:
    """Unit vectors of sentences, and the bi-encoder that embeds queries.

    Args:
        encoder: the bi-encoder that embedded the sentences.
        vectors: float32 of shape `(sentences, width)`, of length 1.
        sentences: theirs, in this order.
        prompt: text that was in front of every sentence.
        faiss_folder, key, name: where `approximate` stores an index of faiss; no folder keeps it in memory.
    """

    def __init__(
        self,
        encoder: "SentenceEncoder",
        vectors: np.ndarray,
        sentences: Sequence[str],
        prompt: str = "",
        faiss_folder: Path | None = None,
        key: str = "",
        name: str | None = None,
    ):
        self.encoder, self.vectors, self.sentences, self.prompt = encoder, vectors, sentences, prompt
        self.faiss_folder, self.key, self.name = faiss_folder, key, name
        self.owner: np.ndarray | None = None  # the sentence of each vector, if there are more vectors than sentences
        self.find: Callable = lambda queries, k: nearest(queries, vectors, k)

    @classmethod
    def open(cls, path: str | Path, encoder: "SentenceEncoder") -> "Index":
        """An index of the vectors that `cosent encode --normalize` wrote.

        Raises:
            InputError: vectors of another model, of other lengths than 1, or not complete; sentences that have changed.
        """
        stored = open_vectors(path, fingerprint(encoder))
        vectors, manifest = stored.vectors, stored.manifest
        rows = np.linspace(0, len(vectors) - 1, min(LENGTHS, len(vectors))).astype(np.int64)
        lengths = np.linalg.norm(vectors[rows], axis=1)
        wrong = np.flatnonzero(~((np.abs(lengths - 1) <= 0.001) | (lengths == 0)))  # NaN too; 0: without tokens
        if len(wrong):
            raise InputError(
                f"{path}: row {rows[wrong[0]]} from 0 is a vector of length {lengths[wrong[0]]:.4g}, "
                "expected 1. Encode the sentences again with --normalize."
            )
        key = sha256(repr(manifest).encode()).hexdigest()[:16]
        return cls(
            encoder, vectors, stored.sentences(), manifest.prefix, stored.file.parent, key, Path(path).resolve().name
        )

    @classmethod
    def of(cls, sentences: Sequence[str], encoder: "SentenceEncoder", embed: Callable | None = None) -> "Index":
        """An index of sentences; `embed`, as `growing_vectors`, caches their vectors."""
        if not sentences:
            raise InputError("There is no sentence to find. Give at least one.")
        prompt = encoder.prompts.for_search()[1]
        texts, owner = list(sentences), None
        if encoder.long_texts == "best":
            texts, owner = windows(encoder, texts, encoder.prefix(prompt))
        if embed is None:
            index = cls(encoder, encoder.encode(texts, normalize_embeddings=True, prompt=prompt), sentences, prompt)
        else:
            vectors = embed(encoder, texts, prompt=prompt)
            file = Path(vectors.filename)
            index = cls(encoder, vectors, sentences, prompt, file.parent, file.stem)
        index.owner = None if len(texts) == len(sentences) else owner
        return index

    def __len__(self) -> int:
        return len(self.sentences)

    def use_faiss(self, factory: str) -> None:
        """Searches approximately from now on, see `approximate`."""
        self.find = approximate(self.vectors, factory, self.faiss_folder, self.key, self.name).nearest

    def embed(self, queries: Sequence[str], prompt: str | None = None) -> np.ndarray:
        """Unit vectors of queries, float32 of shape `(queries, width)`; default: behind the model's prompt for them."""
        for number, query in enumerate(queries, start=1):
            if is_blank(query):
                raise InputError(f"Query {number} of {len(queries)} is empty. Leave it out.")
        if prompt is None:
            prompt, documents = self.encoder.prompts.for_search()
            if documents != self.prompt:
                logger.warning(
                    "The sentences were embedded with the prompt %r, but the model's prompt for them is %r. Encode "
                    "them with --prompt_name document, or pass --prompt for the queries.",
                    self.prompt,
                    documents,
                )
        return self.encoder.encode(list(queries), normalize_embeddings=True, prompt=prompt)

    def nearest(self, vectors: np.ndarray, top: int) -> list[list[Hit]]:
        """The `top` sentences with the highest cosines for each vector of a query, best first."""
        if not 1 <= top <= len(self):
            raise InputError(f"Expected 1 to {len(self)} sentences to find, as many as there are, got {top}.")
        depth = top if self.owner is None else min(len(self.owner), top * int(np.bincount(self.owner).max()))
        found = []
        for pair in zip(*self.find(vectors, depth), strict=True):
            best: dict[int, float] = {}  # by sentence, of which only the best window counts
            for row, cosine in zip(*pair, strict=True):
                if row >= 0:
                    best.setdefault(int(row if self.owner is None else self.owner[row]), float(cosine))
            found.append([Hit(row, self.sentences[row], cosine) for row, cosine in islice(best.items(), top)])
        return found

    def search(
        self,
        queries: Sequence[str],
        top: int = 10,
        prompt: str | None = None,
        reranker: "TextModel | None" = None,
        candidates: int = RERANKED_SENTENCES,
    ) -> list[list[Hit]]:
        """The sentences that fit each query best, best first; a reranker orders the `candidates` nearest ones."""
        vectors = self.embed(queries, prompt)
        depth = top if reranker is None else max(top, min(candidates, len(self)))
        hits = self.nearest(vectors, depth)
        if reranker is not None:
            hits = [some[:top] for some in reranked(reranker, queries, hits)]
        first = [query for query, some in zip(queries, hits, strict=True) for _ in some]
        second = [hit.sentence for some in hits for hit in some]
        same = iter(collisions(self.encoder if reranker is None else reranker, first, second))
        return [[replace(hit, token_collision=next(same)) for hit in some] for some in hits]


def reranked(reranker: "TextModel", queries: Sequence[str], hits: list[list[Hit]]) -> list[list[Hit]]:
    """The hits of each query in the order of another model's scores, highest first."""
    first = [query for query, some in zip(queries, hits, strict=True) for _ in some]
    values = reranker.similarity(first, [hit.sentence for some in hits for hit in some])
    if not np.isfinite(values).all():
        raise InputError("--rerank: the model returns nan or inf, which has no rank. Name another one.")
    scores = iter(values.tolist())
    scored = [[replace(hit, rerank=next(scores)) for hit in some] for some in hits]
    return [sorted(some, key=attrgetter("rerank"), reverse=True) for some in scored]


def open_index(index: str | None, text: list[str] | None, encoder: "SentenceEncoder", embed: Callable) -> Index:
    """An index of encoded vectors, or else of the sentences of files, whose vectors `embed` caches."""
    if index is not None:
        return Index.open(index, encoder)
    return Index.of(list(read_texts(text or [])), encoder, embed)
