"""Profile of a training step next to the time of the matrix products at the processor's peak.

    python -m lab.benchmarks.roofline --corpus data/stsb --output lab/results/roofline.json

CoSENT with `mini` and with a random 12-layer encoder, as the trainer runs it, in float32 and bfloat16. torch.profiler
times the operators; what a step without the profiler takes longer than all of them is Python. The peak is that of a
large square product in the same type. All times are processor seconds of one core, which other processes may share.
"""

import argparse
import json
import os
import time
from collections import Counter
from dataclasses import asdict
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback, set_seed

from cosent.comparing.figures import COLORS, FAINT, canvas, rows_of, saved, styled
from cosent.record import shortened
from cosent.training.job import environment
from lab.benchmarks.common import BATCH_SIZE, WARM_UP, encoder_folder, peak_flops, shuffled_rows
from lab.benchmarks.speed.training import bi_ours, flags, flops_per_pair

PYTHON = "Python and data"
GROUPS = {  # by a part of the name of an operator, or else of the innermost operator around it that has one
    "optimizer": ("Optimizer", "linalg_vector_norm", "_foreach", "AccumulateGrad"),
    "dropout": ("dropout", "MulBackward0"),
    "attention": ("scaled_dot_product", "ScaledDotProduct", "BmmBackward", "SoftmaxBackward", "MulBackward1"),
    "GELU and LayerNorm": ("gelu", "Gelu", "layer_norm", "LayerNorm"),
    "embedding": ("embedding", "Embedding"),
    "linear layers": ("linear", "Linear", "AddmmBackward", "MmBackward", "addmm"),
    "casts": ("aten::to", "ToCopy"),
}
IDEAL, LOST = "matrix products at the peak", "matrix products beyond that"
DRAWN = ("dropout", "GELU and LayerNorm", "embedding", "optimizer", "casts", "other operators")


class Steps(TrainerCallback):
    """Times steps without the profiler, then profiles as many."""

    def __init__(self, steps: int):
        self.steps, self.times = steps, []  # wall clock and processor
        self.profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True)

    def on_step_end(self, args, state, control, **kwargs):
        self.times.append((time.perf_counter(), time.process_time()))
        if state.global_step == WARM_UP + self.steps:
            self.profiler.start()
        elif state.global_step == WARM_UP + 2 * self.steps:
            self.profiler.stop()

    def seconds(self) -> dict[str, float]:
        """Seconds of a step, in all and by group."""
        wall, processor = np.diff(self.times, axis=0)[WARM_UP - 1 :].T
        own = processor[self.steps :].sum() / wall[self.steps :].sum()  # share of the core while profiled
        spent: Counter[str] = Counter()
        for event in self.profiler.events():
            spent[group_of(event)] += own * event.self_cpu_time_total / 1e6 / self.steps
        step = float(processor[: self.steps].mean())
        return {name: float(value) for name, value in {"step": step, **spent, PYTHON: step - spent.total()}.items()}


def group_of(event) -> str:
    while event is not None:
        for group, parts in GROUPS.items():
            if any(part in event.name for part in parts):
                return group
        event = event.cpu_parent
    return "other operators"


def measure(encoder: str, corpus: str, dtype: str, steps: int) -> dict:
    """FLOPs and seconds of a step of one model in one dtype, the seconds by group."""
    count = WARM_UP + 2 * steps
    rows, max_length = shuffled_rows(corpus, "train", BATCH_SIZE * count)
    clock, length = Steps(steps), max_length["bi_encoder"]
    set_seed(1)
    with TemporaryDirectory() as folder:
        training = flags(folder, count) | {"bf16": dtype == "bfloat16"}
        model = bi_ours(encoder_folder(encoder), rows, length, training, clock, dropout=None)
    return {"flops": flops_per_pair(model, rows, length) * BATCH_SIZE, "seconds": clock.seconds()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True, help="prepared corpus")
    parser.add_argument("--output", required=True, help="JSON file to write; other rows of it are kept")
    parser.add_argument("--cpu", type=int, default=0, help="number of the core to run on")
    parser.add_argument("--encoder", nargs="+", default=["mini", "base"])
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=20, help="timed, and profiled")
    args = parser.parse_args()
    os.sched_setaffinity(0, [args.cpu])
    torch.set_num_threads(1)
    output, rows = Path(args.output), {}
    if output.is_file():
        rows = {(row["encoder"], row["dtype"]): row for row in json.loads(output.read_text(encoding="utf-8"))["rows"]}
    result = {"kind": "roofline", **asdict(environment()), "when": time.strftime("%Y-%m-%d"), "corpus": args.corpus}
    for encoder, dtype in product(args.encoder, args.dtype):
        peak = peak_flops(getattr(torch, dtype), time.process_time)
        steps = args.steps if encoder == "mini" else max(1, args.steps // 5)
        measured = measure(encoder, args.corpus, dtype, steps)
        rows[encoder, dtype] = {"encoder": encoder, "dtype": dtype, "peak": peak, **measured}
        output.write_text(json.dumps(result | {"rows": list(rows.values())}, indent=1) + "\n", encoding="utf-8")


@styled
def roofline_picture(result: dict) -> str:
    """A bar for each model and dtype: the parts of a step in per cent, the time at peak first."""
    axes = canvas("Where the time of a training step goes", "% of the step", 0.9 + 0.5 * len(result["rows"]))
    labels = []
    parts: dict[str, list[float]] = {IDEAL: [], LOST: []}
    for row in result["rows"]:
        seconds, ideal = row["seconds"], row["flops"] / row["peak"]
        labels.append(f"{row['encoder']}, {row['dtype']}: {1000 * seconds['step']:.0f} ms")
        parts[IDEAL].append(ideal / seconds["step"])
        products = seconds["linear layers"] + seconds["attention"]
        parts[LOST].append((products - ideal) / seconds["step"])
        for group in (*DRAWN, PYTHON):
            parts.setdefault(group, []).append(seconds.get(group, 0.0) / seconds["step"])
    rows_of(axes, labels)
    left = np.zeros(len(labels))
    for place, (name, shares) in enumerate(parts.items()):
        widths = 100 * np.maximum(shares, 0)
        axes.barh(range(len(labels)), widths, 0.6, left, color=(*COLORS, FAINT)[place], label=name, edgecolor="white")
        for row, width in enumerate(widths):
            if width >= 4:
                middle = left[row] + width / 2
                axes.text(middle, row, f"{width:.0f}", color="white", ha="center", va="center", fontsize=8)
        left += widths
    return saved(axes)


def roofline_sentence(result: dict) -> str:
    """Conditions of the measurement in the picture."""
    return (
        "![Where the time of a training step goes](images/roofline.svg)\n\n"
        f"CoSENT on {Path(result['corpus']).name}, batches of {BATCH_SIZE}, dropout of the model; {result['device']}, "
        f"seconds of one core, {result['when']}, commit {shortened(result['commit'])}."
    )


if __name__ == "__main__":
    main()
