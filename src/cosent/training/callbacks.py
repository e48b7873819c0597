"""Trainer callbacks: batches that taught nothing, log lines and progress."""

import logging
import sys

import torch
from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

logger = logging.getLogger(__name__)

# Every Spearman, Recall@10 and perplexity is printed too.
PRINTED = {"loss", "learning_rate", "similarity_loss", "generation_loss"}
PRINTED |= {"mlm", "neighbour", "compare", "tokens", "minutes"}


class DeadBatchReport(TrainerCallback):
    """Counts the batches of an epoch whose loss and gradient are exactly 0, since they hold nothing to compare."""

    batches = 0
    alive: torch.Tensor | int = 0

    def add(self, has_order: torch.Tensor) -> None:
        """Counts one batch; `has_order` is a bool tensor of shape `()`. Kept on its device: no synchronisation."""
        self.batches += 1
        self.alive = self.alive + has_order.long()

    def on_epoch_end(self, args, state, control, **kwargs):
        dead = self.batches - int(self.alive)
        if dead:
            logger.warning(
                "epoch %d: %d of %d batches held pairs of one label only (infonce: no similar ones; --compare_within: "
                "in each group) and taught nothing. Raise --per_device_train_batch_size, or add --balanced_batches "
                "true.",
                round(state.epoch),
                dead,
                self.batches,
            )
        self.batches, self.alive = 0, 0


class LogLines(TrainerCallback):
    """Prints each log entry as a short line on stderr above the progress bar, instead of a dictionary."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        endings = ("_spearman", "_recall_at_10", "_perplexity")
        values = [f"{name} {float(logs[name]):.4g}" for name in logs if name in PRINTED or name.endswith(endings)]
        if state.is_world_process_zero and values:
            tqdm.write(f"epoch {state.epoch:.2f}  step {state.global_step}  " + "  ".join(values), file=sys.stderr)


class QuietProgress(ProgressCallback):
    """Progress bars without printed dictionaries."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        pass


def use_log_lines(trainer: Trainer) -> None:
    """Replaces the stock reporting of a trainer by `LogLines`."""
    trainer.remove_callback(PrinterCallback)
    if trainer.pop_callback(ProgressCallback):
        trainer.add_callback(QuietProgress)
    trainer.add_callback(LogLines)
