"""What the training jobs share: their start, the run itself or its plan, its record, its model card, and the Hub."""

import platform
import shlex
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.utils.data import ConcatDataset
from transformers import TrainingArguments

import cosent
from cosent.comparing.card import write_card
from cosent.compute.distributed import decided_by_main
from cosent.compute.processes import peak_memory_mib
from cosent.data.corpus import Corpus, leaks
from cosent.data.groups import pair_groups
from cosent.data.manifest import sha256_of_file
from cosent.evaluation.metrics import can_rank
from cosent.models.bi_encoder import SentenceEncoder
from cosent.run import CorpusRecord, Environment, Footprint, RunRecord, manifest_hashes
from cosent.training.arguments import PairTrainingArguments
from cosent.training.checkpoints import check_settings, claim_output_folder, find_checkpoint, has_finished, run_settings
from cosent.training.corpora import RunCorpora, warn_of_missing_prompts
from cosent.training.evaluation import (
    Evaluation,
    evaluate_splits,
    final_table,
    floors,
    held_out_sets,
    save_evaluations,
    shortfalls,
)
from cosent.training.global_batch import GlobalBatchTrainer
from cosent.training.proof import FolderProof, sample_pairs
from cosent.training.resumable import ResumableTrainer


@dataclass(frozen=True)
class Start:
    """When and where a job began, and the checkpoint that it continues from."""

    time: float
    checkpoint: str | None
    environment: Environment


def begin(args: TrainingArguments) -> Start | None:
    """The start of a job; None if its run has finished already."""
    now = time.time()
    return None if has_finished(args) else Start(now, find_checkpoint(args), environment())


def run_training(
    start: Start,
    trainer: GlobalBatchTrainer,
    corpora: RunCorpora,
    arguments: tuple,
    code: Sequence[str] = (),
    **facts,
) -> None:
    """Trains, evaluates, saves, proves and publishes a model; with --dry_run, prints the plan instead.

    Args:
        arguments: argument dataclasses of the job, `TrainingArguments` first.
        code: files of the user's own code that the run depends on.
        facts: further fields of the record.
    """
    args, model = trainer.args, trainer.model
    warn_of_missing_prompts(corpora, trainer.prefixes, isinstance(trainer.encoder, SentenceEncoder))
    training, evaluated, asked = corpora.training, list(corpora.by_name.values()), recipe(*arguments)
    records = {name: CorpusRecord.of(corpus.folder) for name, corpus in corpora.by_name.items()}
    files = {file: sha256_of_file(file) for file in [*(asked["text"] or []), *code]}
    settings = run_settings(*arguments, data=manifest_hashes(records) | files)
    evaluate = partial(evaluate_splits, trainer, corpora, held_out_sets(trainer, corpora))
    if args.dry_run:
        return show_plan(trainer, training, evaluated, start.checkpoint, settings)
    proof = FolderProof(model, sample_pairs(evaluated))
    claim_output_folder(args.output_dir, start.checkpoint, settings)

    def at_start() -> Evaluation:
        proof.begin()
        return evaluate(False)

    result = trainer.train(start.checkpoint, at_start=at_start)
    before, after = trainer.before, evaluate(True)
    trainer.save_model(_internal_call=True)  # published once it has its card and record
    proven = proof.check(args.output_dir)
    if not trainer.is_world_process_zero():
        return
    record = RunRecord(
        recipe=asked,
        environment=start.environment,
        processes=args.world_size,
        footprint=footprint(model, trainer.optimizer),
        corpora=records,
        files=files,
        cached_part_size=trainer.cached_parts and trainer.cached_parts.pairs,
        train_pairs=len(trainer.train_dataset),
        before=before.metrics,
        after=after.metrics,
        thresholds=after.thresholds,
        calibrations=after.calibrations,
        intervals=after.intervals,
        prompts=trainer.prefixes,
        history=trainer.state.log_history,
        train_seconds=result.metrics["train_runtime"],
        seconds=time.time() - start.time,
        proof=proven,
        leaks=leaks(training, evaluated),
        **facts,
    )
    floor = floors(evaluated)
    record.shortfalls = shortfalls(record, floor)
    for corpus in evaluated:
        if "test" in corpus.splits:
            before.scores[corpus.manifest.name]["test"]["groups"] = pair_groups(corpus.split("test"))
    save_evaluations(args.output_dir, before, after)
    finish(trainer, record)
    print(*final_table(record, floor), record.footprint, sep="\n")
    print(f"model in {args.output_dir} ({record.train_seconds:.0f} s of training)")
    print(f"next: cosent similarity --model {shlex.quote(str(args.output_dir))} 怎么还款 如何还款")


def finish(trainer: ResumableTrainer, record: RunRecord) -> None:
    """Writes card and record into the output folder, and publishes it with --push_to_hub; for the main process."""
    args = trainer.args
    write_card(args.output_dir, record)
    record.save(args.output_dir)  # from here on the run counts as finished
    if args.push_to_hub:
        print(f"published: {trainer.push_to_hub()}")


PACKAGES = ("torch", "transformers", "datasets", "accelerate", "peft")


def environment() -> Environment:
    """Versions, commit and device."""
    cuda = torch.cuda.is_available()
    return Environment(
        versions={"cosent": cosent.__version__, **{name: version(name) for name in PACKAGES}}
        | {"python": platform.python_version()},
        commit=commit(),
        device=torch.cuda.get_device_name() if cuda else f"CPU ({platform.machine()})",
        threads=torch.get_num_threads(),
    )


def commit() -> str | None:
    """Commit of the checkout that this package runs from, with `+` if it has changes; None outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40", "--dirty=+"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git here
        return None
    return result.stdout.strip() or None


def footprint(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> Footprint:
    """Model size and memory of training on this process."""
    sizes = [(weight.numel(), weight.requires_grad) for weight in model.parameters()]
    states = [] if optimizer is None else [value for state in optimizer.state.values() for value in state.values()]
    states = [value.to_local() if isinstance(value, DTensor) else value for value in states]  # this process's shard
    bytes_of_states = sum(value.numel() * value.element_size() for value in states if torch.is_tensor(value))
    peak = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else peak_memory_mib()
    return Footprint(
        parameters=sum(size for size, _ in sizes),
        trainable_parameters=sum(size for size, trainable in sizes if trainable),
        optimizer_mib=round(bytes_of_states / 2**20, 2),
        peak_mib=round(peak, 1),
    )


def recipe(args, *others) -> dict:
    """All settings, flags and defaults alike, in the form of a recipe."""
    return {name: value for one in others for name, value in asdict(one).items()} | args.to_sanitized_dict()


MANY_LABELS = 6  # different ones, of which a plan says only how many


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
