"""Trainers of pairs: the stock Trainer with an injected loss; what differs between towers is `score()` alone."""

import logging
import math
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch.utils.data import ConcatDataset
from transformers import Trainer

from cosent.callbacks import DeadBatchReport, use_log_lines
from cosent.losses import has_ordered_pair
from cosent.objectives import Objective
from cosent.onednn import trainable_onednn_linears
from cosent.samplers import CorpusSampler
from cosent.schema import InputError

logger = logging.getLogger(__name__)


class PairTrainer(Trainer):
    """Trains a model of pairs with an objective that reads what `score()` gives.

    Trainer's own evaluation hands the scores to `compute_metrics`; there is no `eval_loss`, since the loss of a batch
    that compares pairs depends on its size. Checkpoints are written and read by the model itself (`save_pretrained`,
    `load_weights`), in the layout that serving tools load. A `ConcatDataset` trains on several corpora, one to a batch;
    a dict of evaluation sets adds their mean Spearman as `eval_spearman`.

    Args:
        objective: the loss and what it reads. Batches that can teach it nothing are reported once per epoch.
        corpus_weights: share of the batches that each corpus of a `ConcatDataset` has; default: equal shares.
        kwargs: arguments of `transformers.Trainer`.
    """

    loss_is_scaled_for_ga = False  # our losses are means of a micro-batch: Trainer divides by the accumulation steps

    def __init__(self, *, objective: Objective, corpus_weights: list[float] | None = None, **kwargs):
        super().__init__(**kwargs)
        use_log_lines(self)
        self.objective = objective
        self.corpus_weights = corpus_weights
        self.dead_batches = DeadBatchReport()
        if objective.compares_pairs:
            self.add_callback(self.dead_batches)
            if self.args.world_size > 1 and self.is_world_process_zero():
                logger.warning(
                    "This loss ranks the pairs of one device against one another: %d devices compare within %d pairs "
                    "each, which is not what one device with a larger batch optimises.",
                    self.args.world_size,
                    self.args.train_batch_size,
                )

    def score(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Runs the wrapped model on a batch; returns at least `scores` of shape `(batch,)`, higher = more similar."""
        return model(**inputs)

    def training_step(self, *args, **kwargs):
        with self.fast_linears():  # round the backward pass too: checkpointing runs layers again there
            return super().training_step(*args, **kwargs)

    def fast_linears(self) -> AbstractContextManager[None]:
        """oneDNN where it helps; torch.compile has products of its own, and would compile again at every step."""
        return nullcontext() if self.args.torch_compile else trainable_onednn_linears(self.model)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = self.score(model, inputs)
        if self.objective.compares_pairs:
            self.dead_batches.add(has_ordered_pair(labels))
        loss = self.objective.loss(outputs[self.objective.reads], labels)
        return (loss, outputs) if return_outputs else loss

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        labels = inputs.pop("labels")
        with torch.no_grad(), self.compute_loss_context_manager(), self.fast_linears():
            scores = self.score(model, inputs)["scores"]
        return None, scores, labels

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        sets = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(sets, dict):
            each = [metrics[f"{metric_key_prefix}_{name}_spearman"] for name in sets]
            metrics[f"{metric_key_prefix}_spearman"] = sum(each) / len(each)
            self.log({f"{metric_key_prefix}_spearman": metrics[f"{metric_key_prefix}_spearman"]})
        return metrics

    def log(self, logs, *args, **kwargs):
        if not math.isfinite(logs.get("loss", 0.0)):
            raise InputError(
                f"The training loss is {logs['loss']} at step {self.state.global_step}: the weights are lost. Start "
                "again from the last checkpoint or from the beginning, with a lower --learning_rate."
            )
        super().log(logs, *args, **kwargs)

    def _get_train_sampler(self, train_dataset=None):
        train_dataset = self.train_dataset if train_dataset is None else train_dataset
        if not isinstance(train_dataset, ConcatDataset):
            return super()._get_train_sampler(train_dataset)
        block = self.args.train_batch_size * self.args.world_size * self.args.gradient_accumulation_steps
        lengths = [len(part) for part in train_dataset.datasets]
        return CorpusSampler(lengths, block, self.args.seed, self.corpus_weights)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        output_dir = Path(output_dir or self.args.output_dir)
        if self.args.should_save:
            output_dir.mkdir(parents=True, exist_ok=True)
            self.model.save_pretrained(output_dir, state_dict)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        (model or self.model).load_weights(resume_from_checkpoint)

    def _load_best_model(self) -> None:
        self.model.load_weights(self.state.best_model_checkpoint)


class BiEncoderTrainer(PairTrainer):
    """Scores a pair by the cosine of two sentence embeddings; the model is a `BiEncoder`."""


class CrossEncoderTrainer(PairTrainer):
    """Scores a pair by the logit of a classifier that reads both sentences at once; the model is a `CrossEncoder`."""
