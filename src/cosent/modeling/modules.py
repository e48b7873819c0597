"""Load the pooling of a folder and the modules after it, which sentence-transformers or we wrote."""

import logging
from typing import Any, NamedTuple

import torch
from torch import nn

from cosent.errors import InputError
from cosent.modeling.pooling import FIRST_LAST_MEAN, LINEAR_CLS, MODE_KEYS, POOLINGS, Pooling
from cosent.modeling.saved_folder import (
    MODULES,
    OURS,
    first_and_last,
    is_cross_encoder,
    read_json,
    read_mode,
    read_weights,
)
from cosent.modeling.tail import IDENTITY, TAIL, WITHOUT_WEIGHTS, Dense, build, embedding_dimension

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
