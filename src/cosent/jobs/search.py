"""Find the sentences of a file that are most similar to a query.

cosent search --model runs/faq --text questions.txt --query 怎么还款      embeds the file once, and caches its vectors
cosent search --model runs/faq --text questions.txt --query 怎么还款 --rerank runs/cross
cosent search --model runs/faq --text faq.xlsx --text_column question --query 怎么还款 --json   with the other columns
cosent search --model runs/faq --text questions.txt --query 怎么还款 --min_probability 0.8       or "nothing found"

Without --query, queries are read from standard input, one a line. --rerank reorders the 50 nearest sentences.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any

from cosent.data.formats import codec_of, is_blank, numbered, undecoded
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.flags import REQUIRED, option, refuse_below_1
from cosent.jobs.arguments import FILE_KINDS, HitLimits, ModelSource, TextColumn, open_model
from cosent.models.prompts import PromptArguments, warn_of_other_prompts

QUERIES = 512  # read and answered at a time


@dataclass(kw_only=True)
class SearchArguments(HitLimits, PromptArguments, TextColumn, ModelSource):
    """Search options."""

    text: list[str] = option(REQUIRED, f"Files of sentences: {FILE_KINDS}")
    query: list[str] | None = option(None, "Queries to answer.")
    top: int = option(10, "Most results for each query or sentence.")
    rerank: str | None = option(None, "Cross-encoder that reranks the nearest sentences.")
    corpus: str | None = option(None, "Corpus whose decision rule to use; default: the one for all of training.")
    json: bool = option(False, "Print JSON lines instead of text.")


def main(args: SearchArguments) -> None:
    check_arguments(args)  # before imports that take seconds
    for model in filter(None, (args.model, args.rerank)):
        resolve(model)
    from cosent.models.cross_encoder import CrossEncoder
    from cosent.models.decision import rule_for
    from cosent.models.folder import is_cross_encoder
    from cosent.search.index import Index

    if args.rerank is not None and not is_cross_encoder(resolve(args.rerank)):
        raise InputError(f"--rerank {args.rerank} is no cross-encoder. Name one, or search with --model {args.rerank}.")
    encoder = open_model(args, bi_encoder=True)
    index = Index.read(args.text, encoder, args.text_column, args.options)
    prompt = encoder.prompts.text(*args.single()) if args.prompt or args.prompt_name else None
    if prompt is not None:
        warn_of_other_prompts(args.model, encoder.prompts, prompt)
    reranker = None if args.rerank is None else CrossEncoder.from_pretrained(args.rerank).to(encoder.device)
    rule, reason = rule_for(args.rerank or args.model, index.prompts(prompt, reranker), args.corpus)
    if rule is None and args.min_probability is not None:
        raise InputError(f"--min_probability: {reason}. Give --min_score instead.")
    search = partial(index.search, prompt=prompt, reranker=reranker, rule=rule, **args.limits)
    if not args.json:
        likely = "" if rule is None else "probability  verdict      "
        print(f"rank  {'  rerank  ' if reranker is not None else ''} cosine  {likely}     row  sentence")
    queries, at_once = iter(args.query or []), QUERIES
    if not args.query:
        print(f"{len(index):,} sentences; a query a line, Ctrl-D ends", file=sys.stderr)
        queries = typed(args.options.encoding)
        at_once = 1 if sys.stdin.isatty() else QUERIES
    while part := list(islice(queries, at_once)):
        answer(part, search, len(index), args)


def typed(encoding: str) -> Iterator[str]:
    """The lines of standard input that are not blank; a file there is checked as files of texts are."""
    stdin: Any = sys.stdin
    if not stdin.isatty():
        stdin.reconfigure(encoding=codec_of(encoding), errors="surrogateescape")
    try:
        for number, line in numbered(iter(stdin.readline, "")):
            if fault := undecoded(line, None, encoding):
                raise InputError(f"Standard input, line {number}: {fault}. {fault.remedy}")
            if not is_blank(line):
                yield line.strip()
    except UnicodeError as error:
        raise InputError(f"Standard input is not {encoding} ({error}). Save it as UTF-8.") from error


def check_arguments(args: SearchArguments) -> None:
    """Refuses arguments before a model is loaded."""
    if args.query and any(map(is_blank, args.query)):
        raise InputError(f"--query: one of {args.query} is empty. Leave it out.")
    refuse_below_1(args, "top")
    args.single()
    args.check_limits()


def answer(queries: list[str], search: Callable, sentences: int, args: SearchArguments) -> None:
    """Prints the hits of each query, and how long they took."""
    start = time.perf_counter()
    hits = search(queries, min(sentences, args.top))
    milliseconds = 1000 * (time.perf_counter() - start)
    for query, ranked in zip(queries, hits, strict=True):
        if args.json:
            row = {"query": query, "hits": [asdict(hit) for hit in ranked]}
            print(json.dumps(row, ensure_ascii=False, default=str))
            continue
        print(query if ranked else f"{query}\n      nothing found")
        for rank, hit in enumerate(ranked, start=1):
            score = "" if hit.rerank is None else f"{hit.rerank:8.4f}  "
            likely = "" if hit.verdict is None else f"     {hit.probability:6.4f}  {hit.verdict:<11}  "
            print(f"{rank:4}  {score}{hit.cosine:7.4f}  {likely}{hit.row:>8}  {hit.sentence}")
    sys.stdout.flush()
    number = "1 query" if len(queries) == 1 else f"{len(queries)} queries"
    print(f"{number} in {sentences:,} sentences: {milliseconds:.1f} ms", file=sys.stderr)
