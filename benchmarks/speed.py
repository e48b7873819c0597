"""Ours against sentence-transformers, interleaved, each measurement in its own process; a table and a JSON file.

    python -m benchmarks.speed --corpus data/stsb data/atec data/lcqmc data/pawsx --output recipes/results/speed.json

About 30 minutes on 2 CPU cores. `--only train encode` runs a part; `--repeats 1 --quick` tries everything in 3 minutes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from tqdm.auto import tqdm

from cosent.records import environment
from cosent.report import speed_table
from cosent.schema import Manifest

# task, encoder, split, count (steps, passes or sentences), what is counted
ROWS = (
    ("train", "mini", "train", 53, "pairs_per_second"),
    ("train", "base", "train", 6, "pairs_per_second"),
    ("pair_inputs", "mini", "train", 20, "pairs_per_second"),
    ("encode", "mini", "test", 6000, "sentences_per_second"),
    ("encode", "base", "test", 400, "sentences_per_second"),
    ("encode_int8", "mini", "test", 6000, "sentences_per_second"),
)
KERNEL_PAIRS = (10**3, 10**4, 10**5, 10**6)
SIDES = ("ours", "theirs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", nargs="+", required=True, help="prepared corpora")
    parser.add_argument("--output", required=True, help="JSON file to write")
    parser.add_argument("--repeats", type=int, default=5, help="measurements per side; the table shows medians")
    parser.add_argument("--only", nargs="+", default=None, help="tasks to run, e.g. train encode kernel")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, to see whether everything runs")
    args = parser.parse_args()

    jobs = plan(args.corpus, args.only, args.quick)
    sgemm = sgemm_flops()
    measured = {job["key"]: {side: [] for side in SIDES} for job in jobs}
    with tqdm(total=args.repeats * len(jobs) * 2, unit="run") as progress:
        for repeat in range(args.repeats):
            for job in jobs:
                for side in SIDES if repeat % 2 == 0 else SIDES[::-1]:
                    measured[job["key"]][side].append(run(job, side))
                    progress.update()
    rows = [summarise(job, measured[job["key"]], sgemm) for job in jobs]
    result = {"sgemm_flops": sgemm, "repeats": args.repeats, "when": time.strftime("%Y-%m-%d"), "rows": rows}
    Path(args.output).parent.mkdir(parents=True, exist_ok=True)
    Path(args.output).write_text(json.dumps(result | environment(), indent=1) + "\n")
    print(speed_table(result | environment()))


def plan(corpora: list[str], only: list[str] | None, quick: bool) -> list[dict]:
    """The measurements to make; a corpus without a train split trains on validation."""
    jobs = []
    for task, encoder, split, count, unit in ROWS:
        for corpus in corpora:
            manifest = Manifest.load(corpus)
            there = split if split in manifest.splits else "validation"
            job = {"task": task, "encoder": encoder, "corpus": manifest.name, "split": there, "unit": unit}
            flags = ["--encoder", encoder, "--corpus", corpus, "--split", there]
            jobs.append(job | {"flags": flags, "count": max(5, count // 10) if quick else count})
    for pairs in KERNEL_PAIRS:
        job = {"task": "kernel", "encoder": "", "corpus": f"{pairs:,} pairs", "split": "", "unit": "calls_per_second"}
        jobs.append(job | {"flags": [], "count": pairs})
    jobs = [job for job in jobs if only is None or job["task"] in only]
    return [job | {"key": f"{job['task']} {job['encoder']} {job['corpus']}"} for job in jobs]


def run(job: dict, side: str) -> dict:
    command = [sys.executable, "-m", "benchmarks.measure", "--task", job["task"], "--side", side, *job["flags"]]
    result = subprocess.run([*command, "--count", str(job["count"])], capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stderr[-3000:]}")
    return json.loads(result.stdout.splitlines()[-1])


def summarise(job: dict, sides: dict[str, list[dict]], sgemm: float) -> dict:
    """Medians, their ratio, the largest difference of a loss in any step, and the share of the sgemm peak."""
    speed = {side: statistics.median(run[job["unit"]] for run in sides[side]) for side in SIDES}
    peak = {side: statistics.median(run["peak_mib"] for run in sides[side]) for side in SIDES}
    first = {side: sides[side][0]["losses"] for side in SIDES}
    row = {name: job[name] for name in ("task", "encoder", "corpus", "split", "unit", "count")}
    row |= {"ours": speed["ours"], "theirs": speed["theirs"], "ratio": speed["ours"] / speed["theirs"]}
    row |= {"ours_mib": peak["ours"], "theirs_mib": peak["theirs"]}
    row["largest_difference"] = max(abs(a - b) for a, b in zip(first["ours"], first["theirs"], strict=True))
    row["all"] = {side: [run[job["unit"]] for run in sides[side]] for side in SIDES}
    if "flops_per_second" in sides["ours"][0]:
        row["sgemm_share"] = statistics.median(run["flops_per_second"] for run in sides["ours"]) / sgemm
    return row


def sgemm_flops(size: int = 4096) -> float:
    """FLOP/s of the best of five square matrix products in the dtype that training multiplies in."""
    cuda = torch.cuda.is_available()
    matrix = torch.randn(size, size, device="cuda" if cuda else "cpu", dtype=torch.bfloat16 if cuda else torch.float32)
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        matrix @ matrix
        if cuda:
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


if __name__ == "__main__":
    main()
