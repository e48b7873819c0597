"""Trainer for pretraining with a budget of minutes or tokens."""

import time
from pathlib import Path

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from cosent.compute.distributed import decided_by_main
from cosent.compute.onednn import trainable_onednn_linears
from cosent.errors import InputError
from cosent.training.callbacks import use_log_lines
from cosent.training.resumable_trainer import ResumableTrainer
from cosent.training.sharding import launched_with

WARM_UP = 0.03  # share of the run


class Budget(TrainerCallback):
    """Counts minutes and tokens, also across a resume, and ends the run when its minutes are up."""

    def __init__(self, max_minutes: float | None):
        self.max_minutes, self.earlier, self.start = max_minutes, 0.0, None
        self.tokens, self.earlier_tokens = 0, 0
        self.minutes = 0.0  # at the last step, on process 0: all processes must agree on schedule and end

    def on_train_begin(self, args, state, control, **kwargs):
        last = next((entry for entry in reversed(state.log_history) if "minutes" in entry), None)
        if last is not None:
            self.earlier, self.earlier_tokens = last["minutes"], last["tokens"]
        self.start, self.minutes = time.monotonic(), self.earlier

    def on_step_end(self, args, state, control, **kwargs):
        self.minutes = decided_by_main(lambda: self.earlier + (time.monotonic() - self.start) / 60)
        if self.max_minutes is not None and self.minutes >= self.max_minutes:
            control.should_training_stop = True
        control.should_log |= control.should_training_stop or state.global_step >= state.max_steps  # the record's last


class PretrainTrainer(ResumableTrainer):
    """Trainer over endless batches, with a schedule that ends with the steps or the minutes.

    Args:
        model: a `Pretraining`.
        weights: of the losses, by name; 1 for those without.
        max_minutes: wall-clock budget; None to end only at `max_steps`.
    """

    loss_is_scaled_for_ga = False

    def __init__(self, *, weights: dict[str, float], max_minutes: float | None, **kwargs):
        if launched_with() is not None:
            raise InputError(
                f"Pretraining under {launched_with()}: expected no sharding. These encoders fit on any GPU, and "
                "shards would be saved as the whole. Use recipes/accelerate/ddp.yaml."
            )
        self.weights, self.budget = weights, Budget(max_minutes)
        super().__init__(**kwargs)
        use_log_lines(self)
        self.add_callback(self.budget)
        self.losses, self.logged = {}, (0, time.monotonic())

    def get_train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_dataset, batch_size=None)  # each process makes its own batches

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        """Linear warm-up and decay over the completed share of the run, in steps or minutes."""
        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(optimizer or self.optimizer, lambda step: rate(self.done(step)))
        return self.lr_scheduler

    def done(self, step: int) -> float:
        """Completed share of the run."""
        by_minutes = self.budget.minutes / self.budget.max_minutes if self.budget.max_minutes else 0.0
        return min(1.0, max(step / self.args.max_steps, by_minutes))

    def training_step(self, *args, **kwargs):
        with trainable_onednn_linears():
            return super().training_step(*args, **kwargs)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        losses = model(**inputs)
        self.budget.tokens += int((inputs["segments"] > 0).sum()) * self.args.world_size
        for name, value in losses.items():
            self.losses.setdefault(name, []).append(value.detach())
        loss = sum(self.weights.get(name, 1.0) * value for name, value in losses.items())
        return (loss, losses) if return_outputs else loss

    def log(self, logs, *args, **kwargs):
        if "loss" in logs:
            logs |= {name: float(torch.stack(values).mean()) for name, values in self.losses.items() if values}
            logs |= {"tokens": self.budget.earlier_tokens + self.budget.tokens, "minutes": self.budget.minutes}
            logs["tokens_per_second"] = self.tokens_per_second()
            self.losses.clear()
        super().log(logs, *args, **kwargs)

    def tokens_per_second(self) -> float:
        """Tokens per second since the last call."""
        (tokens, seconds), self.logged = self.logged, (self.budget.tokens, time.monotonic())
        return (self.logged[0] - tokens) / (self.logged[1] - seconds)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        Path(output_dir or self.args.output_dir).mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(output_dir or self.args.output_dir)

    def saved_state(self, checkpoint: str | Path) -> dict[str, torch.Tensor]:
        return self.model.saved_state(checkpoint)


def rate(done: float) -> float:
    """Factor of the learning rate at this share of the run."""
    return min(done / WARM_UP, (1 - done) / (1 - WARM_UP), 1.0)
