"""Serve models over HTTP: embeddings, reranking, similarities with probability and verdict, search in your own file.

cosent serve --model runs/faq                                    http://127.0.0.1:8000, until Ctrl-C
cosent serve --model runs/faq --rerank runs/cross --port 8080
cosent serve --model runs/faq --text faq.xlsx --text_column question --precision 0.8      /search, and "nothing found"
curl -s localhost:8000/similarity -H 'Content-Type: application/json' -d '{"pairs": [["怎么还款", "如何还款"]]}'

/v1/embeddings has the shape of OpenAI's, /embed that of TEI, /rerank, of --model unless there is --rerank, those of TEI
("texts") and of Jina and Cohere ("documents"). /search answers as `cosent search` does, from files that may grow. What
several clients ask at a time is computed in one packed batch. Requests need the key of COSENT_API_KEY, if it is set.
"""

import asyncio
import base64
import json
import logging
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from cosent.cli import option, refuse_changed
from cosent.compute.batches import WAITING, Batches
from cosent.data.files import OF_FILES
from cosent.data.formats import as_text, is_blank
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.jobs.arguments import FILE_KINDS, HitLimits, Int8, ModelSource, TextColumn, open_model
from cosent.search.differences import collisions

logger = logging.getLogger(__name__)

KEY_VARIABLE = "COSENT_API_KEY"
MOST_TEXTS, MOST_CHARACTERS, MOST_BYTES = 2048, 20_000, 8 * 2**20  # of a request; of a text; of a request
MOST_PAIRED = 4 * 2**20  # characters of all pairs of a request, of which the query of /rerank is in each
MOST_TOP, MOST_HITS = 100, 20_480  # hits of a query; of a request
JSON = "application/json"
PATIENCE = 30  # seconds: a client that sends or reads nothing whole for so long is cut off
GRACE = 5  # seconds for the requests that are being computed at SIGTERM


@dataclass(kw_only=True)
class ServeArguments(HitLimits, TextColumn, Int8, ModelSource):
    """Server options."""

    text: list[str] | None = option(None, f"Files of sentences for /search: {FILE_KINDS}")
    rerank: str | None = option(None, "Model that reranks, ideally a cross-encoder.")
    corpus: str | None = option(None, "Corpus whose decision rule to use; default: the one for all of training.")
    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 accepts other machines.")
    port: int = option(8000, "Port to listen on.")
    rerank_scores: Literal["calibrated", "sigmoid", "raw"] | None = option(
        None,
        "Scores of /rerank: probabilities, 0 to 1, or the model's own; default: calibrated if it can, else sigmoid.",
    )
    dimensions: list[int] | None = option(
        None, "Shorter vectors that requests may ask for, of a model trained for them; after merge --pca_dim, any are."
    )
    cors: list[str] | None = option(
        None, "Origins of web pages that may send requests, e.g. https://me.org, or *.", commas=True
    )


def main(args: ServeArguments) -> None:
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise InputError("cosent serve needs FastAPI and uvicorn. Run pip install -e '.[serve]'.")
    if args.text is None:
        refuse_changed(args, ("text_column", *OF_FILES, "min_score", "min_probability", "precision"), "--text FILE")
    elif args.int8:
        raise InputError("--int8 with --text: vectors of files are cached by float32 weights. Leave one of them out.")
    args.check_limits()
    key = key_of(os.environ.get(KEY_VARIABLE))  # before imports that take seconds
    for model in filter(None, (args.model, args.rerank)):
        resolve(model)
    import uvicorn

    from cosent.models.bundle import Bundle
    from cosent.models.decision import choose_rule, decision_rules

    def load(path: str):
        if Path(path, "bundle.json").is_file():
            try:
                return Bundle(path)
            except ValueError as error:
                raise InputError(str(error)) from error
        return open_model(replace(args, model=path))

    models = [load(path) for path in dict.fromkeys(filter(None, (args.model, args.rerank)))]
    rules = [choose_rule(decision_rules(path), args.corpus, path) for path in (args.model, args.rerank or args.model)]
    live = None if args.text is None else open_live(args, models[0], models[1] if len(models) > 1 else None, rules[1])
    app = build(
        args.model,
        models[0],
        models[-1],
        rules[0],
        key,
        rules[1],
        args.rerank_scores,
        args.cors or (),
        live,
        tuple(args.limits.items()),
        args.dimensions or (),
    )
    limits: dict[str, Any] = {"http": protocol(), "ws": "none", "timeout_graceful_shutdown": GRACE}
    asked = 'similarity answers {"pairs": [["好", "很好"]]}' if live is None else 'search answers {"query": "怎么还款"}'
    logger.info("http://%s:%d/%s (Ctrl-C ends)", args.host, args.port, asked)
    uvicorn.run(app, host=args.host, port=args.port, log_level="warning", access_log=False, **limits)


def open_live(args: ServeArguments, model, reranker, rule):
    """The `LiveIndex` of `--text`; refuses limits that it cannot keep."""
    from cosent.models.bi_encoder import SentenceEncoder
    from cosent.models.bundle import Bundle
    from cosent.models.cache import growing_vectors
    from cosent.search.index import open_index
    from cosent.search.live import LiveIndex

    if not isinstance(model, SentenceEncoder) or isinstance(reranker, Bundle):
        raise InputError("--text needs a bi-encoder as --model, and no exported bundle. Name the folder of training.")
    paths = args.text or []
    column, options = args.text_column, args.options
    live = LiveIndex(lambda: open_index(None, paths, model, growing_vectors, column, options), paths, rule, reranker)
    if args.precision is not None:
        logger.info("%s", live.index.gate(args.precision, rule, None, reranker))
    (problem,) = live.answers([(live.index.sentences[0], 1, tuple(args.limits.items()))])
    if isinstance(problem, InputError):
        raise problem
    return live


def key_of(value: str | None) -> str | None:
    """The key, None if the variable is not set; spaces around it, which no header carries, are not part of it."""
    key = value if value is None else value.strip()
    if key is not None and not (key and key.isascii() and key.isprintable()):
        raise InputError(f"{KEY_VARIABLE} is empty or holds other characters than ASCII. Unset it, or set another key.")
    return key


def vectors_by(model) -> Callable[[list], list]:
    """A function of texts: the vector of each, and how many tokens the model read of it."""

    def compute(texts: list) -> list[tuple[np.ndarray, int]]:
        vectors = model.encode(texts, normalize_embeddings=False).astype("<f4")
        if not np.isfinite(vectors).all():
            raise ValueError("the model returns nan or inf")
        return list(zip(vectors, map(len, model.token_ids(texts)), strict=True))

    return compute


def unit(vector: np.ndarray, width: int | None = None) -> np.ndarray:
    """The first `width` numbers of a vector, scaled to length 1."""
    vector = vector[:width]
    return vector / max(float(np.linalg.norm(vector)), 1e-12)


def scores_by(model) -> Callable[[list], list]:
    """A function of pairs of texts: the score of each, and whether the model cannot tell its texts apart."""

    def compute(pairs: list) -> list[tuple[float, bool]]:
        sides = [list(side) for side in zip(*pairs, strict=True)]
        return list(zip(model.similarity(*sides).tolist(), collisions(model, *sides), strict=True))

    return compute


def listed(texts: Any) -> Any:
    """The texts of `input` or `inputs`, which may be a single one."""
    if isinstance(texts, list) and texts and isinstance(texts[0], int | list):
        raise ValueError("send texts, not token ids; in langchain-openai, set check_embedding_ctx_length=False")
    return [texts] if isinstance(texts, str) else texts


def text_of(document: Any) -> Any:
    """The text of a document, which may be an object with a field `text`."""
    return document.get("text") if isinstance(document, dict) else document


def not_blank(text: str) -> str:
    """The text; `ValueError` if it is blank, since its vector would mean nothing."""
    if is_blank(text):
        raise ValueError("the text is blank")
    return text


def protocol() -> type[asyncio.Protocol]:
    """uvicorn's protocol for a connection, which ends if it waits for the client for `PATIENCE` to twice as long."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Patient(H11Protocol):
        def connection_made(self, transport):
            super().connection_made(transport)
            self.next_check = self.loop.call_later(PATIENCE, self.check, None)

        def connection_lost(self, exc):
            self.next_check.cancel()
            super().connection_lost(exc)

        def check(self, before):
            """Ends the connection if it still waits for the same request, or for the same bytes to be read."""
            unread = self.transport.get_write_buffer_size()
            computing = self.cycle is not None and not (self.cycle.more_body or self.cycle.response_complete)
            now = None if computing and not unread else (self.cycle, unread)
            if now is not None and now == before:
                self.transport.abort()
            self.next_check = self.loop.call_later(PATIENCE, self.check, now)

    return Patient


def build(
    name: str,
    model,
    reranker,
    rule=None,
    key: str | None = None,
    rerank_rule=None,
    rerank_scores: str | None = None,
    cors: Sequence[str] = (),
    live=None,
    limits: tuple[tuple[str, float], ...] = (),
    dimensions: Sequence[int] = (),
):
    """The FastAPI application.

    Args:
        name: of the model, in answers.
        model, reranker: any `TextModel` or `Bundle`; the same one may be both.
        rule: the `DecisionRule` of `/similarity`.
        key: token that requests need.
        rerank_rule: the `DecisionRule` of the reranker, if it has one.
        rerank_scores: `calibrated`, `sigmoid` or `raw`; default: the first of them that the reranker has.
        cors: origins of pages that may read the answers.
        live: the `LiveIndex` of `/search`.
        limits: of its hits, where a request has none, as name and value.
        dimensions: widths that a vector may be cut to.
    """
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.middleware.cors import CORSMiddleware
    from fastapi.responses import JSONResponse, PlainTextResponse, Response
    from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
    from pydantic_core import to_json
    from starlette.exceptions import HTTPException

    Text = Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS), AfterValidator(not_blank)]
    number = Field(min_length=1, max_length=MOST_TEXTS)
    Texts = Annotated[list[Text], number]
    Share = Annotated[float, Field(gt=0, lt=1)]

    class Embeddings(BaseModel):
        input: Annotated[Texts, BeforeValidator(listed)]
        model: str | None = None
        encoding_format: Literal["float", "base64"] = "float"
        dimensions: int | None = None

    class Embed(BaseModel):
        inputs: Annotated[Texts, BeforeValidator(listed)]
        normalize: bool = True
        dimensions: int | None = None

    class Rerank(BaseModel):
        query: Text
        texts: Texts | None = None
        documents: Annotated[list[Annotated[Text, BeforeValidator(text_of)]], number] | None = None
        top_n: int | None = Field(None, ge=0)
        top_k: int | None = Field(None, ge=0)
        return_documents: bool | None = False
        return_text: bool | None = False
        raw_scores: bool | None = False

    class Similarity(BaseModel):
        pairs: Annotated[list[tuple[Text, Text]], number]

    class Search(BaseModel):
        query: Text | None = None
        queries: Texts | None = None
        top: int = Field(10, ge=1, le=MOST_TOP)
        min_score: float | None = Field(None, allow_inf_nan=False)
        min_probability: Share | None = None
        precision: Share | None = None

    width = getattr(model, "embedding_dimension", None)
    if wrong := [one for one in dimensions if not 1 <= one <= (width or 0)]:
        raise InputError(f"--dimensions {wrong[0]}: the vectors of {name} have {width or 0} numbers. Name fewer.")
    widths = range(1, width + 1) if width and model.nested else sorted({*dimensions, width or 0})
    embeddings = Batches(vectors_by(model), model.max_length) if width else None
    similarities = Batches(scores_by(model), model.max_length)
    reranking = similarities if reranker is model else Batches(scores_by(reranker), reranker.max_length)
    searching = None if live is None else Batches(live.answers, model.max_length, lambda one: len(one[0]))
    queues = {embeddings, similarities, reranking, searching} - {None}

    rerank_scores = rerank_scores or ("sigmoid" if rerank_rule is None else "calibrated")
    if rerank_scores == "calibrated" and rerank_rule is None:
        raise InputError("--rerank_scores calibrated: the reranker has no calibration. Take sigmoid or raw.")

    def reranked(scores: Sequence[float]) -> Sequence[float]:
        """Scores as --rerank_scores has them, in the same order."""
        if rerank_scores == "raw":
            return scores
        if rerank_scores == "calibrated":
            return rerank_rule.probabilities(scores).tolist()
        from cosent.evaluation.calibration import sigmoid

        logits = np.asarray(scores, np.float64)
        cosines = getattr(reranker, "embedding_dimension", None)
        return ((1 + logits) / 2 if cosines else sigmoid(logits)).tolist()

    @asynccontextmanager
    async def lifespan(app):
        tasks = [asyncio.create_task(one.run()) for one in queues]
        if live is not None:  # a daemon: the server does not wait for it
            threading.Thread(target=live.watch, daemon=True).start()
        yield
        if live is not None:
            live.stopped.set()
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    app = FastAPI(title="cosent", lifespan=lifespan, docs_url=None, redoc_url=None)

    def refusal(status: int, message: str, field: str | None = None, headers=None):
        """An error in OpenAI's shape, whose clients show the message."""
        kind = "invalid_request_error" if status < 500 else "server_error"
        error = {"message": message, "type": kind, "param": field, "code": status}
        return JSONResponse({"error": error}, status, headers)

    def unauthorised(headers) -> Any:
        """A refusal if a request has not the key."""
        given = headers.get(b"authorization", b"").removeprefix(b"Bearer ").strip()
        right = key is None or secrets.compare_digest(given, key.encode())
        return None if right else refusal(401, "the bearer token is missing or wrong")

    served: Counter[tuple[str, int]] = Counter()
    app.add_middleware(Gate, unauthorised=unauthorised, served=served)
    if cors:
        app.add_middleware(CORSMiddleware, allow_origins=list(cors), allow_methods=["*"], allow_headers=["*"])

    @app.exception_handler(RequestValidationError)
    async def invalid(request, error):  # without the input, which may not even be UTF-8
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"])).removeprefix("body.")
        return refusal(422, f"{field}: {problem['msg']}", field)

    app.exception_handler(HTTPException)(
        lambda request, error: refusal(error.status_code, error.detail, headers=error.headers)
    )
    app.exception_handler(InputError)(lambda request, error: refusal(400, str(error)))
    app.exception_handler(Exception)(lambda request, error: refusal(500, "the model failed: see the server's output"))
    app.exception_handler(asyncio.QueueFull)(
        lambda request, error: refusal(503, f"{WAITING} requests are waiting already; try again")
    )

    app.exception_handler(ConnectionAbortedError)(lambda request, error: refusal(499, "the client has gone"))

    app.exception_handler(InterruptedError)(lambda request, error: refusal(503, "the server is stopping; try again"))

    @app.get("/health")
    async def health():
        return {"status": "ok", "model": name}

    @app.get("/v1/models")
    async def models():
        return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "cosent"}]}

    @app.get("/info")
    async def info():
        kind = {"embedding": {}} if width else {"reranker": {}}
        lengths = {"max_input_length": model.max_length, "max_client_batch_size": MOST_TEXTS}
        return {"model_id": name, "model_type": kind, **lengths, "rerank_scores": rerank_scores}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics():
        waiting = sum(len(one.waiting) for one in queues)
        lines = [f'cosent_requests_total{{path="{path}",status="{code}"}} {n}' for (path, code), n in served.items()]
        types = ["# TYPE cosent_requests_waiting gauge", f"cosent_requests_waiting {waiting}"]
        return "\n".join([*types, "# TYPE cosent_requests_total counter", *lines, ""])

    async def vectors_of(texts: list[str], request: Request, dimensions: int | None) -> list[tuple[np.ndarray, int]]:
        if embeddings is None:
            raise HTTPException(400, f"{name} is a cross-encoder, which has no embeddings; use /rerank or /similarity")
        if dimensions is not None and dimensions not in widths:
            known = f"1 to {width}" if model.nested else ", ".join(map(str, widths))
            more = "" if model.nested else "; start the server with --dimensions, or make a model by merge --pca_dim"
            raise HTTPException(422, f"dimensions: the vectors of this model have {known} numbers{more}")
        return await embeddings.results(texts, request)

    @app.post("/embed")
    async def embed_as_tei(asked: Embed, request: Request):
        results = await vectors_of(asked.inputs, request, asked.dimensions)

        def vectors() -> bytes:
            end = asked.dimensions
            return to_json([(unit(one, end) if asked.normalize else one[:end]).tolist() for one, _ in results])

        return Response(await asyncio.to_thread(vectors), media_type=JSON)

    @app.post("/v1/embeddings")
    async def embed(asked: Embeddings, request: Request):
        results = await vectors_of(asked.input, request, asked.dimensions)
        return Response(await asyncio.to_thread(embedded, results, asked), media_type=JSON)

    def embedded(results: list[tuple[np.ndarray, int]], asked: Embeddings) -> bytes:
        form = asked.encoding_format
        vectors, tokens = zip(*((unit(one, asked.dimensions), count) for one, count in results), strict=True)
        shown = [base64.b64encode(one.tobytes()).decode() if form == "base64" else one.tolist() for one in vectors]
        data = [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(shown)]
        usage = dict.fromkeys(("prompt_tokens", "total_tokens"), sum(tokens))
        return to_json({"object": "list", "data": data, "model": name, "usage": usage})

    def paired(pairs: list) -> list:
        """The pairs, unless they are too much work together."""
        if (characters := sum(len(one) + len(other) for one, other in pairs)) > MOST_PAIRED:
            raise HTTPException(
                422, f"the pairs have {characters:,} characters, at most {MOST_PAIRED:,}; send fewer at a time"
            )
        return pairs

    @app.post("/rerank")
    @app.post("/v1/rerank")
    @app.post("/v2/rerank")
    async def rerank(asked: Rerank, request: Request):
        texts = asked.texts or asked.documents
        if texts is None or (asked.texts and asked.documents):
            raise HTTPException(422, "give texts (as TEI has it) or documents (as Jina and Cohere have it)")
        pairs = paired([(asked.query, text) for text in texts])
        scores, same = zip(*await reranking.results(pairs, request), strict=True)
        order = sorted(range(len(texts)), key=lambda index: -scores[index])[: asked.top_n or asked.top_k or None]
        shown = scores if asked.raw_scores else reranked(scores)
        results = []
        for index in order:
            result = {"index": index, "score" if asked.texts else "relevance_score": shown[index]}
            if same[index]:
                result["token_collision"] = True
            if asked.return_text:
                result["text"] = texts[index]
            if asked.return_documents:
                result["document"] = {"text": texts[index]}
            results.append(result)
        return results if asked.texts else {"id": secrets.token_hex(8), "model": name, "results": results}

    @app.post("/similarity")
    async def similarity(asked: Similarity, request: Request):
        scores, same = zip(*await similarities.results(paired(asked.pairs), request), strict=True)
        answer = {"model": name, "scores": scores, "token_collisions": same}
        if rule is None:
            return answer
        verdicts = ["similar" if similar else "not similar" for similar in rule.similar(scores)]
        return answer | {
            "corpus": rule.corpus,
            "probabilities": rule.probabilities(scores).tolist(),
            "verdicts": verdicts,
        }

    @app.post("/search")
    async def search(asked: Search, request: Request):
        if searching is None:
            raise HTTPException(400, "there is nothing to search; start the server with --text FILE")
        queries = asked.queries or list(filter(None, [asked.query]))
        if (asked.query is None) == (asked.queries is None):
            raise HTTPException(422, "give query, or queries")
        if len(queries) * asked.top > MOST_HITS:
            raise HTTPException(422, f"top: at most {MOST_HITS:,} hits of all queries together; send fewer at a time")
        own = asked.model_dump(include={"min_score", "min_probability", "precision"}, exclude_none=True)
        if len(own) > 1:
            raise HTTPException(422, f"{' and '.join(own)} both decide what is found; give one of them")
        questions = [(query, asked.top, tuple(own.items()) or limits) for query in queries]
        results = await searching.results(questions, request)
        if problem := next((one for one in results if isinstance(one, InputError)), None):
            raise HTTPException(422, str(problem))
        return Response(await asyncio.to_thread(found, queries, results), media_type=JSON)

    def found(queries: list[str], results: list) -> bytes:
        shown = [
            {"query": query, "found": bool(hits), "hits": [{"rank": n, **asdict(hit)} for n, hit in enumerate(hits, 1)]}
            for query, hits in zip(queries, results, strict=True)
        ]
        return to_json({"model": name, "results": json.loads(as_text(shown))}, inf_nan_mode="null")

    return app


class Gate:
    """Middleware that reads nothing of a request without the key, and no body of more than `MOST_BYTES`."""

    def __init__(self, app, unauthorised, served):
        self.app, self.unauthorised, self.served = app, unauthorised, served

    async def __call__(self, scope, receive, send):
        from starlette.exceptions import HTTPException

        if scope["type"] != "http":  # the start and the end of the server
            return await self.app(scope, receive, send)
        if scope["path"] != "/health" and (refusal := self.unauthorised(dict(scope["headers"]))):
            return await refusal(scope, receive, send)
        size = 0

        async def counted(message):
            if message["type"] == "http.response.start":
                known = getattr(scope.get("route"), "path", "other")  # not what a client makes up
                self.served[known, message["status"]] += 1
            await send(message)

        async def limited():
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MOST_BYTES:
                raise HTTPException(413, f"at most {MOST_BYTES:,} bytes")
            return message

        await self.app(scope, limited, counted)
