"""`Index`: semantic search over sentences.

index = Index.load("runs/faq", ["faq.xlsx"], text_column="question")
for hit in index.search("还款怎么操作", top=2, min_probability=0.8):      # empty: nothing found
    print(hit.cosine, hit.sentence, hit.columns["answer"])

`Index.of` takes a list of sentences, `Index.open` the vectors that `cosent encode --normalize` wrote.
"""

import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from cosent.data.files import read_rows
from cosent.data.formats import AS_USUAL, FileOptions, is_blank
from cosent.errors import InputError
from cosent.models.cache import fingerprint, sentence_vectors
from cosent.models.decision import DecisionRule, rule_for
from cosent.models.embedding import as_texts
from cosent.search.neighbours import nearest
from cosent.search.vectors import open_vectors

if TYPE_CHECKING:
    from cosent.models.bi_encoder import SentenceEncoder
    from cosent.models.text_model import TextModel

logger = logging.getLogger(__name__)

RERANKED_SENTENCES = 50  # nearest sentences that a reranker reads


@dataclass(frozen=True)
class Hit:
    """A search result."""

    row: int  # in the index, from 0
    sentence: str
    cosine: float
    rerank: float | None = None  # score of the reranker
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
        sentences: the sentence of each vector.
        prompt: text that was in front of every sentence.
        columns: of each sentence's row in a table; empty for sentences alone.

    Attributes:
        rule: the decision rule of the encoder, for probabilities and verdicts.
    """

    def __init__(
        self,
        encoder: "SentenceEncoder",
        vectors: np.ndarray,
        sentences: Sequence[str],
        prompt: str = "",
        columns: Sequence[dict[str, Any]] = (),
    ):
        self.encoder, self.vectors, self.sentences = encoder, vectors, sentences
        self.prompt, self.columns = prompt, columns
        self.rule: DecisionRule | None = None

    @classmethod
    def open(cls, path: str | Path, encoder: "SentenceEncoder") -> "Index":
        """An index of the vectors that `cosent encode --normalize` wrote.

        Raises:
            InputError: vectors of another model, made without `--normalize`, or damaged; sentences that have changed.
        """
        stored = open_vectors(path, fingerprint(encoder))
        if not stored.manifest.normalize:
            raise InputError(f"{path} has vectors of any length. Encode the sentences again with --normalize.")
        return cls(encoder, stored.vectors, stored.sentences(), stored.manifest.prefix)

    @classmethod
    def of(cls, sentences: str | Sequence[str], encoder: "SentenceEncoder") -> "Index":
        """An index of sentences, which it embeds with the model's prompt for documents."""
        texts, prompt = as_texts(sentences), encoder.prompts.for_search()[1]
        if not texts:
            raise InputError("There is no sentence to find. Give at least one.")
        return cls(encoder, encoder.encode(texts, normalize_embeddings=True, prompt=prompt), texts, prompt)

    @classmethod
    def read(
        cls,
        text: Sequence[str],
        encoder: "SentenceEncoder",
        text_column: str | None = None,
        options: FileOptions = AS_USUAL,
    ) -> "Index":
        """An index of the sentences of files, whose vectors are cached; all columns of its row come with each hit.

        Args:
            text: files of sentences: txt, tsv, csv, jsonl, parquet, xlsx.
            text_column: column of the sentences; default: `text` or `sentence`, or the only one.
        """
        rows = list(read_rows(text, text_column, options))
        if not rows:
            raise InputError(f"There is no sentence in {' '.join(text)}. Name a file with at least one.")
        sentences, columns = map(list, zip(*rows, strict=True))
        prompt = encoder.prompts.for_search()[1]
        vectors = sentence_vectors(encoder, sentences, prompt=prompt)
        return cls(encoder, vectors, sentences, prompt, columns if any(columns) else ())

    @classmethod
    def load(
        cls, model: str, text: Sequence[str], text_column: str | None = None, corpus: str | None = None
    ) -> "Index":
        """As `read`, with the decision rule of the model, as `cosent search` makes it.

        Args:
            model: folder of a bi-encoder, a shipped one or a Hub id.
            corpus: whose rule to use; default: the rule for all of training.
        """
        from cosent.models import load_bi_encoder

        index = cls.read(as_texts(text), load_bi_encoder(model).eval(), text_column)
        index.rule, _ = rule_for(model, index.prompts(), corpus)
        return index

    def __len__(self) -> int:
        return len(self.sentences)

    def embed(self, queries: Sequence[str], prompt: str | None = None) -> np.ndarray:
        """Unit vectors of queries, float32 of shape `(queries, width)`; default prompt: the model's for queries."""
        for number, query in enumerate(queries, start=1):
            if is_blank(query):
                raise InputError(f"Query {number} of {len(queries)} is empty. Leave it out.")
        if prompt is None:
            prompt, documents = self.encoder.prompts.for_search()
            if documents != self.prompt:
                logger.warning(
                    "The sentences were embedded with the prompt %r, but the model's prompt for them is %r. Encode "
                    "them with --prompt %s, or pass --prompt for the queries.",
                    *(self.prompt, documents, shlex.quote(documents)),
                )
        return self.encoder.encode(list(queries), normalize_embeddings=True, prompt=prompt)

    def prompts(self, prompt: str | None = None, reranker: "TextModel | None" = None) -> tuple[str, str]:
        """Texts in front of query and sentence where the scores of `search` are computed."""
        if reranker is not None:
            return reranker.prompts.sides()
        return self.encoder.prompts.for_search()[0] if prompt is None else prompt, self.prompt

    def nearest(self, vectors: np.ndarray, top: int) -> list[list[Hit]]:
        """The `top` sentences with the highest cosines for each vector of a query, best first.

        Sentences with equal cosines come in the order of the file.
        """
        if not 1 <= top <= len(self):
            raise InputError(f"Expected 1 to {len(self)} sentences to find, as many as there are, got {top}.")
        return [
            [Hit(int(row), self.sentences[row], float(cosine)) for row, cosine in zip(rows, cosines, strict=True)]
            for rows, cosines in zip(*nearest(vectors, self.vectors, top), strict=True)
        ]

    @overload
    def search(self, queries: str, top: int = 10, *args: Any, **options: Any) -> list[Hit]: ...

    @overload
    def search(self, queries: Sequence[str], top: int = 10, *args: Any, **options: Any) -> list[list[Hit]]: ...

    def search(
        self,
        queries: str | Sequence[str],
        top: int = 10,
        prompt: str | None = None,
        reranker: "TextModel | None" = None,
        candidates: int = RERANKED_SENTENCES,
        *,
        rule: DecisionRule | None = None,
        min_score: float | None = None,
        min_probability: float | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """The sentences that fit each query best, best first; a reranker orders the `candidates` nearest ones.

        Args:
            queries: one query, whose hits are returned, or several, for a list of hits each.
            top: sentences per query, at most.
            prompt: in front of the queries; default: the model's prompt for queries.
            rule: of the scores, see `rule_for`; default: the rule of the index, with a reranker or another prompt none.
            min_score, min_probability: least score or probability of a hit.

        Raises:
            InputError: a probability that the rule cannot reach, or without a rule.
        """
        texts = as_texts(queries)
        if rule is None and reranker is None and self.prompts(prompt) == self.prompts():
            rule = self.rule
        if min_probability is not None:
            check_reachable(min_probability, rule, self.encoder if reranker is None else reranker)
        top = min(top, len(self))
        depth = top if reranker is None else max(top, min(candidates, len(self)))
        hits = self.nearest(self.embed(texts, prompt), depth)
        if reranker is not None:
            hits = [ranked[:top] for ranked in reranked(reranker, texts, hits)]
        hits = [self.described(of_query, rule) for of_query in hits]
        if min_score is not None:
            hits = [[hit for hit in of_query if hit.score >= min_score] for of_query in hits]
        if min_probability is not None:
            hits = [[hit for hit in of_query if (hit.probability or 0.0) >= min_probability] for of_query in hits]
        return hits[0] if isinstance(queries, str) else hits

    def described(self, hits: list[Hit], rule: DecisionRule | None) -> list[Hit]:
        """Hits with their columns and, by a rule, probabilities and verdicts."""
        if len(self.columns):
            hits = [replace(hit, columns=self.columns[hit.row]) for hit in hits]
        if rule is None or rule.calibration is None or not hits:
            return hits
        scores = [hit.score for hit in hits]
        judged = zip(hits, rule.probabilities(scores).tolist(), rule.verdicts(scores), strict=True)
        return [replace(hit, probability=probability, verdict=verdict) for hit, probability, verdict in judged]


def check_reachable(probability: float, rule: DecisionRule | None, model: "TextModel") -> None:
    """Refuses a probability that no hit can have, not even the query itself."""
    if rule is None or rule.calibration is None:
        raise InputError(
            f"--min_probability {probability:g}: the model has no map to probabilities for these prompts. Make one "
            "with cosent calibrate, or give --min_score."
        )
    highest = float(rule.probabilities([model.highest_score])[0])
    if probability > highest:
        raise InputError(
            f"--min_probability {probability:g}: on {rule.corpus} the highest score has a probability of "
            f"{highest:.4f}, so nothing would ever be found. Lower it."
        )


def reranked(reranker: "TextModel", queries: Sequence[str], hits: list[list[Hit]]) -> list[list[Hit]]:
    """The hits of each query in the order of another model's scores, highest first."""
    query_of_hit = [query for query, of_query in zip(queries, hits, strict=True) for _ in of_query]
    values = reranker.similarity(query_of_hit, [hit.sentence for of_query in hits for hit in of_query])
    scores = iter(values.tolist())
    scored = [[replace(hit, rerank=next(scores)) for hit in of_query] for of_query in hits]
    return [sorted(of_query, key=attrgetter("rerank"), reverse=True) for of_query in scored]
