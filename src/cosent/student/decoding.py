"""Batched sampling with a KV cache: one pass over the sources, then a token per step.

Samples of one source share a row of the batch as long as their tokens are equal, so the states of a common prefix are
computed once. Candidates of a good student are near copies, so most of them share most of their computation.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from transformers import DynamicCache

from cosent.compute.contexts import evaluating
from cosent.compute.onednn import onednn_linears
from cosent.errors import InputError
from cosent.student.attention_mask import unilm_mask
from cosent.student.sampling import sample_tokens

CACHE_BYTES = {"cpu": 2**30, "cuda": 2**33}  # limit for the keys and values of all samples of a batch


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters; see `Student.similar_sentences`."""

    num_samples: int = 100
    top_p: float = 0.95
    top_k: int | None = None
    temperature: float = 1.0
    max_length: int = 64
    seed: int = 42

    def __post_init__(self):
        checks = {
            "num_samples": (self.num_samples >= 1, "at least 1"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "top_k": (self.top_k is None or self.top_k >= 1, "at least 1, or None for no limit"),
            "temperature": (self.temperature > 0, "above 0 (a small one for nearly greedy sampling)"),
            "max_length": (self.max_length >= 1, "at least 1 token"),
        }
        for name, (fine, expected) in checks.items():
            if not fine:
                raise InputError(f"{name} must be {expected}, got {getattr(self, name)}.")

    def uniform(self) -> torch.Tensor:
        """Random numbers of shape `(num_samples, max_length)`, the same for every source."""
        return torch.rand(self.num_samples, self.max_length, generator=torch.Generator().manual_seed(self.seed))


@torch.inference_mode()
def write_targets(student: nn.Module, sources: list[list[int]], sampling: Sampling) -> list[list[list[int]]]:
    """Samples `num_samples` targets for every source, in evaluation mode.

    Args:
        student: has `backbone` (a RoFormer), `head` and `tokenizer`.
        sources: token ids `[CLS] ... [SEP]` of each source.

    Returns:
        By source, the token ids of the targets that ended within the limit, without [SEP].
    """
    longest = max(map(len, sources), default=0) + sampling.max_length
    if longest > student.backbone.config.max_position_embeddings:
        raise InputError(
            f"Sources of up to {longest - sampling.max_length} tokens and max_length {sampling.max_length} need "
            f"{longest} positions, but this model has {student.backbone.config.max_position_embeddings}. Lower one."
        )
    written = [[] for _ in sources]
    device = student.backbone.device
    config = student.backbone.config
    sample_bytes = 2 * config.num_hidden_layers * longest * config.hidden_size * student.backbone.dtype.itemsize
    room = CACHE_BYTES.get(device.type, CACHE_BYTES["cuda"])
    at_once = max(1, room // (sampling.num_samples * sample_bytes))  # sources, if no prefix were shared
    order = np.argsort([-len(source) for source in sources], kind="stable")  # sources of similar length together
    with evaluating(student), onednn_linears(student, reorder=True):
        for start in range(0, len(sources), at_once):
            chosen = order[start : start + at_once]
            targets = _write(student, [sources[index] for index in chosen], sampling)
            for index, group in zip(chosen, targets, strict=True):
                written[index] = group
    return written


def _write(student: nn.Module, sources: list[list[int]], sampling: Sampling) -> list[list[list[int]]]:
    """As `write_targets`, for the sources of a single batch."""
    samples, end, device = sampling.num_samples, student.tokenizer.sep_token_id, student.backbone.device
    uniform = sampling.uniform().to(device).repeat(len(sources), 1)  # (sources * samples, max_length)
    states, cache, visible = read_sources(student, sources)
    logits = student.head(states)
    banned = unwritable(student.tokenizer, logits.shape[-1]).to(device)
    tokens = torch.zeros(uniform.shape, dtype=torch.long, device=device)
    lengths = torch.full((len(uniform),), -1, device=device)  # -1 for a sample that has not ended
    going = torch.arange(len(uniform), device=device)  # the samples that are still being written
    rows = going // samples  # by sample, the row of the batch that holds its prefix
    for step in range(sampling.max_length):
        drawn = sample_tokens(
            logits.masked_fill_(banned, -torch.inf),
            uniform[going, step],
            sampling.top_p,
            sampling.top_k,
            sampling.temperature,
            rows,
        )
        tokens[going, step] = drawn
        lengths[going[drawn == end]] = step
        more = drawn != end
        going, rows, drawn = going[more], rows[more], drawn[more]
        if not len(going) or step + 1 == sampling.max_length:
            break
        prefixes, rows = torch.unique(rows * len(banned) + drawn, return_inverse=True)
        parents, drawn = prefixes // len(banned), prefixes % len(banned)
        if not torch.equal(parents, torch.arange(len(visible), device=device)):
            cache.batch_select_indices(parents)
        visible = torch.nn.functional.pad(visible[parents], (0, 1), value=0.0)
        logits = student.head(next_states(student, drawn, cache, visible))
    targets = [row[:length] if length >= 0 else None
               for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]  # fmt: skip
    groups = [targets[start : start + samples] for start in range(0, len(targets), samples)]
    return [[target for target in group if target is not None] for group in groups]


def read_sources(student: nn.Module, sources: list[list[int]]) -> tuple[torch.Tensor, DynamicCache, torch.Tensor]:
    """Runs the backbone over sources, padded on the left, so that all targets start in one column.

    Returns:
        The state of each source's [SEP], which predicts the first token, `(sources, hidden)`; the cache; and the
        additive attention mask of the targets for each place, `(sources, longest)`, 0 or `finfo.min`.
    """
    backbone, longest = student.backbone, max(map(len, sources))
    padding = student.tokenizer.pad_token_id
    ids = torch.tensor([[padding] * (longest - len(source)) + source for source in sources], device=backbone.device)
    segments = torch.tensor([[0] * (longest - len(source)) + [1] * len(source) for source in sources])
    segments = segments.to(backbone.device)
    mask = unilm_mask(segments, torch.zeros_like(ids), backbone.dtype)
    cache = DynamicCache()
    states = backbone(input_ids=ids, attention_mask=mask, past_key_values=cache).last_hidden_state
    return states[:, -1], cache, mask[:, 0, -1]


def next_states(student: nn.Module, tokens: torch.Tensor, cache: DynamicCache, visible: torch.Tensor) -> torch.Tensor:
    """States `(rows, hidden)` after one more target token each; the cache grows by that token.

    Args:
        tokens: shape `(rows,)`.
        visible: shape `(rows, places)`, see `read_sources`, the new token's place included.
    """
    ids = tokens[:, None]
    states = student.backbone(
        input_ids=ids,
        token_type_ids=torch.ones_like(ids),
        attention_mask=visible[:, None, None],
        past_key_values=cache,
    ).last_hidden_state
    return states[:, 0]


def unwritable(tokenizer, vocabulary: int) -> torch.Tensor:
    """Tokens that are never generated: special ones except [SEP], and places of the vocabulary without a token."""
    banned = torch.arange(vocabulary) >= len(tokenizer)
    banned[[index for index in tokenizer.all_special_ids if index != tokenizer.sep_token_id]] = True
    return banned
