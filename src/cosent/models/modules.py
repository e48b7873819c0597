"""Modules after the backbone: those that a folder of sentence-transformers or ours describes, built and loaded."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers.normalizers import Lowercase, Sequence
from torch import nn

from cosent.compute.distributed import seeded
from cosent.errors import InputError
from cosent.models.folder import (
    MODULES,
    OURS,
    SETTINGS,
    TRANSFORMER_CONFIG,
    first_and_last,
    is_cross_encoder,
    read_json,
    read_mode,
    read_weights,
    write_json,
)
from cosent.models.pooling import FIRST_LAST_MEAN, LINEAR_CLS, MODE_KEYS, POOLINGS, Pooling
from cosent.models.prompts import BI_ENCODER, Prompts

logger = logging.getLogger(__name__)

IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
NOT_OF_ONE_VECTOR = ("GLU", "MultiheadAttention", "Softmax2d", "Threshold")
ACTIVATIONS = ("Identity", *(name for name in nn.modules.activation.__all__ if name not in NOT_OF_ONE_VECTOR))


class Dense(nn.Module):
    """Linear layer with an activation: `activation(W x + b)`, and with `use_residual` plus `x` (or a projection of it).

    Args:
        in_features, out_features: widths of the vectors before and after.
        activation_function: a class of `torch.nn` by its full name, e.g. `torch.nn.modules.linear.Identity`.
        seed: seed of fresh weights; the global random state is left alone.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activation_function: str = TANH,
        use_residual: bool = False,
        seed: int = 42,
    ):
        super().__init__()
        with seeded(seed):
            self.linear = nn.Linear(in_features, out_features, bias=bias)
            if use_residual and in_features != out_features:
                self.residual = nn.Linear(in_features, out_features, bias=False)
        self.activation_function = getattr(nn, activation_function.rsplit(".", 1)[-1])()
        self.use_residual, self.named = use_residual, activation_function

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Maps vectors of shape `(sentences, in_features)` to `(sentences, out_features)`."""
        result = self.activation_function(self.linear(vectors))
        if not self.use_residual:
            return result
        return result + (vectors if self.linear.in_features == self.linear.out_features else self.residual(vectors))

    def config(self) -> dict[str, Any]:
        """`config.json` of the module, as of every module here."""
        linear = self.linear
        widths = {"in_features": linear.in_features, "out_features": linear.out_features}
        config = widths | {"bias": linear.bias is not None, "activation_function": self.named}
        return config | ({"use_residual": True} if self.use_residual else {})  # unknown before 5.7


def truncation(width: int, dim: int) -> Dense:
    """A `Dense` that keeps the first `dim` numbers of vectors, exactly: every tool that reads folders applies it."""
    dense = Dense(width, dim, bias=False, activation_function=IDENTITY)
    dense.linear.weight.data = torch.eye(dim, width)
    return dense


class Normalize(nn.Module):
    """Scales vectors to length 1."""

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(vectors, dim=-1)

    def config(self) -> dict[str, Any]:
        return {}


class LayerNorm(nn.Module):
    """`torch.nn.LayerNorm` of vectors of width `dimension`."""

    def __init__(self, dimension: int):
        super().__init__()
        self.norm = nn.LayerNorm(dimension)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.norm(vectors)

    def config(self) -> dict[str, Any]:
        return {"dimension": self.norm.normalized_shape[0]}


class Dropout(nn.Dropout):
    """Dropout of vectors, in training only."""

    def __init__(self, dropout: float = 0.2):
        super().__init__(dropout)

    def config(self) -> dict[str, Any]:
        return {"dropout": self.p}


AFTER_POOLING = {kind.__name__: kind for kind in (Dense, Normalize, LayerNorm, Dropout)}
WITHOUT_WEIGHTS = ("Normalize", "Dropout")


class Module(NamedTuple):
    """A module as a folder describes it: its class (with the path of a foreign one), folder and `config.json`."""

    kind: str
    folder: str
    config: dict[str, Any]

    @classmethod
    def read(cls, path: str, listed: dict[str, Any]) -> "Module":
        """The module of an entry of `modules.json`."""
        known = listed["type"] == OURS or listed["type"].startswith("sentence_transformers.")
        config = read_json(path, f"{listed['path']}/config.json") if listed["path"] else None
        return cls(listed["type"].rsplit(".", 1)[-1] if known else listed["type"], listed["path"], config or {})

    def build(self, path: str, width: int) -> nn.Module:
        """The module with fresh weights, for vectors of this width; `path` is the folder or Hub id of the model."""
        file, config = f"{path}/{self.folder}/config.json", dict(self.config)
        for name in ("module_input_name", "module_output_name"):
            if config.get(name) in (None, "sentence_embedding"):
                config.pop(name, None)
        activation = str(config.get("activation_function", TANH))
        if not activation.startswith("torch.nn.") or activation.rsplit(".", 1)[-1] not in ACTIVATIONS:
            raise InputError(
                f"{file}: unsupported activation {activation}. Take one of torch.nn: {', '.join(ACTIVATIONS)}."
            )
        reads = config.get("in_features", config.get("dimension", width))
        if reads != width:
            raise InputError(f"{file}: the {self.kind} reads vectors of width {reads}, got {width}. Correct the file.")
        try:
            return AFTER_POOLING[self.kind](**config)
        except TypeError as error:
            raise InputError(f"{file} describes an unsupported {self.kind} ({error}). Correct the file.") from error


class SavedModules(NamedTuple):
    """Modules that a folder has after its backbone."""

    mode: str = ""  # our name of the pooling
    pooling: str = ""  # folder of the pooling
    after_pooling: Iterable[Module] = ()
    unsupported: Iterable[str] = ()  # what sentence-transformers would compute otherwise, by file and key

    @property
    def is_linear_cls(self) -> bool:
        """Whether this is what `linear_cls` stands for: [CLS] and a square Dense layer without activation."""
        first = next(iter(self.after_pooling), None)
        if self.mode != "cls" or first is None or first.kind != "Dense":
            return False
        config = first.config
        square = config.get("in_features") == config.get("out_features") and not config.get("use_residual")
        return square and str(config.get("activation_function")).endswith(".Identity")


POOLING_KEYS = {"word_embedding_dimension", "embedding_dimension", "pooling_mode", "include_prompt"}
POOLING_KEYS.update(MODE_KEYS.values())


def read_saved(path: str) -> SavedModules:
    """The modules of a folder or Hub id; empty for a bare backbone or a cross-encoder."""
    listed = read_json(path, MODULES)
    if listed is None or is_cross_encoder(path):
        return SavedModules()
    backbone, *rest = [Module.read(path, one) for one in listed]
    layers = rest.pop(0) if rest and rest[0].kind == "WeightedLayerPooling" else None
    pooling, *after_pooling = rest or [Module("no pooling", "", {})]
    unsupported = [f"{MODULES}: {module.kind}" for module in after_pooling if module.kind not in AFTER_POOLING]
    if (backbone.kind, backbone.folder) != ("Transformer", ""):
        return SavedModules("", "", after_pooling, [f"{MODULES}: {backbone.kind} in {backbone.folder!r}"])
    if pooling.kind != "Pooling":
        return SavedModules("", "", after_pooling, [f"{MODULES}: {pooling.kind} in place of a Pooling", *unsupported])
    mode, file = read_mode(pooling.config), f"{pooling.folder}/config.json"
    if not set(mode.split("+")) <= set(POOLINGS):
        unsupported.append(f"{file}: pooling {mode}")
    unsupported += [f"{file}: {key}" for key in sorted(pooling.config.keys() - POOLING_KEYS)]
    if layers is not None:
        weights = read_weights(path, layers.folder)["layer_weights"]
        first_last = layers.config["layer_start"] == 1 and torch.equal(weights, first_and_last(len(weights)))
        if mode != "mean" or not first_last:
            unsupported.append(f"{layers.folder}: other layers than the mean of the first and last")
        mode = FIRST_LAST_MEAN
    return SavedModules(mode, pooling.folder, after_pooling, unsupported)


def load_modules(
    path: str, hidden_size: int, pooling_choice: str | None, seed: int, default: str = "mean"
) -> tuple[Pooling, list[nn.Module]]:
    """Builds the pooling of a folder or Hub id and the modules after it, with their weights.

    A bare backbone gets the `default` pooling, a published RoFormer-Sim `linear_cls` with its pooler, which
    transformers would drop. With another pooling than the folder's, only the modules without weights stay, and a
    warning names the others.

    Args:
        pooling_choice: one of `CHOICES`, or several modes joined by `+`; None for that of the folder.
        seed: seed of weights that the folder does not have.
    """
    saved, modules = read_saved(path), []
    if pooling_choice is None and saved.unsupported:
        raise InputError(
            f"{path} has unsupported modules or settings ({'; '.join(saved.unsupported)}). Name a --pooling to "
            "start from its backbone only, or take another model."
        )
    own = pooling_choice in (None, saved.mode) or (pooling_choice == LINEAR_CLS and saved.is_linear_cls)
    if own and saved.mode and not saved.unsupported:
        pooling = Pooling(saved.mode, hidden_size, seed)
        load_weights(pooling, path, saved.pooling)
        for described in saved.after_pooling:
            modules.append(described.build(path, embedding_dimension(pooling.embedding_dimension, modules)))
            load_weights(modules[-1], path, described.folder)
        return pooling, modules
    ported = ported_pooler(path) if saved == SavedModules() and pooling_choice in (None, LINEAR_CLS) else {}
    mode = pooling_choice or (LINEAR_CLS if ported else default)
    pooling = Pooling("cls" if mode == LINEAR_CLS else mode, hidden_size, seed)
    if mode == LINEAR_CLS:
        dense = Dense(hidden_size, hidden_size, activation_function=IDENTITY, seed=seed)
        if ported:
            dense.linear.load_state_dict(ported)
        modules.append(dense)
    for described in saved.after_pooling:
        if described.kind in WITHOUT_WEIGHTS:
            modules.append(described.build(path, pooling.embedding_dimension))
        else:
            logger.warning("--pooling %s starts without %s of %s.", pooling_choice, described.folder, path)
    return pooling, modules


def embedding_dimension(width: int, modules: "nn.Sequential | list[nn.Module]") -> int:
    """Width of the vectors that modules after the pooling make of vectors of a `width`."""
    return next((module.linear.out_features for module in reversed(modules) if isinstance(module, Dense)), width)


def load_weights(module: nn.Module, path: str, folder: str) -> None:
    """Loads the weights of a module, if it has any, from its own folder."""
    expected = {name: tuple(weight.shape) for name, weight in module.state_dict().items()}
    weights = read_weights(path, folder) if expected else {}
    shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
    if shapes != expected:
        raise InputError(
            f"{path}/{folder}: expected the weights {expected} of a {type(module).__name__}, got {shapes or 'none'}. "
            "Copy the folder once more, with all its files."
        )
    module.load_state_dict(weights)


PORTED_POOLER = "roformer.pooler.dense."


def ported_pooler(path: str) -> dict[str, torch.Tensor]:
    """Weight and bias of the pooler of a RoFormer-Sim's PyTorch port; empty for any other model."""
    if (read_json(path, "config.json") or {}).get("model_type") != "roformer":
        return {}
    weights = read_weights(path).items()
    return {name.removeprefix(PORTED_POOLER): value for name, value in weights if name.startswith(PORTED_POOLER)}


# Settings of the backbone: the first file that exists counts, and the first is written.
KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
TRANSFORMER_CONFIGS = [f"sentence_{kind}_config.json" for kind in KINDS]
TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
ALL_LAYERS = {"output_hidden_states": True}
# Values that mean what is computed here, of settings that may mean other vectors; so does an empty value of any.
EXPECTED = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "modality_config": TEXT,
    "config_args": ALL_LAYERS,
    "config_kwargs": ALL_LAYERS,
}
# Settings that are applied here, or mean only speed, images or `encode_query`.
APPLIED = ("max_seq_length", "do_lower_case")
HARMLESS = ("unpad_inputs", "query_length", "document_length", "query_expansion")


@dataclass(frozen=True)
class KeptSettings:
    """Settings and weights of a starting folder that are written again as they are.

    Args:
        settings: `config_sentence_transformers.json`: prompts, similarity function, versions and the like.
        transformer: `sentence_bert_config.json`: maximum length, lower case and the like.
        weights: weights of the backbone that nothing here reads, e.g. of a trained pooler, by their names in it.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    transformer: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str, weights: dict[str, torch.Tensor]) -> "KeptSettings":
        """Reads both files of a folder or Hub id; those of a cross-encoder are about another model."""
        if is_cross_encoder(path):
            return cls(weights=weights)
        settings = read_json(path, SETTINGS) or {}
        refuse(f"{path}/{SETTINGS}", "truncate_dim", settings.get("truncate_dim"))
        name = next((name for name in TRANSFORMER_CONFIGS if read_json(path, name)), TRANSFORMER_CONFIG)
        transformer = read_json(path, name) or {}
        for key, value in transformer.items():
            if key not in (*APPLIED, *HARMLESS):  # of the inputs of a model, only text is read here
                refuse(f"{path}/{name}", key, value.get("text", TEXT) if key == "modality_config" else value)
        transformer = {key: value for key, value in transformer.items() if not key.endswith(("_args", "_kwargs"))}
        return cls(settings, transformer, weights)

    def apply(self, tokenizer) -> None:
        """Applies the maximum length and lower case to a tokenizer, which is saved with both."""
        if self.transformer.get("max_seq_length") is not None:
            tokenizer.model_max_length = self.transformer["max_seq_length"]
        backend = tokenizer.backend_tokenizer
        parts = backend.normalizer if isinstance(backend.normalizer, Sequence) else [backend.normalizer]
        if self.transformer.get("do_lower_case") and not any(isinstance(part, Lowercase) for part in parts):
            backend.normalizer = Sequence([Lowercase(), *([] if backend.normalizer is None else [backend.normalizer])])

    def save(self, folder: str | Path, prompts: Prompts, max_length: int, all_layers: bool) -> None:
        """Writes both files.

        Args:
            prompts: those of the model, which may have other ones than the starting folder.
            max_length: tokens per sentence; TEI takes 512 without it, and vLLM without `do_lower_case` next to it.
            all_layers: whether the pooling reads the output of all layers.
        """
        if self.settings or prompts.texts:
            write_json(Path(folder, SETTINGS), {"model_type": BI_ENCODER} | self.settings | prompts.config())
        transformer = {"do_lower_case": False} | self.transformer | {"max_seq_length": max_length}
        if all_layers:
            transformer["config_args"] = ALL_LAYERS
        write_json(Path(folder, TRANSFORMER_CONFIG), transformer)


def refuse(file: str, key: str, value: Any) -> None:
    """Refuses a setting that is neither empty nor the value in `EXPECTED`."""
    if value not in (None, {}) and value != EXPECTED.get(key):
        raise InputError(
            f"{file}: {key} = {value!r} is not supported, and vectors would differ from sentence-transformers. Remove "
            "the key, or take another model."
        )


@cache
def warn_of_similarity(path: str, name: str) -> None:
    """Says once that a folder's similarity function is not the one that is trained and measured here."""
    logger.warning(
        f"{path} asks sentence-transformers for {name} similarity, and the saved folder will too; here all "
        f"scores are cosines. For cosines there, remove similarity_fn_name from its {SETTINGS}."
    )
