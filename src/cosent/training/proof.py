"""Proof of a saved folder: it is loaded from disk and compared with the model in memory and with the starting model."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from torch import nn

from cosent.compute.distributed import decided_by_main, rank
from cosent.data.corpus import Corpus
from cosent.data.formats import is_blank
from cosent.errors import InputError
from cosent.evaluation.similarity import row_differences
from cosent.models import load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.sentence_bert import BiEncoder
from cosent.record import Proof
from cosent.training.sharding import launched_with, whole_state

logger = logging.getLogger(__name__)

PROVEN_TEXTS = 32  # sentences, or pairs for a cross-encoder
# Largest differences that are rounding, relative to the largest value. The same float32 weights give the same bits, but
# kernels of a GPU may add in another order. A merged adapter adds its product to the weights instead of to the outputs:
# 1e-6 on a CPU; on a GPU, TensorFloat-32 may round to 10 bits; float16 has 11 bits.
SAME_WEIGHTS, MERGED, MERGED_ON_GPU, HALF = 1e-5, 1e-4, 1e-2, 1e-2


class FolderProof:
    """Compares the vectors or scores of a few sentences before training, at its end, and from the saved folder.

    The main process computes; under FSDP, where a forward pass needs all of them, it does so on a copy that takes over
    the gathered weights.

    Args:
        model: the module in training, not yet wrapped.
        pairs: pairs of sentences to compare, see `sample_pairs`.
        tolerance: largest difference between the folder and the model in memory that is not an error.
    """

    def __init__(self, model: nn.Module, pairs: list[tuple[str, str]], tolerance: float | None = None):
        self.model, self.pairs = model, pairs
        self.tolerance = rounding(model) if tolerance is None else tolerance
        self.copy = deepcopy(model) if launched_with() == "fsdp" and rank() == 0 else None
        self.start: np.ndarray | None = None

    @property
    def encoder(self) -> SentenceEncoder | CrossEncoder:
        model = self.copy or self.model
        return model.encoder if isinstance(model, BiEncoder) else model

    def begin(self) -> None:
        """Computes the outputs of the starting model; call it before the first step."""
        if rank() == 0:
            self.start = outputs_of(self.encoder, self.pairs)

    def check(self, folder: str | Path) -> Proof:
        """Compares a saved folder; all processes must call it, and all raise."""
        if launched_with() == "fsdp":
            state = whole_state(self.model)
            if self.copy is not None:
                self.copy.load_state_dict(state)
        return decided_by_main(lambda: self.compare(str(folder)))

    def compare(self, folder: str) -> Proof:
        trained = self.encoder
        with without_warnings():
            loaded = load_model(folder)
        loaded.packing = trained.packing
        outputs = outputs_of(trained, self.pairs)
        difference = float(row_differences(outputs, outputs_of(loaded.to(trained.device), self.pairs)).max())
        if not difference <= self.tolerance:
            raise InputError(
                f"The saved model does not match the one in memory (largest relative difference {difference:.0e}, "
                f"tolerance {self.tolerance:.0e}). Report it, with the command."
            )
        moved = None if self.start is None else distance(self.start, outputs)
        proof = Proof(difference, moved, len(outputs), "scores" if isinstance(trained, CrossEncoder) else "vectors")
        logger.info("%s", proof)
        if moved is not None and moved < 1e-6:
            logger.warning("The model has not moved from the one it started from: training has changed nothing.")
        return proof


def outputs_of(encoder: SentenceEncoder | CrossEncoder, pairs: list[tuple[str, str]]) -> np.ndarray:
    """Float32 vectors `(PROVEN_TEXTS, hidden)` of the sentences of pairs, or a cross-encoder's scores of the pairs."""
    firsts, seconds = [first for first, _ in pairs], [second for _, second in pairs]
    wrapped = vars(encoder).pop("forward", None)  # accelerate's autocast: a model is compared as it is saved
    try:
        with without_warnings():
            if isinstance(encoder, SentenceEncoder):
                return encoder.encode([*firsts, *seconds][:PROVEN_TEXTS])
            return encoder.similarity(firsts, seconds)
    finally:
        if wrapped is not None:
            encoder.forward = wrapped


def distance(start: np.ndarray, end: np.ndarray) -> float:
    """Mean cosine distance of vectors `(sentences, hidden)`, or mean absolute difference of scores `(pairs,)`."""
    if end.ndim == 1:
        return float(np.abs(end - start).mean())
    start, end = start.astype(np.float64), end.astype(np.float64)
    lengths = np.linalg.norm(start, axis=1) * np.linalg.norm(end, axis=1)
    return float(1 - ((start * end).sum(axis=1) / np.maximum(lengths, 1e-12)).mean())


def rounding(model: nn.Module) -> float:
    """Largest difference to expect between a model in training and its saved folder."""
    if not any(".lora_A." in name for name, _ in model.named_parameters()):
        return SAME_WEIGHTS
    return MERGED_ON_GPU if torch.accelerator.is_available() else MERGED


def sample_pairs(corpora: list[Corpus], text: Dataset | None) -> list[tuple[str, str]]:
    """The first pairs of a validation split, else of any other split, else of the text, without empty sentences."""
    splits = [c.splits[name] for name in ("validation", "test", "train") for c in corpora if name in c.splits]
    rows = (splits or [text])[0][: 4 * PROVEN_TEXTS]
    pairs = zip(rows["sentence1"], rows["sentence2"], strict=True)
    return [pair for pair in pairs if not any(map(is_blank, pair))][:PROVEN_TEXTS]


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silences warnings about this model and these sentences, which were logged before."""
    ours = logging.getLogger("cosent")
    level = ours.level
    ours.setLevel(logging.ERROR)
    try:
        yield
    finally:
        ours.setLevel(level)
