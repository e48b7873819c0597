"""Models outside cosent: an endpoint, other software, an ONNX graph, or vectors in a file."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cosent.errors import InputError, reading
from cosent.models.bundle import Bundle, Lookup, report_nothing

Items = Sequence[tuple[str, ...]]  # a text alone each, or the two of a pair
Answer = Callable[[Items], np.ndarray]  # vectors `(texts, width)` or scores `(pairs,)`; raises `Refused`
Shape = tuple[str, str, str, str]  # path, field of the texts in a request, of the list in the answer, of its values
OPENAI, COHERE = ("input", "data", "embedding"), ("documents", "results", "relevance_score")
SHAPES: dict[bool, list[Shape]] = {  # of texts: OpenAI, TEI, Ollama; of pairs: Jina and Cohere, TEI
    False: [
        *((path, *OPENAI) for path in ("/v1/embeddings", "/embeddings")),
        *(("/embed", "inputs", "", ""), ("/api/embed", "input", "embeddings", "")),
    ],
    True: [*((path, *COHERE) for path in ("/v1/rerank", "/rerank", "/v2/rerank")), ("/rerank", "texts", "", "score")],
}
KEY_VARIABLE, SECONDS = "OPENAI_API_KEY", 120  # seconds to wait for an answer


class Refused(InputError):
    """These texts are not answered; others may be."""


def request(url: str, body: dict | None = None) -> Any:
    """The JSON that an address answers; `Refused` for an HTTP status, `InputError` if nobody answers."""
    key = os.environ.get(KEY_VARIABLE)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=SECONDS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise InputError(f"{url} refuses the key ({error.code}). Set {KEY_VARIABLE} to its own.") from error
        raise Refused(f"{url}: {error.code} {error.read(200).decode('utf-8', 'replace')}") from error
    except (OSError, HTTPException) as error:
        raise InputError(f"{url} does not answer ({error}). Start the server, or check the address.") from error
    except ValueError as error:
        raise Refused(f"{url}: no JSON") from error


def served_name(base: str, own: str) -> str:
    """The name that requests need: that of the only model of an endpoint, or of the one that is called as ours."""
    names: list[str] = []
    for path in ("/v1/models", "/models"):
        with suppress(Refused, LookupError, TypeError):
            names = names or [str(one["id"]) for one in request(base + path)["data"]]
    alike = [one for one in names if Path(one).name == Path(own).name]
    if len(names) > 1 and len(alike) != 1:
        raise InputError(f"{base} serves {', '.join(names[:20])}. Choose one with --name.")
    return (alike or names or ["default"])[0]


def endpoint(url: str, sample: Items, own: str, name: str | None) -> tuple[str, Answer]:
    """The address that answers the sample in one of the `SHAPES`, and its answers."""
    url, pairs = url.rstrip("/"), len(sample[0]) == 2
    ends = [path for path, *_ in SHAPES[pairs] if url.endswith(path)]
    base = url.removesuffix(max(ends, key=len, default="/v1"))
    name = served_name(base, own) if name is None else name

    def ask(shape: Shape, items: Items) -> np.ndarray:
        path, field, key, value = shape
        body: dict[str, Any] = {"model": name, field: [item[-1] for item in items]}
        body |= {"query": items[0][0]} if pairs else {}
        answer = request(base + path, body | ({"truncate": True} if field in ("inputs", "texts") else {}))
        try:
            rows = answer[key] if key else answer
            rows = [row[value] for row in sorted(rows, key=lambda row: row["index"])] if value else rows
            values = np.array(rows, np.float64)
        except (LookupError, TypeError, ValueError) as error:
            raise Refused(f"{base + path}: an answer of another shape") from error
        if values.ndim != 2 - pairs or len(values) != len(items):
            raise Refused(f"{base + path}: {len(items)} texts, an answer of shape {values.shape}")
        return values

    refusals = []
    for shape in [one for one in SHAPES[pairs] if not ends or base + one[0] == url]:
        try:
            ask(shape, sample)
        except Refused as error:
            refusals.append(str(error).removeprefix(base))
        else:
            return base + shape[0], partial(ask, shape)
    advice = f"Give its address, as http://HOST:8000, and with --name a model it serves (asked for {name})."
    raise InputError(f"{base} gives no {'scores' if pairs else 'vectors'}: {'; '.join(refusals)}. {advice}")


def graph(file: str, model) -> Answer:
    """Answers of a graph in ONNX behind our tokenizer; token vectors go through our pooling."""
    report_nothing()
    import onnxruntime

    with reading(file, RuntimeError):
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    names = [one for one in ("sentence_embedding", "scores", "logits") if one in names] or names

    def ask(items: Items) -> np.ndarray:
        first, *second = map(list, zip(*items, strict=True))
        options = {"truncation": True, "padding": True, "max_length": model.max_length, "return_tensors": "np"}
        inputs = model.tokenizer([model.prompts.text() + text for text in first], *second, **options)
        zeros = np.zeros_like(inputs["input_ids"])
        values = session.run(names[:1], {one.name: inputs.get(one.name, zeros) for one in session.get_inputs()})[0]
        if values.ndim == 3:
            pooled = model.pooling(torch.from_numpy(values), torch.from_numpy(inputs["attention_mask"]))
            values = model.after_pooling.cpu()(pooled).detach().numpy()
        return values[:, 0] if second and values.ndim == 2 else values

    return ask


def stored(file: str, texts: Items) -> Answer:
    """Vectors of the texts, row by row, from a file."""
    with reading(file):
        vectors = np.load(file, allow_pickle=False).astype(np.float64)
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise InputError(f"{file} has shape {vectors.shape}, --text {len(texts)} rows. Give the texts of its rows.")
    rows = dict(zip(texts, vectors, strict=True))
    unlike = [place for place, text in enumerate(texts) if not np.allclose(rows[text], vectors[place], 1e-3, 1e-5)]
    if unlike:
        raise InputError(f"{file} has two vectors of {texts[unlike[0]][0]!r}. Give the texts of its rows.")

    def ask(items: Items) -> np.ndarray:
        if not rows.keys() >= set(items):
            raise Refused(f"{file} has no such row")
        return np.array([rows[item] for item in items])

    return ask


def folder_of_others(folder: str, kind: str) -> tuple[str, Answer]:
    """A bundle or lookup of `cosent export`, or a folder as sentence-transformers' class `kind` reads it."""
    pairs = kind == "CrossEncoder"
    if readers := [one for one in (Bundle, Lookup) if Path(folder, one.file).is_file()]:
        with reading(folder):
            own = readers[0](folder)
        ask = own.similarity if pairs else partial(own.encode, normalize_embeddings=False)
        return folder, lambda items: ask(*map(list, zip(*items, strict=True)))
    if not Path(folder, "config.json").is_file():
        raise InputError(f"{folder} holds no model. Name an address, a folder, or a file .onnx or .npy.")
    try:
        import sentence_transformers
    except ImportError as error:
        raise InputError(f"{folder} is read by another package. Run pip install sentence-transformers.") from error
    with reading(folder):
        other = getattr(sentence_transformers, kind)(folder, device="cpu")
    label = f"sentence-transformers {sentence_transformers.__version__}"
    if pairs:
        return label, lambda items: other.predict(list(items), show_progress_bar=False)
    return label, lambda items: other.encode([text for (text,) in items], show_progress_bar=False)


def elsewhere(against: str, model, items: Items, own: str, name: str | None = None) -> tuple[str, Answer]:
    """What answers at `against`, and its answers to texts, or of a cross-encoder to pairs.

    Args:
        own: the name of ours, by which one of several models of an endpoint is chosen, unless there is `name`.
    """
    if against.startswith(("http://", "https://")):
        return endpoint(against, items[:1], own, name)
    if against.endswith(".npy"):
        return against, stored(against, items)
    is_graph = against.endswith(".onnx") and Path(against).is_file()
    return (against, graph(against, model)) if is_graph else folder_of_others(against, model.library_class)
