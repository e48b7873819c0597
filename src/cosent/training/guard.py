"""Guard against collapse: the loss falls, but validation Spearman gets worse.

kexue.fm 8847 reports it for losses on cosines: loss and training accuracy improve while Spearman falls. When that
happens, the guard measures the embeddings of a sample of training pairs: they contract to one or a few directions.
"""

import logging
import math

import numpy as np
import torch
from torch.utils.data import Subset
from transformers import TrainerCallback

from cosent.compute.distributed import evaluating
from cosent.errors import InputError
from cosent.evaluation.metrics import SimilarityMetrics
from cosent.evaluation.similarity import spread
from cosent.training.trainer import PairTrainer

logger = logging.getLogger(__name__)

SAMPLE = 256  # training pairs


class CollapseGuard(TrainerCallback):
    """Checks every evaluation, and acts if validation Spearman is `drop` below its best, or NaN.

    NaN means that all scores are equal. A check compares two numbers; only at a collapse is a sample of the training
    pairs measured, into the log and with it into `run.json`. The guard has no state except the log, so a resumed run
    continues as an uninterrupted one would.

    Args:
        trainer: the trainer it watches.
        action: `warn`; `stop`: end training and keep the best checkpoint as usual; `rollback`: go back to the weights
            of the best checkpoint with a fresh optimizer and a lower learning rate.
        drop: drop of Spearman, e.g. 0.1.
        factor: factor of the learning rate, for `rollback`.

    Raises:
        InputError: a factor outside 0..1, or a `rollback` without checkpoints to go back to.
    """

    def __init__(self, trainer: PairTrainer, action: str, drop: float, factor: float):
        args = trainer.args
        if action == "rollback" and not 0 < factor < 1:
            raise InputError(f"--rollback_factor must lie between 0 and 1, got {factor}: the collapse would repeat.")
        if args.eval_strategy == "no" or (action == "rollback" and not args.load_best_model_at_end):
            raise InputError(
                f"--on_collapse {action} needs validation pairs, --eval_strategy epoch or steps, and for rollback "
                "--load_best_model_at_end true. Set them, or leave it out."
            )
        self.trainer, self.action, self.drop, self.factor = trainer, action, drop, factor
        rows = np.random.default_rng(args.seed).permutation(len(trainer.train_dataset))[:SAMPLE]
        self.sample = Subset(trainer.train_dataset, rows.tolist())

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "eval_spearman" not in logs or not self.trainer.is_in_train or state.global_step == 0:
            return
        earlier = [entry["eval_spearman"] for entry in state.log_history if "eval_spearman" in entry]
        best, now = max((value for value in earlier if not math.isnan(value)), default=math.nan), earlier[-1]
        if not (math.isnan(now) or now < best - self.drop):
            return
        measured = sample_metrics(self.trainer, self.sample)
        self.trainer.log({f"sample_{name}": value for name, value in measured.items()})
        self.warn(state, best, now, measured)
        if self.action == "stop":
            control.should_training_stop = True
        elif self.action == "rollback":
            self.roll_back(state)

    def warn(self, state, best: float, now: float, measured: dict[str, float]) -> None:
        losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
        trend = f"the training loss went from {losses[0]:.3g} to {losses[-1]:.3g}; " if losses else ""
        shown = ", ".join(f"{name} {value:.3g}" for name, value in measured.items())
        logger.warning(
            "step %d: collapse. Validation Spearman is %.4f, the best was %.4f; %son training pairs: %s.",
            state.global_step, now, best, trend, shown)  # fmt: skip

    def roll_back(self, state) -> None:
        if state.best_model_checkpoint is None:
            logger.warning("There is no checkpoint to go back to yet: training continues. Lower --learning_rate.")
            return
        trainer = self.trainer
        trainer._load_best_model()
        trainer.optimizer.state.clear()  # moments of the steps that led to the collapse
        schedulers = getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)
        schedulers.base_lrs = [rate * self.factor for rate in schedulers.base_lrs]
        for group in trainer.optimizer.param_groups:
            group["lr"] *= self.factor
        logger.info("back to %s, learning rate times %g.", state.best_model_checkpoint, self.factor)


@torch.no_grad()
def sample_metrics(trainer: PairTrainer, pairs: Subset) -> dict[str, float]:
    """Spearman on some pairs and, for a bi-encoder, the spread of their embeddings.

    Returns:
        `spearman`; `mean_cosine` of sentences of different pairs (1 = one direction), `uniformity` (0 = collapsed) and
        `effective_rank` (1 = one direction, at most the hidden size). Every rank computes all of it.
    """
    model, args = trainer.model, trainer.args
    outputs, labels = [], []
    with evaluating(model):
        for start in range(0, len(pairs), args.per_device_eval_batch_size):
            batch = [pairs[row] for row in range(start, min(len(pairs), start + args.per_device_eval_batch_size))]
            inputs = trainer._prepare_inputs(trainer.data_collator(batch))
            labels.append(inputs.pop("labels"))
            with trainer.compute_loss_context_manager():
                outputs.append(model(**inputs))

    def all_of(name: str) -> np.ndarray:
        return torch.cat([output[name] for output in outputs]).float().cpu().numpy()

    scores, gold = all_of("scores"), torch.cat(labels).cpu().numpy()
    metrics = {"spearman": SimilarityMetrics().compute(predictions=scores, references=gold)["spearman"]}
    if "embeddings" in outputs[0]:
        metrics |= spread(all_of("embeddings")[:, 0])
    return metrics
