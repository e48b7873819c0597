"""Exact search next to faiss IndexFlatIP, to the bandwidth of memory and to the peak of sgemm: results/search.json.

python -m benchmarks.search --output results/search.json

Each round measures every task once, one after the other, so that all of them meet the same load of the machine; figures
are of the processor time of one thread.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from pathlib import Path

import numpy as np
import torch

from cosent.errors import messages_for_users
from cosent.inference.neighbours import nearest
from cosent.training.environment import environment

WIDTH, TOP = 256, 10
SQUARE = 2048  # rows and columns of the product that shows the peak of sgemm


def main(args: argparse.Namespace) -> None:
    import faiss

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    rng = np.random.default_rng(0)
    vectors, queries = unit(rng, args.rows), unit(rng, args.queries)
    index = faiss.IndexFlatIP(WIDTH)
    index.add(vectors)
    ours, theirs = nearest(queries, vectors, TOP)[0], index.search(queries, TOP)[1]
    square, whole = rng.standard_normal((SQUARE, SQUARE), dtype=np.float32), torch.from_numpy(vectors)
    tasks: dict[str, tuple[Callable, int]] = {  # what to time, and how many times per round
        "read": (lambda: whole.sum(), 3),
        "sgemm": (lambda: square @ square, 3),
        "one query, ours": (lambda: nearest(queries[:1], vectors, TOP), 3),
        "one query, faiss": (lambda: index.search(queries[:1], TOP), 3),
        "all queries, ours": (lambda: nearest(queries, vectors, TOP), 1),
        "all queries, faiss": (lambda: index.search(queries, TOP), 1),
    }
    rounds: dict[str, list[list[float]]] = {name: [] for name in tasks}
    for _ in range(args.rounds):
        for name, (task, times) in tasks.items():
            rounds[name] += [timed(task) for _ in range(times)]
    result = {
        "kind": "search",
        "rows": args.rows,
        "width": WIDTH,
        "queries": args.queries,
        "top": TOP,
        "rounds": {name: {"cpu": [cpu for cpu, _ in seconds], "wall": [wall for _, wall in seconds]}
                   for name, seconds in rounds.items()},
        "same_neighbours": float((ours == theirs).mean()),
        "when": date.today().isoformat(),
        "faiss": faiss.__version__,
        **asdict(environment()),
    }  # fmt: skip
    Path(args.output).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name in rounds:
        print(f"{name:20} {statistics.median(result['rounds'][name]['cpu']):.4f} s of processor time")


def unit(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Random vectors of length 1, float32 of shape `(rows, WIDTH)`."""
    found = rng.standard_normal((rows, WIDTH), dtype=np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def timed(task: Callable) -> list[float]:
    """Seconds of processor time and of wall time."""
    cpu, wall = time.process_time(), time.perf_counter()
    task()
    return [time.process_time() - cpu, time.perf_counter() - wall]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", default="results/search.json")
    with messages_for_users():
        main(parser.parse_args())
