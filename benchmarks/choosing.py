"""Latency and memory of the towers side by side, on a CPU in float32 and int8.

python -m benchmarks.choosing --bi runs/bi --cross runs/cross --student runs/student --corpus lcqmc --output FILE

All answer the same questions in turn, query by query, so that every one sees the same machine: a pair, one query
against 1,000 candidates and one against 1,000,000 whose vectors are there, exactly (`inference.neighbours`). A
cross-encoder is not asked about 1,000,000: its figure is 1,000 times that of 1,000.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

from cosent.compute.processes import peak_memory_mib
from cosent.data.corpus import load_corpus
from cosent.errors import messages_for_users
from cosent.inference.embedding import quantized
from cosent.inference.neighbours import nearest
from cosent.models.auto import load_model
from cosent.models.cross_encoder import CrossEncoder
from cosent.training.record import environment

FORMS = ("float32", "int8")
FEW, MANY = 1000, 1_000_000  # candidates
FOUND = 10  # neighbours that a search returns
NONE = np.empty((0, 0), np.float32)  # vectors, where no case needs them
Answer = Callable[[str, str], object]  # a query and one of its candidates


def load(folder: str, form: str):
    model = load_model(folder).eval()
    return quantized(model) if form == "int8" else model


def answers_of_vectors(model, candidates: list[str], many: np.ndarray) -> dict[str, Answer]:
    """What a bi-encoder or a student is asked, by case; vectors of the candidates are computed beforehand."""
    few = model.encode(candidates, normalize=True)

    def search(vectors: np.ndarray) -> Answer:
        found = min(FOUND, len(vectors))
        return lambda query, _: nearest(model.encode([query], normalize=True), vectors, found)

    many = many[:, : few.shape[1]]  # as wide as the model's own: the time of a product does not depend on its values
    return {"pair": model.similarity, "few": search(few), "many": search(np.ascontiguousarray(many))}


def answers_of_cross(model, candidates: list[str]) -> dict[str, Answer]:
    return {
        "pair": model.similarity,
        "few": lambda query, _: model.similarity([query] * len(candidates), candidates),
    }


def answers_of_both(searches: dict[str, Answer], model, candidates: list[str]) -> dict[str, Answer]:
    """A search by vectors, and a cross-encoder that reads the query with as many candidates as it is given."""

    def reranked(search: Answer) -> Answer:
        return lambda query, one: (
            search(query, one),
            model.similarity([query] * len(candidates), candidates),
        )

    return {case: reranked(searches[case]) for case in ("few", "many")}


def latencies(towers: dict[str, dict[str, Answer]], pairs: list[tuple[str, str]]) -> dict[str, dict[str, list[float]]]:
    """Processor milliseconds of every answer, by tower and case; a query is put to all of them before the next.

    Those of one thread are its latency on a machine that does nothing else.
    """
    taken = {name: {case: [] for case in cases} for name, cases in towers.items()}
    for turn, (query, candidate) in enumerate(tqdm([pairs[0], *pairs], unit="query")):
        for name, cases in towers.items():
            for case, answer in cases.items():
                if turn == 0 and case != "pair":  # only to warm up
                    continue
                start = time.process_time()
                answer(query, candidate)
                if turn:
                    taken[name][case].append(1000 * (time.process_time() - start))
    return taken


def weights_mib(model) -> float:
    """MiB of a model's weights."""
    with BytesIO() as file:
        torch.save(model.state_dict(), file)
        return file.tell() / 2**20


def peak_mib(folder: str, form: str, pairs: list[tuple[str, str]], candidates: list[str]) -> float:
    """Peak memory in MiB of a process of its own that loads a model and answers, a pair and one against many."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(answer_alone, folder, form, pairs, candidates).result()


def answer_alone(folder: str, form: str, pairs: list[tuple[str, str]], candidates: list[str]) -> float:
    model = load(folder, form)
    cross = isinstance(model, CrossEncoder)
    answers = answers_of_cross(model, candidates) if cross else answers_of_vectors(model, candidates, NONE)
    for query, candidate in pairs:
        for answer in (answers["pair"], answers["few"]):
            answer(query, candidate)
    return peak_memory_mib()


def main(args: argparse.Namespace) -> None:
    corpus, load_before = load_corpus(args.corpus), os.getloadavg()
    rows = corpus.split("test").shuffle(seed=1)
    pairs = list(zip(rows["sentence1"][: args.queries], rows["sentence2"][: args.queries], strict=True))
    candidates = list(dict.fromkeys(rows["sentence2"][:]))[:FEW]
    many = np.random.default_rng(1).standard_normal((MANY, args.width), dtype=np.float32)
    many /= np.linalg.norm(many, axis=1, keepdims=True)
    folders = {"bi": args.bi, "cross": args.cross, "student": args.student}
    models = {form: {name: load(folder, form) for name, folder in folders.items()} for form in FORMS}
    towers = {}
    for form, loaded in models.items():
        for name in ("bi", "student"):
            towers[f"{name} {form}"] = answers_of_vectors(loaded[name], candidates, many)
        towers[f"cross {form}"] = answers_of_cross(loaded["cross"], candidates)
        both = answers_of_both(towers[f"bi {form}"], loaded["cross"], candidates[: args.top])
        towers[f"both {form}"] = both
    taken = latencies(towers, pairs)
    result = {
        "kind": "choosing",
        "corpus": corpus.manifest.name,
        "top": args.top,
        "queries": args.queries,
        "width": args.width,
        "milliseconds": {name: {case: statistics.median(ms) for case, ms in by.items()} for name, by in taken.items()},
        "mib": {f"{name} {form}": weights_mib(model) for form, of in models.items() for name, model in of.items()},
        "peak_mib": {
            f"{name} {form}": peak_mib(folder, form, pairs, candidates)
            for form in FORMS
            for name, folder in folders.items()
        },
        "load": [load_before[0], os.getloadavg()[0]],
        "when": time.strftime("%Y-%m-%d"),
        **asdict(environment()),
    }
    Path(args.output).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def parser() -> argparse.ArgumentParser:
    parser = parser_of_models(__doc__)
    parser.add_argument("--student", required=True, help="folder of a student")
    parser.add_argument("--queries", type=int, default=20, help="queries that are timed")
    parser.add_argument("--width", type=int, default=256, help="width of the 1,000,000 random vectors")
    return parser


def parser_of_models(description: str) -> argparse.ArgumentParser:
    """The arguments that `choosing` and `choosing_quality` have in common."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bi", required=True, help="folder of a trained bi-encoder")
    parser.add_argument("--cross", required=True, help="folder of a cross-encoder, trained on the same pairs")
    parser.add_argument("--corpus", default="lcqmc", help="prepared corpus with a test split, to ask about")
    parser.add_argument("--top", type=int, default=20, help="candidates that the cross-encoder reads after a search")
    parser.add_argument("--output", required=True, help="JSON file to write")
    return parser


if __name__ == "__main__":
    with messages_for_users():
        main(parser().parse_args())
