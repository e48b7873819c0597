"""`EvaluatingTrainer`: Trainer's evaluation of pairs, with retrieval among their sentences."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from cosent.compute.distributed import decided_by_main
from cosent.compute.onednn import trainable_onednn_linears
from cosent.data.pairs import PairDataset
from cosent.inference.finding import found_by_vectors
from cosent.training.resumable_trainer import ResumableTrainer
from cosent.training.tensorboard import CURVES, TensorBoard


class EvaluatingTrainer(ResumableTrainer):
    """Evaluates a model of pairs through Trainer's own loop, under every strategy.

    `compute_metrics` gets a dict: `scores`, and for a bi-encoder `distances`, the |u - v| of each pair. A dict of
    evaluation sets adds their mean metrics, `eval_spearman` among them.

    Pairs with a `RetrievalSet` add the `METRICS` of retrieval, from the vectors that the scores are made of; the main
    process searches. Predictions then have `queries`: these metrics by name, a value per query.
    """

    keeps_embeddings = False
    board: TensorBoard | None = None  # gets the scores of every evaluation during training

    def fast_linears(self) -> AbstractContextManager[None]:
        """oneDNN where it helps, except under torch.compile, which would recompile at every step."""
        return nullcontext() if self.args.torch_compile else trainable_onednn_linears()

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        labels = inputs.pop("labels")
        with torch.no_grad(), self.compute_loss_context_manager(), self.fast_linears():
            outputs = model(**inputs)
        predictions = {"scores": outputs["scores"]}
        if "embeddings" in outputs:
            first, second = outputs["embeddings"].unbind(dim=1)  # (pairs, hidden) each
            predictions["distances"] = torch.linalg.vector_norm(first - second, dim=-1)
            if self.keeps_embeddings:
                predictions["embeddings"] = outputs["embeddings"]
        return None, predictions, labels

    def evaluation_loop(
        self, dataloader, description, prediction_loss_only=None, ignore_keys=None, metric_key_prefix="eval"
    ):
        pairs = dataloader.dataset
        self.keeps_embeddings = isinstance(pairs, PairDataset) and pairs.retrieval is not None
        options = (prediction_loss_only, ignore_keys, metric_key_prefix)
        output = super().evaluation_loop(dataloader, description, *options)
        if self.keeps_embeddings:
            retrieval, own = pairs.retrieval, output.predictions.pop("embeddings")
            rest = None if retrieval.rest is None else self.embeddings(retrieval.rest)
            queries = decided_by_main(lambda: found_by_vectors(*retrieval.vectors(own, rest), retrieval.task.relevance))
            output.predictions["queries"] = queries
            output.metrics.update({f"{metric_key_prefix}_{name}": float(np.mean(v)) for name, v in queries.items()})
        if self.board is not None and metric_key_prefix.startswith("eval"):
            scores, labels = output.predictions["scores"], output.label_ids
            self.board.add_scores(metric_key_prefix, scores, labels, self.state.global_step)
        return output

    def embeddings(self, pairs: PairDataset) -> np.ndarray:
        """Embeddings of pairs without labels, float32 of shape `(pairs, 2, hidden)`."""
        compute, self.compute_metrics = self.compute_metrics, None
        try:
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
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, means)
        return metrics

    def get_eval_dataloader(self, *args, **kwargs) -> DataLoader:
        with self.all_rows():
            return super().get_eval_dataloader(*args, **kwargs)

    def get_test_dataloader(self, *args, **kwargs) -> DataLoader:
        with self.all_rows():
            return super().get_test_dataloader(*args, **kwargs)

    @contextmanager
    def all_rows(self) -> Iterator[None]:
        """Keeps --dataloader_drop_last, which is meant for training, from dropping pairs in evaluation."""
        drop_last, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            yield
        finally:
            self.args.dataloader_drop_last = drop_last
