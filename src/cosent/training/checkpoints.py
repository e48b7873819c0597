"""Crash-safe checkpoints: a checkpoint counts only once it is complete, and `auto` finds the newest one."""

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path

from transformers import TrainingArguments

from cosent.atomic import UNFINISHED, filled_folder, is_whole, locked, writable_folder, write_atomically
from cosent.compute.distributed import decided_by_main, launched_with, rank
from cosent.errors import InputError, reading
from cosent.models.folder import CONFIG, WEIGHTS_AND_TOKENIZER, remove_modules
from cosent.models.lora import ADAPTER_FOLDER
from cosent.record import QUERIES_NAME, RECORD_NAME, SCORES_NAME, read_record

logger = logging.getLogger(__name__)

CONTINUE = "Then add --resume_from_checkpoint auto."
ANOTHER = "Remove this checkpoint, and continue with --resume_from_checkpoint auto."
SETTINGS_NAME = "settings.json"  # settings of the run, in each of its checkpoints
# The arguments of Trainer that change what is learnt; a resumed run must have those that it was started with.
TRAINER_SETTINGS = {
    *("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps", "learning_rate"),
    *("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "optim", "optim_args", "optim_target_modules"),
    *("weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "save_only_model", "bf16"),
    *("fp16", "tf32", "seed", "data_seed", "dataloader_drop_last", "train_sampling_strategy"),
    *("metric_for_best_model", "greater_is_better", "ignore_data_skip", "full_determinism"),
}
MAY_DIFFER = {"config", "overwrite_output_dir", "data_dir"}  # our own arguments that do not


def has_finished(args: TrainingArguments) -> bool:
    """With `--resume_from_checkpoint auto`: prints a message and returns True if the run has already finished.

    Raises:
        InputError: the finished run had another number of epochs or steps.
    """
    record = Path(args.output_dir, RECORD_NAME)
    auto = args.resume_from_checkpoint == "auto"
    unfinished = record.with_name(UNFINISHED)
    if not decided_by_main(lambda: auto and record.is_file() and not unfinished.exists()):
        return False
    finished = read_record(args.output_dir)
    for name in ("num_train_epochs", "max_steps"):
        value, trained = getattr(args, name), finished.recipe.get(name) if finished else None
        if trained is not None and value != trained:
            raise InputError(
                f"The run in {args.output_dir} has finished, with --{name} {trained:g} and not {value:g}. To train it "
                f"further: --model_name_or_path {args.output_dir} --output_dir NEW. To train from the start: "
                "--overwrite_output_dir true without --resume_from_checkpoint."
            )
    if rank() == 0:
        print(f"The run in {args.output_dir} has finished ({record}): there is nothing to resume.")
    return True


def find_checkpoint(output_dir: str, checkpoint: str | None, overwrite: bool) -> str | None:
    """The checkpoint to continue from: none, the named one, or with `auto` the newest complete one of the folder.

    Changes no file.
    """
    if checkpoint not in (None, "auto"):
        if not is_whole(Path(checkpoint)):
            raise InputError(
                f"--resume_from_checkpoint {checkpoint} is not a checkpoint, or not a complete one. Use auto."
            )
        if is_of(checkpoint, output_dir):
            return checkpoint
    folder = Path(output_dir)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output_dir {folder} is a file. Name a folder.")
    checkpoints = checkpoints_of(folder)
    if checkpoint == "auto":
        for newest in sorted(checkpoints, key=step_of, reverse=True):
            if is_whole(newest):
                logger.info("resuming from %s", newest)
                return str(newest)
            logger.warning("%s is not complete (stopped while writing, or damaged) and is skipped.", newest)
        if (folder / UNFINISHED).exists():
            return None
    models = [name for name in (RECORD_NAME, "config.json", "adapter_config.json") if (folder / name).exists()]
    if not overwrite and (models or checkpoints):
        raise InputError(
            f"{folder} already holds {'a model' if models else 'checkpoints'}. Name another --output_dir, pass "
            "--overwrite_output_dir, or continue with --resume_from_checkpoint auto."
        )
    return None if checkpoint == "auto" else checkpoint


def checkpoints_of(folder: Path) -> list[Path]:
    """The checkpoints of a run, whole or not."""
    return [path for path in folder.glob("checkpoint-*") if path.name.rpartition("-")[2].isdecimal()]


def step_of(checkpoint: str | Path) -> int:
    """The step at which a checkpoint was made; 0 for one of another name."""
    number = Path(checkpoint).name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def is_of(checkpoint: str, output_dir: str) -> bool:
    """Whether a checkpoint belongs to the run in a folder."""
    return Path(checkpoint).resolve().parent == Path(output_dir).resolve()


def run_settings(args: TrainingArguments, *job_arguments, data: dict[str, str]) -> dict:
    """Every setting that affects training: `TRAINER_SETTINGS`, ours, the launcher's, and hashes of `data` by name."""
    inherited = {field.name for field in fields(TrainingArguments)} - TRAINER_SETTINGS
    settings = {name: value for name, value in args.to_dict().items() if name not in inherited}
    settings |= {f"data of {Path(name).name}": sha256[:12] for name, sha256 in data.items()}
    settings |= {"processes": args.world_size, "mixed_precision": args.mixed_precision, "sharded_by": launched_with()}
    for arguments in job_arguments:
        settings |= asdict(arguments)
    return {name: value for name, value in sorted(settings.items()) if name not in MAY_DIFFER}


def claim_output_folder(output_dir: str, checkpoint: str | None, settings: dict) -> None:
    """Prepares the folder of a run: one that starts there removes an earlier run's record, adapter and checkpoints.

    Compares the settings with the checkpoint to resume, and stores them for all checkpoints.
    """

    def prepare() -> None:
        if checkpoint is not None:
            check_settings(Path(checkpoint), settings)
        for name in ("model_name_or_path", "teacher", "init"):
            if settings.get(name) is not None and Path(settings[name]).resolve() == Path(output_dir).resolve():
                raise InputError(f"--{name} {settings[name]} is --output_dir too, which is emptied. Name another.")
        folder = writable_folder(output_dir)
        (folder / RECORD_NAME).unlink(missing_ok=True)  # until the mark is there, it counts as finished
        write_atomically(folder / UNFINISHED, json.dumps(settings, ensure_ascii=False, indent=1))
        remove_run(folder)
        if checkpoint is None or not is_of(checkpoint, output_dir):
            outdated = list(folder.glob("checkpoint-*"))
        else:  # a kill may have left half of one that was being removed
            outdated = [
                old for old in checkpoints_of(folder) if step_of(old) < step_of(checkpoint) and not is_whole(old)
            ]
        for old in outdated:
            shutil.rmtree(old)

    decided_by_main(prepare)


def remove_run(folder: Path) -> None:
    """Removes a model from a folder, first its config, with its record, rules, scores and adapter; a card stays."""
    (folder / CONFIG).unlink(missing_ok=True)
    remove_modules(folder)
    for pattern in (*WEIGHTS_AND_TOKENIZER, SCORES_NAME, QUERIES_NAME):
        for file in folder.glob(pattern):
            file.unlink()
    for adapter in folder.glob(ADAPTER_FOLDER):
        shutil.rmtree(adapter)


@contextmanager
def final_folder(args: TrainingArguments, output_dir: str | None = None) -> Iterator[Path]:
    """A hidden folder for the final model; at the end, its content replaces the model in the output folder.

    Its config, without which no library reads a model, comes last, and then the mark of the unfinished run goes. A
    process that does not save gets the output folder itself.
    """
    folder = Path(output_dir or args.output_dir)
    if not args.should_save:
        yield folder
        return
    with locked(folder), filled_folder(folder, CONFIG, remove_run) as partial:
        yield partial
    (folder / UNFINISHED).unlink(missing_ok=True)


def check_settings(checkpoint: Path, settings: dict) -> None:
    """Refuses to resume a run with other settings than it was started with."""
    file = checkpoint / SETTINGS_NAME
    if not file.is_file():
        raise InputError(
            f"{checkpoint} has no {SETTINGS_NAME} and cannot be resumed. Start with --overwrite_output_dir."
        )
    with reading(file, advice=ANOTHER):
        started, settings = json.loads(file.read_text(encoding="utf-8")), json.loads(json.dumps(settings))
        differing = [
            f"{name} {started[name]}, not {settings[name]}"
            for name in settings
            if name in started and settings[name] != started[name]
        ]
    if differing:
        raise InputError(
            f"The run of {checkpoint} was started with other settings: {'; '.join(differing)}. Repeat its command."
        )
