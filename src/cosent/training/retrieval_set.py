"""Pairs of a split with its retrieval task: where the vectors of the sentences of the pool come from."""

from dataclasses import dataclass

import datasets
import numpy as np

from cosent.data.corpus import Corpus
from cosent.data.pairs import PairDataset
from cosent.data.prefix import Prefixes
from cosent.data.retrieval import RetrievalTask, retrieval_task
from cosent.data.retrieval_arguments import RetrievalArguments
from cosent.inference.finding import unit
from cosent.modeling.text_model import TextModel


@dataclass(frozen=True)
class RetrievalSet:
    """A retrieval task whose sentences are embedded with the pairs of a split, which are evaluated anyway.

    Args:
        rest: pairs of the sentences that those of the split do not embed, as they are to be searched; None if there are
            none. If the two prompts differ, these are all sentences of the pool, each as a query and as a document.
        missing: places in the pool of the sentences of `rest`, int64 of shape `(pairs of rest, 2)`.
        sides: whether queries and documents are embedded with different prompts.
    """

    task: RetrievalTask
    rest: PairDataset | None
    missing: np.ndarray
    sides: bool

    @classmethod
    def of(cls, task: RetrievalTask, encoder: TextModel, prefixes: Prefixes) -> "RetrievalSet":
        everything, sides = np.arange(len(task.pool)), prefixes[0] != prefixes[1]
        if sides:
            missing = np.stack([everything, everything], axis=1)
        else:
            alone = np.setdiff1d(everything, task.places)
            missing = np.resize(alone, (-(-len(alone) // 2), 2))  # the first one twice if their number is odd
        rest = None
        if len(missing):
            columns = {f"sentence{side + 1}": [task.pool[row] for row in missing[:, side]] for side in (0, 1)}
            rows = datasets.Dataset.from_dict(columns | {"label": np.zeros(len(missing), np.float32)})
            rest = PairDataset(rows, encoder.tokenizer, encoder.max_length, prefixes=prefixes)
        return cls(task, rest, missing, sides)

    def vectors(self, own: np.ndarray, rest: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of the pool as queries and as documents, each float32 of shape `(pool, hidden)` and of length 1.

        Args:
            own, rest: embeddings of the pairs of the split and of `rest`, of shape `(pairs, 2, hidden)`.
        """
        if self.sides:
            assert rest is not None
            return unit(rest[:, 0]), unit(rest[:, 1])
        pool = np.empty((len(self.task.pool), own.shape[-1]), np.float32)
        pool[self.task.places.ravel()] = own.reshape(-1, own.shape[-1])
        if rest is not None:
            pool[self.missing.ravel()] = rest.reshape(-1, rest.shape[-1])
        pool = unit(pool)
        return pool, pool


def add_retrieval(
    held: dict[str, dict[str, PairDataset]],
    corpora: dict[str, Corpus],
    args: RetrievalArguments,
    encoder: TextModel,
    prefixes: Prefixes,
) -> None:
    """Gives every split of held-out pairs in which something is to be found its retrieval task."""
    for name, splits in held.items():
        for split, pairs in splits.items():
            task = retrieval_task(corpora[name], split, args)
            if task is not None:
                pairs.retrieval = RetrievalSet.of(task, encoder, prefixes)
