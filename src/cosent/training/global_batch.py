"""`GlobalBatchTrainer`: the loss of the global batch, over all devices and parts, and evaluation of its scores."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader
from transformers import EvalPrediction, set_seed

from cosent.atomic import apply_umask
from cosent.compute.distributed import average_gradients, decided_by_main, gather_pairs, without_sync
from cosent.compute.grad_cache import backward_in_parts, fits_everywhere, split_batch
from cosent.compute.onednn import trainable_onednn_linears
from cosent.compute.packed_backbone import LOOKUP
from cosent.data.manifest import Labels
from cosent.data.pairs import PairDataset, Prefixes
from cosent.data.retrieval import retrieval_task
from cosent.data.samplers import choose_sampler
from cosent.errors import InputError
from cosent.evaluation.metrics import evaluate_scores
from cosent.evaluation.retrieval import METRICS, retrieval_metrics
from cosent.models.bi_encoder import TextModel
from cosent.models.decision import DecisionRule
from cosent.models.folder import is_cross_encoder
from cosent.models.lora import Adapter
from cosent.record import lineage, trained_on_pairs
from cosent.training.caching import CachedParts, sizes
from cosent.training.callbacks import use_log_lines
from cosent.training.pairs import (
    EvaluationSet,
    RetrievalSet,
    Rows,
    check_rows,
    meaning_of,
    selection,
    tokenised,
    tower_of,
)
from cosent.training.resumable import ResumableTrainer

logger = logging.getLogger(__name__)

CURVES = ("spearman", "pearson", "kendall", "perplexity", *METRICS)  # of which several evaluation sets have a mean
Outputs = dict[str, Tensor]
Pairs = PairDataset | ConcatDataset


def pair_metrics(
    predictions: dict[str, np.ndarray],
    labels: np.ndarray,
    rule: DecisionRule | None = None,
    tower: str | None = None,
) -> dict[str, float]:
    """`evaluate_scores` and, for a student that generates, the perplexity of synonyms given each other."""
    threshold, calibration = (None, None) if rule is None else (rule.threshold, rule.calibration)
    metrics = evaluate_scores(predictions["scores"], labels, threshold, calibration, tower)
    if (tokens := np.sum(predictions.get("target_tokens", 0))) > 0:  # [SEP] included; both directions count
        metrics["perplexity"] = float(np.exp(np.sum(predictions["target_losses"], dtype=np.float64) / tokens))
    return metrics


def metrics_of(
    prediction: EvalPrediction, own: Callable[[EvalPrediction], dict[str, float]] | None = None
) -> dict[str, float]:
    """`pair_metrics` of the predictions of a trainer, and those of the user's function; none without scores."""
    if "scores" not in prediction.predictions:
        return {}
    metrics = pair_metrics(prediction.predictions, prediction.label_ids)
    scores = EvalPrediction(prediction.predictions["scores"], prediction.label_ids)
    return metrics if own is None else metrics | own(scores)


class GlobalBatchTrainer(ResumableTrainer):
    """Trains and evaluates a model of pairs under any strategy; a subclass says which outputs its loss reads, and how.

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
        train_dataset: tokenised pairs; `evaluate` and `predict` take rows, which `tokenise` reads, or their result.
        held_out: rows to select the best epoch on, by dataset.
        corpus_weights: share of the batches of each corpus of a `ConcatDataset`; default: equal shares.
        adapter: the LoRA adapter inside the model, if any; checkpoints then hold both the merged model and the adapter.
        compute_metrics: metrics of one's own, added to ours: takes `EvalPrediction` of scores and labels, `(pairs,)`.
        kwargs: arguments of `transformers.Trainer`.
    """

    # Set by a subclass before `__init__`.
    encoder: TextModel
    prefixes: Prefixes  # in front of the sentences of a pair
    meanings: dict[str, Labels]  # of the labels, by dataset
    targets: tuple[str, ...] = ("labels", "groups")  # entries of a batch that go to the loss, not to the model
    loss_is_scaled_for_ga = False  # our losses are means of a micro-batch: Trainer divides by the accumulation steps

    def __init__(
        self,
        model: torch.nn.Module,
        args,
        *,
        held_out: Mapping[str, Rows],
        corpus_weights: Sequence[float] | None = None,
        adapter: Adapter | None = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = None,
        **kwargs,
    ):
        self.args = args  # `tokenise` reads it before Trainer has set it
        self.at_first_validation: dict[str | None, Callable[[dict], None]] = {}  # by dataset: called with predictions
        config, start = self.encoder.backbone.config, self.encoder.backbone.config.name_or_path
        runs = lineage(start)
        args.choose_learning_rate(
            ours=not start or (bool(runs) and runs[-1].pretraining is not None),
            tuned=trained_on_pairs(runs) and is_cross_encoder(start) == (tower_of(self.encoder) == "cross_encoder"),
            lora=adapter is not None,
            table=config.model_type == LOOKUP,
        )
        with args.main_process_first(desc="tokenising"):  # the other processes read its cache
            self.held_out = {n: self.tokenise(rows, f"{n} validation", n) for n, rows in held_out.items()}
        kwargs |= {
            "eval_dataset": selection(args, self.held_out),
            "compute_metrics": partial(metrics_of, own=compute_metrics),
        }
        smoothing, args.label_smoothing_factor = args.label_smoothing_factor, 0.0  # Trainer's own looks for a config
        super().__init__(model, args, **kwargs)
        args.label_smoothing_factor = smoothing  # of the loss
        if self.args.torch_compile and self.model.packing:
            raise InputError("--torch_compile would compile at every step, for each shape. Add --packing false.")
        use_log_lines(self)
        self.corpus_weights = corpus_weights
        self.adapter, self.loads_all_weights = adapter, adapter is None
        self.cached_parts = None
        if self.args.cached_batch_size is not None or self.args.cached_part_size is not None:
            self.cached_parts = CachedParts(self.args)
            self._train_batch_size = self.cached_parts.batch
            self.add_callback(self.cached_parts)

    def tokenise(self, rows: Rows, where: str, name: str | Labels | None = None) -> EvaluationSet:
        """Tokenised pairs to evaluate on, with a retrieval task if a bi-encoder has one there.

        Args:
            rows: with the columns of the contract, see `check_rows`.
            where: the rows, for messages.
            name: of the dataset of the training whose labels mean the same, or their meaning; default: the only one,
                else none.
        """
        meaning = meaning_of(self.meanings, name, rows, where)
        targets = self.evaluation_targets(rows, meaning)
        pairs = tokenised(rows, self.encoder, self.prefixes, where, **targets)
        searched = self.args.retrieval and tower_of(self.encoder) == "bi_encoder"
        task = retrieval_task(rows, meaning, where) if searched else None
        return EvaluationSet(pairs, None if task is None else RetrievalSet.of(task, self.encoder, self.prefixes))

    def evaluation_targets(self, rows: Rows, meaning: Labels) -> dict[str, np.ndarray]:
        """Targets besides the labels that a model needs in evaluation, each of shape `(pairs, ...)`."""
        return {}

    def read(self, outputs: Outputs, targets: dict[str, Tensor]) -> Outputs:
        """The model's outputs that the loss reads: tensors with the same number of rows per pair."""
        raise NotImplementedError

    def batch_loss(self, read: Outputs, targets: dict[str, Tensor]) -> Tensor:
        """The loss of the complete batch, over all ranks and parts; computed again if the batch is repeated."""
        raise NotImplementedError

    def count_batch(self) -> None:
        """Adds what `batch_loss` has noted to the statistics of the epoch, once for every batch."""

    def compares_pairs(self, targets: dict[str, Tensor]) -> bool:
        """Whether the loss of a batch with these targets ranks its pairs against one another."""
        return False

    def fast_linears(self) -> AbstractContextManager[None]:
        """oneDNN where it helps, except under torch.compile, which would recompile at every step."""
        return nullcontext() if self.args.torch_compile else trainable_onednn_linears()

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        labels = self.pop_targets(inputs)["labels"]
        with torch.no_grad(), self.compute_loss_context_manager(), self.fast_linears():
            outputs = self.predictions_of(model(**inputs))
        return None, {name: value for name, value in outputs.items() if name not in (ignore_keys or ())}, labels

    def predictions_of(self, outputs: Outputs) -> Outputs:
        """Outputs of a model for evaluation: `scores`, and a bi-encoder's `embeddings`."""
        return {name: outputs[name] for name in ("scores", "embeddings") if name in outputs}

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ):
        retrieval = getattr(dataloader.dataset, "retrieval", None)
        left_out = [*(ignore_keys or ()), *(["embeddings"] if retrieval is None else [])]
        with torch.random.fork_rng(devices=[]):  # every pass over a DataLoader draws a number, which is not training's
            output = super().evaluation_loop(dataloader, description, prediction_loss_only, left_out, metric_key_prefix)
        if retrieval is not None:
            own = output.predictions.pop("embeddings")
            rest = None if retrieval.rest is None else self.embeddings(retrieval.rest)
            vectors = retrieval.vectors(own, rest)
            queries = decided_by_main(lambda: retrieval_metrics(*vectors, retrieval.task.relevance))
            output.predictions["queries"] = queries
            output.metrics.update({f"{metric_key_prefix}_{name}": float(np.mean(v)) for name, v in queries.items()})
        name = next((name for name, pairs in self.held_out.items() if pairs is dataloader.dataset), None)
        if self.is_in_train and (report := self.at_first_validation.pop(name, None)) is not None:
            report(output.predictions)
        return output

    def embeddings(self, pairs: PairDataset) -> np.ndarray:
        """A bi-encoder's embeddings of pairs, float32 of shape `(pairs, 2, hidden)`."""
        loader = self.get_test_dataloader(pairs)
        with torch.random.fork_rng(devices=[]):
            return super().evaluation_loop(loader, "Embedding", ignore_keys=["scores"]).predictions["embeddings"]

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        if isinstance(eval_dataset, Mapping):
            eval_dataset = {name: self.readable(rows, name, name) for name, rows in eval_dataset.items()}
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

    def get_eval_dataloader(self, eval_dataset=None) -> DataLoader:
        with self.measuring():
            return super().get_eval_dataloader(self.readable(eval_dataset, "evaluation"))

    def get_test_dataloader(self, test_dataset) -> DataLoader:
        with self.measuring():
            return super().get_test_dataloader(self.readable(test_dataset, "test"))

    def readable(self, pairs: Any, where: str, name: str | None = None) -> Any:
        """Rows as tokenised pairs; what is tokenised, or the name of a set, stays as it is."""
        known = pairs is None or isinstance(pairs, str | PairDataset | EvaluationSet)
        return pairs if known else self.tokenise(check_rows(pairs, where), where, name)

    def _hp_search_setup(self, trial):
        """Trainer forgets the size of cached batches before a trial, and would ignore a change of what is bound."""
        smoothing = self.args.label_smoothing_factor
        super()._hp_search_setup(trial)
        if self.args.label_smoothing_factor != smoothing:
            raise InputError("hp_space: label_smoothing_factor belongs to the loss. Make a trainer for each value.")
        if self.cached_parts is not None:
            self.cached_parts.batch, self.cached_parts.pairs = sizes(self.args)
            self._train_batch_size = self.cached_parts.batch

    def hyperparameter_search(self, hp_space=None, compute_objective=None, *args, direction="maximize", **kwargs):
        """As of Trainer; by default the metric that selects the best epoch is maximised."""
        metric = self.args.metric_for_best_model or "spearman"
        compute_objective = compute_objective or (lambda metrics: metrics[f"eval_{metric}"])
        return super().hyperparameter_search(hp_space, compute_objective, *args, direction=direction, **kwargs)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Keeps --dataloader_drop_last, which is meant for training, from dropping pairs in evaluation."""
        drop_last, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            yield
        finally:
            self.args.dataloader_drop_last = drop_last

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
        """Pops from a batch the entries that only the loss reads."""
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
                return self.read(model(**part), targets)

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
        loss = self.global_loss(self.read(outputs, targets), targets, pairs, real_pairs)
        return (loss, outputs) if return_outputs else loss

    def global_loss(self, read: Outputs, targets: dict[str, Tensor], pairs: int, real_pairs: int | None) -> Tensor:
        """The loss over all ranks: every rank computes it in full, see `distributed.gather`.

        Args:
            read: result of `read` for this rank's pairs.
            targets: result of `pop_targets`.
            pairs: number of pairs on this rank.
            real_pairs: pairs of the global batch that count, in rank order; None for all.
        """
        local = self.args.local_comparisons and self.compares_pairs(targets)
        pooled, targets = (
            {name: gather_pairs(tensor, pairs, real_pairs, local) for name, tensor in tensors.items()}
            for tensors in (read, targets)
        )
        return self.batch_loss(pooled, targets)

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
        if sampler is None:
            sampler = super()._get_train_sampler(train_dataset)
        elif args.train_sampling_strategy == "sequential":
            raise InputError("--train_sampling_strategy sequential is for one corpus in its own order. Leave it out.")
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
