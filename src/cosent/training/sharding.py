"""Sharded training (FSDP2, DeepSpeed ZeRO-2): checks of its settings, and loading and gathering of full weights.

The weights stay in float32 with every strategy; `--bf16` computes under autocast.
"""

import os
from collections.abc import Callable

import torch
from accelerate import Accelerator
from accelerate.utils import convert_outputs_to_fp32
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from cosent.errors import InputError

# Settings that `accelerate launch` passes on, under which weights are gathered, saved whole, and read by every rank.
FSDP_SETTINGS = {
    "FSDP_VERSION": "2",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
}


def launched_with() -> str | None:
    """`fsdp` or `deepspeed` if the configuration of `accelerate launch` requests it, else None."""
    strategies = (name for name in ("fsdp", "deepspeed") if os.environ.get(f"ACCELERATE_USE_{name.upper()}") == "true")
    return next(strategies, None)


def check_strategy(accelerator: Accelerator, precision: str) -> None:
    """Refuses strategies under which a run would fail later or train incorrectly."""
    strategy = launched_with()
    if strategy is not None and precision == "fp16":
        raise InputError(f"mixed_precision fp16 under {strategy}: nothing would scale the loss. Use bf16.")
    if strategy == "deepspeed" and (stage := accelerator.state.deepspeed_plugin.zero_stage) not in (1, 2):
        raise InputError(f"zero_stage {stage} is not supported, only 1 and 2. Use --launch fsdp to shard weights.")
    for name, value in FSDP_SETTINGS.items() if strategy == "fsdp" else ():
        if (setting := os.environ.get(name)) != value:
            raise InputError(
                f"{name.lower()} {setting} is not supported, only {value}. Use recipes/accelerate/fsdp.yaml."
            )


def layer_classes(model: nn.Module) -> list[str]:
    """Class names of the layers in a backbone's deepest stack; FSDP shards them one by one.

    transformers names them in `_no_split_modules` for BERT and RoBERTa, but not for ELECTRA, RoFormer or DeBERTa.
    """
    stacks = [stack for stack in model.modules() if isinstance(stack, nn.ModuleList) and len(stack)]
    deepest = max(stacks, key=len, default=())
    return sorted({type(layer).__name__ for layer in deepest})


def in_bfloat16(forward: Callable, device: torch.device) -> Callable:
    """Wraps `forward` in autocast with float32 outputs, as accelerate does for a single GPU and for DDP."""
    return convert_outputs_to_fp32(torch.autocast(device.type, torch.bfloat16)(forward))


def load_state(model: nn.Module, state: dict[str, Tensor], strict: bool = True) -> None:
    """Loads full weights, which every rank has; with FSDP each keeps its shard.

    Args:
        strict: whether `state` must hold all weights of the model.
    """
    shares = dict(state)
    for name, shard in model.state_dict().items():
        if isinstance(shard, DTensor) and name in state:
            whole = state[name].to(shard.device)
            shares[name] = distribute_tensor(whole, shard.device_mesh, shard.placements, src_data_rank=None)
    model.load_state_dict(shares, strict=strict)
