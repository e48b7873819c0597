"""Find the sentences of one's own file that are most similar to a query.

cosent search --model runs/faq --text questions.txt --query 怎么还款                 embeds the file once, and caches it
cosent search --model runs/faq --index vectors.npy --query 怎么还款 --rerank runs/cross

Without --query and --queries, queries are read from standard input, one a line.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice

from cosent.cli import option, refuse_below_1, run
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.inference.index import IndexArguments
from cosent.models.prompts import check_line_breaks

QUERIES = 512  # read and answered at a time


@dataclass
class SearchArguments:
    """What to find, and how."""

    query: list[str] | None = option(None, "Queries.", commas=True)
    queries: str | None = option(None, "Instead: a text file with a query per line.")
    top: int = option(10, "Sentences per query.")
    rerank: str | None = option(None, "Model that orders the candidates again, best a cross-encoder.")
    candidates: int = option(50, "Nearest sentences that --rerank reads.")
    prompt: str | None = option(
        None, 'Text in front of every query; "" for none; default: the prompt `query` of the model, or its default.'
    )
    faiss: str | None = option(
        None, "Search approximately, with this kind of index; auto: hnsw up to a million sentences, ivf above.",
        ("auto", "hnsw", "ivf"),
    )  # fmt: skip
    json: bool = option(False, "A JSON object per query.")


def main(index_args: IndexArguments, args: SearchArguments) -> None:
    check(args)  # before imports that take seconds
    resolve(index_args.model)
    from cosent.data.pairs import read_texts
    from cosent.inference.index import open_index
    from cosent.models.auto import load_model

    given = args.query or (None if args.queries is None else list(read_texts([args.queries])))
    index = open_index(index_args)
    reranker = None if args.rerank is None else load_model(args.rerank).to(index.encoder.device)
    if args.top > len(index):
        raise InputError(f"--top {args.top}: there are {len(index)} sentences. Lower it.")
    if args.faiss is not None:
        index.use_faiss(args.faiss)
    if not args.json:
        print(f"rank  {'  rerank  ' if reranker is not None else ''} cosine       row  sentence")
    if given is None:
        print(f"{len(index):,} sentences; a query a line, Ctrl-D ends", file=sys.stderr)
        for query in asked():
            answer([query], index, reranker, args)
    else:
        queries = iter(given)
        while some := list(islice(queries, QUERIES)):
            answer(some, index, reranker, args)


def check(args: SearchArguments) -> None:
    """Refuses arguments before a model is loaded.

    Raises:
        InputError: flags that do not go together, or an empty query.
    """
    if args.query and args.queries:
        raise InputError("Give --query or --queries, not both.")
    if args.query and not all(query.strip() for query in args.query):
        raise InputError(f"--query: expected what to look for, got {args.query}, with an empty one. Leave it out.")
    refuse_below_1(args, "top", "candidates")
    check_line_breaks(args.prompt and [args.prompt])


def asked() -> Iterator[str]:
    """The lines of standard input that are not empty, as soon as each is there."""
    return (line.strip() for line in iter(sys.stdin.readline, "") if line.strip())


def answer(queries: list[str], index, reranker, args: SearchArguments) -> None:
    """Prints what was found, and how long each step took."""
    from cosent.inference.index import reranked

    candidates = args.top if reranker is None else min(max(args.top, args.candidates), len(index))
    times = [time.perf_counter()]
    vectors = index.embed(queries, args.prompt)
    times.append(time.perf_counter())
    found = index.nearest(vectors, candidates)
    times.append(time.perf_counter())
    if reranker is not None:
        found = reranked(reranker, queries, found)
        times.append(time.perf_counter())
    for query, hits in zip(queries, found, strict=True):
        if args.json:
            print(json.dumps({"query": query, "hits": [asdict(hit) for hit in hits[: args.top]]}, ensure_ascii=False))
        else:
            print("\n".join([query, *lines(hits[: args.top])]))
    sys.stdout.flush()
    steps = zip(("encode", "search", "rerank"), times[:-1], times[1:], strict=False)
    took = ", ".join(f"{name} {1000 * (stop - start):.1f} ms" for name, start, stop in steps)
    print(f"{len(queries)} {'query' if len(queries) == 1 else 'queries'} in {len(index):,} sentences: {took}",
          file=sys.stderr)  # fmt: skip


def lines(hits: list) -> list[str]:
    """Rank, score of --rerank, cosine, row and sentence of each hit."""
    scores = ("" if hit.rerank is None else f"{hit.rerank:8.4f}  " for hit in hits)
    return [
        f"{rank:4}  {score}{hit.cosine:7.4f}  {hit.row:>8}  {hit.sentence}"
        for rank, (hit, score) in enumerate(zip(hits, scores, strict=True), start=1)
    ]


ARGUMENTS = (IndexArguments, SearchArguments)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
