"""Files of a model folder: their names, reading and removal."""

import json
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PretrainedConfig
from transformers.utils import cached_file

from cosent.atomic import SEAL
from cosent.errors import InputError, reading
from cosent.models.decision import DECISION_NAME
from cosent.record import RECORD_NAME

CONFIG, MODULES, WEIGHTS_NAME = "config.json", "modules.json", "model.safetensors"
WEIGHTS_AND_TOKENIZER = (
    *(WEIGHTS_NAME, f"{WEIGHTS_NAME}.index.json", "model-*-of-*.safetensors", "head.safetensors", "pytorch_model*.bin"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt"),
)
SETTINGS, TRANSFORMER_CONFIG = "config_sentence_transformers.json", "sentence_bert_config.json"
MODULE_FOLDER = re.compile(r"\d+_\w+")  # of a module after the backbone


def remove_modules(folder: str | Path) -> None:
    """Removes the modules, record, rules and seal of an earlier model from a folder."""
    with suppress(InputError), reading(Path(folder, MODULES)):  # of a torn checkpoint, which is written again
        for module in read_json(str(folder), MODULES) or []:
            if MODULE_FOLDER.fullmatch(module["path"]):
                shutil.rmtree(Path(folder, module["path"]), ignore_errors=True)
    for name in (MODULES, SETTINGS, TRANSFORMER_CONFIG, DECISION_NAME, RECORD_NAME, SEAL):
        Path(folder, name).unlink(missing_ok=True)


def refuse_adapter(state_dict: dict[str, torch.Tensor]) -> None:
    """Refuses weights that include a LoRA adapter, which no loader would merge."""
    if any(".lora_" in name for name in state_dict):
        raise InputError(
            "The model has a LoRA adapter in it. Save it by the trainer's save_model, which merges it, and load that."
        )


def submodule_state(state_dict: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The state dict of a submodule, from the state dict of the model."""
    return {key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)}


def is_cross_encoder(path: str) -> bool:
    """Whether a folder or Hub id holds a sequence classifier, which reads both sentences of a pair at once."""
    return "ForSequenceClassification" in str((read_json(path, CONFIG) or {}).get("architectures"))


def weights_file(path: str, folder: str = "") -> str:
    """The file of the weights of a checkpoint, or of a module in one of its folders; the folder if there is none."""
    places = (f"{folder}/{name}".lstrip("/") for name in (WEIGHTS_NAME, "pytorch_model.bin"))
    return next((file for place in places if (file := find_file(path, place)) is not None), str(Path(path, folder)))


def read_weights(path: str, folder: str = "") -> dict[str, torch.Tensor]:
    """The weights of a checkpoint, or of a module in one of its folders; empty if there are none, or several files."""
    file = weights_file(path, folder)
    if not file.endswith((".safetensors", ".bin")):
        return {}
    with reading(file):
        if file.endswith(".safetensors"):
            return load_file(file)
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)


def write_json(path: Path, content: dict | list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def read_json(path: str, name: str) -> Any:
    """The content of a file of a folder or Hub id, a list in `modules.json` and else a dict; None without the file."""
    file = find_file(path, name)
    if file is None:
        return None
    kind = list if name == MODULES else dict
    with reading(file):
        content = json.loads(Path(file).read_text(encoding="utf-8"))
        if not isinstance(content, kind):
            raise TypeError(f"it holds a {type(content).__name__}, not a {kind.__name__}")
        return content


def find_file(path: str, name: str) -> str | None:
    return cached_file(path, name, _raise_exceptions_for_missing_entries=False)


def add_server_keys(config: PretrainedConfig) -> None:
    """Adds transformers 4's names of the settings of a ModernBERT, which TEI 1.9.3 requires.

    transformers 5 reads its own `layer_types` and `rope_parameters`, which stay. Layers that do not alternate regularly
    have no such names.
    """
    if config.model_type != "modernbert":
        return
    kinds, ropes = config.layer_types, config.rope_parameters
    period = next((place for place, kind in enumerate(kinds) if place and kind == "full_attention"), len(kinds))
    if kinds == ["full_attention" if place % period == 0 else "sliding_attention" for place in range(len(kinds))]:
        config.global_attn_every_n_layers = period
        config.global_rope_theta = ropes["full_attention"]["rope_theta"]
        config.local_rope_theta = ropes["sliding_attention"]["rope_theta"]
