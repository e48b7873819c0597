"""Write the folder layout of sentence-transformers: `modules.json` and a folder for each module that it names.

backbone           the folder itself
pooling            1_Pooling
first_last_mean    1_WeightedLayerPooling (1, 0, ..., 0, 1), 2_Pooling (mean); sentence_bert_config.json asks the
                   backbone for the output of all layers
attention          1_Pooling, the class `cosent.models.pooling.Pooling`: sentence-transformers imports it where
                   cosent is installed and trust_remote_code is set, otherwise it refuses the folder
after the pooling  2_Dense, 3_Normalize, ...: `AFTER_POOLING` of `modules.py`, in any number and order
"""

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PretrainedConfig
from transformers.utils import cached_file

from cosent.models.pooling import FIRST_LAST_MEAN, MODE_KEYS, Pooling

MODULES, WEIGHTS = "modules.json", "model.safetensors"
ENSEMBLE = "cosent.models.ensemble.VectorEnsemble"  # its class, as modules.json names it
SETTINGS, TRANSFORMER_CONFIG = "config_sentence_transformers.json", "sentence_bert_config.json"
THEIRS, OURS = "sentence_transformers.models.", f"{Pooling.__module__}.{Pooling.__name__}"


def save_modules(
    folder: str | Path,
    layers: int,
    pooling: Pooling,
    after_pooling: Iterable[nn.Module] = (),
    weights: Mapping[str, torch.Tensor] = MappingProxyType({}),
    include_prompt: bool = True,
) -> None:
    """Describes what follows a saved backbone, see the table above; removes the modules of an earlier model there.

    Args:
        layers: number of layers of the backbone.
        weights: state dict of the encoder, with `pooling` and `after_pooling`.
        include_prompt: whether the tokens of a prompt are pooled.
    """
    remove_modules(folder)
    modules: list[tuple[str, dict, dict]] = []
    mode, width = pooling.mode, pooling.hidden_size
    if mode == FIRST_LAST_MEAN:
        described = {"word_embedding_dimension": width, "num_hidden_layers": layers, "layer_start": 1}
        modules.append((f"{THEIRS}WeightedLayerPooling", described, {"layer_weights": first_and_last(layers)}))
        mode = "mean"
    if "attention" in pooling.modes:
        modules.append((OURS, pooling.config(), submodule_state(weights, "pooling.")))
    else:
        modules.append((f"{THEIRS}Pooling", pooling_config(mode, width), {}))
    if not include_prompt:
        modules[-1][1]["include_prompt"] = False
    for number, module in enumerate(after_pooling):
        state = submodule_state(weights, f"after_pooling.{number}.")
        modules.append((THEIRS + type(module).__name__, module.config(), state))
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{THEIRS}Transformer"}]
    for number, (kind, config, state) in enumerate(modules, start=1):
        path = f"{number}_{kind.rsplit('.', 1)[-1]}"
        listed.append({"idx": number, "name": str(number), "path": path, "type": kind})
        write_json(Path(folder, path, "config.json"), config)
        if state:
            save_file({name: weight.contiguous() for name, weight in state.items()}, Path(folder, path, WEIGHTS))
    write_json(Path(folder, MODULES), listed)


def pooling_config(mode: str, width: int) -> dict[str, Any]:
    """config.json of sentence-transformers' `Pooling`.

    Up to 5.3 it wrote one key for each mode, which all versions read and which TEI and vLLM require. They do not tell
    the order of several modes: one that is not theirs is written in the key of 5.4 too, which comes before the others.
    """
    modes = mode.split("+")
    config = {"word_embedding_dimension": width} | {key: name in modes for name, key in MODE_KEYS.items()}
    return config if read_mode(config) == mode else config | {"pooling_mode": modes}


def read_mode(config: dict[str, Any]) -> str:
    """Our name of the mode in a config.json of sentence-transformers' `Pooling`."""
    modes = config.get("pooling_mode") or [name for name, key in MODE_KEYS.items() if config.get(key)]
    return modes if isinstance(modes, str) else "+".join(modes) or "mean"


def first_and_last(layers: int) -> torch.Tensor:
    """Weights of a backbone's layers in `first_last_mean`, shape `(layers,)`."""
    weights = torch.zeros(layers)
    weights[[0, -1]] = 1.0
    return weights


def remove_modules(folder: str | Path) -> None:
    """Removes from a folder the modules of an earlier bi-encoder and what is said about them."""
    for module in read_json(str(folder), MODULES) or []:
        if re.fullmatch(r"\d+_\w+", module["path"]):
            shutil.rmtree(Path(folder, module["path"]), ignore_errors=True)
    for name in (MODULES, SETTINGS, TRANSFORMER_CONFIG):
        Path(folder, name).unlink(missing_ok=True)


def submodule_state(state_dict: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Part of a state dict that belongs to a submodule, under the submodule's own names."""
    return {key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)}


def is_ensemble(path: str) -> bool:
    """Whether a folder or Hub id holds several bi-encoders that answer as one."""
    return (read_json(path, MODULES) or [{"type": ""}])[0]["type"] == ENSEMBLE


def is_cross_encoder(path: str) -> bool:
    """Whether a folder or Hub id holds a sequence classifier, which reads both sentences of a pair at once."""
    architectures = (read_json(path, "config.json") or {}).get("architectures") or [""]
    return architectures[0].endswith("ForSequenceClassification")


def read_weights(path: str, folder: str = "") -> dict[str, torch.Tensor]:
    """The weights of a checkpoint, or of a module in one of its folders; empty if there are none, or several files."""
    if (file := find_file(path, f"{folder}/{WEIGHTS}".lstrip("/"))) is not None:
        return load_file(file)
    file = find_file(path, f"{folder}/pytorch_model.bin".lstrip("/"))
    return {} if file is None else torch.load(file, map_location="cpu", weights_only=True, mmap=True)


def write_json(path: Path, content: dict | list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def read_json(path: str, name: str) -> Any:
    """The content of a file of a folder or Hub id; None without the file."""
    file = find_file(path, name)
    return None if file is None else json.loads(Path(file).read_text(encoding="utf-8"))


def find_file(path: str, name: str) -> str | None:
    return cached_file(path, name, _raise_exceptions_for_missing_entries=False)


def add_server_keys(config: PretrainedConfig) -> None:
    """Adds what Text Embeddings Inference reads of a ModernBERT: the names that its settings had in transformers 4.

    transformers 5 reads its own `layer_types` and `rope_parameters`, which stay. Local and global layers that do not
    alternate regularly have no such names, and nothing is added. Until huggingface/text-embeddings-inference reads the
    names of transformers 5 (1.9.3 requires the old ones).
    """
    if config.model_type != "modernbert":
        return
    kinds, ropes = config.layer_types, config.rope_parameters
    period = next((place for place, kind in enumerate(kinds) if place and kind == "full_attention"), len(kinds))
    regular = ["full_attention" if place % period == 0 else "sliding_attention" for place in range(len(kinds))]
    if kinds == regular:
        config.global_attn_every_n_layers = period
        config.global_rope_theta = ropes["full_attention"]["rope_theta"]
        config.local_rope_theta = ropes["sliding_attention"]["rope_theta"]
