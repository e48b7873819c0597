"""The folder layout of sentence-transformers, written and read by hand: what stands beside a saved backbone.

modules.json  1_Pooling/config.json  [1_Pooling/model.safetensors]  [2_Dense/config.json + model.safetensors]
"""

import json
import logging
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers.utils import cached_file

from cosent.errors import InputError
from cosent.modeling.pooling import POOLINGS, Pooling

logger = logging.getLogger(__name__)

# Modes that sentence-transformers computes itself, by the key of its `1_Pooling/config.json`.
POOLING_KEYS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens"}
WEIGHT_FILES = {"linear_cls": "2_Dense/model.safetensors", "attention": "1_Pooling/model.safetensors"}
PORTED_POOLER = "roformer.pooler.dense."
IDENTITY = "torch.nn.modules.linear.Identity"


def save_pooling(pooling: Pooling, folder: str | Path, weights: dict) -> None:
    """Describes the pool beside a saved backbone; `linear_cls` becomes a [CLS] pool and a dense layer.

    Args:
        weights: the pool's state dict, by the names it has inside `Pooling`.
    """
    folder, mode, width = Path(folder), pooling.mode, pooling.hidden_size
    for file in WEIGHT_FILES.values():
        Path(folder, file).unlink(missing_ok=True)  # of a model with another pool that stood here before
    modules = {"": "sentence_transformers.models.Transformer", "1_Pooling": "sentence_transformers.models.Pooling"}
    config = {"word_embedding_dimension": width}
    if mode == "linear_cls":
        modules["2_Dense"] = "sentence_transformers.models.Dense"
        dense = {"in_features": width, "out_features": width, "bias": True, "activation_function": IDENTITY}
        write_json(folder / "2_Dense" / "config.json", dense)
        mode = "cls"
    if mode in POOLING_KEYS:
        config |= {key: name == mode for name, key in POOLING_KEYS.items()}
    else:
        # A class that sentence-transformers refuses makes it stop; without modules.json it would pool by mean.
        modules["1_Pooling"] = "cosent.modeling.pooling.Pooling"
        config["pooling_mode"] = mode
        logger.warning(
            "%s pools by %s, which sentence-transformers does not have: only SentenceEncoder loads it.", folder, mode
        )
    write_json(folder / "1_Pooling" / "config.json", config)
    if weights:
        save_file(weights, folder / WEIGHT_FILES[pooling.mode])
    described = [
        {"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules.items())
    ]
    write_json(folder / "modules.json", described)


def remove_pooling(folder: str | Path) -> None:
    """Removes the description of a bi-encoder that stood where another model is being written."""
    Path(folder, "modules.json").unlink(missing_ok=True)
    for name in ("1_Pooling", "2_Dense"):
        shutil.rmtree(Path(folder, name), ignore_errors=True)


def load_pooling(path: str, hidden_size: int, wanted: str | None, seed: int, default: str = "mean") -> Pooling:
    """Builds the pool that a folder or Hub id describes, or the `wanted` one; a bare backbone gets the `default`.

    A published RoFormer-Sim in its PyTorch form has a pooler, which transformers would drop: `linear_cls` here. Saved
    weights are taken where the folder has them for this pool, fresh ones come from `seed`.

    Raises:
        InputError: the folder pools in a way that this project cannot compute, and no other pool is wanted.
    """
    saved = read_pooling_mode(path)
    if wanted is None and saved is not None and saved not in POOLINGS:
        raise InputError(
            f"{path} was saved with pooling {saved}, which this project does not compute ({', '.join(POOLINGS)}). "
            "Name another --pooling to start from its backbone alone."
        )
    ported = ported_pooler(path) if saved is None and wanted in (None, "linear_cls") else {}
    pooling = Pooling(wanted or saved or ("linear_cls" if ported else default), hidden_size, seed)
    if ported:
        pooling.linear.load_state_dict(ported)
    if pooling.mode == saved and pooling.mode in WEIGHT_FILES:
        pooling.load_state_dict(load_file(cached_file(path, WEIGHT_FILES[pooling.mode])))
    return pooling


def read_pooling_mode(path: str) -> str | None:
    """The pool that a saved folder describes, in our names where we have one; None for a bare backbone."""
    config, modules = read_json(path, "1_Pooling/config.json"), read_json(path, "modules.json")
    if config is None:
        return None
    has_dense = any(module["path"] == "2_Dense" for module in modules or [])
    dense = read_json(path, "2_Dense/config.json") if has_dense else None
    modes = [name for name, key in POOLING_KEYS.items() if config.get(key)]
    mode = config.get("pooling_mode") or "+".join(modes)
    if dense is None:
        return mode
    linear = dense["in_features"] == dense["out_features"] and dense["activation_function"] == IDENTITY
    return "linear_cls" if mode == "cls" and linear else f"{mode} and a dense layer"


def ported_pooler(path: str) -> dict[str, torch.Tensor]:
    """Weight and bias of the pooler of a RoFormer-Sim's PyTorch port; empty for any other model."""
    if (read_json(path, "config.json") or {}).get("model_type") != "roformer":
        return {}
    return {name.removeprefix(PORTED_POOLER): value for name, value in read_weights(path).items()
            if name.startswith(PORTED_POOLER)}  # fmt: skip


def read_weights(path: str) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint as they are named in its file; none where it is in several."""
    file = cached_file(path, "model.safetensors", _raise_exceptions_for_missing_entries=False)
    if file is not None:
        return load_file(file)
    file = cached_file(path, "pytorch_model.bin", _raise_exceptions_for_missing_entries=False)
    return {} if file is None else torch.load(file, map_location="cpu", weights_only=True, mmap=True)


def is_cross_encoder(path: str) -> bool:
    """Whether a folder or Hub id holds a sequence classifier, which reads both sentences of a pair at once."""
    architectures = (read_json(path, "config.json") or {}).get("architectures") or [""]
    return architectures[0].endswith("ForSequenceClassification")


def write_json(path: Path, content: dict | list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def read_json(path: str, name: str) -> dict | None:
    file = cached_file(path, name, _raise_exceptions_for_missing_entries=False)
    return None if file is None else json.loads(Path(file).read_text(encoding="utf-8"))
