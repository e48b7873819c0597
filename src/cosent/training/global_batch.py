"""`GlobalBatchTrainer`: evaluation of pairs by their scores and by retrieval, and saving, around the global loss."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import EvalPrediction, set_seed

from cosent.atomic import apply_umask
from cosent.compute.distributed import decided_by_main
from cosent.compute.packing import LOOKUP
from cosent.data.corpus import labels_of
from cosent.data.labels import Labels
from cosent.data.pairs import PairDataset, Prefixes
from cosent.data.retrieval import retrieval_task
from cosent.errors import InputError
from cosent.evaluation.calibration import Calibration
from cosent.evaluation.metrics import evaluate_scores
from cosent.evaluation.retrieval import METRICS, retrieval_metrics
from cosent.evaluation.similarity import unit
from cosent.models.folder import is_cross_encoder
from cosent.models.lora import Adapter
from cosent.models.prompts import Prompts, warn_of_other_prompts
from cosent.models.text_model import TextModel
from cosent.record import lineage, trained_on_pairs
from cosent.training.arguments import (
    LORA_RATE,
    OUR_LORA_RATE,
    OUR_RATE,
    OUR_TUNED_RATE,
    RATE,
    TABLE_RATE,
    PairTrainingArguments,
)
from cosent.training.global_loss import GlobalLossTrainer, Outputs
from cosent.training.pairs import (
    EvaluationSet,
    Rows,
    check_rows,
    pair_dataset,
    pool_vectors,
    selection,
    simcse_pairs,
)

logger = logging.getLogger(__name__)

CURVES = ("spearman", "pearson", "kendall", "perplexity", *METRICS)  # averaged over several evaluation sets


def pair_metrics(
    predictions: dict[str, np.ndarray],
    labels: np.ndarray,
    threshold: float | None = None,
    calibration: Calibration | None = None,
) -> dict[str, float]:
    """`evaluate_scores` and, for a student that generates, the perplexity of synonyms given each other."""
    metrics = evaluate_scores(predictions["scores"], labels, threshold, calibration)
    if (tokens := np.sum(predictions.get("target_tokens", 0))) > 0:  # [SEP] included; both directions count
        metrics["perplexity"] = float(np.exp(np.sum(predictions["target_losses"], dtype=np.float64) / tokens))
    return metrics


def metrics_of(
    prediction: EvalPrediction, compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = None
) -> dict[str, float]:
    """`pair_metrics` of a trainer's predictions and the user's own metrics; none without scores."""
    if "scores" not in prediction.predictions:
        return {}
    metrics = pair_metrics(prediction.predictions, prediction.label_ids)
    if compute_metrics is None:
        return metrics
    user_metrics = compute_metrics(EvalPrediction(prediction.predictions["scores"], prediction.label_ids))
    if not isinstance(user_metrics, Mapping):
        raise InputError(f"compute_metrics returned {user_metrics!r}. Return a dict of numbers by name.")
    if clashes := user_metrics.keys() & {*metrics, *CURVES}:
        raise InputError(f"compute_metrics returns {min(clashes)}, the name of a metric of ours. Rename it.")
    return metrics | user_metrics


def choose_learning_rate(args: PairTrainingArguments, encoder: TextModel, lora: bool) -> None:
    """Sets the default learning rate of a start, unless one is set.

    Encoders that descend from a shipped one, or have random weights, get a higher one, at which others forget.
    """
    if args.learning_rate is not None:
        return
    start = encoder.backbone.config.name_or_path
    runs = lineage(start)
    tuned = trained_on_pairs(runs) and is_cross_encoder(start) == (encoder.tower == "cross_encoder")
    if encoder.backbone.config.model_type == LOOKUP:
        rate, kind = TABLE_RATE, "a lookup table"
    elif not start or (runs and runs[-1].pretraining is not None):
        rate = OUR_LORA_RATE if lora else OUR_TUNED_RATE if tuned else OUR_RATE
        kind = "a shipped encoder trained on pairs" if tuned else "a shipped encoder"
    else:
        rate, kind = (LORA_RATE if lora else RATE), "an encoder from elsewhere"
    args.learning_rate = rate
    logger.info("--learning_rate %g: the default for %s%s", rate, kind, " with LoRA" if lora else "")


class GlobalBatchTrainer(GlobalLossTrainer):
    """Trains and evaluates a model of pairs under any strategy.

    It is independent of the tower. A model's `forward` takes the batches of its collator and returns a dict with at
    least `scores` of shape `(pairs,)`, higher = more similar: `BiEncoder.forward` returns the cosine of two embeddings,
    `CrossEncoder.forward` a logit.

    A `ConcatDataset` trains on several corpora, one per batch. Checkpoints are written and read by the model itself
    (`save_pretrained`, `saved_state`), in the layout that serving tools load.

    Evaluation gives `pair_metrics`, and for a dict of sets also their means, `eval_spearman` among them. There is no
    `eval_loss`, since the loss of a batch that compares pairs depends on its size. Pairs with a retrieval task add
    `METRICS`, from the vectors that the scores are made of; the main process searches. Predictions are a dict:
    `scores`, and with a task `queries` (its metrics by name, a value per query).

    Args:
        train_dataset: tokenised pairs; `evaluate` and `predict` take rows, or an `evaluation_set` of them.
        held_out: rows to select the best epoch on, by dataset.
        corpus_weights: share of the batches of each corpus of a `ConcatDataset`; default: equal shares.
        adapter: the LoRA adapter inside the model, if any; checkpoints then hold both the merged model and the adapter.
        compute_metrics: metrics of one's own, added to ours: takes `EvalPrediction` of scores and labels, `(pairs,)`.
        kwargs: arguments of `transformers.Trainer`.
    """

    targets = ("labels", "groups")
    # Set by a subclass before `__init__`, the first four by `set_encoder`.
    encoder: TextModel
    sides: tuple[str, str]  # prompts of the sentences of a pair
    prefixes: Prefixes  # in front of them, as the encoder reads them: a cross-encoder has one
    prompts: Prompts  # of the model once it is trained
    meanings: dict[str, Labels]  # of the labels, by dataset
    control: Any

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
        self.args = args = copy(args)  # which a second trainer may get too; `evaluation_set` reads it
        self.at_first_validation: dict[str | None, Callable[[dict], None]] = {}  # by dataset: called with predictions
        choose_learning_rate(args, self.encoder, lora=adapter is not None)
        with args.main_process_first(desc="tokenising"):  # the other processes read its cache
            self.held_out = {
                name: self.evaluation_set(rows, f"{name} validation", self.meanings[name])
                for name, rows in held_out.items()
            }
        kwargs |= {
            "eval_dataset": selection(args, self.held_out),
            "compute_metrics": partial(metrics_of, compute_metrics=compute_metrics),
        }
        super().__init__(model, args, **kwargs)
        if self.args.torch_compile:
            self.encoder.packing = False  # packed rows would compile anew for nearly every batch
        self.corpus_weights = corpus_weights
        self.adapter, self.loads_all_weights = adapter, adapter is None

    def set_encoder(
        self, encoder: TextModel, prompt: str | Sequence[str] | None, prompt_name: str | Sequence[str] | None
    ) -> None:
        """Sets the encoder to train, and its prompts in training and after it."""
        self.encoder, self.sides = encoder, encoder.prompts.sides(prompt, prompt_name)
        warn_of_other_prompts(encoder.backbone.config.name_or_path, encoder.prompts, *self.sides)
        self.prefixes, self.prompts = encoder.prefixes(self.sides), encoder.prompts.trained_with(self.sides)

    def evaluation_set(self, rows: Rows, where: str, meaning: Labels | None = None) -> EvaluationSet:
        """Tokenised pairs to evaluate on, with a retrieval task if a bi-encoder has one there.

        Args:
            rows: with the columns of the contract, see `check_rows`.
            where: the rows, for messages.
            meaning: of the labels; by default, or if it does not fit, as in the only dataset, else by the values.
        """
        labels = labels_of(rows)
        if meaning is None and len(self.meanings) == 1:
            (meaning,) = self.meanings.values()
        if meaning is None or not meaning.fits(labels):
            meaning = Labels.of_values(where, labels)
        encoder, prefixes = self.encoder, self.prefixes
        pairs = pair_dataset(rows, encoder, prefixes, where, **self.evaluation_targets(rows, meaning))
        searched = self.args.retrieval and encoder.tower == "bi_encoder"
        task = retrieval_task(rows, meaning, where) if searched else None
        if task is None or prefixes[0] == prefixes[1]:
            return EvaluationSet(pairs, task)
        pool = PairDataset(simcse_pairs(task.pool), encoder.tokenizer, encoder.max_length, prefixes=prefixes)
        return EvaluationSet(pairs, task, pool)

    def evaluation_targets(self, rows: Rows, meaning: Labels) -> dict[str, np.ndarray]:
        """Targets besides the labels that a model needs in evaluation, each of shape `(pairs, ...)`."""
        return {}

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
        task = getattr(dataloader.dataset, "task", None)
        left_out = [*(ignore_keys or ()), *(["embeddings"] if task is None else [])]
        with torch.random.fork_rng(devices=[]):  # every pass over a DataLoader draws a number, which is not training's
            output = super().evaluation_loop(dataloader, description, prediction_loss_only, left_out, metric_key_prefix)
        if task is not None:
            embeddings, pool = output.predictions.pop("embeddings"), dataloader.dataset.pool
            if pool is None:
                vectors = [pool_vectors(task, embeddings)] * 2  # of queries, and of documents
            else:
                vectors = [unit(side) for side in self.embeddings(pool).swapaxes(0, 1)]
            queries = decided_by_main(lambda: retrieval_metrics(*vectors, task.relevance))
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
            eval_dataset = {
                name: self.readable(rows, name, self.meanings.get(name)) for name, rows in eval_dataset.items()
            }
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
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def get_eval_dataloader(self, eval_dataset=None) -> DataLoader:
        with self.measuring():
            return super().get_eval_dataloader(self.readable(eval_dataset, "evaluation"))

    def get_test_dataloader(self, test_dataset) -> DataLoader:
        with self.measuring():
            return super().get_test_dataloader(self.readable(test_dataset, "test"))

    def readable(self, pairs: Any, where: str, meaning: Labels | None = None) -> Any:
        """Tokenises rows; tokenised pairs, and the name of a set, stay as they are."""
        is_read = pairs is None or isinstance(pairs, str | PairDataset | EvaluationSet)
        return pairs if is_read else self.evaluation_set(check_rows(pairs, where), where, meaning)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Keeps --dataloader_drop_last, which is meant for training, from dropping pairs in evaluation."""
        drop_last, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            yield
        finally:
            self.args.dataloader_drop_last = drop_last

    def _prepare_for_training(self, *args, **kwargs):
        self.encoder.prompts = self.prompts
        prepared = super()._prepare_for_training(*args, **kwargs)
        if self.args.world_size > 1:
            # Each rank draws its own dropout; the order of the pairs, which they share, comes from data_seed.
            set_seed(self.args.seed + self.args.process_index)
        return prepared

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        output_dir = Path(output_dir or self.args.output_dir)
        self.encoder.prompts = self.prompts  # another trainer of this model may have set its own
        if self.args.should_save:
            output_dir.mkdir(parents=True, exist_ok=True)
            if state_dict is None or self.is_deepspeed_enabled:  # its clones do not show which weights are tied
                state_dict = self.model.state_dict()
            if broken := [name for name, values in state_dict.items() if torch.isnan(values).any()]:
                raise InputError(
                    f"Training diverged: after step {self.state.global_step}, {broken[0]} holds NaN. No model is "
                    "saved: train again with a lower --learning_rate."
                )
            if self.adapter is not None:
                self.adapter.save(output_dir, state_dict)
                state_dict = self.adapter.merged(state_dict)
            self.model.save_pretrained(output_dir, state_dict)
            apply_umask(output_dir)

    def saved_state(self, checkpoint: str | Path) -> dict[str, Tensor]:
        return (self.model if self.adapter is None else self.adapter).saved_state(checkpoint)
