"""Compare loss and gradient of a batch of 32 pairs: one process, several, in parts, with and without LoRA.

python -m lab.benchmarks.exactness --corpus data/stsb --output lab/results/exactness.json

Every split runs the trainer itself for one optimizer step, dropout 0, on gloo processes of one thread each. A second
part measures what caching is for: the memory of activations of 1,024 pairs in parts of 16.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import weakref
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig
from transformers import TrainerCallback

from cosent import CrossEncoder, PairTrainer, PairTrainingArguments, SentenceEncoder
from cosent.comparing.document import markdown_table
from cosent.data.corpus import load_corpus
from cosent.errors import InputError
from cosent.losses import TOWERS
from cosent.record import shortened
from cosent.training.job import environment, footprint
from lab.benchmarks.common import shuffled_rows

PAIRS = 32
SPLITS = {  # name -> processes, pairs per device, further arguments of the trainer
    "1 x 32": (1, 32, {}),
    "2 x 16": (2, 16, {}),
    "4 x 8": (4, 8, {}),
    "cached 32 = 4 x 8": (1, 8, {"cached_batch_size": 32}),
    "cached 32 = 2 x 2 x 8": (2, 8, {"cached_batch_size": 32}),
    "2 x 16, each on its own": (2, 16, {"local_comparisons": True}),
    "4 x 8 accumulated": (1, 8, {"gradient_accumulation_steps": 4}),
}
MODELS = {f"{tower}, LoRA" if lora else tower: (tower, lora) for tower in TOWERS for lora in (False, True)}
MEMORY = {"plain 16": (16, None), "cached 1,024 at 16": (16, 1024), "plain 1,024": (1024, None)}


class Gradients(TrainerCallback):
    """Keeps the gradients of the first optimizer step, one flat array."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.flat = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.requires_grad])


def trainer_of(corpus: str, pairs: int, tower: str, lora: bool, batch: int, further: dict):
    """A trainer for some pairs of a corpus, from `mini`, without dropout."""
    rows, max_length = shuffled_rows(corpus, "train", pairs)
    options = {"max_length": max_length[tower], "dropout": 0.0, "seed": 1}
    if tower == "bi_encoder":
        encoder = SentenceEncoder.from_pretrained("mini", **options)
    else:
        encoder = CrossEncoder.from_pretrained("mini", num_labels=1, **options)
    folder = tempfile.mkdtemp()
    args = PairTrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=batch,
        num_train_epochs=1,
        max_grad_norm=0.0,
        use_cpu=True,
        eval_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=1,
        optim="sgd",
        seed=1,
        **further,
    )
    adapter = LoraConfig(r=8, lora_alpha=16) if lora else None
    return PairTrainer(encoder, args, train_dataset=rows, labels=load_corpus(corpus).manifest, peft_config=adapter)


def run_split(corpus: str, split: str, folder: str) -> None:
    """One step of every model on one split; the first process writes losses and gradients."""
    _, batch, further = SPLITS[split]
    results = {}
    for name, (tower, lora) in MODELS.items():
        trainer = trainer_of(corpus, PAIRS, tower, lora, batch, further)
        if lora:  # the second factor starts at 0, and so does the gradient of the first
            torch.manual_seed(1)
            for weight_name, weight in trainer.model.named_parameters():
                if "lora_B" in weight_name:
                    torch.nn.init.normal_(weight, std=0.02)
        gradients = Gradients()
        trainer.add_callback(gradients)
        trainer.train()
        results[f"{name}|gradient"] = gradients.flat.numpy()
        results[f"{name}|loss"] = next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
    if trainer.is_world_process_zero():
        np.savez(Path(folder, f"{list(SPLITS).index(split)}.npz"), **results)


def measure_memory(corpus: str, case: str) -> dict:
    """Peak MiB of the activations kept by autograd, and of the process, over 1,024 pairs."""
    batch, cached = MEMORY[case]
    trainer = trainer_of(corpus, 1024, "bi_encoder", False, batch, {"cached_batch_size": cached})
    weights = {weight.untyped_storage().data_ptr() for weight in trainer.model.parameters()}
    alive, now, peak = {}, 0, 0

    def release(pointer: int, size: int) -> None:
        nonlocal now
        alive[pointer] -= 1
        if not alive[pointer]:
            now -= size

    class Kept:
        def __init__(self, tensor):
            self.tensor = tensor

    def pack(tensor: torch.Tensor) -> Kept:
        nonlocal now, peak
        kept, storage = Kept(tensor), tensor.untyped_storage()
        pointer, size = storage.data_ptr(), storage.nbytes()
        if pointer not in weights:
            now += 0 if alive.get(pointer) else size
            alive[pointer] = alive.get(pointer, 0) + 1
            peak = max(peak, now)
            weakref.finalize(kept, release, pointer, size)
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.tensor):
        trainer.train()
    process = footprint(trainer.model, trainer.optimizer).peak_mib
    return {"activations_mib": peak / 2**20, "process_mib": process}


def launch(arguments: list[str], processes: int) -> str:
    command = [sys.executable, "-m", "lab.benchmarks.exactness", *arguments]
    if processes > 1:
        port = str(29500 + os.getpid() % 1000)
        distributed = ["-m", "torch.distributed.run", "--nproc_per_node", str(processes), "--master_port", port]
        command = [sys.executable, *distributed, *command[1:]]
    settings = {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    if result.returncode:
        raise InputError(f"{' '.join(command)} failed:\n{result.stderr[-2000:]}")
    return result.stdout


def compare(reference, other) -> dict[str, dict[str, float]]:
    """Relative differences of loss and gradient from those of one process, by model; the largest over the gradient."""
    differences = {}
    for name in MODELS:
        expected, got = reference[f"{name}|gradient"], other[f"{name}|gradient"]
        loss, other_loss = float(reference[f"{name}|loss"]), float(other[f"{name}|loss"])
        differences[name] = {
            "loss": abs(other_loss - loss) / abs(loss),
            "gradient": float(np.abs(got - expected).max() / np.abs(expected).max()),
        }
    return differences


def main(args: argparse.Namespace) -> None:
    if args.split:
        return run_split(args.corpus, args.split, args.folder)
    if args.memory:
        return print(json.dumps(measure_memory(args.corpus, args.memory)))
    with tempfile.TemporaryDirectory() as folder:
        for split, (processes, _, _) in SPLITS.items():
            launch(["--corpus", args.corpus, "--split", split, "--folder", folder], processes)
        loaded = [np.load(Path(folder, f"{number}.npz")) for number in range(len(SPLITS))]
        differences = {split: compare(loaded[0], other) for split, other in zip(SPLITS, loaded, strict=True)}
    memory = {
        case: json.loads(launch(["--corpus", args.corpus, "--memory", case], 1).splitlines()[-1]) for case in MEMORY
    }
    plain = memory["plain 16"]["activations_mib"]
    result = {
        "kind": "exactness",
        "pairs": PAIRS,
        "corpus": Path(args.corpus).name,
        "differences": differences,
        "memory": memory,
        "cached_over_plain": memory["cached 1,024 at 16"]["activations_mib"] / plain,
        **asdict(environment()),
    }
    print(json.dumps({"differences": differences, "memory": memory}, indent=1))
    if args.output:
        Path(args.output).write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def exactness_table(result: dict) -> str:
    """Differences of loss and gradient of a split batch from those of one process, and memory of cached parts."""
    models, pairs = list(next(iter(result["differences"].values()))), result["pairs"]
    splits = [
        [split, *(f"{cells[model]['loss']:.0e} / {cells[model]['gradient']:.0e}" for model in models)]
        for split, cells in result["differences"].items()
    ]
    memory = [
        [case, f"{mib['activations_mib']:.1f}", f"{mib['process_mib']:.0f}"] for case, mib in result["memory"].items()
    ]
    return (
        f"{markdown_table([f'{pairs} pairs as', *models], splits)}\n\n"
        f"{markdown_table(['bi_encoder', 'activations, MiB', 'process, MiB'], memory)}\n\n"
        f"Largest relative difference of loss / gradient from 1 x {pairs}, {result['corpus']}, no dropout; "
        f"{result['device']}, commit {shortened(result['commit'])}."
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="data/stsb", help="prepared corpus")
    parser.add_argument("--output", help="JSON to write")
    parser.add_argument("--split", choices=SPLITS, help=argparse.SUPPRESS)
    parser.add_argument("--memory", choices=MEMORY, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    main(parser.parse_args())
