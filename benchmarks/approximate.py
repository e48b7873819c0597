"""Approximate search by faiss next to the exact one, on vectors of real sentences: results/approximate.json.

cosent encode --model runs/bi --text questions.txt --normalize --output questions.npy
python -m benchmarks.approximate --vectors questions.npy --what "the questions of LCQMC, by mini"

Recall is the share of the ten exact neighbours of 200 rows that are found, as `cosent search --faiss` prints it; times
are of one processor core, and each round asks every index the same queries in turn.
"""

import argparse
import json
import statistics
import tempfile
from dataclasses import asdict
from datetime import date
from pathlib import Path

import numpy as np

from benchmarks.search import TOP, timed
from cosent.errors import messages_for_users
from cosent.inference.neighbours import KINDS, approximate, nearest
from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Number
from cosent.run_record import shortened
from cosent.training.record import environment


def main(args: argparse.Namespace) -> None:
    import faiss

    faiss.omp_set_num_threads(1)
    vectors = np.load(args.vectors, mmap_mode="r")
    queries = vectors[np.linspace(0, len(vectors) - 1, args.queries).astype(np.int64)]
    searches, built = {"exact": lambda: nearest(queries, vectors, TOP)}, {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            if kind == "auto":
                continue
            index = []
            seconds, _ = timed(
                lambda kind=kind, into=index: into.append(approximate(vectors, kind, Path(folder), kind))
            )
            searches[kind] = lambda index=index[0]: index.nearest(queries, TOP)
            (about,) = Path(folder).glob(f"*.{kind}.json")
            recall = json.loads(about.read_text(encoding="utf-8"))["recall"]
            built[kind] = {"recall": recall, "seconds": seconds}
    rounds = {name: [] for name in searches}
    for _ in range(args.rounds):
        for name, search in searches.items():
            rounds[name].append(timed(search)[0])
    result = {
        "kind": "approximate",
        "what": args.what,
        "rows": len(vectors),
        "width": vectors.shape[1],
        "queries": len(queries),
        "built": built,
        "seconds": rounds,
        "when": date.today().isoformat(),
        "faiss": faiss.__version__,
        **asdict(environment()),
    }
    Path(args.output).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(approximate_table(result))


def approximate_table(result: dict) -> str:
    """Recall, time to build, and time of a query next to the exact search's."""
    exact = statistics.median(result["seconds"]["exact"])
    rows: list[list[Cell]] = []
    for name, seconds in result["seconds"].items():
        own, built = statistics.median(seconds), result["built"].get(name)
        recall = Number(built["recall"] if built else 1.0, form=".3f")
        building = Number(built["seconds"], form=".0f") if built else None
        rows.append(
            [
                name,
                recall,
                building,
                Number(1000 * own / result["queries"], form=".2f"),
                Number(exact / own, form=".1f"),
            ]
        )
    header = ["search", f"recall@{TOP}", "built in, s", "a query, ms", "times as fast"]
    return (
        f"{markdown_table(header, rows)}\n\n"
        f"{result['rows']:,} x {result['width']} float32, {result['what']}; {result['queries']:,} queries at once, "
        f"processor time of one thread, medians of {len(result['seconds']['exact'])} rounds in turn. Recall of 200 "
        f"rows. {result['device']}, {result['when']}, faiss {result['faiss']}, commit "
        f"{shortened(result['commit'])}."
    )


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", required=True, help="vectors of length 1, as `cosent encode --normalize` writes")
    parser.add_argument("--what", required=True, help="what they are of, in words, for the table")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", default="results/approximate.json")
    return parser


if __name__ == "__main__":
    with messages_for_users():
        main(parser().parse_args())
