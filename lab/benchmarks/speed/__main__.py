"""Compare speed with sentence-transformers, sides taking turns, each in its own process; a table and a JSON file.

    python -m lab.benchmarks.speed --corpus data/stsb data/atec data/lcqmc data/pawsx --output lab/results/speed.json

About 25 minutes on 2 CPU cores, which must be quiet: seconds of the wall are counted. `OMP_NUM_THREADS=1` measures one
thread, in processor seconds and rows of its own, and `--busy 1` keeps another process busy meanwhile. `--only train
encode` and `--encoder mini` measure a part and keep the other rows of the file; `--repeats 1 --quick` tries everything
in 3 minutes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path

from tqdm.auto import tqdm

from cosent.comparing.report import Cell, markdown_table
from cosent.data.corpus import Manifest
from cosent.errors import messages_for_users
from cosent.record import shortened
from cosent.training.job import environment
from lab.benchmarks.common import peak_flops

# task, encoder, split, what is counted, how many: once for comparing every loss, then for each timed turn
ROWS = (
    ("train", "mini", "train", "pairs_per_second", 50, 18),
    ("train", "base", "train", "pairs_per_second", 6, 6),
    ("train", "runs/e5-small-zh", "train", "pairs_per_second", 8, 8),
    ("train_bf16", "runs/e5-small-zh", "train", "pairs_per_second", 8, 8),
    ("train_cross_encoder", "mini", "train", "pairs_per_second", 50, 18),
    ("pair_inputs", "mini", "train", "pairs_per_second", 12, 12),
    ("encode", "mini", "test", "sentences_per_second", 4000, 4000),
    ("encode", "base", "test", "sentences_per_second", 400, 400),
    ("encode", "runs/e5-small-zh", "test", "sentences_per_second", 400, 400),
)
KERNEL_PAIRS = (10**3, 10**4, 10**5, 10**6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", nargs="+", required=True, help="prepared corpora; only `mini` runs on all")
    parser.add_argument("--output", required=True, help="JSON file to write")
    parser.add_argument("--repeats", type=int, default=5, help="timed turns per side; the table shows medians")
    parser.add_argument("--only", nargs="+", default=None, help="tasks to run, e.g. train encode kernel")
    parser.add_argument("--encoder", nargs="+", default=None, help="encoders to run, e.g. mini")
    parser.add_argument("--busy", type=int, default=0, help="other processes that never rest")
    parser.add_argument("--quick", action="store_true", help="a quarter of the work, to see whether everything runs")
    args = parser.parse_args()

    jobs = [
        job
        for job in plan(args.corpus, args.quick)
        if job["task"] in (args.only or [job["task"]]) and job["encoder"] in (args.encoder or [job["encoder"]])
    ]
    result = {"sgemm_flops": peak_flops(), "repeats": args.repeats, "when": time.strftime("%Y-%m-%d"), "rows": []}
    result |= asdict(environment()) | {"busy": args.busy, "load": round(os.getloadavg()[0], 1)}
    keep = (args.only or args.encoder) and Path(args.output).is_file()
    kept = json.loads(Path(args.output).read_text(encoding="utf-8"))["rows"] if keep else []
    for job in tqdm(jobs, unit="row"):
        with ExitStack() as stack:
            for _ in range(args.busy):
                neighbour = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
                stack.callback(neighbour.kill)
            measured = take_turns(job, args.repeats)
        for side in measured:
            if side != "theirs":
                row = summarise(job, side, measured, result["sgemm_flops"])
                result["rows"].append(row | {"commit": result["commit"], "threads": result["threads"]})
        Path(args.output).parent.mkdir(parents=True, exist_ok=True)
        merged = json.dumps(result | {"rows": merge(kept, result["rows"])}, indent=1)
        Path(args.output).write_text(merged + "\n", encoding="utf-8")
    print(speed_table(result))


def merge(kept: list[dict], rows: list[dict]) -> list[dict]:
    """Rows of an earlier run, each in its place, with those that were measured anew."""
    key = itemgetter("task", "encoder", "corpus", "threads")
    anew = {key(row): row for row in rows}
    return [anew.pop(key(row), row) for row in kept] + list(anew.values())


def plan(corpora: list[str], quick: bool) -> list[dict]:
    """The rows to measure; a corpus without a train split trains on validation."""
    jobs = []
    for task, encoder, split, unit, first, count in ROWS:
        if "/" in encoder and not Path(encoder).is_dir():
            continue  # see lab.public_encoder
        for corpus in corpora if encoder == "mini" else corpora[:1]:
            manifest = Manifest.load(corpus)
            there = split if split in manifest.splits else "validation"
            job = {"task": task, "encoder": encoder, "corpus": manifest.name, "split": there, "unit": unit}
            job["flags"] = ["--encoder", encoder, "--corpus", corpus, "--split", there]
            job["sides"] = ("ours", "ours_int8", "theirs") if task == "encode" else ("ours", "theirs")
            jobs.append(job | {"counts": tuple(max(5, n // 4) if quick else n for n in (first, count))})
    for pairs in KERNEL_PAIRS:
        job = {"task": "kernel", "encoder": "", "corpus": f"{pairs:,} pairs", "split": "", "unit": "calls_per_second"}
        jobs.append(job | {"flags": [], "sides": ("ours", "theirs"), "counts": (pairs, pairs)})
    return jobs


def take_turns(job: dict, repeats: int) -> dict[str, list[dict]]:
    """Measures every side once for equality and warm-up, then `repeats` times in turn; by side, in order."""
    measured = {side: [] for side in job["sides"]}
    with ExitStack() as stack:
        processes = {}
        for side in job["sides"]:
            command = [
                sys.executable,
                "-m",
                "lab.benchmarks.speed.side",
                "--task",
                job["task"],
                "--side",
                side,
                *job["flags"],
            ]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
            processes[side] = stack.enter_context(subprocess.Popen(command, **pipes))
        for turn in range(repeats + 1):
            for side in job["sides"] if turn % 2 == 0 else reversed(job["sides"]):
                process = processes[side]
                print(job["counts"][min(turn, 1)], file=process.stdin, flush=True)
                line = process.stdout.readline()
                if not line:
                    raise SystemExit(
                        f"{' '.join(process.args)} failed; run `echo 5 | {' '.join(process.args)}` to see."
                    )
                measured[side].append(json.loads(line))
        for process in processes.values():
            process.stdin.close()
    return measured


def summarise(job: dict, side: str, measured: dict[str, list[dict]], sgemm: float) -> dict:
    """Medians, ratio, the largest difference of what was computed (losses, vectors), share of the sgemm peak."""
    ours, theirs = measured[side], measured["theirs"]
    row = {name: job[name] for name in ("encoder", "corpus", "split", "unit", "counts")}
    row["task"] = job["task"] + side.removeprefix("ours")
    row["all"] = {
        name: [turn[job["unit"]] for turn in turns[1:]] for name, turns in (("ours", ours), ("theirs", theirs))
    }
    row |= {name: statistics.median(values) for name, values in row["all"].items()}
    row["ratio"] = row["ours"] / row["theirs"]
    row["ours_mib"], row["theirs_mib"] = ours[-1]["peak_mib"], theirs[-1]["peak_mib"]
    outputs = zip(ours[0]["outputs"], theirs[0]["outputs"], strict=True)
    row["largest_difference"] = max(abs(a - b) for a, b in outputs)
    if "flops_per_second" in ours[0]:
        row["sgemm_share"] = statistics.median(turn["flops_per_second"] for turn in ours[1:]) / sgemm
    return row


def speed_table(result: dict) -> str:
    """Speed against sentence-transformers: medians, ratio, memory, and the largest difference of results."""
    header = ["task", "encoder", "data", "ours", "theirs", "ratio", "MiB, ours / theirs", "largest difference"]
    rows: list[list[Cell]] = []
    counts = {row["threads"] for row in result["rows"]}
    for row in result["rows"]:
        task = f"{row['task']}, 1 thread" if row["threads"] < max(counts) else row["task"]
        data, ours = f"{row['corpus']} {row['split']}", f"{row['ours']:.4g}"
        theirs = f"{row['theirs']:.4g} {row['unit'].replace('_per_second', '/s')}"
        memory = f"{row['ours_mib']:.0f} / {row['theirs_mib']:.0f}"
        difference = f"{row['largest_difference']:.0e}"
        share = f"{row['sgemm_share']:.0%}" if "sgemm_share" in row else None
        ratio = f"{row['ratio']:.2f}"
        rows.append([task, row["encoder"], data, ours, theirs, ratio, memory, difference, share])
    ratios = [(place, header.index("ratio")) for place in range(len(rows))]
    threads = ", ".join(
        "1 thread in processor seconds" if count == 1 else f"{count} threads" for count in sorted(counts, reverse=True)
    )
    beside = ", next to a busy process" if result.get("busy") else ""
    commits = ", ".join(dict.fromkeys(shortened(row["commit"]) for row in result["rows"]))
    return (
        f"{markdown_table([*header, 'sgemm peak'], rows, strong=ratios)}\n\n"
        f"Medians of {result['repeats']} interleaved measurements, each in its own process; {result['device']}, "
        f"{threads}{beside}, {result['when']}, commit {commits}."
    )


if __name__ == "__main__":
    with messages_for_users():
        main()
