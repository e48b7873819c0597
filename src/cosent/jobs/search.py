"""Find the sentences of one's own file that are most similar to a query.

cosent search --model runs/faq --text questions.txt --query 怎么还款                 embeds the file once, and caches it
cosent search --model runs/faq --index vectors.npy --query 怎么还款 --rerank runs/cross
cosent search --model runs/faq --text questions.txt --query 怎么还款 --precision 0.9 --corpus faq     or "nothing found"

Without --query and --queries, queries are read from standard input, one a line. --rerank orders the 50 nearest
sentences again.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import filterfalse, islice

from cosent.cli import option, refuse_below_1, refuse_changed
from cosent.data.formats import is_blank
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.jobs.arguments import CorpusSource, IndexArguments, open_model
from cosent.models.prompts import PromptArguments
from cosent.search.differences import COLLISION

QUERIES = 512  # read and answered at a time


@dataclass(kw_only=True)
class SearchArguments(PromptArguments, CorpusSource):
    """What to find, and how."""

    query: list[str] | None = option(None, "Queries.", commas=True)
    queries: str | None = option(None, "Instead: a text file with a query per line.")
    top: int = option(10, "Sentences per query, at most.")
    rerank: str | None = option(None, "Model that reranks, best a cross-encoder.")
    faiss: str | None = option(
        None,
        "Search approximately, with this index of faiss: what its index_factory takes, and parameters after a "
        "semicolon, as HNSW32,Flat;efSearch=128.",
        commas=True,
    )
    min_score: float | None = option(None, "Least score of a hit: its cosine, or with --rerank that of the reranker.")
    min_probability: float | None = option(
        None,
        "Least probability of a hit, by the map for --corpus that the training of the model (with --rerank: of "
        "that) found.",
    )
    json: bool = option(False, "JSON lines instead of text.")
    precision: float | None = option(
        None,
        "Answer only so that at least this share of answers is right, as estimated on the validation split of "
        "--corpus, where half of the queries have no answer.",
    )


def main(index_args: IndexArguments, args: SearchArguments) -> None:
    check(args)  # before imports that take seconds
    for model in filter(None, (index_args.model, args.rerank)):
        resolve(model)
    from cosent.data.files import read_texts
    from cosent.models.auto import load_model
    from cosent.models.cache import growing_vectors
    from cosent.models.decision import needed_rule
    from cosent.search.index import open_index

    rule, model = None, args.rerank or index_args.model
    if args.min_probability is not None:
        rule = needed_rule(model, args.corpus, "Name one with --corpus, or give --min_score.")
    encoder = open_model(index_args, bi_encoder=True)
    index = open_index(index_args.index, index_args.text, encoder, growing_vectors)
    prompt = encoder.prompts.text(*args.single()) if args.prompt or args.prompt_name else None
    reranker = None if args.rerank is None else load_model(args.rerank).to(encoder.device)
    if args.faiss is not None:
        index.use_faiss(args.faiss)
    accepts = acceptance(args, rule, index, prompt)
    if not args.json:
        print(f"rank  {'  rerank  ' if reranker is not None else ''} cosine       row  sentence")
    queries: Iterable[str] = args.query or []
    at_once = QUERIES
    if args.queries is not None:
        queries = read_texts([args.queries])
    elif args.query is None:
        print(f"{len(index):,} sentences; a query a line, Ctrl-D ends", file=sys.stderr)
        queries, at_once = filterfalse(is_blank, map(str.strip, iter(sys.stdin.readline, ""))), 1
    asked = iter(queries)
    while some := list(islice(asked, at_once)):
        answer(some, index, prompt, reranker, args, accepts)


def check(args: SearchArguments) -> None:
    """Refuses arguments before a model is loaded."""
    if args.query and args.queries:
        raise InputError("Give --query or --queries, not both.")
    if args.query and any(map(is_blank, args.query)):
        raise InputError(f"--query: got an empty one in {args.query}. Leave it out.")
    refuse_below_1(args, "top")
    args.single()
    chosen = [name for name in ("min_score", "min_probability", "precision") if getattr(args, name) is not None]
    if len(chosen) > 1:
        raise InputError(f"--{chosen[0]} and --{chosen[1]} both decide what is found. Give one of them.")
    if args.min_probability is None and args.precision is None:
        refuse_changed(args, ("corpus", "data_dir"), "--precision 0.9")
    for name in ("min_probability", "precision"):
        if (value := getattr(args, name)) is not None and not 0 < value < 1:
            raise InputError(f"--{name} must lie between 0 and 1, got {value:g}.")
    if args.precision is not None and (args.corpus is None or args.rerank or args.faiss):
        raise InputError(
            "--precision needs --corpus, labelled pairs like your queries, and an exact search by cosine "
            "alone: no --rerank and no --faiss."
        )


def acceptance(args: SearchArguments, rule, index, prompt: str | None) -> Callable[[list], list]:
    """What is left of the hits of a query, best first; nothing where the search should say that it found nothing."""
    if args.precision is not None:
        from cosent.data.corpus import load_corpus
        from cosent.search.precision import fit_rule, simulate

        assert args.corpus is not None  # see `check`
        prompts = (prompt if prompt is not None else index.encoder.prompts.for_search()[0], index.prompt)
        simulated = simulate(index.encoder, load_corpus(args.corpus, args.data_dir), "validation", prompts)
        gate = fit_rule(simulated, args.precision)
        print(
            f"answers only if cosine + {gate.lead:g} x lead >= {gate.threshold:.4f}: at least {gate.precision:.1%} "
            f"right and {gate.answered:.1%} of answerable queries answered, on {gate.queries:,} queries among "
            f"{gate.pool:,} sentences of {args.corpus} validation, half of them without an answer",
            file=sys.stderr,
        )
        return lambda hits: hits if gate.answers(hits[0].cosine, hits[1].cosine if len(hits) > 1 else -1.0) else []
    if rule is not None:
        return lambda hits: [hit for hit in hits if rule.probabilities([hit.score])[0] >= args.min_probability]
    if args.min_score is not None:
        return lambda hits: [hit for hit in hits if hit.score >= args.min_score]
    return list


def answer(
    queries: list[str], index, prompt: str | None, reranker, args: SearchArguments, accepts: Callable[[list], list]
) -> None:
    """Prints the hits of each query, and how long they took."""
    start = time.perf_counter()
    most = min(len(index), max(args.top, 2 if args.precision else 1))
    hits = index.search(queries, most, prompt, reranker)
    milliseconds = 1000 * (time.perf_counter() - start)
    for query, some in zip(queries, map(accepts, hits), strict=True):
        if args.json:
            print(json.dumps({"query": query, "hits": [asdict(hit) for hit in some[: args.top]]}, ensure_ascii=False))
            continue
        print(query if some else f"{query}\n      nothing found")
        for rank, hit in enumerate(some[: args.top], start=1):
            score = "" if hit.rerank is None else f"{hit.rerank:8.4f}  "
            note = f"  ({COLLISION})" if hit.token_collision else ""
            print(f"{rank:4}  {score}{hit.cosine:7.4f}  {hit.row:>8}  {hit.sentence}{note}")
    sys.stdout.flush()
    asked = "1 query" if len(queries) == 1 else f"{len(queries)} queries"
    print(f"{asked} in {len(index):,} sentences: {milliseconds:.1f} ms", file=sys.stderr)
