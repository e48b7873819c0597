"""The encoder that a training job starts from."""

from cosent.compute.packed_backbone import max_tokens
from cosent.errors import InputError
from cosent.models import lora
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.prompts import PromptArguments
from cosent.models.text_model import TextModel
from cosent.training.arguments import ModelArguments


def build_encoder(args: ModelArguments, classes: int, max_length: int, seed: int) -> SentenceEncoder | CrossEncoder:
    """Loads the encoder to train; `max_length` is a default, `classes` the logits of a cross-encoder."""
    other = {"pooling": args.pooling} if args.tower == "cross_encoder" else {}
    if args.tower == "bi_encoder" and args.segment_ids != "tokenizer":
        other = {"segment_ids": args.segment_ids}
    for flag, value in other.items():
        if value is not None:
            raise InputError(f"--{flag} does nothing for --tower {args.tower}, got {value}. Leave it out.")
    options = {"max_length": max_length if args.max_length is None else args.max_length, "dropout": args.dropout}
    options |= {"seed": seed, "quantization_config": lora.four_bit_config() if args.load_in_4bit else None}
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
