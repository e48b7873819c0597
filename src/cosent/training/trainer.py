"""`PairTrainer`: resumable, evaluating Trainer with an injected loss on a model's scores, embeddings or logits."""

import logging
import math
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils.constants import FSDP_MODEL_NAME
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Trainer, set_seed
from transformers.integrations.deepspeed import deepspeed_load_checkpoint
from transformers.trainer_utils import rotate_checkpoints

from cosent.compute.distributed import average_gradients, decided_by_main, gather_pairs, without_sync
from cosent.compute.grad_cache import backward_in_parts, fits_everywhere, split_batch
from cosent.compute.onednn import trainable_onednn_linears
from cosent.data.pairs import PairDataset
from cosent.data.samplers import choose_sampler
from cosent.errors import InputError, apply_umask
from cosent.evaluation.metrics import SimilarityMetrics
from cosent.evaluation.retrieval import METRICS
from cosent.inference.neighbours import found_by_vectors
from cosent.losses.cosent import has_ordered_pair
from cosent.models.loading import quiet_transformers
from cosent.models.lora import Adapter
from cosent.run import UNFINISHED
from cosent.training.caching import CachedParts
from cosent.training.callbacks import DeadBatchReport, use_log_lines
from cosent.training.checkpoints import SEAL, SETTINGS, best_checkpoint, clear_disk_errors, had_ended, seal
from cosent.training.objective import Objective
from cosent.training.sharding import check_strategy, in_bfloat16, launched_with, layer_classes, load_state

logger = logging.getLogger(__name__)

CURVES = ("spearman", "pearson", "kendall", "perplexity", *METRICS)  # of which several evaluation sets have a mean
Outputs = dict[str, Tensor]


class ResumableTrainer(Trainer):
    """Trainer whose checkpoints are sealed when they are complete; older ones stay until then.

    Resumed from a checkpoint at which training had ended (the last step, early stopping), it does not train further.

    Checkpoints hold the complete model as serving tools load it. A subclass defines how one is read (`saved_state`),
    and sets `loads_all_weights = False` if it holds only a part of the weights.
    """

    starts_at_end: bool | None = None
    at_start: Callable[[], Any] | None = None
    before: Any = None
    loads_all_weights = True

    def train(self, resume_from_checkpoint=None, *, at_start: Callable[[], Any] | None = None, **kwargs):
        """Trains like Trainer; the result of `at_start` becomes `before`.

        It is called once on every rank, when the model is wrapped and still has the initial weights of the run: those
        of `resume_from_checkpoint` are loaded after it. FSDP and DeepSpeed cannot evaluate earlier.
        """
        self.at_start = at_start
        return super().train(resume_from_checkpoint, **kwargs)

    def init_hf_repo(self, token=None, private=None):
        """Creates the repository, private by default, at the start: the Hub refuses a run then, not at its end."""
        super().init_hf_repo(token, self.args.hub_private_repo is not False if private is None else private)

    def push_to_hub(self, *args, **kwargs):
        """Publishes nothing when a model is saved: `finish` publishes the folder once it has its card and record."""

    def _push_from_checkpoint(self, checkpoint_folder):
        """Publishes no checkpoint, see `push_to_hub`."""

    def create_accelerator_and_postprocess(self):
        # FSDP would gather the weights in bfloat16 and round scores to it, DeepSpeed would keep and save them in it.
        # bfloat16 scores are often equal, and cannot be ranked.
        wanted = self.args.mixed_precision, self.args.bf16
        if launched_with() is not None:
            self.args.mixed_precision, self.args.bf16 = "no", False
        if launched_with() == "deepspeed":
            self.args.deepspeed_plugin.deepspeed_config["bf16"] = {"enabled": False}
        super().create_accelerator_and_postprocess()
        if self.accelerator.ddp_handler is not None:  # gradients are averaged where they lie, not copied there and back
            self.accelerator.ddp_handler.gradient_as_bucket_view = True
        self.args.mixed_precision, self.args.bf16 = wanted
        check_strategy(self.accelerator, self.args.mixed_precision)

    def _init_training_state(self, max_steps, steps_per_epoch, epochs, resume_from_checkpoint, trial):
        with quiet_transformers():  # it drops a best checkpoint whose folder was moved, with a warning
            trained = super()._init_training_state(max_steps, steps_per_epoch, epochs, resume_from_checkpoint, trial)
        if resume_from_checkpoint is not None and self.args.load_best_model_at_end:
            self.state.best_model_checkpoint = decided_by_main(lambda: best_checkpoint(resume_from_checkpoint))
        return trained

    def _prepare_for_training(self, max_steps, train_dataloader, resume_from_checkpoint):
        if launched_with() is not None and self.args.mixed_precision == "bf16":
            self.model.forward = in_bfloat16(self.model.forward, self.args.device)
        if self.is_fsdp_enabled:
            warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)  # no loss works in place on outputs
            self.accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap = layer_classes(self.model)
        prepared = super()._prepare_for_training(max_steps, train_dataloader, None)
        if self.at_start is not None:
            self.before = self.at_start()
        if resume_from_checkpoint is not None:
            self.load_weights(resume_from_checkpoint)
            if self.is_deepspeed_enabled:
                deepspeed_load_checkpoint(self.model_wrapped, resume_from_checkpoint)
            self._load_optimizer_and_scheduler(resume_from_checkpoint)
            self._load_scaler(resume_from_checkpoint)
        return prepared

    def saved_state(self, checkpoint: str | Path) -> dict[str, Tensor]:
        """The weights of a checkpoint, under the names of the model."""
        raise NotImplementedError

    def load_weights(self, checkpoint: str | Path) -> None:
        """Loads the weights of a checkpoint; the optimizer keeps its state."""
        load_state(self.model, self.saved_state(checkpoint), strict=self.loads_all_weights)
        if self.is_deepspeed_enabled:
            self.model_wrapped.optimizer.refresh_fp32_params()  # its own copy, which the next step would write back

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        """Loads nothing: Trainer calls it before the model is wrapped, see `_prepare_for_training`."""

    def _load_best_model(self) -> None:
        self.load_weights(self.state.best_model_checkpoint)

    def _save_checkpoint(self, model, trial):
        folder = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
        if self.args.should_save:
            (folder / SEAL).unlink(missing_ok=True)  # left by a run that was resumed from before this step
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with clear_disk_errors(folder):
                super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        self.accelerator.wait_for_everyone()  # every rank has written its random state
        if self.args.should_save:
            with clear_disk_errors(folder):
                started = Path(self.args.output_dir, UNFINISHED)
                if started.is_file():  # missing for a trainer used outside a job
                    shutil.copyfile(started, folder / SETTINGS)
                (folder / f"{FSDP_MODEL_NAME}.bin").unlink(missing_ok=True)  # the weights again, which nothing reads
                seal(folder)
            rotate_checkpoints(
                str(folder.parent), limit, best_model_checkpoint=self.state.best_model_checkpoint, use_mtime=True
            )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False):
        with clear_disk_errors(output_dir or self.args.output_dir):
            super().save_model(output_dir, _internal_call)

    def _run_epoch(self, *, epoch, train_dataloader, resume_from_checkpoint=None, **kwargs):
        set_epoch(train_dataloader, epoch)
        if resume_from_checkpoint is not None and self.starts_at_end is None:  # later, the checkpoint may be gone
            self.starts_at_end = had_ended(resume_from_checkpoint, self.state.max_steps)
        if self.starts_at_end:
            self.control.should_training_stop = True
        else:
            resume = {"resume_from_checkpoint": resume_from_checkpoint}
            super()._run_epoch(epoch=epoch, train_dataloader=train_dataloader, **resume, **kwargs)


def pair_metrics(
    predictions: dict[str, np.ndarray], labels: np.ndarray, threshold: float | None = None
) -> dict[str, float]:
    """Metrics of the scores of pairs and, for a student that generates, the perplexity of synonyms given each other."""
    metrics = SimilarityMetrics().compute(predictions=predictions["scores"], references=labels, threshold=threshold)
    if (tokens := np.sum(predictions.get("target_tokens", 0))) > 0:  # [SEP] included; both directions count
        metrics["perplexity"] = float(np.exp(np.sum(predictions["target_losses"], dtype=np.float64) / tokens))
    return metrics


def set_epoch(dataloader, epoch: int) -> None:
    """Sets the epoch of a dataloader's sampler, however deep accelerate has wrapped it.

    accelerate 1.15 looks two wrappers deep, but there are three if several processes resume within an epoch: their
    sampler would repeat the order of the first epoch.
    """
    sampler = dataloader.batch_sampler
    while sampler is not None:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)


class PairTrainer(ResumableTrainer):
    """Trains and evaluates a model of pairs with an objective that reads the outputs of the model, under any strategy.

    It is independent of the tower. A model's `forward` takes the batches of its collator and returns a dict with at
    least `scores` of shape `(pairs,)`, higher = more similar: `BiEncoder.forward` returns the cosine of two embeddings,
    `CrossEncoder.forward` a logit.

    The loss is that of the global batch: its inputs are gathered over ranks with gradients, and the rows with which
    accelerate fills an uneven last batch are left out. With `args.cached_batch_size` the batch is that large, and runs
    in parts, see `CachedParts`. A `ConcatDataset` trains on several corpora, one per batch. Checkpoints are written and
    read by the model itself (`save_pretrained`, `saved_state`), in the layout that serving tools load.

    Evaluation gives `pair_metrics`, and for a dict of sets also their means, `eval_spearman` among them. There is no
    `eval_loss`, since the loss of a batch that compares pairs depends on its size. Pairs with a `RetrievalSet` add the
    `METRICS` of retrieval, from the vectors that the scores are made of; the main process searches. Predictions are a
    dict: `scores`, and of a `RetrievalSet` `queries` (its metrics by name, a value per query).

    Args:
        objective: the loss and the output that it reads. Batches that teach it nothing are reported once per epoch.
        corpus_weights: share of the batches of each corpus of a `ConcatDataset`; default: equal shares.
        adapter: the LoRA adapter inside the model, if any; checkpoints then hold both the merged model and the adapter.
        kwargs: arguments of `transformers.Trainer`.
    """

    targets = ("labels", "groups")  # entries of a batch that go to the loss, not to the model
    loss_is_scaled_for_ga = False  # our losses are means of a micro-batch: Trainer divides by the accumulation steps
    keeps_embeddings = False

    def fast_linears(self) -> AbstractContextManager[None]:
        """oneDNN where it helps, except under torch.compile, which would recompile at every step."""
        return nullcontext() if self.args.torch_compile else trainable_onednn_linears()

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        labels = self.pop_targets(inputs)["labels"]
        with torch.no_grad(), self.compute_loss_context_manager(), self.fast_linears():
            outputs = model(**inputs)
        return None, self.predictions_of(outputs), labels

    def predictions_of(self, outputs: Outputs) -> Outputs:
        """What evaluation keeps of the outputs of a model: `scores`, and `embeddings` where they are asked for."""
        names = ("scores", "embeddings") if self.keeps_embeddings else ("scores",)
        return {name: outputs[name] for name in names}

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ):
        pairs = dataloader.dataset
        self.keeps_embeddings = isinstance(pairs, PairDataset) and pairs.retrieval is not None
        options = (prediction_loss_only, ignore_keys, metric_key_prefix)
        with torch.random.fork_rng(devices=[]):  # every pass over a DataLoader draws a number, which is not training's
            output = super().evaluation_loop(dataloader, description, *options)
        if self.keeps_embeddings:
            retrieval, own = pairs.retrieval, output.predictions.pop("embeddings")
            rest = None if retrieval.rest is None else self.embeddings(retrieval.rest)
            queries = decided_by_main(lambda: found_by_vectors(*retrieval.vectors(own, rest), retrieval.task.relevance))
            output.predictions["queries"] = queries
            output.metrics.update({f"{metric_key_prefix}_{name}": float(np.mean(v)) for name, v in queries.items()})
        return output

    def embeddings(self, pairs: PairDataset) -> np.ndarray:
        """A bi-encoder's embeddings of pairs, float32 of shape `(pairs, 2, hidden)`."""
        compute, self.compute_metrics, self.keeps_embeddings = self.compute_metrics, None, True
        try:
            with torch.random.fork_rng(devices=[]):
                return super().evaluation_loop(self.get_test_dataloader(pairs), "Embedding").predictions["embeddings"]
        finally:
            self.compute_metrics = compute

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
        metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        sets = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(sets, dict):
            means: dict[str, Any] = {}
            for metric in CURVES:
                each = [f"{metric_key_prefix}_{name}_{metric}" for name in sets]
                values = [metrics[key] for key in each if key in metrics]  # retrieval not where nothing is similar
                if values:
                    means[f"{metric_key_prefix}_{metric}"] = sum(values) / len(values)
            self.log(means)
            metrics |= means
        return metrics

    def get_eval_dataloader(self, *args, **kwargs) -> DataLoader:
        with self.measuring():
            return super().get_eval_dataloader(*args, **kwargs)

    def get_test_dataloader(self, *args, **kwargs) -> DataLoader:
        with self.measuring():
            return super().get_test_dataloader(*args, **kwargs)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Keeps --dataloader_drop_last, which is meant for training, from dropping pairs in evaluation."""
        drop_last, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            yield
        finally:
            self.args.dataloader_drop_last = drop_last

    def __init__(
        self,
        *,
        objective: Objective,
        corpus_weights: list[float] | None = None,
        adapter: Adapter | None = None,
        **kwargs,
    ):
        args = kwargs["args"]
        smoothing, args.label_smoothing_factor = args.label_smoothing_factor, 0.0  # Trainer's own looks for a config
        super().__init__(compute_metrics=lambda found: pair_metrics(found.predictions, found.label_ids), **kwargs)
        args.label_smoothing_factor = smoothing  # of the loss
        if self.args.torch_compile and self.model.packing:
            raise InputError("--torch_compile would compile at every step, for each shape. Add --packing false.")
        use_log_lines(self)
        self.criterion = objective  # not `objective`, which transformers' search for parameters sets to a number
        self.corpus_weights = corpus_weights
        self.adapter, self.loads_all_weights = adapter, adapter is None
        self.dead_batches = DeadBatchReport()
        if objective.compares_pairs:
            self.add_callback(self.dead_batches)
            if self.args.gradient_accumulation_steps > 1:
                logger.warning(
                    "--gradient_accumulation_steps %d: this loss never compares pairs of different batches. "
                    "--cached_batch_size compares all of a step in the same memory.",
                    self.args.gradient_accumulation_steps,
                )
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
            batch, pairs = batches[-1], len(batches[-1]["labels"])
            real_pairs = self.rows_of_epoch % (pairs * self.args.world_size)
            if real_pairs:
                kept = min(pairs, real_pairs)
                batches[-1] = {name: tensor[: len(tensor) // pairs * kept] for name, tensor in batch.items()}
                batches[-1]["real_pairs"] = real_pairs
        return batches, count

    def pop_targets(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Takes from a batch what only the loss reads."""
        return {name: inputs.pop(name) for name in self.targets if name in inputs}

    def training_step(self, model, inputs, num_items_in_batch=None):
        with self.fast_linears():  # around the backward pass too, where gradient checkpointing reruns layers
            if self.cached_parts is None:
                loss = super().training_step(model, inputs, num_items_in_batch)
            else:
                loss = self.cached_step(model, self._prepare_inputs(inputs), self.cached_parts)
        self.count_batch()
        return loss

    def cached_step(self, model: torch.nn.Module, inputs: dict, parts: CachedParts) -> Tensor:
        """Runs a batch in parts, with the gradient of the loss over all of it, see `grad_cache`."""
        model.train()
        targets, real_pairs = self.pop_targets(inputs), inputs.pop("real_pairs", None)
        pairs = len(targets["labels"])

        def forward(part: dict[str, Tensor]) -> Outputs:
            with self.compute_loss_context_manager():
                return self.read(model(**part))

        def loss(read: Outputs) -> Tensor:
            return self.global_loss(read, targets, pairs, real_pairs) / self.current_gradient_accumulation_steps

        # `loss` has divided by the accumulation steps; DeepSpeed would again
        options = {"scale_wrt_gas": False} if self.is_deepspeed_enabled else {}
        backward = partial(self.accelerator.backward, **options)
        unsynchronised = partial(without_sync, self.accelerator, model)

        def step(part: int) -> Tensor:
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
        pairs = len(targets["labels"])
        outputs = model(**inputs)
        loss = self.global_loss(self.read(outputs), targets, pairs, real_pairs)
        return (loss, outputs) if return_outputs else loss

    def global_loss(self, read: Outputs, targets: dict[str, Tensor], pairs: int, real_pairs: int | None) -> Tensor:
        """The loss over all ranks: every rank computes it in full, see `distributed.gather`.

        Args:
            read: result of `read` for this rank's pairs.
            targets: result of `pop_targets`.
            pairs: number of pairs on this rank.
            real_pairs: pairs of the global batch that count, in rank order; None for all.
        """
        local = self.args.local_comparisons and self.criterion.compares_pairs
        pooled, targets = (
            {name: gather_pairs(tensor, pairs, real_pairs, local) for name, tensor in tensors.items()}
            for tensors in (read, targets)
        )
        return self.batch_loss(pooled, targets)

    def read(self, outputs: Outputs) -> Outputs:
        """The model's outputs that the loss reads: tensors with the same number of rows per pair."""
        return {self.criterion.reads: outputs[self.criterion.reads]}

    def batch_loss(self, read: Outputs, targets: dict[str, Tensor]) -> Tensor:
        """The loss of the complete batch, over all ranks and parts; computed again if the batch is repeated."""
        loss = self.criterion.loss(**read, **targets)
        if self.criterion.compares_pairs:  # with groups, one label can teach, and what taught nothing is exactly 0
            self.has_order = loss.detach() != 0 if "groups" in targets else has_ordered_pair(targets["labels"])
        return loss

    def count_batch(self) -> None:
        """Adds what `batch_loss` has noted to the statistics of the epoch, once for every batch."""
        if self.criterion.compares_pairs:
            self.dead_batches.add(self.has_order)

    def log(self, logs, *args, **kwargs):
        if not math.isfinite(logs.get("loss", 0.0)):
            where = f"loss is {logs['loss']} at step {self.state.global_step}"
            raise InputError(f"Training diverged ({where}). Restart with a lower --learning_rate.")
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

    def saved_state(self, checkpoint: str | Path) -> dict[str, Tensor]:
        return (self.model if self.adapter is None else self.adapter).saved_state(checkpoint)
