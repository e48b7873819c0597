"""Losses by name, and user functions as losses.

Ours raise `ValueError` for shapes that do not fit, for labels that are NaN or outside of what they document, and, if
they are means, for an empty batch.
"""

import inspect
import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import Tensor

from cosent.errors import InputError
from cosent.losses.angle import angle_loss
from cosent.losses.cosent import LOGIT_SCALE, cosent_loss
from cosent.losses.in_batch import cosent_in_batch_loss, cosent_infonce_loss, infonce_loss
from cosent.losses.pointwise import (
    binary_cross_entropy_loss,
    cosine_floor_loss,
    cosine_hinge_loss,
    cosine_linear_loss,
    cosine_mse_loss,
    cosine_squared_loss,
    cross_entropy_loss,
    joint_cross_entropy_loss,
    mse_loss,
)

TOWERS = ("bi_encoder", "cross_encoder")
# Parameters of a loss that are filled in by their names: outputs of the model, targets of a batch, and the share of the
# training that is over (0..1). Other parameters are hyper-parameters.
OUTPUTS = ("scores", "embeddings", "logits")
INPUTS = (*OUTPUTS, "labels", "groups", "progress")


@dataclass(frozen=True)
class Loss:
    """A loss with its requirements: inputs, towers, labels and parameters.

    Args:
        function: returns a scalar. Its first parameter is one of `OUTPUTS`: `scores` (pairs,), `embeddings` (pairs, 2,
            hidden) or `logits` (pairs, classes); any of `INPUTS` may follow. With `groups`, sentences of different
            pairs are compared: pairs of one label can teach, and groups say which sentences are similar.
        compares_pairs: whether the pairs of a batch are compared with one another, so that its loss is not the mean of
            the losses of its parts.
        towers: the models it can train.
        classes: number of logits; 0: 3 for NLI, else `--sbert_classes`.
        on_logits: other defaults of hyper-parameters, for the score of a cross-encoder.
    """

    name: str
    function: Callable[..., Tensor]
    compares_pairs: bool = True
    towers: tuple[str, ...] = ("bi_encoder",)
    classes: int = 0
    on_logits: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def inputs(self) -> list[str]:
        return inputs_of(self.function)

    @property
    def compares_sentences(self) -> bool:
        return "groups" in self.inputs

    @property
    def hyper_parameters(self) -> dict[str, float]:
        """Defaults of the parameters that `--loss_args` sets."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.name not in INPUTS}


ALL = (
    Loss("cosent", cosent_loss, towers=TOWERS, on_logits={"scale": LOGIT_SCALE}),
    Loss("cosent_in_batch", cosent_in_batch_loss),
    Loss("cosent_infonce", cosent_infonce_loss),
    Loss("infonce", infonce_loss),
    Loss("simcse", infonce_loss),  # on each sentence twice
    Loss("angle", angle_loss),
    Loss("sbert", cross_entropy_loss, compares_pairs=False),
    Loss("sbert_regression", cosine_squared_loss, compares_pairs=False),
    Loss("sbert_joint", joint_cross_entropy_loss, compares_pairs=False, classes=5),
    Loss("cosine_linear", cosine_linear_loss, compares_pairs=False),
    Loss("cosine_squared", cosine_squared_loss, compares_pairs=False),
    Loss("cosine_floor", cosine_floor_loss, compares_pairs=False),
    Loss("cosine_mse", cosine_mse_loss, compares_pairs=False),
    Loss("cosine_hinge", cosine_hinge_loss, compares_pairs=False),
    Loss("ce", cross_entropy_loss, compares_pairs=False, towers=("cross_encoder",), classes=2),
    Loss("ce3", cross_entropy_loss, compares_pairs=False, towers=("cross_encoder",), classes=3),
    Loss("bce", binary_cross_entropy_loss, compares_pairs=False, towers=("cross_encoder",)),
    Loss("mse", mse_loss, compares_pairs=False, towers=("cross_encoder",)),
)
LOSSES = {loss.name: loss for loss in ALL}


def find_loss(name: str) -> Loss:
    """The loss of a name, or of `FILE.py:FUNCTION`, which runs this file."""
    if name in LOSSES:
        return LOSSES[name]
    file, function = file_of(name)
    if not Path(file).is_file():
        raise InputError(f"--loss {name}: there is no file {file}. Name FILE.py:FUNCTION, from the current folder.")
    names = runpy.run_path(file, run_name=Path(file).stem)
    if not callable(names.get(function)):
        raise InputError(f"--loss {name}: {file} defines no function {function!r}. Name one of its functions.")
    return own_loss(names[function], name)


def file_of(name: str) -> tuple[str, str]:
    """File and function in the name of a user's loss."""
    file, _, function = name.rpartition(":")
    if not file.endswith(".py"):
        raise InputError(f"--loss {name}: choose {', '.join(LOSSES)}, or FILE.py:FUNCTION of your own.")
    return file, function


def own_loss(function: Callable[..., Tensor], name: str) -> Loss:
    """A user function as a loss, for both towers unless it reads embeddings."""
    inputs = inputs_of(function, f"--loss {name}")
    loss = Loss(name, function, towers=TOWERS[:1] if "embeddings" in inputs else TOWERS)
    for parameter, default in loss.hyper_parameters.items():
        if isinstance(default, bool) or not isinstance(default, int | float):
            raise InputError(
                f"--loss {name}: the parameter {parameter} is none of {', '.join(INPUTS)}. Give it a number as its "
                "default, which --loss_args can change."
            )
    return loss


def inputs_of(function: Callable[..., Tensor], name: str = "A loss") -> list[str]:
    """The parameters of a function that are `INPUTS`; the first one of all has to be one of `OUTPUTS`."""
    parameters = list(inspect.signature(function).parameters)
    if not parameters or parameters[0] not in OUTPUTS:
        first = parameters[0] if parameters else "no parameter"
        raise InputError(
            f"{name}: the first parameter says what is read, {', '.join(OUTPUTS)}; got {first}. Rename it."
        )
    return [parameter for parameter in parameters if parameter in INPUTS]
