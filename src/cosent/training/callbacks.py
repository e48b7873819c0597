"""Trainer callbacks: report of dead batches, early stopping and log lines."""

import importlib.util
import logging
import os
import sys
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback, Trainer, TrainerCallback
from transformers.integrations import TensorBoardCallback, get_reporting_integration_callbacks
from transformers.integrations.integration_utils import default_logdir

from cosent.errors import InputError
from cosent.evaluation.retrieval import METRICS
from cosent.evaluation.similarity import split_by
from cosent.run import Metrics, Scores

logger = logging.getLogger(__name__)

# And every Spearman, Recall@10 and perplexity.
SHOWN = (
    "loss",
    "learning_rate",
    "similarity_loss",
    "generation_loss",
    "mlm",
    "neighbour",
    "compare",
    "tokens",
    "minutes",
)


class DeadBatchReport(TrainerCallback):
    """Counts batches with nothing to compare and reports them at the end of every epoch.

    They have no two pairs of different label, or for a loss that compares sentences of different pairs no similar ones.
    The loss is exactly 0 there, and so is its gradient: the step has no effect.
    """

    def __init__(self):
        self.reset()

    def reset(self) -> None:
        self.batches = 0
        self.alive = torch.zeros((), dtype=torch.long)

    def add(self, has_order: torch.Tensor) -> None:
        """Counts one batch; `has_order` is a bool tensor of shape `()`. Kept on its device: no synchronisation."""
        self.batches += 1
        self.alive = self.alive.to(has_order.device) + has_order.long()

    def on_epoch_end(self, args, state, control, **kwargs):
        dead = self.batches - int(self.alive)
        if dead:
            logger.warning(
                "epoch %d: %d of %d batches held pairs of one label only (infonce: no similar ones) and taught "
                "nothing. A larger --per_device_train_batch_size makes them rarer, --balanced_batches as rare as "
                "possible.",
                round(state.epoch),
                dead,
                self.batches,
            )
        self.reset()


class EarlyStopping(EarlyStoppingCallback):
    """Early stopping by the metric that selects the best checkpoint: the mean of several corpora, not each of them."""

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        if f"eval_{args.metric_for_best_model}" in metrics:
            super().on_evaluate(args, state, control, metrics, **kwargs)


class LogLines(TrainerCallback):
    """Prints each log entry as a short line on stderr above the progress bar, instead of a dictionary."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        names = [name for name in logs if name in SHOWN or name.endswith(("_spearman", "_recall_at_10", "_perplexity"))]
        shown = [f"{name} {float(logs[name]):.4g}" for name in names]
        if state.is_world_process_zero and shown:
            tqdm.write(f"epoch {state.epoch:.2f}  step {state.global_step}  " + "  ".join(shown), file=sys.stderr)


class QuietProgress(ProgressCallback):
    """Progress bars without printed dictionaries."""

    def on_train_begin(self, args, state, control, **kwargs):
        super().on_train_begin(args, state, control, **kwargs)
        if self.training_bar is not None:
            self.training_bar.set_description_str("Training", refresh=False)

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        super().on_prediction_step(args, state, control, eval_dataloader, **kwargs)
        if self.prediction_bar is not None:
            self.prediction_bar.set_description_str("Evaluation", refresh=False)

    def on_log(self, args, state, control, logs=None, **kwargs):
        pass


def use_log_lines(trainer: Trainer) -> None:
    """Replaces the stock reporting of a trainer by `LogLines`."""
    trainer.remove_callback(PrinterCallback)
    if trainer.pop_callback(ProgressCallback):
        trainer.add_callback(QuietProgress)
    trainer.add_callback(LogLines)


BINS = 50
CURVES = ("spearman", "pearson", "kendall", *METRICS)


def check_reporters(report_to: str) -> None:
    """Checks --report_to before anything is loaded.

    Raises:
        InputError: TensorBoard without its package.
        ValueError: an unknown name.
    """
    if report_to == "tensorboard" and importlib.util.find_spec("tensorboard") is None:
        raise InputError(
            "--report_to tensorboard needs the package tensorboard, which is not installed. Nothing was run, since the "
            "run would leave no curves. Run pip install -e '.[tensorboard]', or leave the flag out: run.json keeps "
            "the log too."
        )
    get_reporting_integration_callbacks(report_to)


class TensorBoard(TensorBoardCallback):
    """Trainer's TensorBoard callback, with score distributions and the untrained model at step 0.

    It writes to `runs/` in the output folder, or to TENSORBOARD_LOGGING_DIR.
    """

    def __init__(self, output_dir: str):
        super().__init__()
        self.logging_dir = os.environ.get("TENSORBOARD_LOGGING_DIR") or str(Path(output_dir, default_logdir()))

    def add_scores(self, prefix: str, scores: np.ndarray, labels: np.ndarray, step: int) -> None:
        """Adds a histogram for similar and one for dissimilar pairs, in the group of the metrics.

        Args:
            prefix: that of the metrics in Trainer's log: `eval` or `eval_CORPUS`.
        """
        for group, values in split_by(labels, scores):
            if len(values):
                name = in_group(f"{prefix}_scores_of_{group}_pairs")
                self.writer().add_histogram(name, values, step, bins=BINS)  # the default bins are logarithmic

    def add_start(self, names: dict[str, str], metrics: Metrics, scores: Scores) -> None:
        """Adds metrics and scores on validation before training, as step 0 of the curves.

        Args:
            names: corpora by the prefix of their metrics in Trainer's log.
        """
        for prefix, corpus in names.items():
            for name, value in metrics[corpus]["validation"].items():
                if name in CURVES:
                    self.writer().add_scalar(in_group(f"{prefix}_{name}"), value, 0)
            split = scores[corpus]["validation"]
            self.add_scores(prefix, split["before"], split["labels"], 0)

    def writer(self):
        if self.tb_writer is None:  # before training has begun
            from torch.utils.tensorboard import SummaryWriter

            self.tb_writer = SummaryWriter(log_dir=self.logging_dir)
        return self.tb_writer


def in_group(key: str) -> str:
    """The tag under which the stock callback writes a key of Trainer's log that begins with `eval_`."""
    return key.replace("eval_", "eval/", 1)


def use_tensorboard(trainer: Trainer) -> TensorBoard | None:
    """Replaces the stock callback; None on other processes than the first, and without --report_to tensorboard."""
    if not trainer.pop_callback(TensorBoardCallback) or not trainer.is_world_process_zero():
        return None
    board = TensorBoard(trainer.args.output_dir)
    trainer.add_callback(board)
    return board
