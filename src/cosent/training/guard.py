"""Guard against collapse: the loss falls, but validation Spearman gets worse.

kexue.fm 8847 reports it for losses on cosines: loss and training accuracy improve while Spearman falls.
"""

import logging
import math

import numpy as np
from torch.utils.data import Subset
from transformers import TrainerCallback

from cosent.errors import InputError
from cosent.evaluation.similarity import spread
from cosent.models.bi_encoder import BiEncoder
from cosent.training.trainer import PairTrainer

logger = logging.getLogger(__name__)

DROP = 0.1  # of validation Spearman below its best
SAMPLE = 256  # training pairs


class CollapseGuard(TrainerCallback):
    """Acts when validation Spearman is `drop` below its best, or NaN, which means that all scores are equal.

    Only then is a sample of the training pairs measured, into the log and with it into `run.json`. The guard has no
    state except the log, so a resumed run continues as an uninterrupted one would.

    Args:
        trainer: the trainer it watches.
        action: `warn`, or `stop`: end training and keep the best checkpoint as usual.
    """

    def __init__(self, trainer: PairTrainer, action: str, drop: float = DROP):
        if trainer.args.eval_strategy == "no":
            raise InputError(f"--on_collapse {action} needs validation pairs and --eval_strategy epoch or steps.")
        self.trainer, self.action, self.drop = trainer, action, drop
        rows = np.random.default_rng(trainer.args.seed).permutation(len(trainer.train_dataset))[:SAMPLE]
        self.sample = Subset(trainer.train_dataset, rows.tolist())

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "eval_spearman" not in logs or not self.trainer.is_in_train or state.global_step == 0:
            return
        curve = [entry["eval_spearman"] for entry in state.log_history if "eval_spearman" in entry]
        best, now = max((value for value in curve if not math.isnan(value)), default=math.nan), curve[-1]
        if not (math.isnan(now) or now < best - self.drop):
            return
        measured = {"spearman": self.trainer.predict(self.sample).metrics["test_spearman"]}
        if isinstance(self.trainer.model, BiEncoder):
            measured |= spread(self.trainer.embeddings(self.sample)[:, 0])
        self.trainer.log({f"sample_{name}": value for name, value in measured.items()})
        losses = [entry["loss"] for entry in state.log_history if "loss" in entry] or [math.nan]
        logger.warning(
            "step %d: collapse. Validation Spearman is %.4f, the best was %.4f; the training loss went from %.3g to "
            "%.3g; training pairs: %s. Lower --learning_rate, or add --on_collapse stop.",
            state.global_step, now, best, losses[0], losses[-1],
            ", ".join(f"{name} {value:.3g}" for name, value in measured.items()))  # fmt: skip
        if self.action == "stop":
            control.should_training_stop = True
