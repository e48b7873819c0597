"""Loading of transformers models and their tokenizers, for both towers."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, BertTokenizer
from transformers.models.auto import CONFIG_MAPPING
from transformers.utils import logging as transformers_logging

from cosent.compute.packing import DECODERS, LOOKUP, POSITIONS
from cosent.errors import InputError, once, reading
from cosent.models.folder import read_json, weights_file
from cosent.models.modules import seeded

logger = logging.getLogger(__name__)


def load_config(path: str):
    """Reads the config of a transformers model, without running or asking to run code that comes with it."""
    raw = read_json(path, "config.json") or {}
    code, kind = raw.get("auto_map") or {}, raw.get("model_type")
    if kind == LOOKUP:
        from cosent.models import lookup  # noqa: F401, registers the architecture with transformers, in half a second
    if kind is not None and kind not in CONFIG_MAPPING:
        needs = f" needs {', '.join(map(str, code.values()))}, code that is never run, and" if code else ""
        version = transformers.__version__
        raise InputError(f"{path}{needs} has type {kind}, unknown to transformers {version}. Use a converted copy.")
    if code:  # an earlier copy of what transformers has by now, or a change of the architecture
        once(
            logger.warning,
            f"{path} comes with code, which is not run: transformers' own {kind} computes it. That code may "
            "change the architecture (bidirectional attention, say): compare a vector with the model card's.",
        )
    return AutoConfig.from_pretrained(path, trust_remote_code=False)


@contextmanager
def quiet_transformers():
    """Silences the progress bars of saving and loading, and reports about unused poolers."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


@contextmanager
def missing_models(model_name_or_path: str) -> Iterator[None]:
    """Raises errors of loading a model as an `InputError` with the reason and a remedy."""
    try:
        with reading(model_name_or_path, advice="Check the folder or Hub id, or copy it again."):
            yield
    except InputError as error:
        if error.__cause__ and (reason := known_reason(model_name_or_path, str(error.__cause__))):
            raise InputError(reason) from error
        raise


def known_reason(model: str, error: str) -> str | None:
    """A known reason why a folder does not load, with its remedy; None otherwise."""
    if "custom code" in error:
        return f"The tokenizer of {model} needs its own code, which is never run. Add a tokenizer.json."
    if "instantiate the backend tokenizer" in error:
        return f"{model}/tokenizer.json, or another vocabulary, is missing. Copy the whole folder."
    if "ignore_mismatched_sizes" in error:
        return f"The weights of {model} have other sizes than its config.json says. Copy both again."
    if Path(model, "adapter_config.json").exists():
        parent = Path(model).resolve().parent
        merged = Path(parent, "config.json").exists()
        remedy = f"Name the merged model one folder up, {parent}." if merged else "Merge it with its base by peft."
        return f"{model} is a LoRA adapter. {remedy}"
    if Path(model, "export.json").exists():
        return f"{model} is an export in ONNX, which its own run.py reads."
    return None


def dropout_changes(path: str, dropout: float | None) -> dict[str, float]:
    """Config changes that set all dropout probabilities; none for None."""
    if dropout is None:
        return {}
    if not 0 <= dropout < 1:
        raise InputError(f"--dropout is a probability from 0 to below 1, got {dropout:g}.")
    config = load_config(path)
    settings = {**config.to_dict(), **dict.fromkeys(config.attribute_map)}
    names = [name for name, value in settings.items() if "drop" in name and not isinstance(value, bool)]
    if not names:
        raise InputError(f"--dropout {dropout:g}: a {config.model_type} model has no dropout. Leave it out.")
    logger.info("--dropout %g sets %s of a %s model.", dropout, ", ".join(names), config.model_type)
    return dict.fromkeys(names, dropout)


def load_backbone(path: str, seed: int, **config_changes) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Loads an encoder in float32 without its pooler, which DistributedDataParallel would wait for forever.

    Returns:
        The encoder, and the weights of the pooler by their names in it, if the checkpoint has them.
    """
    backbone, missing = load_seeded(AutoModel, path, seed, **config_changes)
    pooler = {name: weight for name, weight in backbone.state_dict().items() if name.startswith("pooler.")}
    backbone.pooler = None
    return backbone, {} if missing & pooler.keys() else pooler


def load_seeded(
    auto_class: Any, path: str, seed: int, whole: bool = False, **config_changes
) -> tuple[nn.Module, set[str]]:
    """Loads a model in float32; returns it with the names of missing weights of its head, which `seed` draws.

    Weights of the backbone that are missing, or that it has no place for, are an error, as is with `whole` a missing
    head. Left-over heads are normal.
    """
    config = load_config(path)
    if getattr(config, "is_decoder", False):  # RoFormer-Sim: attention would be causal
        config_changes["is_decoder"] = False
    with quiet_transformers(), seeded(seed):
        options = {"dtype": torch.float32, "output_loading_info": True, **config_changes}
        model, report = auto_class.from_pretrained(path, trust_remote_code=False, **options)
    if comes_with_code := "auto_map" in vars(model.config):  # who loads the saved folder is not asked to run it
        del model.config.auto_map
    freeze_sines(model)
    missing = report["missing_keys"] | {name for name, *_ in report["mismatched_keys"]}
    inner = "" if model.base_model is model else f"{model.base_model_prefix}."
    fresh = [name for name in missing if whole or (name.startswith(inner) and ".pooler." not in f".{name}")]
    places = {name for name, _ in model.base_model.named_children()} - {"pooler"}
    left = [name for name in report["unexpected_keys"] if name.removeprefix(inner).partition(".")[0] in places]
    if fresh or left:
        fault = f"lacks {some_of(fresh)} of" if fresh else f"holds {some_of(left)} beyond"
        if comes_with_code:
            raise InputError(
                f"{path} needs code of its own, which is never run: its folder {fault} transformers' "
                f"{config.model_type}. Look for a converted copy."
            )
        raise InputError(f"{weights_file(path)} {fault} the model of config.json. Copy or download both again.")
    return model, missing


def some_of(names: list[str]) -> str:
    """Number of weights, with a few of their names."""
    return f"{len(names)} weights ({', '.join(sorted(names)[:3])}{', ...' if len(names) > 3 else ''})"


def load_tokenizer(path: str, model: nn.Module | None = None, **options):
    """Loads the tokenizer of a folder; one without a padding token pads with the token that ends a text.

    Refuses a tokenizer without a vocabulary, or with tokens that the `model` has no embedding for. A published RoFormer
    with a vocabulary of characters gets BERT's: without words, cutting text into words by `rjieba` first, as
    `RoFormerTokenizer` does, changes nothing.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False, **options)
    except ImportError as error:  # rjieba is missing
        tokenizer = BertTokenizer.from_pretrained(path, **options)
        if any(len(token) > 1 and all("一" <= character <= "鿿" for character in token) for token in tokenizer.vocab):
            raise InputError(f"{path} has a vocabulary of words, which needs rjieba: pip install rjieba.") from error
    if tokenizer.vocab_size <= len(tokenizer.all_special_tokens):
        raise InputError(f"{path}/tokenizer.json, or another vocabulary, is missing. Copy the whole folder.")
    if model is not None:
        size, last = model.config.vocab_size, max(tokenizer.get_vocab().values())
        if last >= size:
            raise InputError(
                f"{path}/tokenizer.json has tokens up to number {last}, and the model reads {size}. Copy both again."
            )
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise InputError(f"The tokenizer of {path} has no padding token. Set one in tokenizer_config.json.")
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def freeze_sines(model: nn.Module) -> None:
    """Freezes a RoFormer's table of sines: DistributedDataParallel would wait for its gradient forever."""
    for name, parameter in model.named_parameters():
        if "embed_positions." in name:
            parameter.requires_grad_(False)


def keep_layers(backbone: nn.Module, count: int) -> None:
    """Keeps `count` evenly spaced layers of a backbone, including its first and last, for a smaller student."""
    layers = getattr(getattr(backbone, "encoder", None), "layer", ())
    if not 1 <= count <= len(layers):
        raise InputError(f"--student_layers {count}: this model has {len(layers)} layers that can be dropped.")
    places = np.linspace(0, len(layers) - 1, count).round().astype(int)
    backbone.encoder.layer = nn.ModuleList(layers[index] for index in places)
    backbone.config.num_hidden_layers = count
    for index, layer in enumerate(backbone.encoder.layer):
        for module in layer.modules():
            if getattr(module, "layer_idx", None) is not None:
                module.layer_idx = index  # its place in a KV cache


PADDED = (LOOKUP, "deberta-v2")  # verified, though not packed


def check_architecture(config, pooling: str | None = None) -> None:
    """Refuses what cannot embed sentences, and warns of an unverified architecture; `pooling` is None below a head."""
    kind = config.model_type
    if config.is_encoder_decoder:
        raise InputError(f"A {kind} model writes a text for a text, and embeds none. Take an encoder.")
    if kind in DECODERS and pooling == "cls":
        raise InputError(
            f"--pooling cls reads the first token, which sees no other in a {kind} model. Pass lasttoken or mean."
        )
    if kind not in (*POSITIONS, *PADDED):
        logger.warning(
            "%s models are not verified: compare a sentence alone with the same one in a batch of longer ones, whose "
            "places some architectures read.",
            kind,
        )
