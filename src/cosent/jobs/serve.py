"""Serve models over HTTP: embeddings, reranking, similarities with probability and verdict, search in your own file.

cosent serve --model runs/faq                                    http://127.0.0.1:8000, until Ctrl-C
cosent serve --model runs/faq --rerank runs/cross --port 8080
cosent serve --model runs/faq --text faq.xlsx --text_column question --min_probability 0.8      /search
curl -s localhost:8000/similarity -H 'Content-Type: application/json' -d '{"pairs": [["怎么还款", "如何还款"]]}'

/v1/embeddings and /v1/models have the shapes of OpenAI, /v1/rerank and /v2/rerank, of --model unless there is --rerank,
those of Jina and Cohere. /search answers as `cosent search` does. What several clients ask at a time is computed in one
packed batch. Requests need the key of COSENT_API_KEY, if it is set.
"""

import asyncio
import base64
import logging
import os
import re
import secrets
from collections.abc import Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from cosent.compute.batches import MOST_WAITING, Batches, Work
from cosent.data.files import OF_FILES
from cosent.data.formats import as_text, is_blank
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.evaluation.calibration import sigmoid
from cosent.flags import option, refuse_changed
from cosent.jobs.arguments import FILE_KINDS, HitLimits, Int8, ModelSource, TextColumn, open_model
from cosent.models.decision import DecisionRule, rule_for

if TYPE_CHECKING:
    from cosent.models.bi_encoder import TextModel
    from cosent.search.index import Hit, Index

logger = logging.getLogger(__name__)

KEY_VARIABLE = "COSENT_API_KEY"
MOST_TEXTS, MOST_CHARACTERS, MOST_BYTES = 2048, 20_000, 8 * 2**20  # of a request; of a text; of a request
MOST_TOP, MOST_HITS = 100, 20_480  # hits of a query; of a request
GRACE = 5  # seconds for the requests that are being computed at SIGTERM


@dataclass(kw_only=True)
class ServeArguments(HitLimits, TextColumn, Int8, ModelSource):
    """Server options."""

    text: list[str] | None = option(None, f"Files of sentences for /search: {FILE_KINDS}")
    rerank: str | None = option(None, "Model that reranks, ideally a cross-encoder.")
    corpus: str | None = option(None, "Corpus whose decision rule to use; default: the one for all of training.")
    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 accepts other machines.")
    port: int = option(8000, "Port to listen on.")


@dataclass(kw_only=True)
class Service:
    """Models, decision rules and index of a server.

    Args:
        name: of the model, in answers.
        model, reranker: of any tower; the same one may be both.
        rule, rerank_rule: of the pairs of /similarity, and of those of the reranker; None without one.
        index: of /search, with the rule of its hits.
        limits: of its hits, where a request has none: `min_score` or `min_probability`.
    """

    name: str
    model: Any  # a `TextModel`, of which embeddings need a `SentenceEncoder`
    reranker: "TextModel"
    rule: DecisionRule | None = None
    rerank_rule: DecisionRule | None = None
    index: "Index | None" = None
    limits: dict[str, float]

    def vectors(self, texts: list[str]) -> list[tuple[np.ndarray, int]]:
        """The unit vector of each text, and how many tokens the model read of it."""
        vectors = self.model.encode(texts, normalize_embeddings=True).astype("<f4")
        return list(zip(vectors, map(len, self.model.token_ids(texts)), strict=True))

    def hits(self, questions: list[tuple[str, int, tuple]]) -> "list[list[Hit]]":
        """The hits of questions, each a query, its `top` and its limits."""
        options = {} if self.reranker is self.model else {"reranker": self.reranker, "rule": self.rerank_rule}
        hits: list[list[Hit]] = []
        assert self.index is not None  # a service without one has no /search
        for (top, limits), alike in groupby(questions, itemgetter(1, 2)):
            hits += self.index.search([query for query, *_ in alike], top, **options, **dict(limits))
        return hits

    def relevance(self, scores: Sequence[float]) -> list[float]:
        """Scores of the reranker from 0 to 1, in the same order: probabilities, else sigmoids or (1 + cosine) / 2."""
        if self.rerank_rule is not None and self.rerank_rule.calibration is not None:
            return self.rerank_rule.probabilities(scores).tolist()
        values = np.asarray(scores, np.float64)
        return ((1 + values) / 2 if hasattr(self.reranker, "embedding_dimension") else sigmoid(values)).tolist()


def scores_of(model: "TextModel", pairs: list[tuple[str, str]]) -> list[float]:
    """The score of each pair."""
    return model.similarity(*map(list, zip(*pairs, strict=True))).tolist()


def main(args: ServeArguments) -> None:
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise InputError("cosent serve needs FastAPI and uvicorn. Run pip install -e '.[serve]'.")
    if args.text is None:
        refuse_changed(args, ("text_column", *OF_FILES, *args.limits), "--text FILE")
    elif args.int8:
        raise InputError("--int8 with --text: vectors of files are cached by float32 weights. Leave one of them out.")
    args.check_limits()
    key = os.environ.get(KEY_VARIABLE)
    if key is not None and not (key.strip().isascii() and key.strip().isprintable() and key.strip()):
        raise InputError(f"{KEY_VARIABLE} is empty or holds more than ASCII characters. Unset it, or set another key.")
    for model in filter(None, (args.model, args.rerank)):
        resolve(model)
    import uvicorn

    app = application(load(args), key and key.strip())  # a header carries no spaces around it
    example = 'search answers {"query": "好"}' if args.text else 'similarity answers {"pairs": [["好", "很好"]]}'
    logger.info("http://%s:%d/%s (Ctrl-C ends)", args.host, args.port, example)
    limits: dict[str, Any] = {"http": "h11", "ws": "none", "timeout_graceful_shutdown": GRACE}
    uvicorn.run(app, host=args.host, port=args.port, log_level="warning", access_log=False, **limits)


def load(args: ServeArguments) -> Service:
    """Models, rules for the prompts that they read here, and the index of `--text`."""
    from cosent.search.index import Index

    model = open_model(args, bi_encoder=args.text is not None)
    rule, reason = rule_for(args.model, model.prompts.sides(), args.corpus)
    service = Service(name=args.model, model=model, reranker=model, rule=rule, rerank_rule=rule, limits=args.limits)
    if args.rerank is not None:
        service.reranker = open_model(replace(args, model=args.rerank))
        service.rerank_rule, reason = rule_for(args.rerank, service.reranker.prompts.sides(), args.corpus)
    if reason:
        logger.info("There are scores, but no probabilities: %s.", reason)
    if args.text is not None:
        service.index = Index.read(args.text, model, args.text_column, args.options)
        service.index.rule, _ = rule_for(args.model, service.index.prompts(), args.corpus)
        service.hits([("好", 1, tuple(args.limits.items()))])  # refuses a probability that no hit can have
    return service


def as_list(texts: Any) -> Any:
    """The texts of a field that may hold a single one."""
    if isinstance(texts, list) and texts and isinstance(texts[0], int | list):
        raise ValueError("send texts, not token ids; in langchain-openai, set check_embedding_ctx_length=False")
    return [texts] if isinstance(texts, str) else texts


def not_blank(text: str) -> str:
    """The text; `ValueError` if it is blank, since its vector would mean nothing."""
    if is_blank(text):
        raise ValueError("the text is blank")
    return text


def application(service: Service, key: str | None = None):
    """The FastAPI application of a service; requests need the key, if there is one."""
    from fastapi import FastAPI
    from fastapi.responses import Response
    from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field
    from pydantic_core import to_json
    from starlette.exceptions import HTTPException
    from starlette.middleware.base import BaseHTTPMiddleware

    Text = Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS), AfterValidator(not_blank)]
    several = Field(min_length=1, max_length=MOST_TEXTS)
    Texts = Annotated[list[Text], several, BeforeValidator(as_list)]
    Document = Annotated[Text, BeforeValidator(lambda value: value.get("text") if isinstance(value, dict) else value)]

    class Embeddings(BaseModel):
        input: Texts
        encoding_format: Literal["float", "base64"] = "float"
        dimensions: int | None = None

    class Rerank(BaseModel):
        query: Text
        documents: Annotated[list[Document], several]
        top_n: int | None = Field(None, ge=1)
        return_documents: bool | None = False

    class Similarity(BaseModel):
        pairs: Annotated[list[tuple[Text, Text]], several]

    class Search(BaseModel):
        queries: Texts = Field(validation_alias=AliasChoices("queries", "query"))
        top: int = Field(10, ge=1, le=MOST_TOP)
        min_score: float | None = Field(None, allow_inf_nan=False)
        min_probability: float | None = Field(None, ge=0, lt=1)

    written = partial(Response, media_type="application/json")
    name, model, reranker, batches = service.name, service.model, service.reranker, Batches()
    width = getattr(model, "embedding_dimension", None)
    embedding, searching, scoring = Work(service.vectors), Work(service.hits), Work(partial(scores_of, model))
    reranking = scoring if reranker is model else Work(partial(scores_of, reranker))

    @asynccontextmanager
    async def lifespan(app):
        task = asyncio.create_task(batches.run())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    app = FastAPI(title="cosent", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_middleware(BaseHTTPMiddleware, dispatch=partial(gate, key))
    add_errors(app)

    @app.get("/health")
    async def health():
        return {"status": "ok", "model": name}

    @app.get("/v1/models")
    async def models():
        return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "cosent"}]}

    @app.post("/v1/embeddings")
    async def embed(body: Embeddings):
        if width is None:
            raise HTTPException(
                400, f"{name} is a cross-encoder, which has no embeddings; use /v1/rerank or /similarity"
            )
        if body.dimensions not in (None, width):
            raise HTTPException(422, f"dimensions: the vectors of this model have {width} numbers")
        results = await batches.results(embedding, body.input)
        vectors, tokens = zip(*results, strict=True)
        base64s = body.encoding_format == "base64"
        values = [base64.b64encode(vector.tobytes()).decode() if base64s else vector.tolist() for vector in vectors]
        data = [{"object": "embedding", "index": row, "embedding": value} for row, value in enumerate(values)]
        usage = dict.fromkeys(("prompt_tokens", "total_tokens"), sum(tokens))
        return written(to_json({"object": "list", "data": data, "model": name, "usage": usage}))

    @app.post("/v1/rerank")
    @app.post("/v2/rerank")
    async def rerank(body: Rerank):
        pairs = [(body.query, text) for text in body.documents]
        scores = await batches.results(reranking, pairs)
        shares = service.relevance(scores)
        order = sorted(range(len(pairs)), key=lambda row: -scores[row])[: body.top_n]
        results: list[dict[str, Any]] = [{"index": row, "relevance_score": shares[row]} for row in order]
        if body.return_documents:
            results = [result | {"document": {"text": body.documents[result["index"]]}} for result in results]
        return {"id": secrets.token_hex(8), "model": name, "results": results}

    @app.post("/similarity")
    async def similarity(body: Similarity):
        scores = await batches.results(scoring, body.pairs)
        answer = {"model": name, "scores": scores}
        if (rule := service.rule) is not None:
            answer |= {"corpus": rule.corpus, "verdicts": rule.verdicts(scores)}
            if rule.calibration is not None:
                answer["probabilities"] = rule.probabilities(scores).tolist()
        return answer

    @app.post("/search")
    async def search(body: Search):
        if service.index is None:
            raise HTTPException(400, "there is nothing to search; start the server with --text FILE")
        if len(body.queries) * body.top > MOST_HITS:
            raise HTTPException(422, f"top: at most {MOST_HITS:,} hits of all queries together; send fewer at a time")
        limits = body.model_dump(include={"min_score", "min_probability"}, exclude_none=True) or service.limits
        if len(limits) > 1:
            raise HTTPException(422, f"{' and '.join(limits)} both decide what is found; give one of them")
        questions = [(query, body.top, tuple(limits.items())) for query in body.queries]
        try:
            hits = await batches.results(searching, questions)
        except InputError as error:
            raise HTTPException(422, str(error)) from error
        ranked = [[{"rank": rank, **asdict(hit)} for rank, hit in enumerate(of_query, 1)] for of_query in hits]
        results = [
            {"query": query, "found": bool(of_query), "hits": of_query}
            for query, of_query in zip(body.queries, ranked, strict=True)
        ]
        return written(as_text({"model": name, "results": results}))

    return app


def refusal(status: int, message: str, field: str | None = None):
    """An error in OpenAI's shape, whose clients show the message."""
    from fastapi.responses import JSONResponse

    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "param": field, "code": status}}, status)


def add_errors(app) -> None:
    """Answers errors of requests, of the queue and of the model as `refusal`."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    @app.exception_handler(RequestValidationError)
    async def invalid(request, error):  # without the input, which may not even be UTF-8
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"])).removeprefix("body.")
        return refusal(422, f"{field}: {problem['msg']}", field)

    full = f"{MOST_WAITING} requests are waiting already; try again"
    failed = "the model failed: see the server's output"
    app.exception_handler(HTTPException)(lambda request, error: refusal(error.status_code, error.detail))
    app.exception_handler(InputError)(lambda request, error: refusal(500, str(error)))  # nan or inf
    app.exception_handler(asyncio.QueueFull)(lambda request, error: refusal(503, full))
    app.exception_handler(Exception)(lambda request, error: refusal(500, failed))


async def gate(key: str | None, request, call_next):
    """Middleware that reads nothing of a request without the key, or of one that is too large."""
    token = re.sub("(?i)^bearer ", "", request.headers.get("authorization", "")).strip()
    path = request.scope["path"]  # `url` is made of the client's Host
    if key is not None and path != "/health" and not secrets.compare_digest(token.encode(), key.encode()):
        return refusal(401, "the bearer token is missing or wrong")
    if "transfer-encoding" in request.headers:
        return refusal(411, "send the length of the body, no chunks")
    if int(request.headers.get("content-length", 0)) > MOST_BYTES:
        return refusal(413, f"at most {MOST_BYTES:,} bytes")
    return await call_next(request)
