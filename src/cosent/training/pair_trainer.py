"""`PairTrainer`: Trainer with an injected loss on the scores, embeddings or logits of the model's `forward`."""

import logging
import math
from functools import partial
from pathlib import Path

import torch
from transformers import set_seed

from cosent.compute.distributed import average_gradients, gather_pairs, without_sync
from cosent.compute.grad_cache import backward_in_parts, split_batch
from cosent.compute.out_of_memory import fits_everywhere
from cosent.data.samplers import choose_sampler
from cosent.errors import InputError
from cosent.files import apply_umask
from cosent.losses.cosent import has_ordered_pair
from cosent.modeling.lora import Adapter
from cosent.training.cached_parts import CachedParts
from cosent.training.callbacks import DeadBatchReport, EarlyStopping, use_log_lines
from cosent.training.evaluating_trainer import EvaluatingTrainer
from cosent.training.objective import Objective
from cosent.training.tensorboard import use_tensorboard

logger = logging.getLogger(__name__)

Outputs = dict[str, torch.Tensor]


class PairTrainer(EvaluatingTrainer):
    """Trains a model of pairs with an objective that reads the outputs of the model.

    It is independent of the tower. A model's `forward` takes the batches of its collator and returns a dict with at
    least `scores` of shape `(pairs,)`, higher = more similar: `BiEncoder.forward` returns the cosine of two embeddings,
    `CrossEncoder.forward` a logit.

    The loss is that of the global batch: its inputs are gathered over ranks with gradients, and the rows with which
    accelerate fills an uneven last batch are left out. With `args.cached_batch_size` the batch is that large, and runs
    in parts, see `CachedParts`.

    Evaluation: see `EvaluatingTrainer`. There is no `eval_loss`, since the loss of a batch that compares pairs depends
    on its size. Checkpoints are written and read by the model itself (`save_pretrained`, `saved_state`), in the layout
    that serving tools load. A `ConcatDataset` trains on several corpora, one per batch.

    Args:
        objective: the loss and the output that it reads. Batches that teach it nothing are reported once per epoch.
        corpus_weights: share of the batches of each corpus of a `ConcatDataset`; default: equal shares.
        adapter: the LoRA adapter inside the model, if any; checkpoints then hold both the merged model and the adapter.
        kwargs: arguments of `transformers.Trainer`.

    Raises:
        InputError: a cached batch size that the devices cannot share out, or early stopping without evaluations.
    """

    targets = ("labels", "groups")  # entries of a batch that go to the loss, not to the model
    loss_is_scaled_for_ga = False  # our losses are means of a micro-batch: Trainer divides by the accumulation steps

    def __init__(
        self,
        *,
        objective: Objective,
        corpus_weights: list[float] | None = None,
        adapter: Adapter | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if self.args.torch_compile and self.model.packing:
            raise InputError(
                "--torch_compile compiles a model for each shape of its inputs, and packed batches have a new one at "
                "every step. Add --packing false, or leave it out."
            )
        use_log_lines(self)
        self.board = use_tensorboard(self)
        self.objective = objective
        self.corpus_weights = corpus_weights
        self.adapter, self.loads_all_weights = adapter, adapter is None
        self.dead_batches = DeadBatchReport()
        if objective.compares_pairs:
            self.add_callback(self.dead_batches)
            if self.args.gradient_accumulation_steps > 1:
                logger.warning(
                    "--gradient_accumulation_steps %d: this loss ranks the pairs of a batch, and those of different "
                    "batches are never compared. --cached_batch_size compares all of a step in the same memory.",
                    self.args.gradient_accumulation_steps,
                )
        if self.args.early_stopping_patience is not None:
            if self.args.eval_strategy == "no":
                raise InputError(
                    "--early_stopping_patience needs a validation split and --eval_strategy epoch or steps."
                )
            self.add_callback(EarlyStopping(self.args.early_stopping_patience))
        self.cached_parts = None
        if self.args.cached_batch_size is not None or self.args.cached_part_size is not None:
            self.cached_parts = CachedParts(self.args)
            self._train_batch_size = self.cached_parts.batch
            self.add_callback(self.cached_parts)

    def _prepare_for_training(self, *args, **kwargs):
        prepared = super()._prepare_for_training(*args, **kwargs)
        if self.args.world_size > 1:
            # Each rank draws its own dropout; the order of the pairs, which they share, comes from data_seed.
            set_seed(self.args.seed + self.args.process_index)
        return prepared

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """Stores in the last batch of an epoch how many of its pairs, over all ranks, are not repeated ones.

        accelerate fills an uneven last batch with repeated pairs. Two ranks of 8 pairs read 70 = 4 * 16 + 6 pairs: in
        the fifth batch rank 0 has the last 6 pairs and 2 repeated ones, rank 1 has 8 repeated ones. Both ranks are cut
        to 6 pairs (`gather` needs equal numbers), and the first 6 of the 12 gathered pairs count.
        """
        batches, count = super().get_batch_samples(epoch_iterator, num_batches, device)
        last = batches and self.accelerator.gradient_state.end_of_dataloader
        if last and self.args.world_size > 1 and not self.args.dataloader_drop_last:
            batch, pairs = batches[-1], self.pairs_in(batches[-1])
            real_pairs = self.rows_of_epoch % (pairs * self.args.world_size)
            if real_pairs:
                kept = min(pairs, real_pairs)
                batches[-1] = {name: tensor[: len(tensor) // pairs * kept] for name, tensor in batch.items()}
                batches[-1]["real_pairs"] = real_pairs
        return batches, count

    def pairs_in(self, inputs: dict[str, torch.Tensor]) -> int:
        """Number of pairs in a batch; all its tensors have the same number of rows per pair."""
        return len(inputs["attention_mask"])

    def pop_targets(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Takes from a batch what only the loss reads: tensors with the same number of rows per pair."""
        return {name: inputs.pop(name) for name in self.targets if name in inputs}

    def training_step(self, model, inputs, num_items_in_batch=None):
        with self.fast_linears():  # around the backward pass too, where gradient checkpointing reruns layers
            if self.cached_parts is None:
                loss = super().training_step(model, inputs, num_items_in_batch)
            else:
                loss = self.cached_step(model, self._prepare_inputs(inputs), self.cached_parts)
        self.count_batch()
        return loss

    def cached_step(self, model: torch.nn.Module, inputs: dict, parts: CachedParts) -> torch.Tensor:
        """Runs a batch in parts, with the gradient of the loss over all of it, see `grad_cache`."""
        model.train()
        targets, real_pairs = self.pop_targets(inputs), inputs.pop("real_pairs", None)
        pairs = self.pairs_in(inputs)

        def forward(part: dict[str, torch.Tensor]) -> Outputs:
            with self.compute_loss_context_manager():
                return self.read(model(**part))

        def loss(read: Outputs) -> torch.Tensor:
            return self.global_loss(read, targets, pairs, real_pairs) / self.current_gradient_accumulation_steps

        # `loss` has divided by the accumulation steps; DeepSpeed would again
        options = {"scale_wrt_gas": False} if self.is_deepspeed_enabled else {}
        backward = partial(self.accelerator.backward, **options)
        unsynchronised = partial(without_sync, self.accelerator, model)

        def step(part: int) -> torch.Tensor:
            split = split_batch(inputs, part * (len(inputs["attention_mask"]) // pairs))
            if not parts.auto:
                return backward_in_parts(forward, split, loss, backward, unsynchronised)
            with unsynchronised():  # DDP would wait, in a part, for a process that may have run out of memory
                value = backward_in_parts(forward, split, loss, backward, phase=fits_everywhere)
            average_gradients(model)
            return value

        return parts.run(step, model.zero_grad, self.log, pairs)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        targets, real_pairs = self.pop_targets(inputs), inputs.pop("real_pairs", None)
        pairs = self.pairs_in(inputs)
        outputs = model(**inputs)
        loss = self.global_loss(self.read(outputs), targets, pairs, real_pairs)
        return (loss, outputs) if return_outputs else loss

    def global_loss(
        self, read: Outputs, targets: dict[str, torch.Tensor], pairs: int, real_pairs: int | None
    ) -> torch.Tensor:
        """The loss over all ranks: every rank computes it in full, see `distributed.gather`.

        Args:
            read: result of `read` for this rank's pairs.
            targets: result of `pop_targets`.
            pairs: number of pairs on this rank.
            real_pairs: pairs of the global batch that count, in rank order; None for all.
        """
        local = self.args.local_comparisons and self.objective.compares_pairs
        pooled, targets = (
            {name: gather_pairs(tensor, pairs, real_pairs, local) for name, tensor in tensors.items()}
            for tensors in (read, targets)
        )
        return self.batch_loss(pooled, targets)

    def read(self, outputs: Outputs) -> Outputs:
        """The model's outputs that the loss reads: tensors with the same number of rows per pair."""
        return {self.objective.reads: outputs[self.objective.reads]}

    def batch_loss(self, read: Outputs, targets: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss of the complete batch, over all ranks and parts; computed again if the batch is repeated."""
        loss = self.objective.loss(read[self.objective.reads], *targets.values())
        if self.objective.compares_pairs:  # with groups, one label can teach, and what taught nothing is exactly 0
            self.has_order = loss.detach() != 0 if "groups" in targets else has_ordered_pair(targets["labels"])
        return loss

    def count_batch(self) -> None:
        """Adds what `batch_loss` has noted to the statistics of the epoch, once for every batch."""
        if self.objective.compares_pairs:
            self.dead_batches.add(self.has_order)

    def log(self, logs, *args, **kwargs):
        if not math.isfinite(logs.get("loss", 0.0)):
            raise InputError(
                f"The training loss is {logs['loss']} at step {self.state.global_step}: the weights are lost. Start "
                "again from the last checkpoint or from the beginning, with a lower --learning_rate."
            )
        super().log(logs, *args, **kwargs)

    def _get_train_sampler(self, train_dataset=None):
        train_dataset = self.train_dataset if train_dataset is None else train_dataset
        args, rows = self.args, self._train_batch_size * self.args.world_size  # of a batch over all ranks
        sampler = choose_sampler(
            train_dataset,
            block=rows * args.gradient_accumulation_steps,
            pool=self._train_batch_size if args.local_comparisons else rows,
            seed=args.data_seed,
            weights=self.corpus_weights,
            balanced=args.balanced_batches,
        )
        sampler = super()._get_train_sampler(train_dataset) if sampler is None else sampler
        self.rows_of_epoch = len(sampler)
        return sampler

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        output_dir = Path(output_dir or self.args.output_dir)
        if self.args.should_save:
            output_dir.mkdir(parents=True, exist_ok=True)
            if state_dict is None or self.is_deepspeed_enabled:  # its clones do not show which weights are tied
                state_dict = self.model.state_dict()
            if self.adapter is not None:
                self.adapter.save(output_dir, state_dict)
                state_dict = self.adapter.merged(state_dict)
            self.model.save_pretrained(output_dir, state_dict)
            apply_umask(output_dir)

    def saved_state(self, checkpoint: str | Path) -> dict[str, torch.Tensor]:
        return (self.model if self.adapter is None else self.adapter).saved_state(checkpoint)
