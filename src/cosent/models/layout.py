"""The layout of sentence-transformers folders: their modules, settings and prompts, read and written.

`modules.json` names the backbone in the folder itself, `1_Pooling` and the modules after it: `2_Dense`, `3_Normalize`.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers.normalizers import Lowercase, Sequence
from torch import nn

from cosent.errors import InputError, once, reading
from cosent.models.folder import (
    MODULE_FOLDER,
    MODULES,
    SETTINGS,
    TRANSFORMER_CONFIG,
    WEIGHTS_NAME,
    read_json,
    read_weights,
    remove_modules,
    submodule_state,
    write_json,
)
from cosent.models.modules import ACTIVATIONS, IDENTITY, LINEAR_CLS, POOLINGS, TANH, Dense, Normalize, Pooling
from cosent.models.prompts import Prompts

logger = logging.getLogger(__name__)

THEIRS = "sentence_transformers.models."
# Keys of sentence-transformers' `Pooling` up to 5.3, which all versions read and which TEI and vLLM require.
MODE_KEYS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


def save_modules(
    folder: str | Path,
    pooling: Pooling,
    after_pooling: Iterable[nn.Module] = (),
    weights: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> None:
    """Writes the modules after a saved backbone, and removes the modules of an earlier model from the folder.

    Args:
        weights: state dict of the encoder, with `after_pooling`.
    """
    remove_modules(folder)
    keys = {key: name == pooling.mode for name, key in MODE_KEYS.items()}
    modules: list[tuple[str, dict, dict]] = [
        ("Pooling", {"word_embedding_dimension": pooling.hidden_size} | keys, {}),
        *(
            (type(module).__name__, module.config(), submodule_state(weights, f"after_pooling.{number}."))
            for number, module in enumerate(after_pooling)
        ),
    ]
    listed = [{"idx": 0, "name": "0", "path": "", "type": f"{THEIRS}Transformer"}]
    for number, (kind, config, state) in enumerate(modules, start=1):
        path = f"{number}_{kind}"
        listed.append({"idx": number, "name": str(number), "path": path, "type": THEIRS + kind})
        write_json(Path(folder, path, "config.json"), config)
        if state:
            save_file({name: weight.contiguous() for name, weight in state.items()}, Path(folder, path, WEIGHTS_NAME))
    write_json(Path(folder, MODULES), listed)


# Keys of the `config.json` of each kind of module that are read here; of others only empty and default values are.
MODULE_KEYS = {
    "Pooling": {
        "word_embedding_dimension",
        "embedding_dimension",
        "pooling_mode",
        "include_prompt",
        *MODE_KEYS.values(),
    },
    "Dense": {"in_features", "out_features", "bias", "activation_function"},
    "Normalize": set[str](),
}
DEFAULTS = (None, False, "sentence_embedding")


@dataclass(frozen=True)
class Module:
    """A module of a folder: the name of its class, its subfolder and its `config.json`."""

    kind: str
    folder: str
    config: dict[str, Any]

    @property
    def mode(self) -> str:
        """Name of a pooling; several names are joined by `+`."""
        modes = self.config.get("pooling_mode") or [name for name, key in MODE_KEYS.items() if self.config.get(key)]
        return modes if isinstance(modes, str) else "+".join(modes) or "mean"

    @property
    def obstacle(self) -> str | None:
        """File and key of a setting that sentence-transformers would apply differently; None if there is none."""
        if self.kind not in MODULE_KEYS:
            return f"{MODULES}: {self.kind}"
        wrong = [
            key for key, value in self.config.items() if key not in MODULE_KEYS[self.kind] and value not in DEFAULTS
        ]
        if self.kind == "Pooling":
            wrong += [f"pooling {self.mode}"] if self.mode not in POOLINGS else []
            wrong += ["include_prompt"] if not self.config.get("include_prompt", True) else []
        activation = str(self.config.get("activation_function", TANH))
        if not (activation.startswith("torch.nn.") and activation.rsplit(".", 1)[-1] in ACTIVATIONS):
            wrong.append(f"activation {activation}")
        return f"{self.folder}/config.json: {', '.join(wrong)}" if wrong else None

    def build(self, path: str) -> nn.Module:
        """A `Dense` or `Normalize` with its weights; `path` is the folder or Hub id of the model."""
        if self.kind == "Normalize":
            return Normalize()
        with reading(f"{path}/{self.folder}"):
            dense = Dense(**{name: self.config[name] for name in MODULE_KEYS["Dense"] & self.config.keys()})
            dense.load_state_dict(read_weights(path, self.folder))
        return dense


def read_saved(path: str) -> list[Module]:
    """The modules of a folder or Hub id after its backbone; none for a bare backbone."""
    modules = []
    with reading(f"{path}/{MODULES}"):
        entries = [(str(entry["type"]), str(entry["path"])) for entry in read_json(path, MODULES) or []]
    for kind, folder in entries:
        if folder and not MODULE_FOLDER.fullmatch(folder):
            raise InputError(f"{path}/{MODULES} names the folder {folder[:80]!r}. Rename it like 1_Pooling.")
        config = read_json(path, f"{folder}/config.json") if folder else None
        kind = kind.rsplit(".", 1)[-1] if kind.startswith("sentence_transformers.") else kind
        if folder and config is None and MODULE_KEYS.get(kind):
            raise InputError(
                f"{path}/{folder}/config.json, of a module in {MODULES}, is missing. Copy or download the whole folder."
            )
        modules.append(Module(kind, folder, config or {}))
    if modules and (modules[0].kind, modules[0].folder) == ("Transformer", ""):
        return modules[1:]
    return modules  # the first one is an obstacle then


def load_modules(
    path: str, hidden_size: int, pooling: str | None, seed: int, default: str
) -> tuple[Pooling, list[nn.Module]]:
    """Builds the pooling of a folder or Hub id and the modules after it, with their weights.

    A bare backbone gets the `default` pooling, a published RoFormer-Sim `linear_cls` with its pooler, which
    transformers would drop. With another pooling than the folder's, of its modules only `Normalize` stays.

    Args:
        pooling: one of `CHOICES`; None for the pooling of the folder.
        seed: seed of weights that the folder lacks.
    """
    saved = read_saved(path)
    obstacles = [module.obstacle for module in saved if module.obstacle]
    if saved and saved[0].kind != "Pooling":
        obstacles.insert(0, f"{MODULES}: {saved[0].kind} in place of a Pooling")
    if obstacles and pooling is None:
        raise InputError(
            f"{path} has unsupported modules or settings ({'; '.join(obstacles)}). Name a --pooling to start from its "
            "backbone only."
        )
    trained = saved[0].mode if saved else None
    is_linear = trained == "cls" and [module.kind for module in saved[1:2]] == ["Dense"]
    if saved and not obstacles and pooling in (None, trained, LINEAR_CLS if is_linear else trained):
        return Pooling(saved[0].mode, hidden_size), [module.build(path) for module in saved[1:]]
    ported = {} if saved or pooling not in (None, LINEAR_CLS) else ported_pooler(path)
    mode = pooling or (LINEAR_CLS if ported else default)
    if not (saved or pooling or ported):
        if (alone := Path(path, "1_Pooling", "config.json")).is_file():
            raise InputError(f"{path}/{MODULES}, which names {alone}, is missing. Copy it too, or name a --pooling.")
        once(
            logger.info,
            f"{path} has no modules.json: it is pooled by {mode}. If it was trained otherwise, as by FlagEmbedding "
            "(cls) or Qwen3-Embedding (lasttoken), name that as --pooling in `cosent train`, or as pooling in Python.",
        )
    if saved:
        lost = ", ".join([str(trained), *(module.folder for module in saved[1:] if module.kind != "Normalize")])
        logger.warning("--pooling %s replaces the pooling of %s, which was trained with %s.", pooling, path, lost)
    modules: list[nn.Module] = []
    if mode == LINEAR_CLS:
        modules.append(Dense(hidden_size, hidden_size, activation_function=IDENTITY, seed=seed))
        if ported:
            modules[0].linear.load_state_dict(ported)
    modules += [Normalize() for module in saved if module.kind == "Normalize"]
    return Pooling("cls" if mode == LINEAR_CLS else mode, hidden_size), modules


PORTED_POOLER = "roformer.pooler.dense."


def ported_pooler(path: str) -> dict[str, torch.Tensor]:
    """Weight and bias of the pooler of a published RoFormer-Sim; empty for any other model."""
    if (read_json(path, "config.json") or {}).get("model_type") != "roformer":
        return {}
    weights = read_weights(path).items()
    return {name.removeprefix(PORTED_POOLER): value for name, value in weights if name.startswith(PORTED_POOLER)}


FEWEST_TOKENS = 3  # of a text: two special ones and one of its own
# Settings of the backbone: the first file that exists counts, and the first is written.
TRANSFORMER_CONFIGS = [f"sentence_{kind}_config.json" for kind in ("bert", "roberta", "xlm-roberta", "xlnet")]
# Values that mean what is computed here; so does an empty value of any setting.
EXPECTED = {
    "transformer_task": ("feature-extraction",),
    "module_output_name": ("token_embeddings",),
    "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}},),
}
# Settings that are applied here, or mean only speed or `encode_query`.
HARMLESS = ("max_seq_length", "do_lower_case", "unpad_inputs", "query_length", "document_length", "query_expansion")


@dataclass(frozen=True)
class KeptSettings:
    """Settings and weights of the starting folder that are saved unchanged.

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
        """Reads both files of a folder or Hub id."""
        settings = read_json(path, SETTINGS) or {}
        name = next((name for name in TRANSFORMER_CONFIGS if read_json(path, name)), TRANSFORMER_CONFIG)
        transformer = read_json(path, name) or {}
        values = {(SETTINGS, "truncate_dim"): settings.get("truncate_dim")}
        values |= {(name, key): value for key, value in transformer.items() if key not in HARMLESS}
        for (file, key), value in values.items():
            if value not in (None, {}, *EXPECTED.get(key, ())):
                raise InputError(f"{path}/{file}: {key} = {value!r} is not supported. Remove the key.")
        length = transformer.get("max_seq_length")
        if length and not (type(length) is int and length >= FEWEST_TOKENS):
            raise InputError(f"{path}/{name}: max_seq_length is {length!r}. Write a number from {FEWEST_TOKENS} on.")
        return cls(settings, {key: value for key, value in transformer.items() if value}, weights)

    def apply(self, tokenizer) -> None:
        """Applies the maximum length and lower case to a tokenizer, which is saved with both."""
        if self.transformer.get("max_seq_length") is not None:
            tokenizer.model_max_length = self.transformer["max_seq_length"]
        backend = tokenizer.backend_tokenizer
        parts = backend.normalizer if isinstance(backend.normalizer, Sequence) else [backend.normalizer]
        if self.transformer.get("do_lower_case") and not any(isinstance(part, Lowercase) for part in parts):
            backend.normalizer = Sequence([Lowercase(), *([] if backend.normalizer is None else [backend.normalizer])])

    def save(self, folder: str | Path, prompts: Prompts, max_length: int) -> None:
        """Writes both files; TEI takes 512 tokens without `max_seq_length`, vLLM without `do_lower_case` next to it."""
        if self.settings or prompts.texts:
            write_json(Path(folder, SETTINGS), {"model_type": BI_ENCODER} | self.settings | prompts.config())
        transformer = {"do_lower_case": False} | self.transformer | {"max_seq_length": max_length}
        write_json(Path(folder, TRANSFORMER_CONFIG), transformer)


BI_ENCODER, CROSS_ENCODER = "SentenceTransformer", "CrossEncoder"  # `model_type` of `SETTINGS`
CLASSIFIER_MODULE = "sentence_transformers.base.modules.transformer.Transformer"
CLASSIFIER_CONFIG = {
    "transformer_task": "sequence-classification",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    "module_output_name": "scores",
}


def read_prompts(path: str, model_type: str = BI_ENCODER) -> Prompts:
    """The prompts of a folder or Hub id; none for a bare backbone, or for a model of the other type."""
    config = read_json(path, SETTINGS) or {}
    if config.get("model_type", BI_ENCODER) != model_type:
        return Prompts()
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not all(isinstance(text, str | None) for text in (*prompts.values(), default)):
        raise InputError(f"{path}/{SETTINGS}: prompts and default_prompt_name are not texts by name. Correct them.")
    return Prompts({name: text or "" for name, text in prompts.items()}, default)


def save_classifier_prompts(folder: str | Path, prompts: Prompts) -> None:
    """Writes the prompts of a cross-encoder, if any, and the modules, without which others read no prompts."""
    if prompts.texts:
        write_json(Path(folder, SETTINGS), {"model_type": CROSS_ENCODER} | prompts.config())
        write_json(Path(folder, MODULES), [{"idx": 0, "name": "0", "path": "", "type": CLASSIFIER_MODULE}])
        write_json(Path(folder, TRANSFORMER_CONFIG), CLASSIFIER_CONFIG)
