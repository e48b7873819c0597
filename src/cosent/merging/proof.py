"""Proof of a merged folder: loaded from disk, it answers as the model in memory."""

from pathlib import Path

from cosent.errors import InputError
from cosent.modeling.auto import load_model
from cosent.modeling.embedder import Embedder
from cosent.modeling.text_model import TextModel
from cosent.run import Proof
from cosent.training.folder_proof import SAME_WEIGHTS, answers, relative_difference

PAIRS = [("今天天气不错", "今天天气很好"), ("我喜欢北京", "我不喜欢北京"), ("怎么还款", "如何还款")]


def prove(model: TextModel, folder: Path) -> Proof:
    """Compares vectors or scores of a few sentences.

    Raises:
        InputError: they differ by more than rounding.
    """
    now, loaded = answers(model, PAIRS), answers(load_model(str(folder)).to(model.device), PAIRS)
    difference = relative_difference(loaded, now)
    if not difference <= SAME_WEIGHTS:
        raise InputError(
            f"Expected the merged folder, loaded from disk, to answer as the model in memory, got a difference of "
            f"{difference:.0e} of the largest value: it would be another model. Please report it with the members' "
            "config.json."
        )
    return Proof(difference, None, len(now), "vectors" if isinstance(model, Embedder) else "scores")
