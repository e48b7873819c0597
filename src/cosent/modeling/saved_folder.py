"""Read and write the folder layout of sentence-transformers: the files next to a saved backbone.

`modules.json` names the modules after the backbone:

    one of MODE_KEYS   1_Pooling
    linear_cls         1_Pooling (cls), 2_Dense
    first_last_mean    1_WeightedLayerPooling (1, 0, ..., 0, 1), 2_Pooling (mean); sentence_bert_config.json asks the
                       backbone for the output of all layers
    attention          1_Pooling, the class `cosent.modeling.pooling.Pooling`: sentence-transformers imports it where
                       cosent is installed and trust_remote_code is set, otherwise it refuses the folder
    several            1_Pooling, as attention where that is one of them
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers.utils import cached_file

from cosent.errors import InputError
from cosent.modeling.pooling import MODE_KEYS, POOLINGS, Pooling

LINEAR_WEIGHTS, POOLING_WEIGHTS = "2_Dense/model.safetensors", "1_Pooling/model.safetensors"
LAYER_WEIGHTS = "1_WeightedLayerPooling/model.safetensors"
MODULE_FOLDERS = ("1_Pooling", "2_Dense", "1_WeightedLayerPooling", "2_Pooling")
TRANSFORMER_CONFIG = "sentence_bert_config.json"
PORTED_POOLER = "roformer.pooler.dense."
IDENTITY = "torch.nn.modules.linear.Identity"
THEIRS = "sentence_transformers.models."


def save_pooling(pooling: Pooling, folder: str | Path, weights: dict, layers: int) -> None:
    """Describes the pooling of a saved backbone, see the table above.

    Args:
        weights: the pooling's state dict, by its names inside `Pooling`.
        layers: number of layers of the backbone.
    """
    folder, width = Path(folder), pooling.hidden_size
    remove_pooling(folder)  # left by an earlier model in this folder
    modules = {"": f"{THEIRS}Transformer", "1_Pooling": f"{THEIRS}Pooling"}
    if "attention" in pooling.modes:
        modules["1_Pooling"] = f"{Pooling.__module__}.{Pooling.__name__}"
        write_json(folder / "1_Pooling" / "config.json", pooling.config())
    elif pooling.mode == "first_last_mean":
        modules["1_WeightedLayerPooling"] = f"{THEIRS}WeightedLayerPooling"
        modules["2_Pooling"] = modules.pop("1_Pooling")
        write_json(folder / TRANSFORMER_CONFIG, {"config_args": {"output_hidden_states": True}})
        described = {"word_embedding_dimension": width, "num_hidden_layers": layers, "layer_start": 1}
        write_json(folder / "1_WeightedLayerPooling" / "config.json", described)
        save_file({"layer_weights": first_and_last(layers)}, folder / LAYER_WEIGHTS)
        write_json(folder / "2_Pooling" / "config.json", their_config("mean", width))
    elif pooling.mode == "linear_cls":
        modules["2_Dense"] = f"{THEIRS}Dense"
        write_json(folder / "1_Pooling" / "config.json", their_config("cls", width))
        dense = {"in_features": width, "out_features": width, "bias": True, "activation_function": IDENTITY}
        write_json(folder / "2_Dense" / "config.json", dense)
    else:
        write_json(folder / "1_Pooling" / "config.json", their_config(pooling.mode, width))
    if weights:
        save_file(weights, folder / (LINEAR_WEIGHTS if pooling.mode == "linear_cls" else POOLING_WEIGHTS))
    described = [
        {"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(modules.items())
    ]
    write_json(folder / "modules.json", described)


def their_config(mode: str, width: int) -> dict:
    """config.json of sentence-transformers' `Pooling`.

    Up to 5.3 it wrote one key for each mode, which all versions read and which TEI and vLLM require. They do not tell
    the order of several modes: one that is not theirs is written in the key of 5.4 too, which comes before the others.
    """
    modes = mode.split("+")
    config = {"word_embedding_dimension": width} | {key: name in modes for name, key in MODE_KEYS.items()}
    return config if read_mode(config) == mode else config | {"pooling_mode": modes}


def read_mode(config: dict) -> str:
    """Our name of the mode in a config.json of sentence-transformers' `Pooling`."""
    modes = config.get("pooling_mode") or [name for name, key in MODE_KEYS.items() if config.get(key)]
    return modes if isinstance(modes, str) else "+".join(modes) or "mean"


def first_and_last(layers: int) -> torch.Tensor:
    """Weights of a backbone's layers in `first_last_mean`, shape `(layers,)`."""
    weights = torch.zeros(layers)
    weights[[0, -1]] = 1.0
    return weights


def remove_pooling(folder: str | Path) -> None:
    """Removes the pooling files of an earlier bi-encoder from a folder."""
    for name in ("modules.json", TRANSFORMER_CONFIG):
        Path(folder, name).unlink(missing_ok=True)
    for name in MODULE_FOLDERS:
        shutil.rmtree(Path(folder, name), ignore_errors=True)


def load_pooling(path: str, hidden_size: int, wanted: str | None, seed: int, default: str = "mean") -> Pooling:
    """Builds the pooling that a folder or Hub id describes, or the `wanted` one; a bare backbone gets the `default`.

    A published RoFormer-Sim in its PyTorch form has a pooler, which transformers would drop: `linear_cls` here. The
    folder's weights for this pooling are loaded if it has any; fresh ones come from `seed`.

    Raises:
        InputError: the folder has a pooling that this project does not support, and no other is requested.
    """
    saved = read_pooling_mode(path)
    if wanted is None and saved is not None and not set(saved.split("+")) <= set(POOLINGS):
        raise InputError(
            f"{path} was saved with pooling {saved}, which this project does not compute ({', '.join(POOLINGS)}). "
            "Name another --pooling to start only from its backbone."
        )
    ported = ported_pooler(path) if saved is None and wanted in (None, "linear_cls") else {}
    pooling = Pooling(wanted or saved or ("linear_cls" if ported else default), hidden_size, seed)
    if ported:
        pooling.linear.load_state_dict(ported)
    if pooling.mode == saved and pooling.state_dict():
        file = LINEAR_WEIGHTS if saved == "linear_cls" else POOLING_WEIGHTS
        pooling.load_state_dict(load_file(cached_file(path, file)))
    return pooling


def read_pooling_mode(path: str) -> str | None:
    """The pooling that a saved folder describes, by our name if we have one; None for a bare backbone."""
    modules = {module["type"].rsplit(".", 1)[-1]: module["path"] for module in read_json(path, "modules.json") or []}
    config = read_json(path, f"{modules.get('Pooling', '1_Pooling')}/config.json")
    if config is None:
        return None
    mode = read_mode(config)
    if "WeightedLayerPooling" in modules:
        weights = load_file(cached_file(path, LAYER_WEIGHTS))["layer_weights"]
        start = read_json(path, "1_WeightedLayerPooling/config.json")["layer_start"]
        ours = mode == "mean" and start == 1 and torch.equal(weights, first_and_last(len(weights)))
        return "first_last_mean" if ours else f"{mode} of weighted layers"
    if "Dense" not in modules:
        return mode
    dense = read_json(path, f"{modules['Dense']}/config.json")
    linear = dense["in_features"] == dense["out_features"] and dense["activation_function"] == IDENTITY
    return "linear_cls" if mode == "cls" and linear else f"{mode} and a dense layer"


def ported_pooler(path: str) -> dict[str, torch.Tensor]:
    """Weight and bias of the pooler of a RoFormer-Sim's PyTorch port; empty for any other model."""
    if (read_json(path, "config.json") or {}).get("model_type") != "roformer":
        return {}
    return {name.removeprefix(PORTED_POOLER): value for name, value in read_weights(path).items()
            if name.startswith(PORTED_POOLER)}  # fmt: skip


def read_weights(path: str) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint by their names in its file; empty if it consists of several files."""
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
