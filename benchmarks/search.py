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
from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Number
from cosent.run_record import shortened
from cosent.training.record import environment

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


def search_table(result: dict) -> str:
    """Exact search against faiss, the bandwidth of memory and the peak of sgemm; medians of processor time."""
    cpu = {name: statistics.median(seconds["cpu"]) for name, seconds in result["rounds"].items()}
    size = result["rows"] * result["width"]
    bandwidth, peak = 4 * size / cpu["read"], 2 * SQUARE**3 / cpu["sgemm"]
    rows: list[list[Cell]] = []
    for name, queries in (("one query", 1), ("all queries", result["queries"])):
        ours, theirs = (cpu[f"{name}, {side}"] for side in ("ours", "faiss"))
        shares = (4 * size / ours / bandwidth, None) if queries == 1 else (None, 2 * size * queries / ours / peak)
        ratio = Number(theirs / ours)
        seconds = [Number(value, form=".3f") for value in (ours, theirs)]
        rows.append([f"{queries:,}", *seconds, ratio, *(None if s is None else Number(s, form=".0%") for s in shares)])
    header = ["queries", "ours, s", "faiss IndexFlatIP, s", "ratio", "of bandwidth", "of sgemm peak"]
    return (
        f"{markdown_table(header, rows, strong=[(place, 3) for place in range(len(rows))])}\n\n"
        f"{result['rows']:,} x {result['width']} float32, top {result['top']}, the same neighbours in "
        f"{result['same_neighbours']:.2%}. Medians of processor time of one thread, all tasks in turn in one process; "
        f"reading reaches {bandwidth / 1e9:.1f} GB/s, sgemm {peak / 1e9:.0f} GFLOP/s. {result['device']}, "
        f"{result['when']}, faiss {result['faiss']}, commit {shortened(result['commit'])}."
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", default="results/search.json")
    with messages_for_users():
        main(parser.parse_args())
