"""Gradient caching: the exact gradient of a large batch in the memory of a small one, for one more forward pass.

1. Every part of the batch runs forward without a graph, and the last one with its graph. Of the others, only the
   tensors that the loss reads are kept: a few numbers per pair.
2. The loss of all parts together is differentiated with respect to the kept tensors: these gradients are the cache.
3. The last part runs backward from its cached gradients; then every other part runs forward again, with a graph and the
   same dropout masks, and backward. A batch of a single part thus costs nothing more than a plain one.

Source: https://arxiv.org/abs/2101.06983 (there for contrastive losses; exact for any loss of the kept tensors).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def backward_in_parts(
    forward: Callable[[Mapping[str, Tensor]], dict[str, Tensor]],
    parts: Sequence[Mapping[str, Tensor]],
    loss: Callable[[dict[str, Tensor]], Tensor],
    backward: Callable[[Tensor], None] = Tensor.backward,
    without_sync: Callable[[], AbstractContextManager] = nullcontext,
) -> Tensor:
    """Backpropagates `loss(forward(full batch))` with the graph of only one part in memory at a time.

    With dropout, the result equals running the same parts with all graphs kept: every part draws its masks once. The
    random state ends as it does after one pass over the parts.

    Args:
        forward: a part -> tensors by name, `(rows of the part, ...)` each. Called twice per part, so nothing but the
            random state may differ between the calls. In DistributedDataParallel it must call the wrapped model.
        loss: those tensors of all parts, concatenated -> scalar.
        backward: a scalar -> backward, e.g. `accelerator.backward`.
        without_sync: context for all parts but the one that runs backward last, e.g. the `no_sync` of
            DistributedDataParallel.

    Returns:
        The loss, detached.
    """
    *others, last = parts
    alone = without_sync if others else nullcontext
    states, outputs = [], []
    with torch.no_grad():
        for part in others:
            states.append(random_state())
            outputs.append(forward(part))
    with alone():
        with_graph = forward(last)
    after = random_state()
    outputs.append({name: tensor.detach() for name, tensor in with_graph.items()})

    leaves = {name: torch.cat([tensors[name] for tensors in outputs]).requires_grad_() for name in outputs[0]}
    value = loss(leaves)
    gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    rows = [len(next(iter(tensors.values()))) for tensors in outputs]
    read = [name for name, gradient in zip(leaves, gradients, strict=True) if gradient is not None]
    split = zip(*(gradient.split(rows) for gradient in gradients if gradient is not None), strict=True)
    *cached, cached_last = [dict(zip(read, pieces, strict=True)) for pieces in split]

    with alone():
        backward(product(with_graph, cached_last))
    for number, (part, state, gradient) in enumerate(zip(others, states, cached, strict=True), start=1):
        with without_sync() if number < len(others) else nullcontext():
            set_random_state(state)
            backward(product(forward(part), gradient))
    set_random_state(after)
    return value.detach()


def product(tensors: dict[str, Tensor], gradients: dict[str, Tensor]) -> Tensor:
    """Scalar with a given gradient with respect to each tensor."""
    return torch.stack([(tensors[name] * gradient).sum() for name, gradient in gradients.items()]).sum()


def random_state() -> tuple[Tensor, Tensor | None]:
    """States of the generators that dropout draws from: the CPU's, and the accelerator's where there is one."""
    return torch.get_rng_state(), accelerator().get_rng_state() if torch.accelerator.is_available() else None


def set_random_state(state: tuple[Tensor, Tensor | None]) -> None:
    cpu, device = state
    torch.set_rng_state(cpu)
    if device is not None:
        accelerator().set_rng_state(device)


def accelerator():
    """Module of this machine's accelerator, e.g. `torch.cuda`."""
    return torch.get_device_module(torch.accelerator.current_accelerator())


def split_batch(inputs: Mapping[str, Tensor], rows: int) -> list[dict[str, Tensor]]:
    """Cuts a padded batch into parts of at most `rows` rows, each padded to its own longest sequence.

    Args:
        inputs: dim 0 is the row. `attention_mask` and the tensors of its shape end in tokens, padded on the right.
    """
    mask = inputs["attention_mask"]
    longest = mask.sum(dim=-1).reshape(len(mask), -1).amax(dim=1)  # (batch,), tokens
    widths = [int(part.max()) for part in longest.cpu().split(rows)]
    parts: list[dict[str, Tensor]] = [{} for _ in widths]
    for name, tensor in inputs.items():
        for part, piece, width in zip(parts, tensor.split(rows), widths, strict=True):
            part[name] = piece[..., :width] if tensor.shape == mask.shape else piece
    return parts
