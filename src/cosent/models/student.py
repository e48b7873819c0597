"""RoFormer-Sim: one small model that embeds sentences and generates similar ones (kexue.fm 8454 and 8541)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import RoFormerForMaskedLM

from cosent.compute.packing import pack, token_counts, unpack, worthwhile_plan
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.decoding import Sampling, rank_candidates, unilm_mask, write_targets
from cosent.models.embedding import as_texts
from cosent.models.folder import CONFIG, read_json, submodule_state
from cosent.models.loading import load_config, load_seeded, quiet_transformers
from cosent.models.modules import LINEAR_CLS, Pooling


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

    def similar_sentences(
        self,
        texts: str | list[str],
        keep: int = 20,
        **sampling: Any,
    ) -> Any:
        """Generates sentences similar to each text: samples, drops repetitions and the text itself, ranks by cosine.

        Apart from rounding, a text's candidates depend only on the text and the seed, not on the rest of `texts`.

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
        written = write_targets(self, self.token_ids(sentences), settings)
        candidates = [self.tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in written]
        ranked = rank_candidates(self, sentences, candidates, keep)
        return ranked[0] if isinstance(texts, str) else ranked
