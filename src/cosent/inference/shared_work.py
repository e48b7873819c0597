"""Scores of pairs and vectors of sentences that the processes of a job share out."""

from collections.abc import Callable

import numpy as np

from cosent.compute.distributed import gather_object, rank, world_size


def score(model, rows, batch_size: int, prompts: tuple[str, str]) -> np.ndarray:
    """Similarity of every pair by a model of either tower, float32 of shape `(pairs,)`; processes share them out."""

    def own(part: slice) -> np.ndarray:
        sentences = (rows[name][:][part] for name in ("sentence1", "sentence2"))
        return model.similarity(*sentences, batch_size, show_progress_bar=rank() == 0, prompt=prompts)

    return shared(own, len(rows))


def embed_pool(model, pool: list[str], batch_size: int, prompts: tuple[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of length 1 of sentences as queries and as documents, the same ones if the prompts are."""
    options = {"batch_size": batch_size, "normalize": True, "show_progress_bar": rank() == 0}
    sides = {
        text: shared(lambda part, text=text: model.encode(pool[part], prompt=text, **options), len(pool))
        for text in dict.fromkeys(prompts)
    }
    return sides[prompts[0]], sides[prompts[1]]


def shared(compute: Callable[[slice], np.ndarray], rows: int) -> np.ndarray:
    """What `compute` returns for all rows, float32 of shape `(rows, ...)`; processes share them out."""
    parts = gather_object(compute(slice(rank(), None, world_size())))
    every = np.empty((rows, *parts[0].shape[1:]), dtype=np.float32)
    for number, part in enumerate(parts):
        every[number :: len(parts)] = part
    return every
