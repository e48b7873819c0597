"""The stock Trainer with crash-safe checkpoints."""

import shutil
from pathlib import Path

from transformers import Trainer
from transformers.trainer_utils import rotate_checkpoints

from cosent.run_record import UNFINISHED
from cosent.training.checkpoints import SEAL, SETTINGS, clear_disk_errors, had_ended, seal


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
                started = Path(self.args.output_dir, UNFINISHED)
                if started.is_file():  # a trainer that no job runs has none
                    shutil.copyfile(started, folder / SETTINGS)
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
