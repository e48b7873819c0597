"""Output of `--dry_run`: corpora, truncation, steps, weights."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset

from cosent.compute.distributed import decided_by_main
from cosent.data.corpus import Corpus, leaks
from cosent.evaluation.metrics import can_rank
from cosent.training.checkpoints import check_settings
from cosent.training.global_batch import GlobalBatchTrainer

MANY_LABELS = 6  # different ones, of which a plan says only how many


def show_plan(
    trainer: GlobalBatchTrainer, training: list[Corpus], evaluated: list[Corpus], checkpoint: str | None, settings: dict
) -> None:
    """Prints what a run would do; all processes must call it.

    Args:
        evaluated: all corpora, those trained on among them.
        checkpoint, settings: results of `find_checkpoint` and `run_settings`.
    """
    if checkpoint is not None:
        decided_by_main(lambda: check_settings(Path(checkpoint), settings))
    trained_on = {corpus.folder for corpus in training}
    plan = [("start", checkpoint or settings["model_name_or_path"])]
    for corpus in evaluated:
        name = corpus.manifest.name
        splits = {
            split: corpus.labels(split) for split in corpus.splits if split != "train" or corpus.folder in trained_on
        }
        counts = (f"{split} {len(values):,} ({distribution(values)})" for split, values in splits.items())
        plan.append(("corpus", f"{name} ({corpus.manifest.label_kind}): {', '.join(counts)}"))
        plan += [("warning", f"{name}: {text}") for text in corpus.manifest.warnings]
        plan += [
            ("warning", f"{name} {split} has labels of one kind only: nothing can be ranked there")
            for split, values in splits.items()
            if split != "train" and not can_rank(values)
        ]
    trained, total = (
        sum(weight.numel() for weight in trainer.model.parameters() if weight.requires_grad or not only)
        for only in (True, False)
    )
    plan += [("read", truncation(trainer)), ("steps", steps(trainer))]
    plan.append(("weights", f"{trained:,} of {total:,} are trained ({trained / total:.1%})"))
    if trainer.adapter is not None:
        names = Counter(name.rsplit(".", 1)[-1] for name in trainer.adapter.peft_model.targeted_module_names)
        plan.append(("LoRA", ", ".join(f"{count} x {name}" for name, count in names.items())))
    for where, count in leaks(training, evaluated).items():
        plan.append(("warning", f"{count:,} pairs of {where} are among the training pairs: its figures flatter"))
    if trainer.is_world_process_zero():
        print("Dry run: nothing is trained or saved.", *(f"{name:<10}{text}" for name, text in plan), sep="\n")


def distribution(values: np.ndarray) -> str:
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) > MANY_LABELS:
        return f"{len(distinct)} labels from {distinct[0]:g} to {distinct[-1]:g}"
    return ", ".join(f"{count:,} x {label:g}" for label, count in zip(distinct, counts, strict=True))


def truncation(trainer: GlobalBatchTrainer) -> str:
    """Training pairs, their tokens, and how many texts are cut."""
    sets: list[Any] = [trainer.train_dataset]
    while any(isinstance(one, ConcatDataset) for one in sets):
        sets = [part for one in sets for part in getattr(one, "datasets", [one])]
    tokens = sum(int(view[1][-1] - view[1][0]) for one in sets for view in one.columns if isinstance(view, tuple))
    cut, total = sum(one.truncated for one in sets), sum(one.sequences for one in sets)
    return f"{len(trainer.train_dataset):,} pairs, {tokens:,} tokens, {cut:,} of {total:,} {sets[0].unit} truncated"


def steps(trainer: GlobalBatchTrainer) -> str:
    """Steps, epochs and batches, by Trainer's own count."""
    args = trainer.args
    epochs, per_epoch, *_, total = trainer.set_initial_training_values(args, trainer.get_train_dataloader())
    rows = trainer._train_batch_size * args.world_size
    text = f"{total:,} = {epochs} epochs of {per_epoch:,}; batches of {rows:,} pairs"
    if trainer.cached_parts is not None:
        text += f" in parts of {'at most ' if trainer.cached_parts.auto else ''}{trainer.cached_parts.pairs}"
    if args.gradient_accumulation_steps > 1:
        text += f", {args.gradient_accumulation_steps} of them a step"
    return text
