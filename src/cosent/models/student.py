"""RoFormer-Sim: one small model that embeds sentences and generates similar ones (kexue.fm 8454 and 8541)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import DynamicCache, RoFormerForMaskedLM

from cosent.compute.onednn import onednn_linears
from cosent.compute.packing import pack, token_counts, unpack, worthwhile_plan
from cosent.data.files import normalized_text
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.embedding import as_texts, evaluating
from cosent.models.folder import CONFIG, read_json, submodule_state
from cosent.models.loading import load_config, load_seeded, quiet_transformers
from cosent.models.modules import LINEAR_CLS, Pooling


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


class Student(SentenceEncoder):
    """A RoFormer with a tied language-model head and pooling over the source.

    It reads `[CLS] source [SEP] target [SEP]` under UniLM's mask: the source never sees the target, so a sentence has
    the same vector with and without one. Saved as a `RoFormerForMaskedLM` with sentence-transformers' modules.
    """

    default_pooling = LINEAR_CLS

    def __init__(
        self, model: RoFormerForMaskedLM, tokenizer, pooling: Pooling, after_pooling: Iterable[nn.Module] = ()
    ):
        super().__init__(model.roformer, tokenizer, pooling, after_pooling)
        self.head = model.cls

    @classmethod
    def load_transformer(
        cls, path: str, seed: int, changes: dict[str, Any]
    ) -> tuple[RoFormerForMaskedLM, dict[str, torch.Tensor]]:
        """A student, a plain RoFormer, or a published RoFormer-Sim in its PyTorch form."""
        kind = load_config(path).model_type
        if kind != "roformer":
            raise InputError(
                f"{path} is a {kind} model, which only embeds. Generate with a student, e.g. similar-writer; to train "
                "others, add --generation false to distill."
            )
        is_student = (read_json(path, CONFIG) or {}).get("architectures") == ["RoFormerForMaskedLM"]
        return load_seeded(RoFormerForMaskedLM, path, seed, is_student, **changes)[0], {}

    def save_pretrained(self, folder: str | Path, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        """Writes backbone, language-model head and all else to one folder, see `SentenceEncoder.save_pretrained`."""
        state_dict = self.state_dict() if state_dict is None else state_dict
        with torch.device("meta"):
            model = RoFormerForMaskedLM(self.backbone.config)
        model.roformer, model.cls = self.backbone, self.head
        weights = {f"roformer.{name}": value for name, value in submodule_state(state_dict, "backbone.").items()}
        weights |= {f"cls.{name}": value for name, value in submodule_state(state_dict, "head.").items()}
        with quiet_transformers():
            model.save_pretrained(folder, state_dict=weights)
        self.save_around_backbone(folder, state_dict)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """Embeds sentences; with segment ids, 0 for a source and 1 for its target, also scores the targets.

        Returns:
            Vectors of shape `(sentences, hidden)`; with segment ids, `embeddings` of the sources, `target_losses`, the
            summed cross entropy of each target's tokens, [SEP] included, and `target_tokens`, their number, both
            float32 of shape `(sequences,)` and 0 without a target.
        """
        if token_type_ids is None:
            return super().forward(input_ids, attention_mask)
        hidden = self.unilm_states(input_ids, attention_mask, token_type_ids)  # (sequences, longest, hidden)
        logits, labels, sequence = self.predict_targets(hidden, input_ids, token_type_ids)
        each = cross_entropy(logits.float(), labels, reduction="none")  # (target tokens,)
        source = attention_mask * (token_type_ids == 0)
        nothing = each.new_zeros(len(input_ids))
        return {
            "embeddings": self.after_pooling(self.pooling(hidden, source[:, : hidden.shape[1]])).float(),
            "target_losses": nothing.index_add(0, sequence, each),
            "target_tokens": nothing.index_add(0, sequence, torch.ones_like(each)),
        }

    def predict_targets(
        self, hidden: torch.Tensor, input_ids: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Runs the head, half of the computation, only where `hidden` (see `unilm_states`) predicts a target token.

        Returns:
            Logits `(target tokens, vocabulary)`; the labels and the number of the sequence of each, `(target tokens,)`.
        """
        predicts = token_type_ids[:, 1:] == 1
        states = hidden[:, : predicts.shape[1]][predicts[:, : hidden.shape[1]]]  # (target tokens, hidden)
        return self.head(states), input_ids[:, 1:][predicts], predicts.nonzero()[:, 0]

    def unilm_states(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        """Token vectors of `[CLS] source [SEP] target [SEP]` sequences, shape `(sequences, longest, hidden)`.

        Packed into shared rows where that saves enough; where `attention_mask` is 0 the values are arbitrary.
        """
        tensors = {"input_ids": input_ids, "token_type_ids": token_type_ids}
        segments, slots = attention_mask, None
        config = self.backbone.config
        if self.packing:
            lengths = token_counts(attention_mask)
            width = max(config.max_position_embeddings, int(lengths.max()))
            plan = worthwhile_plan(lengths, input_ids.shape[1], config.hidden_size, width)
            if plan is not None:
                packed = pack(tensors, plan)
                tensors, segments, slots = packed.tensors, packed.segments, packed.slots
        kind: str = self.backbone.device.type  # the mask is added to attention scores, and has their dtype
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.backbone.dtype
        mask = unilm_mask(segments, tensors["token_type_ids"], dtype)
        hidden = self.backbone(**tensors, attention_mask=mask).last_hidden_state
        return hidden if slots is None else unpack(hidden, slots)

    def similar_sentences(self, texts: str | list[str], keep: int = 20, **sampling: Any) -> Any:
        """Generates sentences similar to each text: samples, drops repetitions and the text itself, ranks by cosine.

        A text's candidates depend only on the text and the seed, not on the rest of `texts`.

        Args:
            keep: the most sentences to return per text.
            sampling: fields of `Sampling`: `num_samples`, `top_p`, `top_k`, `temperature`, `max_length`, `seed`.

        Returns:
            By text, at most `keep` pairs `(sentence, cosine to the text)`, most similar first; possibly none. For one
            string the pairs of that one.
        """
        if keep < 1:
            raise InputError(f"keep must be at least 1 sentence, got {keep}.")
        settings, sentences = Sampling(**sampling), as_texts(texts)
        with evaluating(self), onednn_linears(self, reorder=True):
            targets = [write_targets(self, source, settings) for source in self.token_ids(sentences)]
        samples = [self.tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in targets]
        ranked = [self.rank(*both, keep) for both in zip(sentences, samples, strict=True)]
        return ranked[0] if isinstance(texts, str) else ranked

    def rank(self, text: str, samples: list[str], keep: int) -> list[tuple[str, float]]:
        """The `keep` pairs `(sentence, cosine)` of the distinct samples, the highest cosines first."""
        sentences = distinct(text, samples)
        vectors = self.encode([text, *sentences], normalize_embeddings=True)
        scores = vectors[1:] @ vectors[0]
        best = np.argsort(-scores, kind="stable")[:keep]
        return [(sentences[place], float(scores[place])) for place in best]


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
    top_k: int = 1024
    temperature: float = 1.0
    max_length: int = 64
    seed: int = 42

    def __post_init__(self):
        if min(self.num_samples, self.max_length, self.top_k) < 1 or not 0 < self.top_p <= 1 or self.temperature <= 0:
            raise InputError(
                f"num_samples, max_length and top_k must be at least 1, temperature and top_p above 0, top_p at most "
                f"1, got {self}."
            )

    def uniform(self) -> torch.Tensor:
        """Random numbers of shape `(num_samples, max_length)`, the same for every source."""
        return torch.rand(self.num_samples, self.max_length, generator=torch.Generator().manual_seed(self.seed))


@torch.inference_mode()
def write_targets(student: Student, source: list[int], sampling: Sampling) -> list[list[int]]:
    """Samples targets of a source `[CLS] ... [SEP]`: the token ids of those that ended within the limit, without [SEP].

    Samples share a row of the batch as long as their tokens are equal, so a common prefix is computed once.
    """
    longest, positions = len(source) + sampling.max_length, student.backbone.config.max_position_embeddings
    if longest > positions:
        raise InputError(
            f"A source of {len(source)} tokens and max_length {sampling.max_length} need {longest} positions, but this "
            f"model has {positions}. Lower one."
        )
    end, device, cache = student.tokenizer.sep_token_id, student.device, DynamicCache()
    hidden = student.backbone(torch.tensor([source], device=device), past_key_values=cache).last_hidden_state
    uniform = sampling.uniform().to(device)
    tokens = torch.zeros(uniform.shape, dtype=torch.long, device=device)
    lengths = torch.full((len(uniform),), -1, device=device)  # -1 for a sample that has not ended
    going = torch.arange(len(uniform), device=device)  # the samples that are still being written
    rows = torch.zeros_like(going)  # by sample, the row of the batch that holds its prefix
    banned = unwritable(student.tokenizer, student.backbone.config.vocab_size).to(device)
    for step in range(sampling.max_length):
        logits = student.head(hidden[:, -1])  # (rows, vocabulary)
        logits.masked_fill_(banned, -torch.inf)
        options = sampling.top_p, sampling.top_k, sampling.temperature
        drawn = sample_tokens(logits, uniform[going, step], rows, *options)
        tokens[going, step] = drawn
        lengths[going[drawn == end]] = step
        more = drawn != end
        going, rows, drawn = going[more], rows[more], drawn[more]
        if not len(going) or step + 1 == sampling.max_length:
            break
        prefixes, rows = torch.unique(rows * len(banned) + drawn, return_inverse=True)
        cache.batch_select_indices(prefixes // len(banned))
        ids = (prefixes % len(banned))[:, None]
        hidden = student.backbone(ids, token_type_ids=torch.ones_like(ids), past_key_values=cache).last_hidden_state
    return [row[:length] for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True) if length >= 0]


def unwritable(tokenizer, vocabulary: int) -> torch.Tensor:
    """Tokens that are never generated: special ones except [SEP], and places of the vocabulary without a token."""
    banned = torch.arange(vocabulary) >= len(tokenizer)
    banned[[index for index in tokenizer.all_special_ids if index != tokenizer.sep_token_id]] = True
    return banned


def sample_tokens(
    logits: torch.Tensor,
    uniform: torch.Tensor,
    rows: torch.Tensor,
    top_p: float = 0.95,
    top_k: int = 1024,
    temperature: float = 1.0,
) -> torch.Tensor:
    """Draws from the most likely tokens of a row by inverse transform sampling.

    Keeps the `top_k` most likely tokens, and of those the fewest that together reach the probability `top_p`, at least
    one. Logits are divided by `temperature` first.

    Args:
        logits: shape `(rows, vocabulary)`; -inf for tokens that must not be drawn.
        uniform: shape `(draws,)`, random numbers in [0, 1), the only randomness of each draw.
        rows: shape `(draws,)`, the row that each draw is from.

    Returns:
        int64 of shape `(draws,)`.
    """
    probabilities = (logits.float() / temperature).softmax(dim=-1)  # (rows, vocabulary)
    values, tokens = probabilities.topk(min(top_k, logits.shape[1]), dim=-1)  # (rows, top_k), falling
    cumulative = values.cumsum(dim=-1)
    last = (cumulative - values < top_p).sum(dim=-1, keepdim=True) - 1  # (rows, 1), at least 0
    total = cumulative.gather(1, last)  # (rows, 1), probability of the kept tokens
    place = torch.searchsorted(cumulative[rows], uniform[:, None] * total[rows], right=True)
    return tokens[rows].gather(1, torch.minimum(place, last[rows])).squeeze(1)


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
