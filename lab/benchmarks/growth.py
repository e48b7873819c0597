"""Processor seconds and peak memory of the jobs as their input grows tenfold, and tenfold again.

    python -m lab.benchmarks.growth --output lab/results/growth.json

Each measurement is a command in its own process, on sentences of 4 to 24 random characters, with a model of one layer,
32 wide: what grows is the work around the model. An hour on one core; 3 GB of temporary files.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cosent.comparing.figures import COLORS, DASHES, FAINT, canvas, saved, styled
from cosent.record import shortened

CHARACTERS = np.array([chr(code) for code in range(0x4E00, 0x4E00 + 3000)])
AT_ONCE = 10**5  # rows drawn
TRAIN = (
    "train --corpus data/own --model_name_or_path model --output_dir run --overwrite_output_dir --use_cpu "
    "--per_device_train_batch_size 512 --learning_rate 0.001 --eval_strategy no --save_strategy no --skip_test"
)
JOBS = {  # what grows, the command, and its largest power of ten; later ones read what earlier ones wrote
    "prepare": (
        "pairs",
        "prepare own --source pairs.tsv --label_kind binary --no_header --validation_share 0.01 --overwrite",
        7,
    ),
    "train, first step": ("pairs", f"{TRAIN} --max_steps 1", 6),
    "train, an epoch of cached tokens": ("pairs", f"{TRAIN} --num_train_epochs 1", 6),
    "mine": ("pairs", "mine --model model --corpus own --output mined --validation_pairs 100", 5),
    "encode": ("sentences", "encode --model model --text lines.txt --output vectors.npy --normalize --overwrite", 7),
    "search, 100 queries": ("sentences", "search --model model --index vectors.npy --queries queries.txt", 7),
}


TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="JSON file to write")
    parser.add_argument("--powers", type=int, nargs="+", default=[3, 4, 5, 6, 7], help="sizes, as powers of ten")
    parser.add_argument(
        "--jobs",
        nargs="+",
        choices=JOBS,
        default=list(JOBS),
        help="which ones to measure (again); search reads what encode wrote",
    )
    args = parser.parse_args()
    output = Path(args.output).absolute()
    spawned = ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1)  # a job's peak starts at its parent's
    result = {"kind": "growth", **spawned.submit(facts).result(), "rows": []}
    if output.is_file():  # rows that are not measured again stay
        rows = json.loads(output.read_text(encoding="utf-8"))["rows"]
        result["rows"] = [row for row in rows if row["job"] not in args.jobs]
    for power in args.powers:
        with TemporaryDirectory() as folder:
            spawned.submit(write_inputs, Path(folder), 10**power).result()
            for job, (unit, command, largest) in JOBS.items():
                if job in args.jobs and power <= largest:
                    row = {"job": job, "unit": unit, "size": 10**power, "commit": result["commit"]}
                    result["rows"].append(row | measure(command, folder))
                    print(result["rows"][-1], flush=True)
                    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def measure(command: str, folder: str) -> dict[str, float]:
    """Processor seconds and peak MiB of a command, on one thread."""
    caches = dict.fromkeys(("XDG_CACHE_HOME", "HF_HOME"), folder) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    alone = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    process = subprocess.Popen(
        [sys.executable, "-m", "cosent", *command.split()],
        cwd=folder,
        env=os.environ | caches | alone,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"cosent {command} failed.")
    return {"seconds": used.ru_utime + used.ru_stime, "peak_mib": used.ru_maxrss / 2**10}


def facts() -> dict:
    from cosent.training.job import environment

    return asdict(environment()) | {"when": time.strftime("%Y-%m-%d")}


def write_inputs(folder: Path, size: int) -> None:
    """A tiny model, `size` labelled pairs, their first sentences as lines, and queries."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    from cosent.encoders import resolve

    tokenizer = AutoTokenizer.from_pretrained(resolve("mini"))
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertModel(BertConfig(vocab_size=len(tokenizer), **sizes), add_pooling_layer=False)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    generator = np.random.default_rng(size)
    pairs, lines = folder / "pairs.tsv", folder / "lines.txt"
    with pairs.open("w", encoding="utf-8") as pairs, lines.open("w", encoding="utf-8") as lines:
        for start in range(0, size, AT_ONCE):
            count = min(AT_ONCE, size - start)
            ends = np.cumsum(generator.integers(4, 25, 2 * count))
            text = "".join(CHARACTERS[generator.integers(len(CHARACTERS), size=ends[-1])])
            drawn = [text[first:end] for first, end in pairwise([0, *ends.tolist()])]
            labels = generator.integers(2, size=count).tolist()
            pairs.writelines(map("{}\t{}\t{}\n".format, drawn[:count], drawn[count:], labels))
            lines.writelines(f"{line}\n" for line in drawn[:count])
    (folder / "queries.txt").write_text("\n".join(drawn[:100]), encoding="utf-8")


@styled
def growth_picture(result: dict) -> str:
    """Seconds and memory by size, both logarithmic: a panel each, and a line for each job."""
    left = canvas("Work that grows tenfold, and tenfold again", "pairs or sentences", 3.4)
    left.figure.set_size_inches(8.5, 3.4)
    left.set_position((0, 0, 0.42, 1))
    sizes = sorted({row["size"] for row in result["rows"]})
    right = left.figure.add_axes((0.52, 0, 0.42, 1))
    for axes, key, name in ((left, "seconds", "processor seconds"), (right, "peak_mib", "peak MiB")):
        axes.set(xscale="log", yscale="log")
        axes.set_ylabel(name, color=FAINT)
        axes.set_xlabel("pairs or sentences", color=FAINT)
        values = [row[key] for row in result["rows"]]
        ticks = [tick for tick in TICKS if 0.7 * min(values) < tick < 1.5 * max(values)]
        axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=20)
        axes.minorticks_off()
        for place, job in enumerate(JOBS):
            rows = [row for row in result["rows"] if row["job"] == job]
            style = {"color": COLORS[place], "linestyle": DASHES[place % len(DASHES)], "marker": "o", "markersize": 4}
            axes.plot([row["size"] for row in rows], [row[key] for row in rows], label=job, **style)
    return saved(axes)


def growth_sentence(result: dict) -> str:
    """Conditions of the measurement in the picture."""
    commits = dict.fromkeys(shortened(row["commit"]) for row in result["rows"])
    return (
        "![Time and memory by size of the input](images/growth.svg)\n\n"
        f"A random model of one layer, 32 wide, one thread, each command in its own process; {result['device']}, "
        f"{result['when']}, commit {', '.join(commits)}."
    )


if __name__ == "__main__":
    main()
