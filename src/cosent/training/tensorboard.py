"""TensorBoard: the log of a run, with the scores of similar and of dissimilar pairs at every evaluation."""

import importlib.util
import os
from pathlib import Path

import numpy as np
from transformers import Trainer
from transformers.integrations import TensorBoardCallback, get_reporting_integration_callbacks
from transformers.integrations.integration_utils import default_logdir

from cosent.errors import InputError
from cosent.evaluation.retrieval import METRICS
from cosent.evaluation.score_groups import split_by
from cosent.run import Metrics, Scores

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
            "run would leave no curves. Run pip install 'cosent[tensorboard]', or leave the flag out: run.json keeps "
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
