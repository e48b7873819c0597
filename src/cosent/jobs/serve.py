"""Serve models over HTTP: embeddings, reranking, similarities with probability and verdict.

cosent serve --model runs/faq                                    http://127.0.0.1:8000, until Ctrl-C
cosent serve --model runs/faq --rerank runs/cross --port 8080
curl -s localhost:8000/similarity -H 'Content-Type: application/json' -d '{"pairs": [["怎么还款", "如何还款"]]}'

/v1/embeddings has the shape of OpenAI's, /rerank, of --model unless there is --rerank, those of TEI ("texts") and of
Jina and Cohere ("documents"). What several clients ask at a time is computed in one packed batch. Requests need the key
of COSENT_API_KEY, if it is set.
"""

import asyncio
import base64
import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from cosent.cli import option, run
from cosent.data.formats import is_blank
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.jobs.arguments import Int8, ModelSource, open_model
from cosent.search.differences import collisions

KEY_VARIABLE = "COSENT_API_KEY"
MOST_TEXTS, MOST_CHARACTERS, MOST_BYTES = 2048, 20_000, 8 * 2**20  # of a request; of a text; of a request
BATCH = 1024  # texts or pairs computed at a time
WAITING = 256  # requests; one more is answered with 503


@dataclass(kw_only=True)
class ServeArguments(Int8, ModelSource):
    """Models to serve, and where."""

    rerank: str | None = option(None, "Model that reranks, best a cross-encoder.")
    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 for other machines too.")
    port: int = option(8000, "Port.")


def main(args: ServeArguments) -> None:
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise InputError("cosent serve needs FastAPI and uvicorn. Run pip install -e '.[serve]'.")
    for model in filter(None, (args.model, args.rerank)):
        resolve(model)  # before imports that take seconds
    import uvicorn

    from cosent.evaluation.calibration import Calibration, DecisionRule
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
    rules = decision_rules(args.model)
    if isinstance(models[0], Bundle) and (saved := models[0].settings)["calibration"]:
        calibration = Calibration(**saved["calibration"])
        rules = {saved["corpus"]: DecisionRule(saved["corpus"], saved["threshold"], calibration)}
    rule = choose_rule(rules, None, args.model)
    app = build(args.model, models[0], models[-1], rule, os.environ.get(KEY_VARIABLE))
    uvicorn.run(app, host=args.host, port=args.port, log_level="warning", access_log=False)


class Batches:
    """Computes what is asked at a time in one call of `compute`, in a thread; requests pile up meanwhile."""

    def __init__(self, compute: Callable[[list], Iterable]):
        self.compute = compute  # a list of things -> a result for each
        self.waiting: asyncio.Queue[tuple[list, asyncio.Future]] = asyncio.Queue(WAITING)

    async def results(self, things: list) -> list:
        """The results of things; `asyncio.QueueFull` if too many requests wait."""
        future = asyncio.get_running_loop().create_future()
        self.waiting.put_nowait((things, future))
        return await future

    async def run(self) -> None:
        """Answers requests for ever."""
        while True:
            requests = [await self.waiting.get()]
            while not self.waiting.empty() and sum(len(things) for things, _ in requests) < BATCH:
                requests.append(self.waiting.get_nowait())
            failure = None
            try:
                results = iter(await asyncio.to_thread(self.compute, [one for things, _ in requests for one in things]))
            except Exception as error:
                results, failure = iter(()), error
            for things, future in requests:
                own = list(islice(results, len(things)))  # taken in any case: what follows is of the next request
                if future.done():  # the client has gone
                    continue
                if failure is None:
                    future.set_result(own)
                else:
                    future.set_exception(failure)


def scores_by(model) -> Callable[[list], list]:
    """A function of pairs of texts: the score of each, and whether the model cannot tell its texts apart."""

    def compute(pairs: list) -> list[tuple[float, bool]]:
        sides = [list(side) for side in zip(*pairs, strict=True)]
        return list(zip(model.similarity(*sides).tolist(), collisions(model, *sides), strict=True))

    return compute


def not_blank(text: str) -> str:
    """The text; `ValueError` if it is blank, since its vector would mean nothing."""
    if is_blank(text):
        raise ValueError("the text is blank")
    return text


def build(name: str, model, reranker, rule=None, key: str | None = None):
    """The FastAPI application.

    Args:
        name: of the model, in answers.
        model, reranker: any `TextModel` or `Bundle`; the same one may be both.
        rule: the `DecisionRule` of `/similarity`.
        key: token that requests need.
    """
    from fastapi import Depends, FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
    from starlette.exceptions import HTTPException

    Text = Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS), AfterValidator(not_blank)]
    Texts = Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)]

    class Embeddings(BaseModel):
        input: Annotated[Texts, BeforeValidator(lambda texts: [texts] if isinstance(texts, str) else texts)]
        model: str | None = None
        encoding_format: Literal["float", "base64"] = "float"
        dimensions: int | None = None

    class Rerank(BaseModel):
        query: Text
        texts: Texts | None = None
        documents: Texts | None = None
        top_n: int | None = Field(None, ge=1)

    class Similarity(BaseModel):
        pairs: Annotated[list[tuple[Text, Text]], Field(min_length=1, max_length=MOST_TEXTS)]

    width = getattr(model, "embedding_dimension", None)
    embeddings = Batches(lambda texts: model.encode(texts, normalize_embeddings=True)) if width else None
    similarities = Batches(scores_by(model))
    reranking = similarities if reranker is model else Batches(scores_by(reranker))

    @asynccontextmanager
    async def lifespan(app):
        tasks = [asyncio.create_task(one.run()) for one in {embeddings, similarities, reranking} - {None}]
        yield
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def authorised(request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if key is not None and not secrets.compare_digest(given.encode(), key.encode()):
            raise HTTPException(401, "the bearer token is missing or wrong")

    app = FastAPI(title="cosent", lifespan=lifespan, docs_url=None, redoc_url=None)
    protected: dict[str, Any] = {"dependencies": [Depends(authorised)]}
    app.add_middleware(LimitedBody)

    def refusal(status: int, message: str, field: str | None = None, headers=None):
        """An error in OpenAI's shape, whose clients show the message."""
        kind = "invalid_request_error" if status < 500 else "server_error"
        error = {"message": message, "type": kind, "param": field, "code": status}
        return JSONResponse({"error": error}, status, headers)

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

    @app.get("/health")
    async def health():
        return {"status": "ok", "model": name}

    @app.post("/v1/embeddings", **protected)
    async def embed(asked: Embeddings):
        if embeddings is None:
            raise HTTPException(400, f"{name} is a cross-encoder, which has no embeddings; use /rerank or /similarity")
        if asked.dimensions not in (None, width):
            raise HTTPException(422, f"dimensions: this model has {width}")
        vectors = [vector.astype("<f4") for vector in await embeddings.results(asked.input)]
        if asked.encoding_format == "base64":
            shown = [base64.b64encode(vector.tobytes()).decode("ascii") for vector in vectors]
        else:
            shown = [vector.tolist() for vector in vectors]
        tokens = sum(map(model.count_tokens, asked.input))
        return {
            "object": "list",
            "data": [{"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(shown)],
            "model": name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    @app.post("/rerank", **protected)
    @app.post("/v1/rerank", **protected)
    async def rerank(asked: Rerank):
        texts = asked.texts or asked.documents
        if texts is None or (asked.texts and asked.documents):
            raise HTTPException(422, "give texts (as TEI has it) or documents (as Jina and Cohere have it)")
        scores, same = zip(*await reranking.results([(asked.query, text) for text in texts]), strict=True)
        order = sorted(range(len(texts)), key=lambda index: -scores[index])[: asked.top_n]
        key = "score" if asked.texts else "relevance_score"
        notes = [{"token_collision": True} if one else {} for one in same]
        results = [{"index": index, key: scores[index]} | notes[index] for index in order]
        return results if asked.texts else {"model": name, "results": results}

    @app.post("/similarity", **protected)
    async def similarity(asked: Similarity):
        scores, same = zip(*await similarities.results(asked.pairs), strict=True)
        answer = {"model": name, "scores": scores, "token_collisions": same}
        if rule is None:
            return answer
        verdicts = ["similar" if similar else "not similar" for similar in rule.similar(scores)]
        return answer | {
            "corpus": rule.corpus,
            "probabilities": rule.probabilities(scores).tolist(),
            "verdicts": verdicts,
        }

    return app


class LimitedBody:
    """Middleware that refuses a body of more than `MOST_BYTES`, whatever its header says."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        from starlette.exceptions import HTTPException

        size = 0

        async def limited():
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MOST_BYTES:
                raise HTTPException(413, f"at most {MOST_BYTES:,} bytes")
            return message

        await self.app(scope, limited, send)


ARGUMENTS = (ServeArguments,)

if __name__ == "__main__":
    run(main, *ARGUMENTS, shares_work=False)
