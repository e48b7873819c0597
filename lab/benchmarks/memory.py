"""Estimate the GPU memory that a recipe needs, on a CPU and without the weights.

python -m lab.benchmarks.memory recipes/bi_encoder/qwen3_embedding_lora.yaml

The parts: all weights in float32; gradients and both moments of AdamW for the trainable ones; what autograd keeps for
one batch of full sentences, counted on models of 3 and 6 layers of the true width and carried on to all layers; and
1 GB for CUDA itself. An estimate: kernels on a GPU keep slightly other tensors, and no GPU was at hand to compare.
"""

import argparse
from contextlib import nullcontext

import torch
import yaml
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from cosent.models.lora import add_adapter, lora_config

TOKENS = 64  # a sentence; a cross-encoder reads a pair, which has twice as many
CUDA = 1e9  # bytes
FEW, MORE = 3, 6  # layers; ModernBERT's attention differs from layer to layer in steps of 3
QWEN3 = {"vocab_size": 151669, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16}
QWEN3 |= {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072}
XLMR_LARGE = {"vocab_size": 250002, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
XLMR_LARGE |= {"intermediate_size": 4096, "max_position_embeddings": 8194, "type_vocab_size": 1}
CONFIGS = {  # from the config.json of the published folders
    "Qwen/Qwen3-Embedding-0.6B": ("qwen3", QWEN3),
    "bert-base-chinese": ("bert", {"vocab_size": 21128}),
    "hfl/chinese-roberta-wwm-ext": ("bert", {"vocab_size": 21128}),
    "BAAI/bge-base-zh-v1.5": ("bert", {"vocab_size": 21128}),
    "BAAI/bge-reranker-v2-m3": ("xlm-roberta", XLMR_LARGE),
    "qihoo360/Zhinao-ChineseModernBert": ("modernbert", {"vocab_size": 151667, "max_position_embeddings": 1536}),
}


def build_backbone(recipe: dict, **changes) -> nn.Module:
    """Model of a recipe without the values of the weights, with the adapter if there is one."""
    kind, sizes = CONFIGS[recipe["model_name_or_path"]]
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if kind == "modernbert":
        special |= {"cls_token_id": 1, "sep_token_id": 2}
    config = AutoConfig.for_model(kind, **sizes | special | changes, num_labels=1)
    auto = AutoModelForSequenceClassification if recipe["tower"] == "cross_encoder" else AutoModel
    model = auto.from_config(config)
    if recipe.get("use_peft"):
        targets = recipe.get("lora_target_modules", ["all-linear"])
        settings = (recipe["lora_r"], recipe["lora_alpha"], recipe.get("lora_dropout", 0.0))
        add_adapter(model, model, lora_config(*settings, targets), seed=1)
    if recipe.get("gradient_checkpointing"):
        model.gradient_checkpointing_enable()
    return model.train()


def kept_bytes(recipe: dict, layers: int, sequences: int) -> int:
    """Bytes of activations and of weights cast to bfloat16 that a forward pass keeps for the backward pass."""
    model = build_backbone(recipe, vocab_size=64, num_hidden_layers=layers)
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}  # held, so that no address is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    ids = torch.randint(3, 64, (sequences, TOKENS * (1 + (recipe["tower"] == "cross_encoder"))))
    half = torch.autocast("cpu", dtype=torch.bfloat16) if recipe.get("bf16") else nullcontext()
    with half, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids))
    del output
    return sum(storage.nbytes() for storage in kept.values())


def activations(recipe: dict) -> float:
    """Bytes kept for a batch of a recipe by all layers: linear in the number of layers and of sequences.

    With checkpointing, the layer whose forward pass is repeated is added.
    """
    checkpointing = recipe.get("gradient_checkpointing")
    repeated = kept_by_layer(recipe | {"gradient_checkpointing": False})[1] if checkpointing else 0.0
    of_few, of_a_layer = kept_by_layer(recipe)
    with torch.device("meta"):
        count = build_backbone(recipe).config.num_hidden_layers
    return of_few + of_a_layer * (count - FEW) + repeated


def kept_by_layer(recipe: dict) -> tuple[float, float]:
    """Bytes kept for a batch by `FEW` layers, and by each further one."""
    sequences = recipe["per_device_train_batch_size"] * (1 if recipe["tower"] == "cross_encoder" else 2)
    by_layers = {}
    for layers in (FEW, MORE):
        one, two = (kept_bytes(recipe, layers, count) for count in (1, 2))
        by_layers[layers] = one + (two - one) * (sequences - 1)
    return by_layers[FEW], (by_layers[MORE] - by_layers[FEW]) / (MORE - FEW)


def estimate(recipe: dict) -> dict[str, float]:
    """Bytes by part."""
    with torch.device("meta"):
        sizes = [(weight.numel(), weight.requires_grad) for weight in build_backbone(recipe).parameters()]
    return {
        "weights": 4 * sum(size for size, _ in sizes),
        "gradients and optimizer": 12 * sum(size for size, trained in sizes if trained),
        "activations": activations(recipe),
        "CUDA": CUDA,
    }


def main(paths: list[str]) -> None:
    for path in paths:
        with open(path, encoding="utf-8") as file:
            parts = estimate(yaml.safe_load(file))
        described = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in parts.items())
        print(f"{path}: {sum(parts.values()) / 1e9:.1f} GB ({described})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+")
    main(parser.parse_args().recipes)
