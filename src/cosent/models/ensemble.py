"""Ensembles: several models in one folder, which answers with the mean of their cosines or of their logits.

modules.json                        names the class below, with a path; sentence-transformers imports it where cosent is
                                    installed and trust_remote_code is set, otherwise it refuses the folder
0_VectorEnsemble/config.json        weights of the members
0_VectorEnsemble/0, 1, ...          the members, each a folder that loads alone
1_Dense                             the projection to fewer dimensions, if there is one
config_sentence_transformers.json   prompts, if all members have the same

The classes follow the protocol of sentence-transformers' modules without importing it, as our `Pooling` does. There is
no way without such a class: its `Router` sends a sentence to one of several models, never to all.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from huggingface_hub import snapshot_download
from torch import nn
from torch.nn.functional import normalize

from cosent.data.pairs import Prefix, Prefixes, tokenizer_rules
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.inference.embedding import embed
from cosent.models.bi_encoder import Embedder, SentenceEncoder, TextModel
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.folder import SETTINGS, described, read_json, write_json, write_modules
from cosent.models.modules import IDENTITY, Module, embedding_dimension, load_tail, read_modules
from cosent.models.prompts import BI_ENCODER, CROSS_ENCODER, Prompts
from cosent.run import read_record

BATCH_SIZE = 512  # sentences or pairs per forward pass in sentence-transformers, whose batches are smaller


class Ensemble(TextModel):
    """Several models of one tower, each with a weight.

    Members with equal prompts share them: what is requested is read by all. If their prompts differ, each member always
    reads behind its own default prompt, and no other can be requested.

    Args:
        members: models of any architectures and tokenizers.
        weights: a positive number for each; their sum is scaled to 1. Default: equal ones.

    Raises:
        InputError: fewer than two members, or weights that are not one positive number for each.
    """

    tower: ClassVar[type[SentenceEncoder | CrossEncoder]]
    settings: ClassVar[dict[str, str]]  # of sentence-transformers

    def __init__(self, members: Iterable[SentenceEncoder | CrossEncoder], weights: Sequence[float] | None = None):
        super().__init__()
        self.members = nn.ModuleList(members)
        given = [1.0] * len(self.members) if weights is None else list(weights)
        if len(self.members) < 2 or len(given) != len(self.members) or not all(0 < one < np.inf for one in given):
            raise InputError(
                f"Expected two models or more, and one positive weight for each, got {len(self.members)} models and "
                f"the weights {given}: a mean of others is not defined. Name them again."
            )
        self.weights = [one / sum(given) for one in given]
        first, *others = [member.prompts for member in self.members]
        self.same_prompts = all(other.config() == first.config() for other in others)
        self.prompts = first if self.same_prompts else Prompts()

    @property
    def device(self) -> torch.device:
        return self.members[0].device

    @property
    def max_length(self) -> int:
        """That of the member that reads least."""
        return min(member.max_length for member in self.members)

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
        """A prompt, whose tokens each member counts for itself.

        Raises:
            InputError: as for one model; or a prompt for members that read behind their own ones.
        """
        if text and not self.same_prompts:
            own = ", ".join(repr(member.prompts.text()) for member in self.members)
            raise InputError(
                f"Expected no prompt, got {text!r}: the members of this ensemble have different ones, and each always "
                f"reads behind its own default prompt ({own}). Leave it out, or merge models with equal prompts."
            )
        for member in self.members:
            member.prefix(text)
        return Prefix(text)

    def readers(self, prefix: Prefix) -> list[tuple[SentenceEncoder | CrossEncoder, Prefix]]:
        """The members, each with its prompt as it reads it."""
        return [(member, member.prefix(prefix.text if self.same_prompts else member.prompts.text()))
                for member in self.members]  # fmt: skip

    @classmethod
    def from_pretrained(cls, model_name_or_path: str, *, device: str | torch.device | None = None, **options) -> Self:
        """Loads what `save_pretrained` wrote.

        Args:
            device: see `TextModel`.
            options: others of `from_pretrained` of the members.
        """
        path = resolve(model_name_or_path)
        folder = path if Path(path).is_dir() else snapshot_download(path)
        first, *rest = read_modules(folder)
        ensemble = cls.load_members(Path(folder, first.folder), **options)
        ensemble.load_tail(folder, rest)
        return ensemble.to(device=device)

    @classmethod
    def load_members(cls, folder: Path, **options) -> Self:
        weights = read_json(str(folder), "config.json")["weights"]
        members = [cls.tower.from_pretrained(str(folder / str(number)), **options) for number in range(len(weights))]
        return cls(members, weights)

    def load_tail(self, folder: str, modules: list[Module]) -> None:
        """Loads what follows the members.

        Raises:
            InputError: a module that is not computed here.
        """
        if modules:
            raise InputError(
                f"{folder} names {modules[0].kind} after its members, which is not computed here: scores would be "
                "others. Remove it from modules.json, or merge again."
            )

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs) -> Self:
        """Loads the members, as a module of sentence-transformers; the modules after it are its own business."""
        is_folder = Path(model_name_or_path).is_dir()
        return cls.load_members(
            Path(model_name_or_path if is_folder else snapshot_download(model_name_or_path), subfolder)
        )

    def save(self, output_path: str | Path, *args, **kwargs) -> None:
        """Writes the members, as a module of sentence-transformers."""
        write_json(Path(output_path, "config.json"), {"weights": self.weights})
        for number, member in enumerate(self.members):
            member.save_pretrained(Path(output_path, str(number)))

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a folder that `load_model` reads, and sentence-transformers where cosent is installed."""
        kind = f"{type(self).__module__}.{type(self).__name__}"
        self.save(Path(folder, f"0_{type(self).__name__}"))
        write_json(Path(folder, SETTINGS), self.settings | self.prompts.config())
        write_modules(folder, (kind, f"0_{type(self).__name__}"), described(self.children_after_members()))

    def children_after_members(self) -> Iterable[nn.Module]:
        return ()

    @property
    def max_seq_length(self) -> int:
        """`max_length`, as sentence-transformers calls it."""
        return self.max_length


class VectorEnsemble(Ensemble, Embedder):
    """Several bi-encoders as one, whose cosine is the weighted mean of theirs.

    With `u_k` the vector of member k, scaled to length 1, and its weight `w_k`, the vector is `[sqrt(w_1) u_1, ...,
    sqrt(w_K) u_K]`: of length 1, and its dot product with another one is `sum_k w_k cos_k`. What `tail` makes of it
    follows.
    """

    tower, settings = SentenceEncoder, {"model_type": BI_ENCODER, "similarity_fn_name": "cosine"}

    def __init__(self, members: Iterable[SentenceEncoder], weights: Sequence[float] | None = None):
        super().__init__(members, weights)
        self.tail = nn.Sequential()

    @property
    def width_of_members(self) -> int:
        """Width of the concatenated vectors."""
        return sum(member.embedding_dimension for member in self.members)

    @property
    def embedding_dimension(self) -> int:
        return embedding_dimension(self.width_of_members, self.tail)

    @property
    def rules(self) -> str:
        return f"{super().rules} {[module.config() for module in self.tail]}"

    def join(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """The formula above, in float32."""
        weighted = zip(parts, self.weights, strict=True)
        joined = torch.cat([weight**0.5 * normalize(part, dim=-1) for part, weight in weighted], dim=-1)
        for weight in self.tail.parameters():
            joined = joined.to(weight.dtype)
        return self.tail(joined).float()

    def load_tail(self, folder: str, modules: list[Module]) -> None:
        self.tail = nn.Sequential(*load_tail(folder, modules, self.width_of_members))

    def children_after_members(self) -> Iterable[nn.Module]:
        return self.tail

    def preprocess(self, inputs: list[str], prompt: str | None = None, **kwargs) -> dict:
        """What `forward` needs, in sentence-transformers."""
        return {"sentences": list(inputs), "prompt": prompt or ""}

    def forward(self, features: dict) -> dict:
        """Adds `sentence_embedding`, in sentence-transformers; without gradients."""
        vectors, _ = embed(self, features["sentences"], BATCH_SIZE, prefix=self.prefix(features["prompt"]))
        return features | {"sentence_embedding": torch.from_numpy(vectors).to(self.device)}

    def get_embedding_dimension(self) -> int:
        return self.embedding_dimension


class ScoreEnsemble(Ensemble):
    """Several cross-encoders as one, whose score is the weighted mean of theirs (see `CrossEncoder` for what it is)."""

    tower, settings = CrossEncoder, {"model_type": CROSS_ENCODER, "activation_fn": IDENTITY}

    def prefixes(
        self, prompt: str | Sequence[str] | None = None, prompt_name: str | Sequence[str] | None = None
    ) -> Prefixes:
        """As `CrossEncoder.prefixes`."""
        sides = self.prompts.sides(prompt, prompt_name)
        self.members[0].prefixes(sides)  # refuses two that differ
        return self.prefix(sides[0]), Prefix()

    def pair_scores(
        self, sentences1: list[str], sentences2: list[str], sides: tuple[str, str], **options
    ) -> np.ndarray:
        """The weighted mean of the members' scores."""
        readers = self.readers(self.prefixes(sides)[0])
        scores = [member.similarity(sentences1, sentences2, prompt=own.text, **options) for member, own in readers]
        return np.average(scores, axis=0, weights=self.weights).astype(np.float32)

    def preprocess(self, inputs: list[Sequence[str]], prompt: str | None = None, **kwargs) -> dict:
        """What `forward` needs, in sentence-transformers."""
        return {"pairs": list(inputs), "prompt": prompt or ""}

    def forward(self, features: dict) -> dict:
        """Adds `scores`, in sentence-transformers; without gradients."""
        first, second = map(list, zip(*features["pairs"], strict=True))
        scores = self.similarity(first, second, prompt=features["prompt"])
        return features | {"scores": torch.from_numpy(scores).to(self.device)}


logger = logging.getLogger(__name__)

# Entries of a config that say where it is from, or how it is trained: the weights mean the same with others.
ORIGIN = ("architectures", "transformers_version", "dtype", "torch_dtype", "sentence_transformers")


def average(
    models: Sequence[SentenceEncoder | CrossEncoder], names: Sequence[str], weights: Sequence[float]
) -> SentenceEncoder | CrossEncoder:
    """The first model, with the weighted mean of the weights of all.

    Args:
        models: of one tower and architecture, with the same tokenizer, pooling and prompts.
        names: their folders, for messages.
        weights: a positive number for each; their sum is scaled to 1.

    Raises:
        InputError: models that differ in more than their weights.
    """
    for model, name in zip(models[1:], names[1:], strict=True):
        check_same(models[0], model, names[0], name)
    shares = [weight / sum(weights) for weight in weights]
    states = [model.state_dict() for model in models]
    mean = {name: mean_of([state[name] for state in states], shares, name, names) for name in states[0]}
    models[0].load_state_dict(mean)
    models[0].max_length = max(model.max_length for model in models)
    return models[0]


def mean_of(tensors: list[torch.Tensor], shares: list[float], name: str, names: Sequence[str]) -> torch.Tensor:
    """Weighted mean, computed in float64; of integers, which must be equal, the first."""
    if not tensors[0].is_floating_point():
        if not all(torch.equal(tensors[0], other) for other in tensors[1:]):
            raise InputError(
                f"{' and '.join(names)} differ in {name}, which holds no numbers that have a mean. {OTHER}"
            )
        return tensors[0]
    mean = sum(share * tensor.double() for share, tensor in zip(shares, tensors, strict=True))
    return mean.to(tensors[0].dtype)


OTHER = "Merge them by vectors or scores, which takes any models of a tower."


def check_same(first: SentenceEncoder | CrossEncoder, second: SentenceEncoder | CrossEncoder, *names: str) -> None:
    """Refuses two models whose mean would be a model of neither kind."""
    described = [description(model) for model in (first, second)]
    for what, ours in described[0].items():
        theirs = described[1].get(what)
        if ours != theirs:
            shown = f" ({ours} and {theirs})" if len(f"{ours}{theirs}") < 200 else ""
            raise InputError(
                f"Expected models that differ in nothing but their weights, and {names[0]} and {names[1]} differ in "
                f"their {what}{shown}: the mean would be a model of neither kind. {OTHER}"
            )


def description(model: SentenceEncoder | CrossEncoder) -> dict:
    """What two models must have in common, in words, the plainest first."""
    backbone = model.backbone.config
    settings = {key: value for key, value in backbone.to_dict().items()
                if key not in ORIGIN and not key.startswith("_") and "drop" not in key}  # fmt: skip
    prompts = model.prompts.config() | {"include_prompt": model.prompts.include_prompt}
    return {
        "tower": "bi-encoder" if isinstance(model, SentenceEncoder) else "cross-encoder",
        "architecture": backbone.model_type,
        "pooling and modules": model.modules_after_backbone if isinstance(model, SentenceEncoder) else "",
        "prompts": prompts,
        "tokenizer": tokenizer_rules(model.tokenizer),
        "shapes of weights": {name: tuple(weight.shape) for name, weight in model.state_dict().items()},
        "config.json": settings,
    }


def common_start(names: Sequence[str]) -> str | None:
    """The model that all runs started from, by their records; None, with a warning, if there is none or not known."""
    records = [read_record(name) for name in names]
    starts = {record.recipe.get("model_name_or_path") if record else None for record in records}
    if len(starts) > 1 or starts == {None}:
        known = ", ".join(sorted(f"{start}" if start else "unknown" for start in starts))
        logger.warning(
            "The models are not known to come from one start (%s). The mean of weights that were not trained from the "
            "same ones is usually worth nothing: evaluate it before you use it.", known,
        )  # fmt: skip
        return None
    return starts.pop()
