"""The trainer of students: what is generated and what is similar, each with its own loss."""

from collections.abc import Callable

import torch

from cosent.objectives import Objective
from cosent.trainers import PairTrainer

Outputs = dict[str, torch.Tensor]


class StudentTrainer(PairTrainer):
    """Trains a `Student` (or, without generation, a `BiEncoder`) on batches of `StudentCollator`.

    `loss = generation_weight * cross entropy per target token + similarity_loss(embeddings, teacher)`

    Args:
        similarity_loss: `(embeddings, teacher) -> scalar`: embeddings of shape `(2 * pairs, hidden)`; `teacher` as the
            collator gives it, None without one.
        generation_weight: weight of the generation loss.
        validate: gives the validation metrics of the model as it is, `spearman` among them.
        kwargs: arguments of `transformers.Trainer`.
    """

    def __init__(
        self,
        *,
        similarity_loss: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor],
        generation_weight: float = 1.0,
        validate: Callable[[], dict[str, float]] = dict,
        **kwargs,
    ):
        super().__init__(objective=Objective(similarity_loss, reads="embeddings", compares_pairs=False), **kwargs)
        self.generation_weight = generation_weight
        self.validate = validate
        self.parts: dict[str, list[torch.Tensor]] = {}

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        teacher = inputs.pop("teacher", None)
        outputs = model(**inputs)
        loss = self.loss(outputs, teacher)
        return (loss, outputs) if return_outputs else loss

    def loss(self, outputs: Outputs, teacher: torch.Tensor | None) -> torch.Tensor:
        """The loss of a whole batch, of what the model gives for each of its sequences.

        All of it has one row per sequence: rows of several devices, or of the parts of a cached batch, are put below
        one another before they come here, and the loss is that of one large batch.
        """
        embeddings = outputs["embeddings"].flatten(0, -2)  # (2 * pairs, hidden)
        parts = {"similarity_loss": self.objective.loss(embeddings, teacher)}
        if "target_losses" in outputs:
            tokens = outputs["target_tokens"].sum().clamp(min=1)
            parts["generation_loss"] = self.generation_weight * outputs["target_losses"].sum() / tokens
        for name, value in parts.items():
            self.parts.setdefault(name, []).append(value.detach())
        return sum(parts.values())

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in self.validate().items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs, *args, **kwargs):
        if "loss" in logs:
            logs |= {name: float(torch.stack(values).mean()) for name, values in self.parts.items()}
            self.parts.clear()
        super().log(logs, *args, **kwargs)
