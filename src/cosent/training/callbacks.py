"""Trainer callbacks: collapse of the scores, log lines and progress."""

import logging
import math
import sys

from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

logger = logging.getLogger(__name__)

# Every Spearman, Recall@10 and perplexity is printed too.
PRINTED = {"loss", "learning_rate", "similarity_loss", "generation_loss"}
PRINTED |= {"mlm", "neighbour", "compare", "tokens", "minutes"}


DROP = 0.1  # of validation Spearman below its best


class CollapseGuard(TrainerCallback):
    """Warns when validation Spearman is `DROP` below its best, or NaN, which means that all scores are equal.

    kexue.fm 8847 reports it for losses on cosines: loss and training accuracy improve while Spearman falls.
    """

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "eval_spearman" not in logs or state.global_step == 0:
            return
        curve = [entry["eval_spearman"] for entry in state.log_history if "eval_spearman" in entry]
        best, last = max((value for value in curve if not math.isnan(value)), default=math.nan), curve[-1]
        if math.isnan(last) or last < best - DROP:
            losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
            logger.warning(
                "step %d: collapse. Validation Spearman is %.4f%s%s. Lower --learning_rate.",
                *(state.global_step, last, "" if math.isnan(best) else f", the best was {best:.4f}"),
                f"; the training loss went from {losses[0]:.3g} to {losses[-1]:.3g}" if losses else "",
            )


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
