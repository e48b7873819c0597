"""Trainers of pairs: the stock Trainer with an injected loss; what differs between towers is `score()` alone."""

from pathlib import Path

import torch
from transformers import Trainer

from cosent.callbacks import DeadBatchReport, use_log_lines
from cosent.losses import has_ordered_pair
from cosent.objectives import Objective


class PairTrainer(Trainer):
    """Trains a model of pairs with an objective that reads what `score()` gives.

    Trainer's own evaluation hands the scores to `compute_metrics`. Checkpoints are written and read by the model
    itself (`save_pretrained`, `load_weights`), in the layout that serving tools load.

    Args:
        objective: the loss and what it reads. Batches that can teach it nothing are reported once per epoch.
        kwargs: arguments of `transformers.Trainer`.
    """

    loss_is_scaled_for_ga = False  # our losses are means of a micro-batch: Trainer divides by the accumulation steps

    def __init__(self, *, objective: Objective, **kwargs):
        super().__init__(**kwargs)
        use_log_lines(self)
        self.objective = objective
        self.dead_batches = DeadBatchReport()
        if objective.compares_pairs:
            self.add_callback(self.dead_batches)

    def score(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Runs the wrapped model on a batch; returns at least `scores` of shape `(batch,)`, higher = more similar."""
        return model(**inputs)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs["labels"]
        outputs = self.score(model, {name: value for name, value in inputs.items() if name != "labels"})
        if model.training:
            self.dead_batches.add(has_ordered_pair(labels))
        loss = self.objective.loss(outputs[self.objective.reads], self.objective.targets(labels))
        return (loss, {"scores": outputs["scores"]}) if return_outputs else loss

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
