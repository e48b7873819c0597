"""LoRA: train small matrices next to frozen layers, save them as an adapter and merge them into a plain model.

Source: https://arxiv.org/abs/2106.09685; layers and file format of peft.
"""

import logging
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from cosent.errors import InputError
from cosent.models.folder import submodule_state
from cosent.models.modules import classifier_heads, seeded

logger = logging.getLogger(__name__)

ADAPTER_FOLDER = "adapter"
TRAINED = "trained.safetensors"


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter inside a model.

    Args:
        peft_model: peft's view of the module that holds the adapter; the module stays in place in the model.
        inner: name of that module in the model.
        trained: names of the model's trainable weights: of the adapter, fresh heads and Dense layers.
        transposed: names of the adapted layers that store their weight as (in, out), as GPT-2's `Conv1D` does.
    """

    peft_model: PeftModel
    inner: str
    scaling: float
    trained: tuple[str, ...]
    transposed: frozenset[str] = frozenset()

    def save(self, folder: str | Path, state_dict: dict[str, Tensor]) -> None:
        """Writes `adapter/`: the files of `PeftModel.from_pretrained`, and every trained weight for resuming."""
        place = Path(folder, ADAPTER_FOLDER)
        inner = submodule_state(state_dict, f"{self.inner}.")
        self.peft_model.save_pretrained(
            str(place), state_dict={f"base_model.model.{name}": weight for name, weight in inner.items()}
        )
        (place / "README.md").unlink(missing_ok=True)  # peft's empty template of a model card
        save_file({name: state_dict[name].contiguous() for name in self.trained}, place / TRAINED)

    def saved_state(self, folder: str | Path) -> dict[str, Tensor]:
        """The trained weights that `save` wrote, under the names of the model."""
        return load_file(Path(folder, ADAPTER_FOLDER, TRAINED))

    def merged(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights of the equivalent plain model: `W + lora_alpha / lora_r * B @ A`, in W's dtype."""
        plain = {}
        for name, weight in state_dict.items():
            if ".lora_" not in name and ".original_module." not in name:
                plain[name.replace(".base_layer.", ".").replace(".modules_to_save.default.", ".")] = weight
        for name, down in state_dict.items():
            if name.endswith(".lora_A.default.weight"):
                layer = name.removesuffix(".lora_A.default.weight")
                up, weight = state_dict[f"{layer}.lora_B.default.weight"], plain[f"{layer}.weight"]
                delta = self.scaling * (up.float() @ down.float())
                delta = delta.T if layer in self.transposed else delta
                plain[f"{layer}.weight"] = (weight.float() + delta).to(weight.dtype)
        return plain


def lora_config(r: int, alpha: float, dropout: float, targets: list[str]) -> LoraConfig:
    """peft's configuration of an adapter on linear layers by name, e.g. `query`, or only `all-linear`."""
    if r < 1 or alpha <= 0:
        raise InputError(f"--lora_r and --lora_alpha must be positive, got {r} and {alpha}.")
    names = "all-linear" if "all-linear" in targets else targets
    return LoraConfig(r=r, lora_alpha=alpha, lora_dropout=dropout, target_modules=names)


def add_adapter(model: nn.Module, inner: nn.Module, config: LoraConfig, seed: int) -> Adapter:
    """Freezes a transformers model and adds a LoRA adapter to its linear layers, in place.

    Args:
        model: the model to train; its parts outside `inner` stay trainable.
        inner: the transformers model in it: a backbone, or a sequence classifier, whose heads are trained in full.
        config: r, alpha, dropout and target modules (default: all linear layers but heads); others are refused, since
            the merged model that is saved would lack them.
    """
    default = LoraConfig().to_dict()
    for name, value in config.to_dict().items():
        if name not in LORA_KEYS and value != default[name]:
            raise InputError(f"peft_config: {name}={value!r} is not supported. Set only {', '.join(LORA_KEYS[:4])}.")
    is_classifier = type(inner).__name__.endswith("ForSequenceClassification")
    heads = list(classifier_heads(inner)) if is_classifier else []
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS if is_classifier else TaskType.FEATURE_EXTRACTION,
        r=config.r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=config.target_modules or "all-linear",
        exclude_modules=rf"({'|'.join(map(re.escape, heads))})(\..*)?" if heads else None,
        modules_to_save=[*heads] or None,  # peft extends the list
    )
    check_targets(inner, heads, config.target_modules)
    with seeded(seed), warnings.catch_warnings():  # peft 0.21 asks for a name that transformers deprecates
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
        peft_model = get_peft_model(inner, config)
    trained = tuple(name for name, weight in model.named_parameters() if weight.requires_grad)
    transposed = frozenset(
        name for name, module in model.named_modules() if isinstance(getattr(module, "base_layer", None), Conv1D)
    )
    adapted = Counter(name.split(".")[-4] for name in trained if name.endswith(".lora_A.default.weight"))
    layers = ", ".join(f"{count} {layer}" for layer, count in sorted(adapted.items()))
    fresh = f"; trained in full: {', '.join(heads)}" if heads else ""
    logger.info("LoRA of rank %d on the linear layers %s%s.", config.r, layers, fresh)
    place = next(name for name, module in model.named_modules() if module is inner)
    return Adapter(peft_model, place, config.lora_alpha / config.r, trained, transposed)


LORA_KEYS = ("r", "lora_alpha", "lora_dropout", "target_modules", "task_type", "peft_type", "peft_version")


def check_targets(inner: nn.Module, heads: list[str], targets: set[str] | str | None) -> None:
    """Refuses names of layers that a model does not have outside its heads: peft ignores them if another matches."""
    within = tuple(f"{head}." for head in heads)
    layers = [name for name, module in inner.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    outside = [f".{name}" for name in layers if not f"{name}.".startswith(within)]
    kind, names = inner.config.model_type, ", ".join(sorted({name.rpartition(".")[2] for name in outside}))
    if not outside:
        raise InputError(f"A {kind} model has no linear layers to adapt. Leave out --use_peft.")
    for target in [targets] if isinstance(targets, str) else sorted(targets or ()):
        if target != "all-linear" and not any(name.endswith(f".{target}") for name in outside):
            raise InputError(
                f"--lora_target_modules {target}: no such linear layer outside the head of this {kind} model, only "
                f"{names}."
            )
