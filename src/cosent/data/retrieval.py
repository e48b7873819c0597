"""`RetrievalTask`: the sentences of a split to be searched, and which of them each should find."""

import hashlib
import json
import logging
from dataclasses import dataclass, replace

import numpy as np

from cosent.cli import option, refuse_changed
from cosent.data.corpus import Corpus
from cosent.data.files import (
    DOCUMENT_ID_NAMES,
    ID_NAMES,
    LABEL_NAMES,
    QUERY_ID_NAMES,
    TEXT_NAMES,
    LabelColumn,
    open_table,
)
from cosent.errors import InputError
from cosent.evaluation.retrieval import Relevance, sampled

MOST_CONNECTED = 5_000_000  # pairs of connected sentences that are listed, in about 1 GiB


def pool_and_relevance(
    corpus: Corpus, split: str, from_label: float | None = None, closure: bool = False, whole_pool: bool = False
) -> tuple[list[str], Relevance, np.ndarray]:
    """The distinct sentences of a split, and for each that is labelled similar to others, which ones.

    Every sentence of a similar pair is a query for the other one. The gain of a sentence is its label: 1 of binary
    labels. Of a pair that is labelled more than once, the greatest label is kept; a sentence with itself is no pair.

    Args:
        from_label: least label of similar sentences; default: `Manifest.similar_from`.
        closure: also take sentences as similar that are connected by similar pairs, with gain 1.
        whole_pool: retrieve among the sentences of all splits; the queries stay those of `split`.

    Returns:
        The pool; its queries, whose `Relevance.items` are places in it; and the places of the sentences of each pair of
        the split, int64 of shape `(pairs, 2)`.
    """
    from cosent.data.groups import similar

    least = corpus.manifest.similar_from if from_label is None else from_label
    if least <= 0:
        raise InputError(f"The least label of similar sentences must be above 0, got {least:g}: labels are gains.")
    rows = corpus.split(split)
    splits = [rows, *(other for name, other in corpus.splits.items() if whole_pool and name != split)]
    place: dict[str, int] = {}
    for part in splits:
        for name in ("sentence1", "sentence2"):
            for sentence in part[name][:]:
                place.setdefault(sentence, len(place))
    labels = corpus.labels(split)
    places = np.array([[place[s] for s in rows[name][:]] for name in ("sentence1", "sentence2")]).T
    first, second = places.T
    to_find = similar(labels, least) & (first != second)
    if not to_find.any():
        raise InputError(
            f"{corpus.folder} {split} has no pair of different sentences with a label of at least {least:g}. Name "
            "another split or a lower label."
        )
    first, second, labels = first[to_find], second[to_find], labels[to_find].astype(np.float64)
    if closure:
        first, second, labels = connected(first, second, len(place))
    known = relevance(np.r_[first, second], np.r_[second, first], np.r_[labels, labels])
    return list(place), known, places


def connected(first: np.ndarray, second: np.ndarray, sentences: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pairs of sentences that are connected by the given pairs, each once, with labels of 1."""
    from cosent.data.groups import components

    component = components(first, second, sentences)
    members = np.unique(np.r_[first, second])
    sizes = np.unique(component[members], return_counts=True)[1]
    count = int((sizes * (sizes - 1) // 2).sum())
    if count > MOST_CONNECTED:
        raise InputError(
            f"--retrieval_closure: similar pairs connect {count:,} pairs of sentences (largest group: {sizes.max():,} "
            f"sentences), over {MOST_CONNECTED:,}. Leave it out, or raise --retrieval_from."
        )
    groups = np.split(members[np.argsort(component[members], kind="stable")], np.cumsum(sizes)[:-1])
    pairs = np.concatenate([group[np.stack(np.triu_indices(len(group), 1), axis=1)] for group in groups])
    return pairs[:, 0], pairs[:, 1], np.ones(len(pairs))


def relevance(query: np.ndarray, item: np.ndarray, gain: np.ndarray) -> Relevance:
    """`Relevance` of pairs of query and item in any order; of repeated ones the greatest gain is kept."""
    order = np.lexsort((-gain, item, query))
    query, item, gain = query[order], item[order], gain[order]
    new = np.r_[True, (query[1:] != query[:-1]) | (item[1:] != item[:-1])]
    query, item, gain = query[new], item[new], gain[new]
    queries, starts = np.unique(query, return_index=True)
    return Relevance(queries, np.r_[starts, len(query)], item, gain)


@dataclass
class RetrievalArguments:
    """Retrieval, measured next to Spearman: which similar sentences a bi-encoder finds among those of a split."""

    retrieval: bool = option(True, "bi_encoder: measure Recall@1, 5 and 10, MRR@10, nDCG@10 and MAP too.")
    retrieval_pool: str = option("split", "Sentences to search: those of the split or of all.", ("split", "all"))
    retrieval_from: float | None = option(
        None, "Least label of sentences that are to be found; default: that of the corpus (1 of 0 and 1, 4 of 0..5)."
    )
    retrieval_closure: bool = option(False, "Sentences that are connected by similar pairs are to be found too.")

    def __post_init__(self):
        if not self.retrieval:
            refuse_changed(self, ("retrieval_pool", "retrieval_from", "retrieval_closure"), "--retrieval true")
        if self.retrieval_from is not None and self.retrieval_from <= 0:
            raise InputError(f"--retrieval_from must be above 0, got {self.retrieval_from:g}: labels are gains.")


logger = logging.getLogger(__name__)

MOST_QUERIES = 20_000  # of a larger split some are drawn: the search stays much cheaper than the embedding


@dataclass(frozen=True)
class RetrievalTask:
    """The pool and the queries of a split.

    Args:
        pool: distinct sentences, those of the split first.
        relevance: queries and what each should find, as places in the pool; at most `MOST_QUERIES`.
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


def retrieval_task(corpus: Corpus, split: str, args: RetrievalArguments) -> RetrievalTask | None:
    """The task of a split; None, with a line in the log, if no pair of it is labelled similar."""
    try:
        pool, relevance, places = pool_and_relevance(
            corpus, split, args.retrieval_from, args.retrieval_closure, args.retrieval_pool == "all"
        )
    except InputError as error:
        logger.warning("No retrieval metrics: %s", error)
        return None
    return RetrievalTask(pool, sampled(relevance, MOST_QUERIES), places)


@dataclass(frozen=True)
class Judged:
    """Queries, documents and judgements of files: which documents each query should find.

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

    Raises:
        InputError: an identifier that is there twice or nowhere, a negative score, or no relevant document at all.
    """
    query_place, query_texts = read_identified(queries, "--queries")
    document_place, document_texts = read_identified(documents, "--documents")
    table = open_table(qrels, None, (QUERY_ID_NAMES, DOCUMENT_ID_NAMES, LABEL_NAMES), "", "--qrels")
    query_column, document_column, score_column = table.sentences
    gains = LabelColumn(table.path, score_column)
    sides = ((query_column, query_place, queries), (document_column, document_place, documents))
    judgements = []
    for number, row in enumerate(replace(table, sentences=()).rows([*table.sentences]), start=1):
        gain = gains.read(row, number)
        if gain < 0:
            raise InputError(f"{qrels}, judgement {number}: a score must be 0 or more, got {gain:g}. Correct it.")
        for column, place, path in sides:
            if str(row[column]) not in place:
                raise InputError(f"{qrels}, judgement {number}: {path} has no {str(row[column])!r} ({column}).")
        judgements.append((query_place[str(row[query_column])], document_place[str(row[document_column])], gain))
    query, document, gain = np.array(judgements, dtype=np.float64).T
    relevant = gain > 0
    if not relevant.any():
        raise InputError(f"{qrels}: no document has a score above 0, so that there is nothing to find.")
    known = relevance(query[relevant].astype(np.int64), document[relevant].astype(np.int64), gain[relevant])
    unanswered = len(query_texts) - len(known)
    if unanswered:
        logger.warning("%s: %d queries have no relevant document and are left out.", qrels, unanswered)
    asked = [query_texts[place] for place in known.queries]
    return Judged(asked, document_texts, replace(known, queries=np.arange(len(asked))))


def read_identified(path: str, flag: str) -> tuple[dict[str, int], list[str]]:
    """The texts of a file of queries or documents, and the place of each identifier among them."""
    table = open_table(path, None, (ID_NAMES, (*TEXT_NAMES, "query", "document", "passage")), "", flag)
    identifier, text = table.sentences
    title = "title" if "title" in table.names else None
    columns = [name for name in (identifier, text, title) if name]
    place: dict[str, int] = {}
    texts: list[str] = []
    rows = replace(table, sentences=(text,)).rows(columns, keep_empty=title is not None)
    for number, row in enumerate(rows, start=1):
        if place.setdefault(str(row[identifier]), len(texts)) < len(texts):
            raise InputError(f"{path}, row {number}: {identifier} {row[identifier]!r} stands there twice. Remove one.")
        texts.append(f"{(title and row[title]) or ''} {row[text]}".strip())
        if not texts[-1]:
            raise InputError(f"{path}, row {number}: expected a text, got an empty one. Remove it.")
    return place, texts
