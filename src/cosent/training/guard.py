"""Guard against collapse: the loss falls, but validation Spearman gets worse.

kexue.fm 8847 reports it for losses on cosines: loss and training accuracy improve while Spearman falls.
"""

import logging
import math

from transformers import TrainerCallback

from cosent.errors import InputError
from cosent.training.arguments import PairTrainingArguments

logger = logging.getLogger(__name__)

DROP = 0.1  # of validation Spearman below its best


class CollapseGuard(TrainerCallback):
    """Acts when validation Spearman is `drop` below its best, or NaN, which means that all scores are equal.

    It has no state except the log, so a resumed run continues as an uninterrupted one would.

    Args:
        action: `warn`, or `stop`: end training and keep the best checkpoint as usual.
    """

    def __init__(self, args: PairTrainingArguments, action: str, drop: float = DROP):
        if args.eval_strategy == "no":
            raise InputError(f"--on_collapse {action} needs validation pairs and --eval_strategy epoch or steps.")
        self.action, self.drop = action, drop

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "eval_spearman" not in logs or state.global_step == 0:
            return
        curve = [entry["eval_spearman"] for entry in state.log_history if "eval_spearman" in entry]
        best, now = max((value for value in curve if not math.isnan(value)), default=math.nan), curve[-1]
        if not (math.isnan(now) or now < best - self.drop):
            return
        losses = [entry["loss"] for entry in state.log_history if "loss" in entry] or [math.nan]
        logger.warning(
            "step %d: collapse. Validation Spearman is %.4f, the best was %.4f; the training loss went from %.3g to "
            "%.3g. Lower --learning_rate, or add --on_collapse stop.",
            *(state.global_step, now, best, losses[0], losses[-1]),
        )
        if self.action == "stop":
            control.should_training_stop = True
