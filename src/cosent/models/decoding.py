"""Generation by a student: UniLM's attention mask, batched sampling with a KV cache, and ranking of the samples.

Samples of one source share a row of the batch as long as their tokens are equal, so the states of a common prefix are
computed once. Candidates of a good student are near copies, so most of them share most of their computation.
"""

import re
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from transformers import DynamicCache

from cosent.compute.onednn import onednn_linears
from cosent.compute.state import evaluating
from cosent.data.files import normalized_text
from cosent.errors import InputError

CACHE_BYTES = {"cpu": 2**30, "cuda": 2**33}  # limit for the keys and values of all samples of a batch
# Number of most likely tokens to try first, as most draws are among them: sorting all 6,000 costs 14 times as much as
# finding the top 64.
TOKENS_TRIED = (64, 1024)
ROUNDING = 1e-6  # relative, of a cumulative probability


def unilm_mask(segments: torch.Tensor, token_type_ids: torch.Tensor, dtype: torch.dtype = torch.float32):
    """Additive attention mask of `[CLS] source [SEP] target [SEP]`, one or several such sequences in a row.

    A source token sees the source of its sequence, a target token also the targets up to itself. Empty places see each
    other, so that no softmax is empty. RoFormer adds the mask as it is: a boolean or 0-1 mask would reveal the future.

    Args:
        segments: shape `(rows, width)`, the number of the sequence from 1, 0 where a row has no token.
        token_type_ids: same shape, 0 for source (and empty places), 1 for target.

    Returns:
        `torch.Tensor` of shape `(rows, 1, width, width)`: 0 where a query (row) sees a key (column), else `finfo.min`.

    Source: https://arxiv.org/abs/1905.03197, section 2.3.
    """
    same = segments[:, :, None] == segments[:, None, :]
    place = torch.arange(segments.shape[1], device=segments.device)
    past = place[None, :] <= place[:, None]  # (width, width)
    sees_source = (token_type_ids == 0)[:, None, :]
    sees_past = (token_type_ids == 1)[:, :, None] & past
    seen = (same & (sees_source | sees_past))[:, None]
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters.

    Args:
        num_samples: sentences drawn per text, before repetitions are dropped.
        top_p, top_k, temperature: see `sample_tokens`.
        max_length: tokens of a generated sentence; one that has not ended by then is dropped.
    """

    num_samples: int = 100
    top_p: float = 0.95
    top_k: int | None = None
    temperature: float = 1.0
    max_length: int = 64
    seed: int = 42

    def __post_init__(self):
        counts = self.num_samples, self.max_length, 1 if self.top_k is None else self.top_k
        if min(counts) < 1 or not 0 < self.top_p <= 1 or self.temperature <= 0:
            raise InputError(
                f"num_samples, max_length and top_k must be at least 1, temperature and top_p above 0, top_p at most "
                f"1, got {self}."
            )

    def uniform(self) -> torch.Tensor:
        """Random numbers of shape `(num_samples, max_length)`, the same for every source."""
        return torch.rand(self.num_samples, self.max_length, generator=torch.Generator().manual_seed(self.seed))


@torch.inference_mode()
def write_targets(student: nn.Module, sources: list[list[int]], sampling: Sampling) -> list[list[list[int]]]:
    """Samples `num_samples` targets for every source, token ids `[CLS] ... [SEP]`, in evaluation mode.

    Returns:
        By source, the token ids of the targets that ended within the limit, without [SEP].
    """
    longest = max(map(len, sources), default=0) + sampling.max_length
    if longest > student.backbone.config.max_position_embeddings:
        raise InputError(
            f"Sources of up to {longest - sampling.max_length} tokens and max_length {sampling.max_length} need "
            f"{longest} positions, but this model has {student.backbone.config.max_position_embeddings}. Lower one."
        )
    config = student.backbone.config
    written: list[list[tuple[str, float]]] = [[] for _ in sources]
    sample_bytes = 2 * config.num_hidden_layers * longest * config.hidden_size * student.backbone.dtype.itemsize
    room = CACHE_BYTES.get(student.backbone.device.type, CACHE_BYTES["cuda"])
    at_once = max(1, room // (sampling.num_samples * sample_bytes))  # sources, if no prefix were shared
    order = np.argsort([-len(source) for source in sources], kind="stable")  # sources of similar length together
    with evaluating(student), onednn_linears(student, reorder=True):
        for start in range(0, len(sources), at_once):
            batch = order[start : start + at_once]
            targets = _write(student, [sources[index] for index in batch], sampling)
            for index, group in zip(batch, targets, strict=True):
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
        logits = logits.masked_fill_(banned, -torch.inf)
        options = sampling.top_p, sampling.top_k, sampling.temperature
        drawn = sample_tokens(logits, uniform[going, step], *options, rows)
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
    written: list[list] = [[] for _ in sources]
    for sample, (row, length) in enumerate(zip(tokens.tolist(), lengths.tolist(), strict=True)):
        if length >= 0:
            written[sample // samples].append(row[:length])
    return written


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
    """States `(rows, hidden)` after one more target token each; the cache grows by it, `visible` has grown before."""
    ids = tokens[:, None]
    inputs = {"input_ids": ids, "token_type_ids": torch.ones_like(ids), "attention_mask": visible[:, None, None]}
    return student.backbone(**inputs, past_key_values=cache).last_hidden_state[:, 0]


def unwritable(tokenizer, vocabulary: int) -> torch.Tensor:
    """Tokens that are never generated: special ones except [SEP], and places of the vocabulary without a token."""
    banned = torch.arange(vocabulary) >= len(tokenizer)
    banned[[index for index in tokenizer.all_special_ids if index != tokenizer.sep_token_id]] = True
    return banned


def sample_tokens(
    logits: torch.Tensor,
    uniform: torch.Tensor,
    top_p: float = 0.95,
    top_k: int | None = None,
    temperature: float = 1.0,
    rows: torch.Tensor | None = None,
) -> torch.Tensor:
    """Draws from the most likely tokens of a row by inverse transform sampling.

    Keeps the `top_k` most likely tokens, and of those the fewest that together reach the probability `top_p`, at least
    one. Logits are divided by `temperature` first.

    Args:
        logits: shape `(rows, vocabulary)`; -inf for tokens that must not be drawn.
        uniform: shape `(draws,)`, random numbers in [0, 1), the only randomness of each draw.
        rows: shape `(draws,)`, the row that each draw is from, every row at least once; default: one draw per row.

    Returns:
        int64 of shape `(draws,)`.
    """
    probabilities = (logits.float() / temperature).softmax(dim=-1)  # (rows, vocabulary)
    vocabulary = probabilities.shape[-1]
    most = vocabulary if top_k is None else min(top_k, vocabulary)
    rows = torch.arange(len(logits), device=logits.device) if rows is None else rows
    drawn = torch.empty_like(rows)
    draws = torch.arange(len(rows), device=rows.device)  # draws without a token so far
    for count in (*(count for count in TOKENS_TRIED if count < most), most):
        values, tokens = probabilities.topk(count, dim=-1)  # (rows, count), falling
        cumulative = values.cumsum(dim=-1)
        last = (cumulative - values < top_p).sum(dim=-1) - 1  # (rows,), at least 0: the first has nothing before it
        low = high = cumulative.gather(1, last[:, None]).squeeze(1)  # (rows,), total probability of the kept tokens
        whole = (cumulative[:, -1] >= top_p) | (count == most)
        # If the nucleus continues beyond these tokens, its total lies between `low` and `high`, which differ by at most
        # one token's probability. A draw u is decided if u * low and u * high hit the same token; others need more.
        low = low.where(whole, (top_p if most == vocabulary else low) * (1 - ROUNDING))
        high = high.where(whole, (top_p + values[:, -1]) * (1 + ROUNDING))
        candidates = cumulative[rows]  # (draws, count)
        place, other = (
            torch.searchsorted(candidates, (uniform[draws] * bound[rows])[:, None], right=True).squeeze(1)
            for bound in (low, high)
        )
        drawn[draws] = tokens[rows, torch.minimum(place, last[rows])]
        more = ~whole[rows] & ((place != other) | (other == count))
        if not more.any():
            break
        needed, rows = rows[more].unique(return_inverse=True)
        draws, probabilities = draws[more], probabilities[needed]
    return drawn


def rank_candidates(
    encoder: nn.Module, texts: list[str], candidates: list[list[str]], keep: int
) -> list[list[tuple[str, float]]]:
    """By text, the `keep` pairs `(sentence, cosine)` of its distinct candidates, the highest cosines first."""
    groups = [distinct(text, sentences) for text, sentences in zip(texts, candidates, strict=True)]
    vectors = encoder.encode(
        [*texts, *(sentence for sentences in groups for sentence in sentences)], normalize_embeddings=True
    )
    ranked, start = [], len(texts)
    for index, sentences in enumerate(groups):
        scores = vectors[start : start + len(sentences)] @ vectors[index]
        start += len(sentences)
        best = np.argsort(-scores, kind="stable")[:keep]
        ranked.append([(sentences[place], float(scores[place])) for place in best])
    return ranked


def distinct(text: str, sentences: list[str]) -> list[str]:
    """Drops candidates equal to the text or to one another in `normalized_text`; removes a tokenizer's spaces."""
    source = normalized_text(text)
    candidates: dict[str, str] = {}
    for sentence in sentences:
        form = normalized_text(sentence)
        if form and form != source:
            candidates.setdefault(form, remove_token_spaces(sentence))
    return list(candidates.values())


def remove_token_spaces(sentence: str) -> str:
    """Removes the spaces that a tokenizer's decoder puts between characters; those between Latin words stay."""
    return re.sub("(?<![A-Za-z0-9]) | (?![A-Za-z0-9])", "", sentence.strip())
