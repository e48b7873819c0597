"""The cross-encoder: a transformers sequence classifier that reads both sentences of a pair in one sequence."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm
from transformers import AutoModelForSequenceClassification

from cosent.compute.packed_backbone import flash_precision, packed_forward, packing_obstacle, warn_of_padding
from cosent.data.prefix import Prefix, Prefixes
from cosent.data.tokenization import warn_truncated
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.inference.scoring import score_pairs
from cosent.modeling.class_names import name_classes, name_two_classes, scored_classes
from cosent.modeling.decoder_pairs import find_last_token, padded_on_the_left, reads_last_place, reads_last_token
from cosent.modeling.foreign_code import load_config
from cosent.modeling.heads import classifier_heads, keep_in_full_precision, logits_of_tokens, patterns_of_heads
from cosent.modeling.loading import (
    dropout_changes,
    load_seeded,
    load_tokenizer,
    missing_models,
    quiet_transformers,
)
from cosent.modeling.prompts import CROSS_ENCODER, Prompts
from cosent.modeling.saved_folder import is_cross_encoder, remove_modules, submodule_state
from cosent.modeling.server_keys import add_server_keys
from cosent.modeling.tail import IDENTITY
from cosent.modeling.text_model import TextModel
from cosent.modeling.trial import check_architecture

logger = logging.getLogger(__name__)

WITHOUT_SEGMENTS = ["input_ids", "attention_mask"]


class CrossEncoder(TextModel):
    """Pair scoring model: a sequence classifier and its tokenizer.

    The score is the logit of a model with a single one; otherwise the logit of the similar class minus that of the
    dissimilar one (`class_names.scored_classes`): `logit 1 - logit 0` of a binary classifier, `entailment -
    contradiction` of one for NLI, in whatever order it has them. sentence-transformers' `CrossEncoder` loads the saved
    folder and computes the same logits.

    Args:
        model: an `AutoModelForSequenceClassification`.
    """

    def __init__(self, model: nn.Module, tokenizer):
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        name_two_classes(model.config)
        for head in classifier_heads(model).values():
            keep_in_full_precision(head)

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        num_labels: int | None = None,
        segment_ids: str = "tokenizer",
        max_length: int | None = None,
        dropout: float | None = None,
        seed: int = 42,
        attn_implementation: str | None = None,
        quantization_config=None,
        device: str | torch.device | None = None,
    ) -> "CrossEncoder":
        """Loads a classifier in float32, or a backbone with a fresh head.

        Args:
            num_labels: number of logits, for training; default: that of the folder. A head of another size is
                replaced, and classes are named in the order of the labels (`class_names.name_classes`).
            segment_ids: `tokenizer`: those of the tokenizer (all 0 if it was saved that way); `zero`: all 0, in
                training, here and wherever the saved folder is served.
            The others: see `TextModel`.

        Raises:
            InputError: no model there.
        """
        path = resolve(model_name_or_path)
        with missing_models(model_name_or_path):
            config = load_config(path)
            changes = dropout_changes(path, dropout, head=True)
        changes |= {"attn_implementation": attn_implementation, "quantization_config": quantization_config}
        if quantization_config is not None:
            quantization_config.llm_int8_skip_modules = patterns_of_heads(config)
        has_head = is_cross_encoder(path) and num_labels in (None, config.num_labels)
        if num_labels is not None:
            if is_cross_encoder(path) and not has_head:
                logger.warning("%s has no head of %d logit(s): a new one starts from seed %d.", path, num_labels, seed)
            changes |= {"num_labels": num_labels, "ignore_mismatched_sizes": True}
        elif not has_head:
            logger.warning("%s holds no cross-encoder: the head is new, and scores mean nothing until trained.", path)
        with missing_models(model_name_or_path):
            model = load_seeded(AutoModelForSequenceClassification, path, seed, **changes)
            options = {} if segment_ids == "tokenizer" else {"model_input_names": WITHOUT_SEGMENTS}
            if reads_last_place(config):
                options |= {"padding_side": "left"}  # saved with the folder, for those who serve it
            tokenizer = load_tokenizer(path, **options)
        if num_labels is not None:
            name_classes(model.config, path)
        if reads_last_token(model):
            find_last_token(model.config, tokenizer, fresh=not has_head)
        check_architecture(model.base_model, tokenizer)
        encoder = cls(model, tokenizer)
        encoder.prompts = Prompts.read(path, CROSS_ENCODER)
        if max_length is not None:
            encoder.max_length = max_length
        return encoder.to(device=device)

    @property
    def backbone(self) -> nn.Module:
        return self.model.base_model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Scores pairs.

        Args:
            input_ids, attention_mask, token_type_ids (`torch.Tensor` of shape `(batch, tokens)`): padded on the right;
                without segment ids, all are 0.

        Returns:
            In float32: `logits` of shape `(batch, classes)` and `scores` of shape `(batch,)`.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        obstacle = packing_obstacle(self.model.config) if self.packing else None
        if self.packing and obstacle is None:
            logits = logits_of_tokens(self.model, packed_forward(self.backbone, inputs), inputs)
        else:
            if obstacle is not None:
                warn_of_padding(self.model.config.model_type, obstacle)
            if reads_last_place(self.model.config):
                inputs = padded_on_the_left(inputs)
            with flash_precision(self.backbone):
                logits = self.model(**inputs).logits
        logits = logits.float()
        similar, dissimilar = scored_classes(self.model.config.id2label)
        scores = logits[:, similar] if dissimilar is None else logits[:, similar] - logits[:, dissimilar]
        return {"logits": logits, "scores": scores}

    def prefixes(
        self, prompt: str | Sequence[str] | None = None, prompt_name: str | Sequence[str] | None = None
    ) -> Prefixes:
        """The prompt of a pair, which stands in front of its first sentence, as in sentence-transformers.

        Raises:
            InputError: two that differ.
        """
        first, second = self.prompts.sides(prompt, prompt_name)
        if first != second:
            raise InputError(
                f"A cross-encoder reads a pair in one sequence, with one prompt in front, got {first!r} and "
                f"{second!r}: no server could repeat that. Pass one prompt."
            )
        return self.prefix(first), Prefix()

    def pair_scores(
        self,
        sentences1: list[str],
        sentences2: list[str],
        sides: tuple[str, str],
        batch_size: int = 512,
        show_progress_bar: bool = False,
    ) -> np.ndarray:
        """The logit of each pair, or of two logits the difference."""
        prefixes = self.prefixes(sides)
        with tqdm(total=len(sentences1), unit="pair", disable=not show_progress_bar) as progress:
            scores, truncated = score_pairs(self, sentences1, sentences2, batch_size, progress.update, prefixes)
        warn_truncated(truncated, len(scores), "pairs", self.max_length)
        return scores

    def save_pretrained(self, folder: str | Path, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        """Writes classifier and tokenizer; transformers and sentence-transformers load the folder.

        Args:
            state_dict: this module's weights, if gathered from shards; default: its own.
        """
        state_dict = self.state_dict() if state_dict is None else state_dict
        # Otherwise sentence-transformers applies a sigmoid to a single logit, which makes 23 and 40 equal.
        self.model.config.sentence_transformers = {"activation_fn": IDENTITY}
        add_server_keys(self.model.config)
        with quiet_transformers():
            self.model.save_pretrained(folder, state_dict=submodule_state(state_dict, "model."))
        self.save_tokenizer(folder)
        remove_modules(folder)
        self.prompts.save_for_classifier(folder)

    def saved_state(self, folder: str | Path) -> dict[str, torch.Tensor]:
        """The weights that `save_pretrained` wrote to `folder`, as `load_state_dict` takes them.

        Raises:
            InputError: a model of another kind.
        """
        saved = CrossEncoder.from_pretrained(str(folder)) if is_cross_encoder(str(folder)) else None
        classes = self.model.config.num_labels
        if saved is None or saved.model.config.num_labels != classes:
            raise InputError(
                f"{folder} was saved by a run of another kind, not by a cross-encoder of {classes} logit(s). Resume "
                "with the recipe it was started with."
            )
        return saved.state_dict()
