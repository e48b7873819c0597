"""`Index`: semantic search over sentences.

index = Index.load("runs/faq", ["faq.xlsx"], text_column="question")
for hit in index.search("还款怎么操作", top=2, min_probability=0.8):      # empty: nothing found
    print(hit.cosine, hit.sentence, hit.columns["answer"])

`Index.of` takes a list of sentences.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, overload

import numpy as np

from cosent.data.files import read_rows
from cosent.data.formats import AS_USUAL, FileOptions, is_blank
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cache import sentence_vectors
from cosent.models.decision import DecisionRule, rule_for
from cosent.models.embedding import as_texts
from cosent.models.text_model import TextModel
from cosent.search.neighbours import nearest

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
        encoder: the bi-encoder that embedded the sentences, behind its prompt for documents.
        vectors: float32 of shape `(sentences, width)`, of length 1, as `cosent encode` writes them.
        sentences: the sentence of each vector.
        columns: of each sentence's row in a table; empty for sentences alone.

    Attributes:
        rule: the decision rule of the encoder, for probabilities and verdicts.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        vectors: np.ndarray,
        sentences: Sequence[str],
        columns: Sequence[dict[str, Any]] = (),
    ):
        self.encoder, self.vectors, self.sentences = encoder, vectors, sentences
        self.columns = columns or [{}] * len(sentences)
        self.rule: DecisionRule | None = None

    @classmethod
    def of(cls, sentences: str | Sequence[str], encoder: SentenceEncoder) -> "Index":
        """An index of sentences, which it embeds with the model's prompt for documents."""
        texts = as_texts(sentences)
        if not texts:
            raise InputError("There is no sentence to find. Give at least one.")
        prompt = encoder.prompts.for_search()[1]
        return cls(encoder, encoder.encode(texts, normalize_embeddings=True, prompt=prompt), texts)

    @classmethod
    def read(
        cls,
        text: Sequence[str],
        encoder: SentenceEncoder,
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
        vectors = sentence_vectors(encoder, sentences, prompt=encoder.prompts.for_search()[1])
        return cls(encoder, vectors, sentences, columns)

    @classmethod
    def load(
        cls, model: str, text: Sequence[str], text_column: str | None = None, corpus: str | None = None
    ) -> "Index":
        """As `read`, with the decision rule of the model, as `cosent search` makes it.

        Args:
            model: folder of a bi-encoder, a shipped one or a Hub id.
            corpus: whose rule to use; default: the rule for all of training.
        """
        index = cls.read(as_texts(text), SentenceEncoder.from_pretrained(model).eval(), text_column)
        index.rule, _ = rule_for(model, index.prompts(), corpus)
        return index

    def __len__(self) -> int:
        return len(self.sentences)

    def prompts(self, prompt: str | None = None, reranker: TextModel | None = None) -> tuple[str, str]:
        """Texts in front of query and sentence where the scores of `search` are computed."""
        if reranker is not None:
            return reranker.prompts.sides()
        query, document = self.encoder.prompts.for_search()
        return query if prompt is None else prompt, document

    @overload
    def search(self, queries: str, top: int = 10, *args: Any, **options: Any) -> list[Hit]: ...

    @overload
    def search(self, queries: Sequence[str], top: int = 10, *args: Any, **options: Any) -> list[list[Hit]]: ...

    def search(
        self,
        queries: str | Sequence[str],
        top: int = 10,
        prompt: str | None = None,
        reranker: TextModel | None = None,
        *,
        rule: DecisionRule | None = None,
        min_score: float | None = None,
        min_probability: float | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """The sentences that fit each query best, best first; a reranker orders the nearest ones.

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
        for number, query in enumerate(texts, start=1):
            if is_blank(query):
                raise InputError(f"Query {number} of {len(texts)} is empty. Leave it out.")
        if top < 1:
            raise InputError(f"Expected at least 1 sentence to find, got {top}.")
        if rule is None and reranker is None and self.prompts(prompt) == self.prompts():
            rule = self.rule
        if min_probability is not None:
            check_reachable(min_probability, rule, self.encoder if reranker is None else reranker)
        depth = min(top if reranker is None else max(top, RERANKED_SENTENCES), len(self))
        vectors = self.encoder.encode(texts, normalize_embeddings=True, prompt=self.prompts(prompt)[0])
        hits = [
            [Hit(row, self.sentences[row], cosine, columns=self.columns[row]) for row, cosine in zip(*of, strict=True)]
            for of in zip(*(array.tolist() for array in nearest(vectors, self.vectors, depth)), strict=True)
        ]
        if reranker is not None:
            hits = [ranked[:top] for ranked in reranked(reranker, texts, hits)]
        if rule is not None and rule.calibration is not None:
            hits = [judged(of_query, rule) for of_query in hits]
        if min_score is not None:
            hits = [[hit for hit in of_query if hit.score >= min_score] for of_query in hits]
        if min_probability is not None:
            hits = [[hit for hit in of_query if (hit.probability or 0.0) >= min_probability] for of_query in hits]
        return hits[0] if isinstance(queries, str) else hits


def judged(hits: list[Hit], rule: DecisionRule) -> list[Hit]:
    """Hits with probabilities and verdicts by a rule."""
    scores = [hit.score for hit in hits]
    judgements = zip(hits, rule.probabilities(scores).tolist(), rule.verdicts(scores), strict=True)
    return [replace(hit, probability=probability, verdict=verdict) for hit, probability, verdict in judgements]


def check_reachable(probability: float, rule: DecisionRule | None, model: TextModel) -> None:
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


def reranked(reranker: TextModel, queries: Sequence[str], hits: list[list[Hit]]) -> list[list[Hit]]:
    """The hits of each query in the order of another model's scores, highest first."""
    query_of_hit = [query for query, of_query in zip(queries, hits, strict=True) for _ in of_query]
    values = reranker.similarity(query_of_hit, [hit.sentence for of_query in hits for hit in of_query])
    scores = iter(values.tolist())
    scored = [[replace(hit, rerank=next(scores)) for hit in of_query] for of_query in hits]
    return [sorted(of_query, key=attrgetter("rerank"), reverse=True) for of_query in scored]
