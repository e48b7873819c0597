"""Kill training with SIGKILL again and again, restart it with the same command, and compare the final weights.

python -m benchmarks.kills --kills 10 --output results/kills.json

Half of the kills wait until a checkpoint is being written, the others strike at random moments. A run is killed up to
four times before it may finish; its weights must be, bit for bit, those of a run that nobody disturbed.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from cosent.data.corpus import load_corpus
from cosent.data.manifest import Manifest, sha256_of_file
from cosent.run_record import read_record, shortened
from cosent.training.checkpoints import SEAL
from cosent.training.record import environment

KILLS_PER_RUN = 4
FLAGS = [
    *("--pooling", "mean", "--learning_rate", "1e-3", "--num_train_epochs", "3"),
    *("--per_device_train_batch_size", "8", "--logging_steps", "2", "--use_cpu", "true", "--disable_tqdm", "true"),
    *("--eval_strategy", "steps", "--eval_steps", "2", "--save_strategy", "steps", "--save_steps", "2"),
    *("--early_stopping_patience", "20", "--resume_from_checkpoint", "auto"),
]


def small_corpus(source: str, folder: Path, rows: int = 64) -> Path:
    """Prepares a corpus from the first rows of another prepared corpus."""
    folder.mkdir()
    corpus, described = load_corpus(source), {}
    for split in ("train", "validation"):
        file = folder / f"{split}.parquet"
        corpus.split(split).select(range(rows)).to_parquet(str(file))
        described[split] = {"rows": rows, "sha256": sha256_of_file(file)}
    old = corpus.manifest
    Manifest("small", old.label_kind, old.label_min, old.label_max, old.max_length, described).save(folder)
    return folder


def start(corpus: Path, output: Path, model: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "cosent.train", "--corpus", str(corpus), "--output_dir", str(output), *FLAGS]
    command += ["--model_name_or_path", model]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(command, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> None:
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"training ended with status {process.returncode}: {errors[-2000:]}")


def kill_while_saving(process: subprocess.Popen, output: Path) -> bool:
    """Kills as soon as another checkpoint is being written; False if the run ended before."""
    before = set(output.glob("checkpoint-*"))
    while process.poll() is None:
        if any(not (folder / SEAL).exists() for folder in set(output.glob("checkpoint-*")) - before):
            time.sleep(random.uniform(0, 0.05))
            return kill(process)
        time.sleep(0.001)
    return False


def kill_after(process: subprocess.Popen, seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return kill(process)
    return False


def kill(process: subprocess.Popen) -> bool:
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def torn(output: Path) -> set[Path]:
    return {folder for folder in output.glob("checkpoint-*") if not (folder / SEAL).exists()}


def count(corpus: Path, folder: Path, kills: int, model: str) -> dict:
    """Runs and kills until there are enough kills; returns the counts."""
    began = time.time()
    finish(start(corpus, folder / "undisturbed", model))
    seconds = time.time() - began
    expected = digest(folder / "undisturbed")
    counts = {"kills": 0, "kills_while_saving": 0, "torn_checkpoints": 0, "runs": 0, "bit_equal": 0}
    while counts["kills"] < kills:
        output = folder / f"run-{counts['runs']}"
        for number in range(min(KILLS_PER_RUN, kills - counts["kills"])):
            before = torn(output)
            process, saving = start(corpus, output, model), number % 2 == 0
            killed = kill_while_saving(process, output) if saving else kill_after(process, random.uniform(0, seconds))
            if not killed:
                break
            counts["kills"] += 1
            counts["kills_while_saving"] += saving
            counts["torn_checkpoints"] += len(torn(output) - before)
        finish(start(corpus, output, model))
        counts["runs"] += 1
        counts["bit_equal"] += digest(output) == expected
    return counts


def digest(output: Path) -> str:
    """Digest of the final weights and of everything that training logged about them."""
    history = read_record(output).history
    curve = [(entry["step"], entry["eval_spearman"]) for entry in history if "eval_spearman" in entry]
    return hashlib.sha256((output / "model.safetensors").read_bytes() + json.dumps(curve).encode()).hexdigest()


def main(args: argparse.Namespace) -> None:
    random.seed(args.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        counts = count(small_corpus(args.corpus, folder / "corpus"), folder, args.kills, "mini")
    print(json.dumps(counts))
    if args.output:
        result = {"kind": "kills"} | counts | {"seed": args.seed, **asdict(environment())}
        Path(args.output).write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def kills_table(result: dict) -> str:
    return (
        f"{result['kills']} times SIGKILL, {result['kills_while_saving']} of them while a checkpoint was written "
        f"({result['torn_checkpoints']} left it torn): {result['bit_equal']} of {result['runs']} runs ended with the "
        f"weights and the validation curve of an undisturbed run, bit for bit. {result['device']}, commit "
        f"{shortened(result['commit'])}."
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="number of kills over all runs")
    parser.add_argument("--corpus", default="data/demo", help="prepared corpus to take a few rows from")
    parser.add_argument("--output", help="JSON to write")
    parser.add_argument("--seed", type=int, default=1, help="seed of the moments to kill at")
    main(parser.parse_args())
