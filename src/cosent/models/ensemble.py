"""Several models as one: the mean of weights, and the ensemble of bi-encoders that averages cosines.

An ensemble's folder, which sentence-transformers loads where cosent is installed and trust_remote_code is set:

modules.json                        names `VectorEnsemble`
0_VectorEnsemble/config.json        weights of the members
0_VectorEnsemble/0, 1, ...          the members, each a folder that loads alone
config_sentence_transformers.json   prompts, if all members have the same

sentence-transformers has no module of its own for that: its `Router` sends a sentence to one of several models.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
import torch
from huggingface_hub import snapshot_download
from torch import nn
from torch.nn.functional import normalize

from cosent.data.pairs import Prefix, tokenizer_rules
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.inference.embedding import embed
from cosent.models.bi_encoder import Embedder, SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.folder import ENSEMBLE, MODULES, SETTINGS, read_json, write_json
from cosent.models.prompts import BI_ENCODER, Prompts
from cosent.run import read_record

logger = logging.getLogger(__name__)

BATCH_SIZE = 512  # sentences per forward pass in sentence-transformers, whose batches are smaller


class VectorEnsemble(Embedder):
    """Several bi-encoders as one, whose cosine is the weighted mean of theirs.

    With `u_k` the vector of member k, scaled to length 1, and its weight `w_k`, the vector is `[sqrt(w_1) u_1, ...,
    sqrt(w_K) u_K]`: of length 1, and its dot product with another one is `sum_k w_k cos_k`.

    Members with equal prompts share them: what is requested is read by all. If their prompts differ, each member always
    reads behind its own default prompt, and no other can be requested.

    `preprocess`, `forward`, `save` and `load` follow the protocol of sentence-transformers' modules, as `Pooling` does.

    Args:
        members: models of any architectures and tokenizers.
        weights: a positive number for each; their sum is scaled to 1. Default: equal ones.
    """

    def __init__(self, members: Iterable[SentenceEncoder], weights: Sequence[float] | None = None):
        super().__init__()
        self.members = nn.ModuleList(members)
        self.weights = shares(weights, len(self.members))
        first, *others = [member.prompts for member in self.members]
        self.same_prompts = all(other.config() == first.config() for other in others)
        self.prompts = first if self.same_prompts else Prompts()

    @property
    def device(self) -> torch.device:
        return self.members[0].device

    @property
    def embedding_dimension(self) -> int:
        return sum(member.embedding_dimension for member in self.members)

    @property
    def max_length(self) -> int:
        """That of the member that reads least."""
        return min(member.max_length for member in self.members)

    @property
    def max_seq_length(self) -> int:
        """`max_length`, as sentence-transformers calls it."""
        return self.max_length

    @property
    def rules(self) -> str:
        return repr((self.weights, [(member.rules, member.prompts) for member in self.members]))

    @property
    def packing(self) -> bool:
        """See `TextModel`; set, it counts for all members."""
        return all(member.packing for member in self.members)

    @packing.setter
    def packing(self, packing: bool) -> None:
        for member in self.members:
            member.packing = packing

    def prefix(self, text: str) -> Prefix:
        """A prompt, whose tokens each member counts for itself."""
        if text and not self.same_prompts:
            own = ", ".join(repr(member.prompts.text()) for member in self.members)
            raise InputError(
                f"The members of this ensemble read behind prompts of their own ({own}), got the prompt {text!r}. "
                "Leave it out, or merge models with equal prompts."
            )
        for member in self.members:
            member.prefix(text)
        return Prefix(text)

    def readers(self, prefix: Prefix) -> list[tuple[Embedder, Prefix]]:
        texts = [prefix.text if self.same_prompts else member.prompts.text() for member in self.members]
        return [(member, member.prefix(text)) for member, text in zip(self.members, texts, strict=True)]

    def join(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """The formula above, in float32."""
        weighted = zip(parts, self.weights, strict=True)
        return torch.cat([weight**0.5 * normalize(part, dim=-1) for part, weight in weighted], dim=-1).float()

    @classmethod
    def from_pretrained(cls, model_name_or_path: str, *, device: str | torch.device | None = None, **options) -> Self:
        """Loads what `save_pretrained` wrote; `options` are those of `from_pretrained` of the members."""
        path = resolve(model_name_or_path)
        first, *others = read_json(path, MODULES)
        if others:
            raise InputError(
                f"{path}/{MODULES} names {others[0]['path']} after the members. Remove it, or merge again."
            )
        return cls.load(path, first["path"], options).to(device=device)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", options: Mapping = MappingProxyType({}), **_) -> Self:
        """Loads the members, as a module of sentence-transformers, whose other options do not concern them."""
        local = Path(model_name_or_path).is_dir()
        folder = Path(model_name_or_path if local else snapshot_download(model_name_or_path), subfolder)
        weights = read_json(str(folder), "config.json")["weights"]
        members = (SentenceEncoder.from_pretrained(str(folder / str(k)), **options) for k in range(len(weights)))
        return cls(members, weights)

    def save(self, output_path: str | Path, *args, **kwargs) -> None:
        """Writes the members, as a module of sentence-transformers."""
        write_json(Path(output_path, "config.json"), {"weights": self.weights})
        for number, member in enumerate(self.members):
            member.save_pretrained(Path(output_path, str(number)))

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a folder that `load_model` reads, and sentence-transformers where cosent is installed."""
        place = f"0_{type(self).__name__}"
        self.save(Path(folder, place))
        settings = {"model_type": BI_ENCODER, "similarity_fn_name": "cosine"}
        write_json(Path(folder, SETTINGS), settings | self.prompts.config())
        write_json(Path(folder, MODULES), [{"idx": 0, "name": "0", "path": place, "type": ENSEMBLE}])

    def preprocess(self, inputs: list[str], prompt: str | None = None, **kwargs) -> dict:
        """What `forward` needs, in sentence-transformers."""
        return {"sentences": list(inputs), "prompt": prompt or ""}

    def forward(self, features: dict) -> dict:
        """Adds `sentence_embedding`, in sentence-transformers; without gradients."""
        vectors, _ = embed(self, features["sentences"], BATCH_SIZE, prefix=self.prefix(features["prompt"]))
        return features | {"sentence_embedding": torch.from_numpy(vectors).to(self.device)}

    def get_embedding_dimension(self) -> int:
        return self.embedding_dimension


def shares(weights: Sequence[float] | None, models: int) -> list[float]:
    """Weights of models, scaled to a sum of 1; equal ones for None."""
    numbers = [1.0] * models if weights is None else list(weights)
    if len(numbers) != models or not all(0 < number < np.inf for number in numbers):
        raise InputError(
            f"--weights takes one positive number for each of the {models} models, got "
            f"{' '.join(f'{number:g}' for number in numbers)}."
        )
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
                f"{names[0]} and {name} differ in their {what}: their weights have no mean. Merge runs of one recipe, "
                "or bi-encoders --by vectors."
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
        "prompts": model.prompts.config() | {"include_prompt": model.prompts.include_prompt},
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
