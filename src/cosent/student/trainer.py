"""Trainer of students, with a generation loss and a similarity loss."""

from collections.abc import Callable

import torch

from cosent.training.objective import Objective
from cosent.training.pair_trainer import Outputs, PairTrainer
from cosent.training.sharding import whole_state


class StudentTrainer(PairTrainer):
    """Trains a `Student` (or, without generation, a `BiEncoder`) on batches of `StudentCollator`.

    `loss = generation_weight * cross entropy per target token + similarity_loss(embeddings, teacher)`

    Args:
        similarity_loss: `(embeddings, teacher) -> scalar`: embeddings of shape `(2 * pairs, hidden)`; `teacher` as
            collated, None without one.
        generation_weight: weight of the generation loss.
        validate: state dict of the model -> validation metrics, `spearman` among them.
        kwargs: arguments of `transformers.Trainer`.
    """

    targets = ("teacher",)

    def __init__(
        self,
        *,
        similarity_loss: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor],
        generation_weight: float = 1.0,
        validate: Callable[[dict[str, torch.Tensor]], dict[str, float]] = lambda weights: {},
        **kwargs,
    ):
        super().__init__(objective=Objective(similarity_loss, reads="embeddings", compares_pairs=False), **kwargs)
        self.generation_weight = generation_weight
        self.validate = validate
        self.parts: dict[str, list[torch.Tensor]] = {}

    def pairs_in(self, inputs: Outputs) -> int:
        mask = inputs["attention_mask"]  # (pairs, 2, tokens), or (2 * pairs, tokens) with targets behind the sources
        return len(mask) if mask.ndim == 3 else len(mask) // 2

    def read(self, outputs: Outputs) -> Outputs:
        return {name: outputs[name] for name in ("embeddings", "target_losses", "target_tokens") if name in outputs}

    def batch_loss(self, read: Outputs, targets: Outputs) -> torch.Tensor:
        embeddings = read["embeddings"].flatten(0, -2)  # (2 * pairs, hidden)
        parts = {"similarity_loss": self.objective.loss(embeddings, targets.get("teacher"))}
        if "target_losses" in read:
            tokens = read["target_tokens"].sum().clamp(min=1)
            parts["generation_loss"] = self.generation_weight * read["target_losses"].sum() / tokens
        self.batch_parts = {name: value.detach() for name, value in parts.items()}
        return sum(parts.values())

    def count_batch(self) -> None:
        for name, value in self.batch_parts.items():
            self.parts.setdefault(name, []).append(value)

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        measured = self.validate(whole_state(self.model))
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in measured.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def log(self, logs, *args, **kwargs):
        if "loss" in logs:
            logs |= {name: float(torch.stack(values).mean()) for name, values in self.parts.items()}
            self.parts.clear()
        super().log(logs, *args, **kwargs)
