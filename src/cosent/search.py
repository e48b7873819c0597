"""Find the sentences of one's own file that are most similar to a query.

cosent search --model runs/faq --text questions.txt --query 怎么还款                 embeds the file once, and caches it
cosent search --model runs/faq --index vectors.npy --query 怎么还款 --rerank runs/cross

Without --query and --queries, queries are read from standard input, one a line.
"""

import json
import sys
import time
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
    from cosent.compute.onednn import choose_device
    from cosent.data.pairs import read_texts
    from cosent.inference.index import open_index
    from cosent.models.auto import load_bi_encoder, load_model
    from cosent.models.teacher import sentence_vectors

    device = choose_device(index_args.device)
    index = open_index(index_args, load_bi_encoder(index_args.model).to(device), sentence_vectors)
    reranker = None if args.rerank is None else load_model(args.rerank).to(device)
    if args.top > len(index):
        raise InputError(f"--top {args.top}: there are {len(index)} sentences. Lower it.")
    if args.faiss is not None:
        index.use_faiss(args.faiss)
    if not args.json:
        print(f"rank  {'  rerank  ' if reranker is not None else ''} cosine       row  sentence")
    queries, at_once = args.query, QUERIES
    if args.queries is not None:
        queries = read_texts([args.queries])
    elif queries is None:
        print(f"{len(index):,} sentences; a query a line, Ctrl-D ends", file=sys.stderr)
        queries, at_once = filter(None, map(str.strip, iter(sys.stdin.readline, ""))), 1
    queries = iter(queries)
    while some := list(islice(queries, at_once)):
        answer(some, index, reranker, args)


def check(args: SearchArguments) -> None:
    """Refuses arguments before a model is loaded."""
    if args.query and args.queries:
        raise InputError("Give --query or --queries, not both.")
    if args.query and not all(query.strip() for query in args.query):
        raise InputError(f"--query: got an empty one in {args.query}. Leave it out.")
    refuse_below_1(args, "top", "candidates")
    check_line_breaks(args.prompt and [args.prompt])


def answer(queries: list[str], index, reranker, args: SearchArguments) -> None:
    """Prints the hits of each query, and how long each step took."""
    from cosent.inference.index import reranked

    times = {"encode": time.perf_counter()}
    vectors = index.embed(queries, args.prompt)
    times["search"] = time.perf_counter()
    hits = index.nearest(vectors, args.top if reranker is None else min(max(args.top, args.candidates), len(index)))
    if reranker is not None:
        times["rerank"] = time.perf_counter()
        hits = reranked(reranker, queries, hits)
    ends = [*list(times.values())[1:], time.perf_counter()]
    for query, some in zip(queries, hits, strict=True):
        if args.json:
            print(json.dumps({"query": query, "hits": [asdict(hit) for hit in some[: args.top]]}, ensure_ascii=False))
            continue
        print(query)
        for rank, hit in enumerate(some[: args.top], start=1):
            score = "" if hit.rerank is None else f"{hit.rerank:8.4f}  "
            print(f"{rank:4}  {score}{hit.cosine:7.4f}  {hit.row:>8}  {hit.sentence}")
    sys.stdout.flush()
    steps = ", ".join(f"{name} {1000 * (end - times[name]):.1f} ms" for name, end in zip(times, ends, strict=True))
    asked = "1 query" if len(queries) == 1 else f"{len(queries)} queries"
    print(f"{asked} in {len(index):,} sentences: {steps}", file=sys.stderr)


ARGUMENTS = (IndexArguments, SearchArguments)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
