"""Load the pooling of a folder and the modules after it, which sentence-transformers or we wrote."""

import inspect
import logging
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

IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
NOT_OF_ONE_VECTOR = ("GLU", "MultiheadAttention", "Softmax2d", "Threshold")
ACTIVATIONS = ("Identity", *(name for name in nn.modules.activation.__all__ if name not in NOT_OF_ONE_VECTOR))
READS_AND_WRITES = ("module_input_name", "module_output_name")


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


class Dropout(nn.Module):
    """Dropout of vectors, in training only."""

    def __init__(self, dropout: float = 0.2):
        super().__init__()
        self.dropout_layer = nn.Dropout(dropout)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.dropout_layer(vectors)

    def config(self) -> dict[str, Any]:
        return {"dropout": self.dropout_layer.p}


TAIL = {kind.__name__: kind for kind in (Dense, Normalize, LayerNorm, Dropout)}
WITHOUT_WEIGHTS = ("Normalize", "Dropout")


def build(kind: str, config: dict[str, Any], file: str, width: int) -> nn.Module:
    """Builds a module with fresh weights from its config.

    Args:
        kind: name of its class.
        config: content of its `config.json`, by sentence-transformers or us.
        file: name of that file, for messages.
        width: width of the vectors that it reads.

    Raises:
        InputError: another module, a key, a width or an activation that is not computed here.
    """
    if kind not in TAIL:
        raise InputError(
            f"{file} belongs to the module {kind}, and only {', '.join(TAIL)} are computed here: its vectors would be "
            "others. Remove it from modules.json, or take another model."
        )
    known = {name: value for name, value in config.items()
             if name not in READS_AND_WRITES or value not in (None, "sentence_embedding")}  # fmt: skip
    try:
        inspect.signature(TAIL[kind]).bind(**known)
    except TypeError as error:
        raise InputError(
            f"{file} describes a {kind} by {known}, which is not computed here ({error}): its vectors would be others. "
            "Correct the file, or start from another model."
        ) from error
    reads = known.get("in_features", known.get("dimension", width))
    if reads != width:
        raise InputError(
            f"{file} describes a {kind} of vectors of width {reads}, but those before it have {width}: nothing could "
            "be computed. Correct the file, or start from another model."
        )
    named = str(known.get("activation_function", TANH))
    if not named.startswith("torch.nn.") or named.rsplit(".", 1)[-1] not in ACTIVATIONS:
        raise InputError(
            f"{file} names the activation {named}, which is none of torch.nn ({', '.join(ACTIVATIONS)}): another one "
            "would give other vectors. Correct the file, or start from another model."
        )
    return TAIL[kind](**known)


def embedding_dimension(width: int, tail: nn.Sequential) -> int:
    """Width of the vectors that a tail makes out of vectors of a `width`."""
    return next((module.linear.out_features for module in reversed(tail) if isinstance(module, Dense)), width)


logger = logging.getLogger(__name__)

PORTED_POOLER = "roformer.pooler.dense."
POOLING_KEYS = {"word_embedding_dimension", "embedding_dimension", "pooling_mode", "include_prompt"}
POOLING_KEYS |= set(MODE_KEYS.values())


class Module(NamedTuple):
    """A module as a folder describes it.

    Args:
        kind: name of its class; with its path if neither sentence-transformers nor this package has it.
        folder: its own folder.
        config: content of its `config.json`.
    """

    kind: str
    folder: str
    config: dict[str, Any]


class Saved(NamedTuple):
    """What a folder has after its backbone.

    Args:
        mode: our name of the pooling; empty if there is none.
        pooling: folder of the pooling.
        tail: the modules after it.
        obstacles: what is not computed here, in words.
    """

    mode: str
    pooling: str
    tail: list[Module]
    obstacles: list[str]


def load_modules(
    path: str, hidden_size: int, wanted: str | None, seed: int, default: str = "mean"
) -> tuple[Pooling, list[nn.Module]]:
    """Builds the pooling of a folder or Hub id and the modules after it, with their weights.

    A bare backbone gets the `default` pooling. A published RoFormer-Sim in its PyTorch form has a pooler, which
    transformers would drop: `linear_cls` here. Another pooling than that of the folder starts from its backbone: of
    the modules after it only those without weights stay, and a warning names the others.

    Args:
        wanted: one of `CHOICES`, or several modes joined by `+`.
        seed: seed of weights that the folder does not have.

    Raises:
        InputError: a module that is not computed here, and no other pooling is requested.
    """
    saved = read_saved(path)
    if saved is not None:
        if wanted is None and saved.obstacles:
            raise InputError(
                f"{path} has what this project does not compute: {'; '.join(saved.obstacles)}. Its vectors would be "
                "others. Name a --pooling to start only from its backbone, or take another model."
            )
        same = (None, saved.mode, LINEAR_CLS) if is_linear_cls(saved) else (None, saved.mode)
        if wanted in same and not saved.obstacles:
            return load_saved(path, saved, hidden_size, seed)
    ported = ported_pooler(path) if saved is None and wanted in (None, LINEAR_CLS) else {}
    chosen = wanted or (LINEAR_CLS if ported else default)
    pooling = Pooling("cls" if chosen == LINEAR_CLS else chosen, hidden_size, seed)
    tail: list[nn.Module] = []
    if chosen == LINEAR_CLS:
        dense = Dense(hidden_size, hidden_size, activation_function=IDENTITY, seed=seed)
        if ported:
            dense.linear.load_state_dict(ported)
        tail.append(dense)
    for kind, folder, config in saved.tail if saved is not None else []:
        if kind in WITHOUT_WEIGHTS:
            tail.append(build(kind, config, f"{path}/{folder}/config.json", pooling.embedding_dimension))
        else:
            logger.warning("%s of %s belongs to its own pooling: --pooling %s starts without it.", folder, path, wanted)
    return pooling, tail


def load_saved(path: str, saved: Saved, hidden_size: int, seed: int) -> tuple[Pooling, list[nn.Module]]:
    """Builds what a folder describes, with its weights."""
    pooling = Pooling(saved.mode, hidden_size, seed)
    load_weights(pooling, path, saved.pooling)
    return pooling, load_tail(path, saved.tail, pooling.embedding_dimension)


def load_tail(path: str, modules: list[Module], width: int) -> list[nn.Module]:
    """Builds modules of `tail.py` with their weights; the first reads vectors of a `width`."""
    tail: list[nn.Module] = []
    for kind, folder, config in modules:
        tail.append(build(kind, config, f"{path}/{folder}/config.json", embedding_dimension(width, tail)))
        load_weights(tail[-1], path, folder)
    return tail


def load_weights(module: nn.Module, path: str, folder: str) -> None:
    """Loads the weights of a module, if it has any, from its own folder.

    Raises:
        InputError: the folder has none, or others.
    """
    expected = {name: tuple(weight.shape) for name, weight in module.state_dict().items()}
    weights = read_weights(path, folder) if expected else {}
    found = {name: tuple(weight.shape) for name, weight in weights.items()}
    if found != expected:
        raise InputError(
            f"Expected the weights {expected} of a {type(module).__name__} in {path}/{folder}, got {found or 'none'}: "
            "they would start at random. Copy the folder once more, with all its files."
        )
    module.load_state_dict(weights)


def is_linear_cls(saved: Saved) -> bool:
    """Whether a folder has what `linear_cls` stands for: [CLS] and a square Dense layer without activation."""
    if saved.mode != "cls" or not saved.tail or saved.tail[0].kind != "Dense":
        return False
    config = saved.tail[0].config
    square = config.get("in_features") == config.get("out_features") and not config.get("use_residual")
    return square and str(config.get("activation_function")).endswith(".Identity")


def read_saved(path: str) -> Saved | None:
    """Reads which modules a folder or Hub id has; None for a bare backbone or a cross-encoder."""
    if read_json(path, MODULES) is None or is_cross_encoder(path):
        return None
    backbone, *rest = read_modules(path)
    layers = rest.pop(0) if rest and rest[0].kind == "WeightedLayerPooling" else None
    pooling, *tail = rest or [Module("no pooling", "", {})]
    if (backbone.kind, backbone.folder) != ("Transformer", ""):
        return Saved("", "", tail, [f"{MODULES} begins with {backbone.kind} in the folder {backbone.folder!r}"])
    unknown = [module.kind for module in tail if module.kind not in TAIL]
    obstacles = [f"{MODULES} names the module {kind}" for kind in unknown]
    if pooling.kind != "Pooling":
        return Saved("", "", tail, [f"{MODULES} names {pooling.kind} where its pooling should be", *obstacles])
    mode = read_mode(pooling.config)
    described = f"{pooling.folder}/config.json says"
    if not set(mode.split("+")) <= set(POOLINGS):
        obstacles.append(f"{described} pooling {mode}")
    obstacles += [f"{described} {key}" for key in sorted(pooling.config.keys() - POOLING_KEYS)]
    if layers is not None:
        weights = read_weights(path, layers.folder)["layer_weights"]
        first_last = layers.config["layer_start"] == 1 and torch.equal(weights, first_and_last(len(weights)))
        if mode != "mean" or not first_last:
            obstacles.append(f"{MODULES} names {layers.folder}, other layers than the mean of the first and last")
        mode = FIRST_LAST_MEAN
    return Saved(mode, pooling.folder, tail, obstacles)


def read_modules(path: str) -> list[Module]:
    """All modules that a folder or Hub id names, in their order."""
    return [read_module(path, one) for one in read_json(path, MODULES)]


def read_module(path: str, listed: dict[str, Any]) -> Module:
    """Reads what `modules.json` and the module's own config say about it."""
    known = listed["type"] == OURS or listed["type"].startswith("sentence_transformers.")
    kind = listed["type"].rsplit(".", 1)[-1] if known else listed["type"]
    config = read_json(path, f"{listed['path']}/config.json") if listed["path"] else None
    return Module(kind, listed["path"], config or {})


def ported_pooler(path: str) -> dict[str, torch.Tensor]:
    """Weight and bias of the pooler of a RoFormer-Sim's PyTorch port; empty for any other model."""
    if (read_json(path, "config.json") or {}).get("model_type") != "roformer":
        return {}
    return {name.removeprefix(PORTED_POOLER): value for name, value in read_weights(path).items()
            if name.startswith(PORTED_POOLER)}  # fmt: skip


# Settings of the backbone: the first file that exists counts, and the first is written.
TRANSFORMER_CONFIGS = (
    TRANSFORMER_CONFIG,
    *(
        f"sentence_{kind}_config.json"
        for kind in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)
TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
NOTHING = ({}, None)
# Values that mean what is computed here, of settings that may mean other vectors.
EXPECTED: dict[str, tuple] = {
    "transformer_task": ("feature-extraction",),
    "module_output_name": ("token_embeddings",),
    "modality_config": (TEXT,),
    "tokenizer_name_or_path": (None,),
    "truncate_dim": (None,),
    "config_args": (*NOTHING, {"output_hidden_states": True}),
    "config_kwargs": (*NOTHING, {"output_hidden_states": True}),
    **dict.fromkeys(("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "processing_kwargs"), NOTHING),
}
# Settings that are applied here, or mean only speed, images or `encode_query`.
APPLIED = ("max_seq_length", "do_lower_case")
HARMLESS = ("unpad_inputs", "query_length", "document_length", "query_expansion")


@dataclass(frozen=True)
class Carried:
    """Content of a starting folder that is written again as it is.

    Args:
        settings: `config_sentence_transformers.json`: prompts, similarity function, versions and the like.
        transformer: `sentence_bert_config.json`: maximum length, lower case and the like.
        weights: weights of the backbone that nothing here reads, e.g. of a trained pooler, by their names in it.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    transformer: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str, weights: dict[str, torch.Tensor]) -> "Carried":
        """Reads both files of a folder or Hub id; those of a cross-encoder are about another model.

        Raises:
            InputError: a setting that means other vectors than are computed here.
        """
        if is_cross_encoder(path):
            return cls(weights=weights)
        settings = read_json(path, SETTINGS) or {}
        refuse(f"{path}/{SETTINGS}", {"truncate_dim": settings.get("truncate_dim")})
        name = next((name for name in TRANSFORMER_CONFIGS if read_json(path, name)), TRANSFORMER_CONFIG)
        transformer = read_json(path, name) or {}
        for key, value in transformer.items():
            if key not in (*APPLIED, *HARMLESS):  # of the inputs of a model, only text is read here
                refuse(f"{path}/{name}", {key: value.get("text", TEXT) if key == "modality_config" else value})
        transformer = {key: value for key, value in transformer.items() if not key.endswith(("_args", "_kwargs"))}
        return cls(settings, transformer, weights)

    def prepare(self, tokenizer) -> None:
        """Applies the maximum length and lower case to a tokenizer, which is saved with both."""
        if self.transformer.get("max_seq_length") is not None:
            tokenizer.model_max_length = self.transformer["max_seq_length"]
        backend = tokenizer.backend_tokenizer
        if self.transformer.get("do_lower_case") and not lowers(backend.normalizer):
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
            transformer["config_args"] = {"output_hidden_states": True}
        write_json(Path(folder, TRANSFORMER_CONFIG), transformer)


def refuse(file: str, settings: dict[str, Any]) -> None:
    """Refuses a setting that is not among `EXPECTED`."""
    for key, value in settings.items():
        if value not in EXPECTED.get(key, ()):
            raise InputError(
                f"{file} sets {key} to {value!r}, which this project does not apply: its vectors would be others "
                "in sentence-transformers. Remove the key, or take another model."
            )


def lowers(normalizer) -> bool:
    """Whether a tokenizer's normalizer begins with what sentence-transformers adds for `do_lower_case`."""
    parts = normalizer if isinstance(normalizer, Sequence) else [normalizer]
    return any(isinstance(part, Lowercase) for part in parts)


@cache
def warn_of_similarity(path: str, name: str) -> None:
    """Says once that a folder's similarity function is not the one that is trained and measured here."""
    logger.warning(
        "%s asks sentence-transformers for %s similarity. Here all training and all scores are of cosines, and the "
        "saved folder asks for the same as before: for cosines there too, remove similarity_fn_name from its %s.",
        path,
        name,
        SETTINGS,
    )
