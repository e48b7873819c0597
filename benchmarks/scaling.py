"""Speed of training on two processes (DDP) against one process, and against two independent processes.

python -m benchmarks.scaling --output results/scaling.json

One thread and the same batch per process. Two independent processes ("two strangers") are the upper bound: the speed
of the machine's cores when nothing is exchanged. The three cases take turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from cosent.run_record import read_record, shortened
from cosent.training.record import environment

LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--config_file"]
FLAGS = [
    *("--config", "recipes/bi_encoder/cosent_mini.yaml", "--num_train_epochs", "1", "--disable_tqdm", "true"),
    *("--eval_strategy", "no", "--save_strategy", "no", "--load_best_model_at_end", "false"),
]
CASES = {"one process": (1, 1), "two strangers": (2, 1), "two processes, DDP": (1, 2)}  # launches, processes of each


def measure(launches: int, processes: int, corpus: str, pairs: int, folder: Path) -> float:
    """Pairs per second of all processes together, when each trains on `pairs` pairs."""
    settings = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}
    config = ["recipes/accelerate/cpu.yaml"]
    if processes > 1:
        config = ["recipes/accelerate/ddp.yaml", "--mixed_precision", "no", "--num_processes", str(processes)]
    outputs = [folder / str(number) for number in range(launches)]
    running = []
    for output in outputs:
        flags = ["--corpus", corpus, "--limit_train", str(pairs * processes), "--output_dir", str(output)]
        command = [*LAUNCH, *config, "-m", "cosent.train", *FLAGS, *flags]
        running.append(subprocess.Popen(command, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    for process in running:
        _, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(errors.decode()[-2000:])
    finished = [read_record(output) for output in outputs]
    return sum(run.train_pairs / run.train_seconds for run in finished)


def main(args: argparse.Namespace) -> None:
    measured = {case: [] for case in CASES}
    for number in range(args.rounds):
        for case, (launches, processes) in CASES.items():
            with tempfile.TemporaryDirectory() as folder:
                speed = measure(launches, processes, args.corpus, args.pairs, Path(folder))
            measured[case].append(speed)
            print(f"round {number + 1}, {case}: {speed:.1f} pairs/s", flush=True)
    speeds = {case: statistics.median(values) for case, values in measured.items()}
    result = {"kind": "scaling", "corpus": args.corpus, "pairs_per_process": args.pairs, "pairs_per_second": speeds,
              "rounds": measured, **asdict(environment())}  # fmt: skip
    text = json.dumps(result, ensure_ascii=False, indent=1)
    if args.output:
        Path(args.output).write_text(text + "\n", encoding="utf-8")
    print(text)


def scaling_table(result: dict) -> str:
    """Speed of two processes next to that of one process and of two independent ones."""
    one, strangers, ddp = (
        result["pairs_per_second"][case] for case in ("one process", "two strangers", "two processes, DDP")
    )
    return (
        f"Pairs/s in training on {result['corpus']}, one thread a process: {one:.0f} on one process, {ddp:.0f} on two "
        f"(DDP), {strangers:.0f} on two that exchange nothing, which is what the machine has to give. DDP reaches "
        f"{ddp / strangers:.0%} of that, and {ddp / (2 * one):.0%} of twice one process. Medians of "
        f"{len(result['rounds']['one process'])} turns; {result['device']}, commit "
        f"{shortened(result['commit'])}."
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="stsb", help="prepared corpus")
    parser.add_argument("--pairs", type=int, default=1600, help="training pairs of each process")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each case, which take turns")
    parser.add_argument("--output", help="JSON to write")
    main(parser.parse_args())
