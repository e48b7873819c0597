"""Say what a run would do, without doing it (`--dry_run`): data, steps, weights, memory, warnings, and its launch."""

import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset
from transformers.training_args import OptimizerNames

from cosent.compute.distributed import decided_by_main
from cosent.data.corpus import Corpus, leaks
from cosent.evaluation.metrics import can_rank
from cosent.models.lora import Adapter
from cosent.training.arguments import PairTrainingArguments
from cosent.training.checkpoints import check_settings
from cosent.training.sharding import launched_with
from cosent.training.trainer import PairTrainer

# Numbers in float32 that an optimizer keeps for each trained weight.
STATES = {"adamw_torch": 2, "adamw_torch_fused": 2, "sgd": 0, "rmsprop": 1, "adagrad": 1}
MANY_LABELS = 6


@contextmanager
def output_folder(args: PairTrainingArguments) -> Iterator[None]:
    """The folder that Trainer creates: that of the run, or for a dry run one that is removed again."""
    if not args.dry_run:
        yield
        return
    wanted = args.output_dir
    with tempfile.TemporaryDirectory() as args.output_dir:
        yield
    args.output_dir = wanted


def show_plan(
    trainer: PairTrainer,
    model: nn.Module,
    training: list[Corpus],
    measured: list[Corpus],
    read: str,
    checkpoint: str | None,
    settings: dict,
) -> None:
    """Prints what a run would do; all processes must call it.

    Args:
        trainer: ready to train.
        model: the module that it trains.
        training, measured: corpora.
        read: the text of the training pairs, see `truncation`.
        checkpoint, settings: results of `find_checkpoint` and `run_settings`.

    Raises:
        InputError: the checkpoint is of a run with other settings.
    """
    if checkpoint is not None:
        decided_by_main(lambda: check_settings(Path(checkpoint), settings))
    lines = [
        "Dry run: nothing is trained or saved.",
        f"start     {checkpoint or settings['model_name_or_path']}",
        *data_lines(training, measured),
        f"read      {len(trainer.train_dataset):,} pairs, {read}",
        f"steps     {steps(trainer)}",
        f"weights   {weights(model)}",
        *([f"LoRA      {lora_targets(trainer.adapter)}"] if trainer.adapter is not None else []),
        f"memory    {memory(model, trainer.args)}",
        *(f"warning   {warning}" for warning in warnings(training, measured)),
        f"launch    {launch_line(sys.argv[1:], trainer.args)}",
    ]
    if trainer.is_world_process_zero():
        print("\n".join(lines))


def data_lines(training: list[Corpus], measured: list[Corpus]) -> list[str]:
    """A line for each corpus: pairs and labels of its splits."""
    corpora = {str(corpus.folder): corpus for corpus in [*training, *measured]}
    trained = {str(corpus.folder) for corpus in training}
    return [
        f"corpus    {corpus.manifest.name} ({corpus.manifest.label_kind}): "
        + ", ".join(
            f"{split} {len(rows):,} ({labels(corpus.labels(split))})"
            for split, rows in corpus.splits.items()
            if split != "train" or folder in trained
        )
        for folder, corpus in corpora.items()
    ]


def labels(values: np.ndarray) -> str:
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) > MANY_LABELS:
        return f"{len(distinct)} labels from {distinct[0]:g} to {distinct[-1]:g}"
    return ", ".join(f"{count:,} x {label:g}" for label, count in zip(distinct, counts, strict=True))


def truncation(data: Dataset, max_length: int) -> str:
    """Tokens of tokenised pairs, or several sets of them, and how many texts are cut."""
    sets = [data]
    while any(isinstance(one, ConcatDataset) for one in sets):
        sets = [part for one in sets for part in (one.datasets if isinstance(one, ConcatDataset) else [one])]
    tokens = sum(int(view[1][-1] - view[1][0]) for one in sets for view in one.columns if isinstance(view, tuple))
    cut, all_of_them = sum(one.truncated for one in sets), sum(one.sequences for one in sets)
    return f"{tokens:,} tokens, {cut:,} of {all_of_them:,} {sets[0].unit} cut at {max_length}"


def steps(trainer: PairTrainer) -> str:
    """Steps, epochs and batches, by Trainer's own count."""
    args = trainer.args
    epochs, per_epoch, *_, total = trainer.set_initial_training_values(args, trainer.get_train_dataloader())
    rows = trainer._train_batch_size * args.world_size
    made_of = f"{trainer._train_batch_size} on each of {args.world_size} devices" if args.world_size > 1 else "1 device"
    if trainer.cached_parts is not None:
        most = "at most " if trainer.cached_parts.auto else ""
        made_of += f", in parts of {most}{trainer.cached_parts.pairs}"
    accumulated = f", {args.gradient_accumulation_steps} of them a step" * (args.gradient_accumulation_steps > 1)
    return f"{total:,} = {epochs} epochs of {per_epoch:,}; batches of {rows:,} pairs ({made_of}){accumulated}"


def weights(model: nn.Module) -> str:
    sizes = Counter()
    for weight in model.parameters():
        sizes[weight.requires_grad] += weight.numel()
    return f"{sizes[True]:,} of {sizes.total():,} are trained ({sizes[True] / sizes.total():.1%})"


def lora_targets(adapter: Adapter) -> str:
    """The adapted layers by their own name, and how many there are of each."""
    names = Counter(name.rsplit(".", 1)[-1] for name in adapter.peft_model.targeted_module_names)
    return ", ".join(f"{count} x {name}" for name, count in names.items())


def memory(model: nn.Module, args: PairTrainingArguments) -> str:
    """MiB per device, as far as it is known before a step."""
    trained = sum(weight.numel() * weight.element_size() for weight in model.parameters() if weight.requires_grad)
    whole = sum(weight.numel() * weight.element_size() for weight in [*model.parameters(), *model.buffers()])
    strategy, processes = launched_with(), args.world_size
    share = processes if strategy else 1
    optim = OptimizerNames(args.optim).value
    states = STATES.get(optim)
    copies = trained / share if strategy == "deepspeed" else 0  # of which its optimizer updates a share
    parts = {
        "weights": whole / (processes if strategy == "fsdp" else 1) + copies,
        "gradients": trained / share,
        "optimizer": None if states is None else states * trained / share,
        "DDP's buffers": trained if processes > 1 and strategy is None else 0,
    }
    known = [size for size in parts.values() if size is not None]
    named = [
        f"{name} {'not known for ' + optim if size is None else f'{size / 2**20:,.1f}'}"
        for name, size in parts.items()
        if size != 0 or name == "optimizer"
    ]
    return (
        f"{sum(known) / 2**20:,.1f} MiB per device: {', '.join(named)}; not counted: activations, which grow with the "
        "pairs of a part and their length, copies in half precision, and the framework"
    )


def warnings(training: list[Corpus], measured: list[Corpus]) -> list[str]:
    """What the corpora give reason to doubt; other warnings are logged as they are in a run."""
    found = [
        f"{corpus.manifest.name} {split} has labels of one kind only: nothing can be ranked there"
        for corpus in measured
        for split in corpus.splits
        if split != "train" and not can_rank(corpus.labels(split))
    ]
    for where, count in leaks(training, measured).items():
        found.append(f"{count:,} pairs of {where} are among the training pairs: its figures flatter")
    corpora = {str(corpus.folder): corpus for corpus in [*training, *measured]}
    return found + [f"{one.manifest.name}: {text}" for one in corpora.values() for text in one.manifest.warnings]


def launch_line(words: list[str], args: PairTrainingArguments) -> str:
    """The command of the real run on this machine.

    Args:
        words: the command line of the dry run, without the program.
    """
    given = without_flag(words, "dry_run")
    gpus = 0 if args.device.type == "cpu" else torch.accelerator.device_count()
    strategy = launched_with()
    processes = max(gpus, args.world_size)
    start, options = "accelerate launch -q", ""
    if strategy is not None:
        name, options = {"fsdp": "fsdp", "deepspeed": "deepspeed_zero2"}[strategy], f" --num_processes {processes}"
    elif processes > 1:
        name, options = "ddp", f" --num_processes {processes}"
        if not gpus:
            start, options = f"ACCELERATE_USE_CPU=true {start}", f" --mixed_precision no{options}"
    else:
        name = "single_gpu" if gpus else "cpu"
    module = "cosent.distill" if type(args) is not PairTrainingArguments else "cosent.train"
    return f"{start} --config_file recipes/accelerate/{name}.yaml{options} -m {module} {shlex.join(given)}"


def without_flag(words: list[str], name: str) -> list[str]:
    """A command line without a switch, in any of its spellings: `--dry_run`, `--dry-run true`, `--dry_run=yes`."""
    kept: list[str] = []
    skip_value = False
    for word in words:
        flag = word.split("=")[0].replace("-", "_").lstrip("_")
        if word.startswith("--") and flag == name:
            skip_value = "=" not in word
        elif skip_value and not word.startswith("--"):
            skip_value = False
        else:
            skip_value = False
            kept.append(word)
    return kept
