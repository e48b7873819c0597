"""The loss of the global batch, with its exact gradient: each pair is compared with the pairs of all devices and parts.

The path of a batch, on `devices` processes with `pairs` pairs each, which run in parts of `part` pairs:

    collator       input_ids (pairs, 2, tokens), labels (pairs,)                      data/pairs.py
    split_batch    pairs / part times input_ids (part, 2, tokens)                     compute/grad_cache.py
    model          scores (part,), embeddings (part, 2, hidden) or logits             models/
    cached parts   scores (pairs,), detached from the graphs of their parts           compute/grad_cache.py
    gather         scores (devices * pairs,), labels (devices * pairs,)               compute/distributed.py
    loss           a scalar, the same on every device                                 losses/
    gradient       of the loss by scores (pairs,), then by the weights, part by part  compute/grad_cache.py

Without `cached_batch_size` a batch is one part, and autograd runs the last three steps. A cross-encoder reads both
sentences in one sequence: its `input_ids` are `(pairs, tokens)`.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset

from cosent.compute.distributed import gather, without_sync
from cosent.compute.grad_cache import backward_in_parts, split_batch
from cosent.compute.onednn import trainable_onednn_linears
from cosent.data.pairs import CorpusSampler
from cosent.errors import InputError
from cosent.training.resumable import ResumableTrainer

Outputs = dict[str, Tensor]  # of a model, by name: the same number of rows for each pair


class GlobalLossTrainer(ResumableTrainer):
    """Trainer whose loss compares the pairs of the global batch, under any strategy and with gradient caching.

    The loss is independent of the tower: a model returns a dict of tensors with the same number of rows for each pair.
    A subclass names the tensors that the loss reads (`loss_inputs`) and computes the loss (`batch_loss`).
    """

    targets: tuple[str, ...] = ("labels",)  # entries of a batch that go to the loss, not to the model
    last_batch: tuple[Outputs, ...] = ()  # gathered `loss_inputs` and targets
    corpus_weights: Sequence[float] | None = None  # shares of the batches of each corpus; default: equal shares
    loss_is_scaled_for_ga = False  # our losses are means of a micro-batch: Trainer divides by the accumulation steps

    def loss_inputs(self, outputs: Outputs) -> Outputs:
        """The outputs of the model that the loss reads."""
        raise NotImplementedError

    def batch_loss(self, outputs: Outputs, targets: Outputs) -> Tensor:
        """The loss of the global batch from its `loss_inputs` and targets: a scalar."""
        raise NotImplementedError

    def training_step(self, model, inputs, num_items_in_batch=None):
        with self.fast_linears():  # around the backward pass too, where gradient checkpointing reruns layers
            if self.args.cached_batch_size is None:
                loss = super().training_step(model, inputs, num_items_in_batch)  # calls `compute_loss`
            else:
                loss = self.cached_step(model, self._prepare_inputs(inputs))
        if not torch.isfinite(loss):  # before the step of the optimizer
            raise self.divergence(float(loss))
        return loss

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        targets, real_pairs = self.pop_targets(inputs), inputs.pop("real_pairs", None)
        outputs = model(**inputs)
        loss = self.global_loss(self.loss_inputs(outputs), targets, real_pairs)
        return (loss, outputs) if return_outputs else loss

    def cached_step(self, model: torch.nn.Module, inputs: dict) -> Tensor:
        """Runs a batch in parts, with the gradient of the loss over all of it."""
        model.train()
        targets, real_pairs = self.pop_targets(inputs), inputs.pop("real_pairs", None)
        rows = len(inputs["attention_mask"]) // len(targets["labels"])  # of each pair
        parts = split_batch(inputs, rows * self.args.per_device_train_batch_size)

        def forward(part: Mapping[str, Tensor]) -> Outputs:
            with self.compute_loss_context_manager():
                return self.loss_inputs(model(**part))  # (part, ...)

        def loss(outputs: Outputs) -> Tensor:  # of (pairs, ...)
            return self.global_loss(outputs, targets, real_pairs) / self.current_gradient_accumulation_steps

        # `loss` has divided by the accumulation steps; DeepSpeed would again.
        options = {"scale_wrt_gas": False} if self.is_deepspeed_enabled else {}
        backward = partial(self.accelerator.backward, **options)
        return backward_in_parts(forward, parts, loss, backward, partial(without_sync, self.accelerator, model))

    def global_loss(self, outputs: Outputs, targets: Outputs, real_pairs: int | None) -> Tensor:
        """The loss over all devices, which each of them computes in full, see `distributed.gather`.

        Args:
            outputs: `loss_inputs` of this device's pairs.
            targets: result of `pop_targets`.
            real_pairs: pairs of the global batch that count, in the order of the devices; None for all.
        """
        pairs = len(targets["labels"])  # of this device

        def gathered(rows: Tensor) -> Tensor:  # (devices * pairs, ...), without the repeated pairs of an uneven batch
            return gather(rows)[: None if real_pairs is None else real_pairs * (len(rows) // pairs)]

        outputs, targets = ({name: gathered(rows) for name, rows in part.items()} for part in (outputs, targets))
        self.last_batch = tuple({name: rows.detach() for name, rows in part.items()} for part in (outputs, targets))
        return self.batch_loss(outputs, targets)

    def pop_targets(self, inputs: dict[str, Tensor]) -> Outputs:
        """Pops from a batch the entries that only the loss reads."""
        return {name: inputs.pop(name) for name in self.targets if name in inputs}

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Stores in the last batch of an epoch how many of its pairs, over all devices, are not repeated ones.

        accelerate fills an uneven last batch with repeated pairs. Two devices of 8 pairs read 70 = 4 * 16 + 6 pairs: in
        the fifth batch the first has the last 6 pairs and 2 repeated ones, the second 8 repeated ones. Both are cut to
        6 pairs (`gather` needs equal numbers), and the first 6 of the 12 gathered pairs count.
        """
        batches, count = super().get_batch_samples(epoch_iterator, num_batches, device)
        last = batches and self.accelerator.gradient_state.end_of_dataloader
        if last and self.args.world_size > 1 and not self.args.dataloader_drop_last:
            batch, pairs = batches[-1], len(batches[-1]["labels"])
            real_pairs = self.rows_of_epoch % (pairs * self.args.world_size)
            if real_pairs:
                longest = min(pairs, real_pairs)
                batches[-1] = {name: rows[: len(rows) // pairs * longest] for name, rows in batch.items()}
                batches[-1]["real_pairs"] = real_pairs
        return batches, count

    def _get_train_sampler(self, train_dataset=None):
        dataset, args = train_dataset or self.train_dataset, self.args
        if isinstance(dataset, ConcatDataset):  # of several corpora; a batch comes from one
            if args.train_sampling_strategy == "sequential":
                raise InputError("--train_sampling_strategy sequential is for one corpus in its own order. Omit it.")
            block = self._train_batch_size * args.world_size * args.gradient_accumulation_steps
            sampler = CorpusSampler(list(map(len, dataset.datasets)), block, args.data_seed, self.corpus_weights)
        else:
            sampler = super()._get_train_sampler(dataset)
        self.rows_of_epoch = len(sampler)
        return sampler

    def fast_linears(self) -> AbstractContextManager[None]:
        """oneDNN where it helps, except under torch.compile, which would recompile at every step."""
        return nullcontext() if self.args.torch_compile else trainable_onednn_linears()

    def divergence(self, loss: float) -> InputError:
        """Why the loss of the last batch is not finite, and what to do."""
        outputs, targets = self.last_batch
        labels, broken = targets["labels"], [name for name in outputs if not torch.isfinite(outputs[name]).all()]
        if broken:
            reason = f"the model's {' and '.join(broken)} are not finite. Train again with a lower --learning_rate."
        elif (labels == labels[0]).all():
            reason = "all its labels are equal, for which the loss has no value. Return 0 for such a batch."
        else:
            reason = "the loss divides by 0, or takes a root or logarithm of 0. Add a small number there."
        where = f"step {self.state.global_step + 1}, in a batch of {self.corpus_of(targets)}"
        return InputError(f"Training diverged: the loss is {loss:g} at {where}: {reason}")

    def corpus_of(self, targets: Outputs) -> str:
        """The corpus of a batch with these targets, for messages."""
        return "the training pairs"
