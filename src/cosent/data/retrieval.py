"""Retrieval tasks: sentences of a split with their similar ones, or judged queries and documents."""

import hashlib
import json
import logging
from dataclasses import dataclass, replace

import numpy as np

from cosent.cli import option, refuse_changed
from cosent.data.corpus import Corpus, labels_of
from cosent.data.files import (
    DOCUMENT_ID_NAMES,
    ID_NAMES,
    LABEL_NAMES,
    QUERY_ID_NAMES,
    TEXT_NAMES,
    number_of,
    open_table,
)
from cosent.data.formats import is_blank
from cosent.data.manifest import Labels
from cosent.errors import InputError
from cosent.evaluation.retrieval import Relevance, sampled

logger = logging.getLogger(__name__)

MOST_SPLIT_QUERIES = 20_000  # of a larger split some are drawn: the search stays much cheaper than the embedding


@dataclass
class RetrievalArguments:
    """Retrieval metrics on the sentences of a split."""

    retrieval: bool = option(True, "bi_encoder: measure Recall@1, 5 and 10, MRR@10, nDCG@10 and MAP too.")
    retrieval_from: float | None = option(
        None, "Lowest label of a sentence to find; default: that of the corpus (1 of 0 and 1, 4 of 0..5)."
    )

    def __post_init__(self):
        if not self.retrieval:
            refuse_changed(self, ("retrieval_from",), "--retrieval true")
        if self.retrieval_from is not None and self.retrieval_from <= 0:
            raise InputError(f"--retrieval_from must be above 0, got {self.retrieval_from:g}. Raise it, e.g. to 1.")


@dataclass(frozen=True)
class RetrievalTask:
    """The pool and the queries of a split.

    Args:
        pool: distinct sentences of the split.
        relevance: queries and what each should find, as places in the pool; at most `MOST_SPLIT_QUERIES`.
        places: int64 of shape `(pairs, 2)`: places in the pool of the sentences of each pair of the split.
    """

    pool: list[str]
    relevance: Relevance
    places: np.ndarray

    @property
    def size(self) -> dict[str, int]:
        return {"queries": len(self.relevance), "pool": len(self.pool)}

    @property
    def digest(self) -> str:
        """Identity of pool, queries and relevant sentences: results of equal ones can be compared query by query."""
        known = hashlib.sha256(json.dumps(self.pool, ensure_ascii=False).encode())
        for array in (self.relevance.queries, self.relevance.starts, self.relevance.items, self.relevance.gains):
            known.update(np.ascontiguousarray(array).tobytes())
        return known.hexdigest()


def retrieval_task(rows, labels: Labels, where: str, from_label: float | None = None) -> RetrievalTask | None:
    """The task of rows with the columns of the contract; None, with a line in the log, if no pair is labelled similar.

    Args:
        where: the rows, in words.
        from_label: least label of similar sentences, above 0; default: `Labels.similar_from`.
    """
    try:
        pool, relevance, places = pool_of_rows(rows, labels.similar_from if from_label is None else from_label, where)
    except InputError as error:
        logger.warning("No retrieval metrics: %s", error)
        return None
    return RetrievalTask(pool, sampled(relevance, MOST_SPLIT_QUERIES), places)


def pool_and_relevance(
    corpus: Corpus, split: str, from_label: float | None = None
) -> tuple[list[str], Relevance, np.ndarray]:
    """`pool_of_rows` of a split; by default, sentences are similar from `Labels.similar_from`."""
    least = corpus.manifest.similar_from if from_label is None else from_label
    return pool_of_rows(corpus.split(split), least, f"{corpus.folder} {split}")


def pool_of_rows(rows, least: float, where: str) -> tuple[list[str], Relevance, np.ndarray]:
    """Distinct sentences of pairs, and the similar ones of each.

    Every sentence of a similar pair is a query for the other one. The gain of a sentence is its label: 1 of binary
    labels. Of a pair that is labelled more than once, the greatest label is kept; a sentence with itself is no pair.

    Args:
        least: least label of similar sentences, above 0.

    Returns:
        The pool; its queries, whose `Relevance.items` are places in it; and the places of the sentences of each pair,
        int64 of shape `(pairs, 2)`.
    """
    from cosent.data.groups import similar

    labels = labels_of(rows)
    place: dict[str, int] = {}
    columns = ([place.setdefault(s, len(place)) for s in rows[name][:]] for name in ("sentence1", "sentence2"))
    places = np.array(list(columns)).T
    to_find = similar(labels, least) & (places[:, 0] != places[:, 1])
    if not to_find.any():
        raise InputError(f"{where} has no two different sentences with a label from {least:g}. Add --retrieval false.")
    (first, second), gains = places[to_find].T, labels[to_find].astype(np.float64)
    return list(place), relevant_rows(np.r_[first, second], np.r_[second, first], np.r_[gains, gains]), places


def relevant_rows(query: np.ndarray, item: np.ndarray, gain: np.ndarray) -> Relevance:
    """`Relevance` of pairs of query and item in any order; of repeated ones the greatest gain is kept."""
    order = np.lexsort((-gain, item, query))
    query, item, gain = query[order], item[order], gain[order]
    new = np.r_[True, (query[1:] != query[:-1]) | (item[1:] != item[:-1])]
    query, item, gain = query[new], item[new], gain[new]
    queries, starts = np.unique(query, return_index=True)
    return Relevance(queries, np.r_[starts, len(query)], item, gain)


@dataclass(frozen=True)
class Judged:
    """Queries, documents and relevance judgements read from files.

    Args:
        queries: texts of the queries with a relevant document.
        documents: texts of all documents.
        relevance: what each query should find, as places in `documents`; `Relevance.queries` are places in `queries`.
    """

    queries: list[str]
    documents: list[str]
    relevance: Relevance


def read_judged(queries: str, documents: str, qrels: str) -> Judged:
    """Reads files in the layout of BEIR: columns `_id` and `text`, and for qrels `query-id`, `corpus-id`, `score`.

    A document's title stands in front of its text, as in BEIR. Documents with a score of 0 are not relevant; queries
    without a relevant one are left out, with a line in the log.

    Source: Thakur et al. 2021, BEIR, arXiv 2104.08663.
    """
    texts = {path: read_identified(path, flag) for path, flag in ((queries, "--queries"), (documents, "--documents"))}
    place = {path: {name: number for number, name in enumerate(some)} for path, some in texts.items()}
    table = open_table(qrels, None, (QUERY_ID_NAMES, DOCUMENT_ID_NAMES, LABEL_NAMES), "", "--qrels")
    judgements, score = [], table.sentences[2]
    for where, row in replace(table, sentences=()).placed(table.sentences):
        gain = number_of(row[score])
        if gain is None or gain < 0:
            raise InputError(f"{where}: expected a number from 0 as the {score}, got {row[score]!r}. Correct it.")
        for column, path in zip(table.sentences, (queries, documents), strict=False):
            if (name := str(row[column])) not in place[path]:
                raise InputError(f"{where}: {path} has no {name!r}, its {column}. Add its text, or remove the line.")
        if gain > 0:
            query, document = (str(row[column]) for column in table.sentences[:2])
            judgements.append((place[queries][query], place[documents][document], gain))
    if not judgements:
        raise InputError(f"{qrels}: every {score} is 0, so that no document is relevant. Name judgements above 0.")
    query_places, document_places, scores = np.array(judgements).T
    known = relevant_rows(query_places.astype(np.int64), document_places.astype(np.int64), scores)
    if unanswered := len(texts[queries]) - len(known):
        logger.warning("%s: %d queries have no relevant document and are left out.", qrels, unanswered)
    asked, all_documents = list(texts[queries].values()), list(texts[documents].values())
    return Judged([asked[i] for i in known.queries], all_documents, replace(known, queries=np.arange(len(known))))


def read_identified(path: str, flag: str) -> dict[str, str]:
    """The texts of a file of queries or documents by their identifiers, in its order."""
    table = open_table(path, None, (ID_NAMES, (*TEXT_NAMES, "query", "document", "passage")), "", flag)
    identifier, text = table.sentences
    titled = "title" in table.names
    columns = [identifier, text, "title"] if titled else [identifier, text]
    texts: dict[str, str] = {}
    for where, row in replace(table, sentences=(text,)).placed(columns, keep_empty=titled):
        name, content = str(row[identifier]), f"{(row['title'] if titled else '') or ''} {row[text]}".strip()
        if name in texts or is_blank(content):
            wrong = f"the {identifier} {name!r} occurs above" if name in texts else "expected a text, got an empty one"
            raise InputError(f"{where}: {wrong}. Remove it.")
        texts[name] = content
    return texts
