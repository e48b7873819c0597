"""Several models as one: the mean of weights, and the ensemble of bi-encoders that averages cosines.

The folder of an ensemble has `ensemble.json` with the weights, and the members in `0`, `1`, ..., which load alone.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from huggingface_hub import snapshot_download
from torch import nn
from torch.nn.functional import normalize

from cosent.data.pairs import tokenizer_rules
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.models.bi_encoder import Embedder, SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.folder import ENSEMBLE, read_json, write_json
from cosent.models.prompts import Prompts
from cosent.run import read_record

logger = logging.getLogger(__name__)


class VectorEnsemble(Embedder):
    """Several bi-encoders as one, whose cosine is the weighted mean of theirs.

    With `u_k` the vector of member k, scaled to length 1, and its weight `w_k`, the vector is `[sqrt(w_1) u_1, ...,
    sqrt(w_K) u_K]`: of length 1, and its dot product with another one is `sum_k w_k cos_k`.

    Members with equal prompts share them: what is requested is read by all. If their prompts differ, each member always
    reads behind its own default prompt, and no other can be requested.

    Args:
        members: models of any architectures and tokenizers.
        weights: a positive number for each; their sum is scaled to 1. Default: equal ones.
    """

    def __init__(self, members: Iterable[SentenceEncoder], weights: Sequence[float] | None = None):
        super().__init__()
        self.members = nn.ModuleList(members)
        self.weights = shares(weights, len(self.members))
        first, *others = [member.prompts for member in self.members]
        self.same_prompts = all(other == first for other in others)
        self.prompts = first if self.same_prompts else Prompts()

    @property
    def device(self) -> torch.device:
        return self.members[0].device

    @property
    def embedding_dimension(self) -> int:
        return sum(member.embedding_dimension for member in self.members)

    @property
    def max_length(self) -> int:
        """The smallest maximum length of the members, in tokens."""
        return min(member.max_length for member in self.members)

    @property
    def rules(self) -> str:
        return repr((self.weights, [(member.rules, member.prompts) for member in self.members]))

    def prefix(self, prompt: str) -> str:
        if prompt and not self.same_prompts:
            own = ", ".join(repr(member.prompts.text()) for member in self.members)
            raise InputError(
                f"The members of this ensemble have prompts of their own ({own}), got {prompt!r}. Leave it out."
            )
        for member in self.members:
            member.prefix(prompt)
        return prompt

    def readers(self, prefix: str) -> list[tuple[Embedder, str]]:
        return [
            (member, member.prefix(prefix if self.same_prompts else member.prompts.text())) for member in self.members
        ]

    def join(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """The formula above, in float32."""
        weighted = zip(parts, self.weights, strict=True)
        return torch.cat([weight**0.5 * normalize(part, dim=-1) for part, weight in weighted], dim=-1).float()

    @classmethod
    def from_pretrained(cls, model_name_or_path: str, *, device: str | torch.device | None = None, **options) -> Self:
        """Loads what `save_pretrained` wrote; `options` are those of `from_pretrained` of the members."""
        path = resolve(model_name_or_path)
        folder = path if Path(path).is_dir() else snapshot_download(path)
        weights = read_json(folder, ENSEMBLE)["weights"]
        members = (SentenceEncoder.from_pretrained(str(Path(folder, str(k))), **options) for k in range(len(weights)))
        return cls(members, weights).to(device=device)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a folder that `load_model` reads."""
        for number, member in enumerate(self.members):
            member.save_pretrained(Path(folder, str(number)))
        write_json(Path(folder, ENSEMBLE), {"weights": self.weights})


def shares(weights: Sequence[float] | None, models: int) -> list[float]:
    """Weights of models, scaled to a sum of 1; equal ones for None."""
    numbers = [1.0] * models if weights is None else list(weights)
    if len(numbers) != models or not all(0 < number < np.inf for number in numbers):
        got = " ".join(f"{number:g}" for number in numbers)
        raise InputError(f"--weights takes one positive number for each of the {models} models, got {got}.")
    return [number / sum(numbers) for number in numbers]


# Entries of a config that say where it is from, or how it is trained: the weights mean the same with others.
ORIGIN = ("architectures", "transformers_version", "dtype", "torch_dtype", "sentence_transformers")


def average(
    models: Sequence[SentenceEncoder | CrossEncoder], names: Sequence[str], weights: Sequence[float] | None = None
) -> SentenceEncoder | CrossEncoder:
    """The first model, with the weighted mean of the weights of all; `names` are their folders, for messages."""
    first, *others = (description(model) for model in models)
    for name, other in zip(names[1:], others, strict=True):
        what = next((what for what, value in first.items() if other[what] != value), None)
        if what is not None:
            raise InputError(
                f"{names[0]} and {name} differ in their {what}: no mean of weights. Merge them --by vectors."
            )
    parts = shares(weights, len(models))
    states = [model.state_dict() for model in models]
    mean = {name: mean_of([state[name] for state in states], parts, name) for name in states[0]}
    models[0].load_state_dict(mean)
    models[0].max_length = max(model.max_length for model in models)
    return models[0]


def mean_of(tensors: list[torch.Tensor], parts: list[float], name: str) -> torch.Tensor:
    """Weighted mean, computed in float64; of integers, which must be equal, the first."""
    if tensors[0].is_floating_point():
        mean = sum(part * tensor.double() for part, tensor in zip(parts, tensors, strict=True))
        return mean.to(tensors[0].dtype)
    if not all(torch.equal(tensors[0], other) for other in tensors[1:]):
        raise InputError(f"The models differ in the integers of {name}, which have no mean. Merge them --by vectors.")
    return tensors[0]


def description(model: SentenceEncoder | CrossEncoder) -> dict:
    """What two models must have in common, by its name for messages, the plainest first."""
    backbone = model.backbone.config
    settings = {
        key: value
        for key, value in backbone.to_dict().items()
        if key not in ORIGIN and not key.startswith("_") and "drop" not in key
    }
    return {
        "tower": "bi-encoder" if isinstance(model, SentenceEncoder) else "cross-encoder",
        "architecture": backbone.model_type,
        "pooling and modules": model.modules_after_backbone if isinstance(model, SentenceEncoder) else "",
        "prompts": model.prompts,
        "tokenizer": tokenizer_rules(model.tokenizer),
        "shapes of weights": {name: tuple(weight.shape) for name, weight in model.state_dict().items()},
        "config.json": settings,
    }


def common_start(names: Sequence[str]) -> str | None:
    """The model that all runs started from, by their records; None, with a warning, if there is none or not known."""
    records = [read_record(name) for name in names]
    starts = {record.recipe.get("model_name_or_path") if record else None for record in records}
    if len(starts) == 1 and None not in starts:
        return starts.pop()
    logger.warning(
        "The models do not come from one start (%s), and a mean of unrelated weights is usually noise: evaluate it.",
        ", ".join(sorted(str(start or "unknown") for start in starts)),
    )
    return None
