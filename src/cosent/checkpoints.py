"""Checkpoints that a run can be killed beside: each counts once it is whole, and `auto` finds the newest of them."""

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import rotate_checkpoints

from cosent.distributed import decided_by_main, rank
from cosent.records import RECORD_NAME, UNFINISHED
from cosent.schema import InputError
from cosent.scores import SCORES_NAME

logger = logging.getLogger(__name__)

SEAL = "whole.json"
STATE = "trainer_state.json"


class ResumableTrainer(Trainer):
    """The stock Trainer, whose checkpoints are sealed when they are whole; older ones stay until then.

    Resumed from a checkpoint at which training had ended (the last step, early stopping), it trains no step more.
    """

    starts_at_end: bool | None = None

    def _save_checkpoint(self, model, trial):
        folder = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
        if self.args.should_save:
            (folder / SEAL).unlink(missing_ok=True)  # of a run that was resumed from before this step
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with clear_disk_errors(folder):
                super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()  # every rank has written its random state
        if self.args.should_save:
            with clear_disk_errors(folder):
                seal(folder)
            rotate_checkpoints(
                str(folder.parent), limit, best_model_checkpoint=self.state.best_model_checkpoint, use_mtime=True
            )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False):
        with clear_disk_errors(output_dir or self.args.output_dir):
            super().save_model(output_dir, _internal_call)

    def _run_epoch(self, *, epoch, train_dataloader, resume_from_checkpoint=None, **kwargs):
        set_epoch(train_dataloader, epoch)
        if resume_from_checkpoint is not None and self.starts_at_end is None:  # later, the checkpoint may be gone
            self.starts_at_end = had_ended(resume_from_checkpoint, self.state.max_steps)
        if self.starts_at_end:
            self.control.should_training_stop = True
        else:
            resume = {"resume_from_checkpoint": resume_from_checkpoint}
            super()._run_epoch(epoch=epoch, train_dataloader=train_dataloader, **resume, **kwargs)


def set_epoch(dataloader, epoch: int) -> None:
    """Tells the sampler of a dataloader which epoch it is, however deep accelerate has wrapped it.

    accelerate 1.15 looks two wrappers deep, and there are three where several processes resume within an epoch: their
    sampler would draw the order of the first epoch again.
    """
    sampler = dataloader.batch_sampler
    while sampler is not None:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)


def has_finished(args: TrainingArguments) -> bool:
    """With `--resume_from_checkpoint auto`: whether the run in the output folder has finished, which is said then."""
    record = Path(args.output_dir, RECORD_NAME)
    finished = decided_by_main(lambda: args.resume_from_checkpoint == "auto" and record.is_file())
    if finished and rank() == 0:
        print(f"The run in {args.output_dir} has finished ({record}): there is nothing to resume.")
    return finished


def find_checkpoint(args: TrainingArguments) -> str | None:
    """The checkpoint to continue from: none, the one named, or with `auto` the newest whole one of the output folder.

    A run that starts from the beginning finds an empty place, see `clear_output`. What was left by a run that was
    killed before its first whole checkpoint is replaced by `auto` and kept otherwise.

    Raises:
        InputError: no whole checkpoint is where one was named, or a run would replace another's model.
    """
    return decided_by_main(lambda: find(args.output_dir, args.resume_from_checkpoint, args.overwrite_output_dir))


def find(output_dir: str, wanted: str | None, overwrite: bool) -> str | None:
    if wanted not in (None, "auto"):
        if not is_whole(Path(wanted)):
            raise InputError(
                f"--resume_from_checkpoint {wanted} is not a checkpoint, or not a whole one. Pass a folder "
                f"checkpoint-<step> with a {SEAL} of an earlier run, or `auto` for the newest one in --output_dir."
            )
        return wanted
    folder = Path(output_dir)
    if wanted == "auto":
        checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rsplit("-", 1)[1]))
        while checkpoints and not is_whole(checkpoints[-1]):
            logger.warning("%s is not whole (the run was stopped while writing it) and is skipped.", checkpoints.pop())
        if checkpoints:
            logger.warning("resuming from %s", checkpoints[-1])
            return str(checkpoints[-1])
        overwrite = overwrite or (folder / UNFINISHED).exists()
    clear_output(folder, overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / UNFINISHED).touch()
    return None


def clear_output(folder: Path, overwrite: bool) -> None:
    """Makes way for a run that starts from the beginning: an earlier run's record and checkpoints go.

    Raises:
        InputError: `folder` holds a model or checkpoints, and `overwrite` is not set.
    """
    checkpoints = list(folder.glob("checkpoint-*"))
    models = [folder / name for name in (RECORD_NAME, "config.json", "adapter_config.json") if (folder / name).exists()]
    if not overwrite and (models or checkpoints):
        raise InputError(
            f"{folder} already holds {'a model' if models else 'checkpoints'}, which this run would replace. Name "
            "another --output_dir, pass --overwrite_output_dir, or go on with --resume_from_checkpoint auto."
        )
    for name in (RECORD_NAME, SCORES_NAME):
        (folder / name).unlink(missing_ok=True)
    for checkpoint in checkpoints:
        shutil.rmtree(checkpoint)


def seal(folder: Path) -> None:
    """Declares a checkpoint whole: lists its files and their sizes in a file that appears at once."""
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    partial = folder / f"{SEAL}.partial"
    partial.write_text(json.dumps(sizes, indent=1), encoding="utf-8")
    os.replace(partial, folder / SEAL)


def is_whole(folder: Path) -> bool:
    """Whether a checkpoint was sealed and its files still have their sizes."""
    if not (folder / SEAL).is_file():
        return False
    sizes = json.loads((folder / SEAL).read_text(encoding="utf-8"))
    return all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sizes.items())


def had_ended(checkpoint: str, max_steps: int) -> bool:
    """Whether training was over at this checkpoint: by early stopping, or since it has `max_steps` steps already."""
    state = json.loads(Path(checkpoint, STATE).read_text(encoding="utf-8"))
    stopped = state["stateful_callbacks"]["TrainerControl"]["args"]["should_training_stop"]
    return stopped and (state["global_step"] < state["max_steps"] or state["global_step"] >= max_steps)


@contextmanager
def clear_disk_errors(folder: str | Path) -> Iterator[None]:
    """Ends with a message for the user where a folder cannot be written, as on a full disk."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "inline_container" not in str(error):
            raise  # not from the writer of torch.save
        place = next(parent for parent in (Path(folder), *Path(folder).parents) if parent.exists())
        free = shutil.disk_usage(place).free / 2**20
        raise InputError(
            f"{folder} could not be written ({str(error).splitlines()[0]}); {free:.0f} MiB are free there. Checkpoints "
            "that were whole before are untouched: make room, then give the same command with "
            "--resume_from_checkpoint auto."
        ) from error
