"""The encoder that a training starts from: loading, room for its prompts, learning rate."""

import logging
from collections.abc import Sequence

from cosent.compute.packing import LOOKUP, max_tokens
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.folder import is_cross_encoder
from cosent.models.prompts import PromptArguments, Prompts, warn_of_other_prompts
from cosent.models.text_model import TextModel
from cosent.record import lineage, trained_on_pairs
from cosent.training.arguments import (
    LORA_RATE,
    OUR_LORA_RATE,
    OUR_RATE,
    OUR_TUNED_RATE,
    RATE,
    TABLE_RATE,
    ModelArguments,
    PairTrainingArguments,
)

logger = logging.getLogger(__name__)


def tower_of(encoder: TextModel) -> str:
    return "cross_encoder" if isinstance(encoder, CrossEncoder) else "bi_encoder"


def build_encoder(args: ModelArguments, classes: int, max_length: int, seed: int) -> SentenceEncoder | CrossEncoder:
    """Loads the encoder to train; `max_length` is a default, `classes` the logits of a cross-encoder."""
    other = {"pooling": args.pooling} if args.tower == "cross_encoder" else {}
    if args.tower == "bi_encoder" and args.segment_ids != "tokenizer":
        other = {"segment_ids": args.segment_ids}
    for flag, value in other.items():
        if value is not None:
            raise InputError(f"--{flag} does nothing for --tower {args.tower}, got {value}. Leave it out.")
    options = {"max_length": max_length if args.max_length is None else args.max_length, "dropout": args.dropout}
    options["seed"] = seed
    encoder: SentenceEncoder | CrossEncoder
    if args.tower == "cross_encoder":
        encoder = CrossEncoder.from_pretrained(args.model_name_or_path, classes, args.segment_ids, **options)
    else:
        encoder = SentenceEncoder.from_pretrained(args.model_name_or_path, args.pooling, **options)
    encoder.packing = args.packing
    return encoder


def make_room(encoder: TextModel, args: PromptArguments) -> None:
    """Adds the tokens of the longer prompt to the maximum length."""
    sides = encoder.prompts.sides(args.prompt, args.prompt_name)
    longer = encoder.max_length + max(map(encoder.count_tokens, sides))
    encoder.max_length = min(longer, max_tokens(encoder.backbone.config))


def trained_prompts(
    encoder: TextModel, prompt: str | Sequence[str] | None, prompt_name: str | Sequence[str] | None
) -> tuple[tuple[str, str], Prompts]:
    """The prompts of both sentences in a training, and the prompts of the model after it."""
    sides = encoder.prompts.sides(prompt, prompt_name)
    warn_of_other_prompts(encoder.backbone.config.name_or_path, encoder.prompts, *sides)
    return sides, encoder.prompts.trained_with(sides)


def choose_learning_rate(args: PairTrainingArguments, encoder: TextModel, lora: bool) -> None:
    """Sets the default learning rate of a start, unless one is set.

    Encoders that descend from a shipped one, or have random weights, get a higher one, at which others forget.
    """
    if args.learning_rate is not None:
        return
    start = encoder.backbone.config.name_or_path
    runs = lineage(start)
    tuned = trained_on_pairs(runs) and is_cross_encoder(start) == (tower_of(encoder) == "cross_encoder")
    if encoder.backbone.config.model_type == LOOKUP:
        rate, kind = TABLE_RATE, "a lookup table"
    elif not start or (runs and runs[-1].pretraining is not None):
        rate = OUR_LORA_RATE if lora else OUR_TUNED_RATE if tuned else OUR_RATE
        kind = "a shipped encoder trained on pairs" if tuned else "a shipped encoder"
    else:
        rate, kind = (LORA_RATE if lora else RATE), "an encoder from elsewhere"
    args.learning_rate = rate
    logger.info("--learning_rate %g: the default for %s%s", rate, kind, " with LoRA" if lora else "")
