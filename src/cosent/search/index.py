"""`Index`: semantic search over sentences.

index = Index.load("runs/faq", ["faq.xlsx"], text_column="question")
for hit in index.search(["还款怎么操作"], top=2, precision=0.8)[0]:      # empty: nothing found
    print(hit.cosine, hit.sentence, hit.columns["answer"])

`Index.of` takes sentences at hand, `Index.open` the vectors that `cosent encode --normalize` wrote.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cosent.data.files import read_rows
from cosent.data.formats import AS_USUAL, FileOptions, is_blank
from cosent.errors import InputError
from cosent.models.cache import fingerprint
from cosent.models.decision import AnswerRule, DecisionRule, choose_rule, decision_rules
from cosent.models.embedding import windows
from cosent.search.differences import collisions
from cosent.search.neighbours import approximate, nearest
from cosent.search.vectors import open_vectors

if TYPE_CHECKING:
    from cosent.models.bi_encoder import SentenceEncoder
    from cosent.models.text_model import TextModel

logger = logging.getLogger(__name__)

RERANKED_SENTENCES = 50  # nearest sentences that a reranker reads
LENGTHS = 1000  # vectors whose length is checked


@dataclass(frozen=True)
class Hit:
    """A search result."""

    row: int  # in the index, from 0
    sentence: str
    cosine: float
    rerank: float | None = None  # score of the model that reranked
    token_collision: bool = False  # whether the model cannot tell it from the query, see `collisions`
    probability: float | None = None  # by the decision rule, where there is one
    verdict: str | None = None  # likewise: similar, not similar
    columns: dict[str, Any] = field(default_factory=dict)  # of its row in a table

    @property
    def score(self) -> float:
        """Score that orders the hits: the reranker's, or the cosine."""
        return self.cosine if self.rerank is None else self.rerank


class Index:
    """Search index: unit vectors of sentences, and the bi-encoder that embeds queries.

    Args:
        encoder: the bi-encoder that embedded the sentences.
        vectors: float32 of shape `(sentences, width)`, of length 1.
        sentences: theirs, in this order.
        prompt: text that was in front of every sentence.
        rule: the decision rule of the encoder.
        columns: of the row of each sentence in a table; empty for sentences alone.
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
        self.rule: DecisionRule | None = None
        self.columns: Sequence[dict[str, Any]] = ()
        self.faiss_folder, self.key, self.name = faiss_folder, key, name
        self.owner: np.ndarray | None = None  # the sentence of each vector, if there are more vectors than sentences
        self.find: Callable = lambda queries, k: nearest(queries, vectors, k)
        self.exact = True

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

    @classmethod
    def load(
        cls, model: str, text: Sequence[str], text_column: str | None = None, corpus: str | None = None
    ) -> "Index":
        """An index of the sentences of files with the decision rule of the model, as `cosent search` makes it.

        Args:
            model: folder of a bi-encoder, a shipped one or a Hub id.
            text: files of sentences: txt, tsv, csv, jsonl, parquet, xlsx. Their vectors are cached.
            text_column: column of the sentences; all columns of its row come with each hit.
            corpus: whose rule to use; default: that of all of training.
        """
        from cosent.models.auto import load_bi_encoder
        from cosent.models.cache import growing_vectors

        index = open_index(None, text, load_bi_encoder(model).eval(), growing_vectors, text_column)
        index.rule = choose_rule(decision_rules(model), corpus, model)
        return index

    def __len__(self) -> int:
        return len(self.sentences)

    def use_faiss(self, factory: str) -> None:
        """Switches to approximate search, see `approximate`."""
        self.exact = False
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
        *,
        rule: DecisionRule | None = None,
        min_score: float | None = None,
        min_probability: float | None = None,
        precision: float | None = None,
    ) -> list[list[Hit]]:
        """The sentences that fit each query best, best first; a reranker orders the `candidates` nearest ones.

        Args:
            top: sentences per query, at most.
            prompt: in front of the queries; default: that of the model for them.
            rule: of the scores; default: that of the index, with a reranker none.
            min_score, min_probability: least ones of a hit.
            precision: share of right answers that the rule promises; a query without one gets no hits.

        Raises:
            InputError: a probability or precision that the rule cannot reach, or does not know.
        """
        rule = self.rule if rule is None and reranker is None else rule
        read = self.encoder.prompts.for_search()[0] if prompt is None else prompt
        if rule is not None and reranker is None and rule.prompts != (read, self.prompt):
            rule = None  # its scores are of other texts
        gate = None if precision is None else self.gate(precision, rule, prompt, reranker)
        if min_probability is not None:
            check_reachable(min_probability, rule, self.encoder if reranker is None else reranker)
        vectors = self.embed(queries, prompt)
        most = min(len(self), top if gate is None or top != 1 else 2)
        hits = self.nearest(vectors, most if reranker is None else max(most, min(candidates, len(self))))
        if reranker is not None:
            hits = [some[:most] for some in reranked(reranker, queries, hits)]
        if gate is not None:
            hits = [some if gate.answers(*best_two(some)) else [] for some in hits]
        first = [query for query, some in zip(queries, hits, strict=True) for _ in some]
        flat = [hit for some in hits for hit in some]
        same = collisions(self.encoder if reranker is None else reranker, first, [hit.sentence for hit in flat])
        told = iter(self.described(flat, same, rule))
        hits = [[next(told) for _ in some][:top] for some in hits]
        if min_score is not None:
            hits = [[hit for hit in some if hit.score >= min_score] for some in hits]
        if min_probability is not None:
            hits = [[hit for hit in some if (hit.probability or 0.0) >= min_probability] for some in hits]
        return hits

    def gate(
        self, precision: float, rule: DecisionRule | None, prompt: str | None, reranker: "TextModel | None"
    ) -> AnswerRule:
        """The rule for answers of a precision; refuses a search of another kind than it was fitted on."""
        if rule is None or reranker is not None or prompt is not None or not self.exact:
            raise InputError(
                f"--precision {precision:g} needs a model with decision rules (cosent calibrate), and an exact search "
                "by cosine alone with the model's own prompts: no --rerank, --faiss or --prompt."
            )
        return rule.answering(precision)

    def described(self, hits: list[Hit], same: list[bool], rule: DecisionRule | None) -> list[Hit]:
        """Hits with their collisions, probabilities, verdicts and columns."""
        known: list[dict] = [{}] * len(hits)
        if rule is not None and rule.calibration is not None and hits:
            scores = [hit.score for hit in hits]
            both = zip(rule.probabilities(scores).tolist(), rule.similar(scores), strict=True)
            known = [{"probability": p, "verdict": "similar" if similar else "not similar"} for p, similar in both]
        columns = [self.columns[hit.row] if len(self.columns) else {} for hit in hits]
        return [
            replace(hit, token_collision=collision, columns=others, **facts)
            for hit, collision, others, facts in zip(hits, same, columns, known, strict=True)
        ]


def best_two(hits: list[Hit]) -> tuple[float, float]:
    """Cosines of the first two hits; -1 if there is no second."""
    return hits[0].cosine, hits[1].cosine if len(hits) > 1 else -1.0


def check_reachable(probability: float, rule: DecisionRule | None, model: "TextModel") -> None:
    """Refuses a probability that no hit can have, not even the query itself."""
    if rule is None:
        raise InputError(
            f"--min_probability {probability:g}: the model has no map to probabilities for these prompts. Make one "
            "with cosent calibrate, or give --min_score."
        )
    highest = float(rule.probabilities([model.highest_score])[0])
    if probability > highest:
        raise InputError(
            f"--min_probability {probability:g}: on {rule.corpus} the highest score has a probability of "
            f"{highest:.4f}, so nothing would ever be found. Lower it, or give --precision."
        )


def reranked(reranker: "TextModel", queries: Sequence[str], hits: list[list[Hit]]) -> list[list[Hit]]:
    """The hits of each query in the order of another model's scores, highest first."""
    first = [query for query, some in zip(queries, hits, strict=True) for _ in some]
    values = reranker.similarity(first, [hit.sentence for some in hits for hit in some])
    scores = iter(values.tolist())
    scored = [[replace(hit, rerank=next(scores)) for hit in some] for some in hits]
    return [sorted(some, key=attrgetter("rerank"), reverse=True) for some in scored]


def open_index(
    index: str | None,
    text: Sequence[str] | None,
    encoder: "SentenceEncoder",
    embed: Callable | None = None,
    text_column: str | None = None,
    options: FileOptions = AS_USUAL,
) -> Index:
    """An index of encoded vectors, or else of the sentences of files, whose vectors `embed` caches."""
    if index is not None:
        return Index.open(index, encoder)
    rows = list(read_rows(text or [], text_column, options))
    found = Index.of([sentence for sentence, _ in rows], encoder, embed)
    found.columns = [columns for _, columns in rows] if any(columns for _, columns in rows) else ()
    return found
