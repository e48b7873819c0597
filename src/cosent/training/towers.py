"""The two towers: datasets and batches of each, and construction of its model.

A bi-encoder (双塔) embeds each sentence of a pair by itself, a cross-encoder (单塔) reads both in one sequence.
"""

from typing import NamedTuple

from torch import nn

from cosent.data.collators import JoinedPairCollator, PairCollator
from cosent.data.pairs import JoinedPairDataset, PairDataset
from cosent.data.prefix import Prefixes
from cosent.errors import InputError
from cosent.flags import refuse_changed
from cosent.inference.prompt_arguments import SavedPromptArguments
from cosent.modeling import lora
from cosent.modeling.bi_encoder import BiEncoder, SentenceEncoder
from cosent.modeling.cross_encoder import CrossEncoder
from cosent.modeling.text_model import TextModel
from cosent.training.arguments import ModelArguments
from cosent.training.objective import Objective


class Tower(NamedTuple):
    """Dataset and collator of a tower, and its default of `--on_collapse`; its model's `forward` does the scoring."""

    dataset: type[PairDataset]
    collator: type[PairCollator] | type[JoinedPairCollator]
    on_collapse: str


TOWERS = {
    "bi_encoder": Tower(PairDataset, PairCollator, "off"),
    "cross_encoder": Tower(JoinedPairDataset, JoinedPairCollator, "warn"),
}


def build_model(
    args: ModelArguments, features: list[str] | None, objective: Objective, max_length: int, seed: int
) -> nn.Module:
    """Builds the model that a trainer wraps, with the head that its objective needs.

    Args:
        max_length: tokens that the corpora need, unless set in `args`.

    Raises:
        InputError: a flag of the other tower.
    """
    other = {"pooling": args.pooling, "features": features} if args.tower == "cross_encoder" else {}
    if args.tower == "bi_encoder" and args.segment_ids != "tokenizer":
        other = {"segment_ids": args.segment_ids}
    for flag, value in other.items():
        if value is not None:
            raise InputError(f"--{flag} does nothing for --tower {args.tower}, got {value}. Leave it out.")
    if args.load_in_4bit and not args.use_peft:
        raise InputError("--load_in_4bit keeps the weights frozen: add --use_peft true, or leave it out.")
    max_length = max_length if args.max_length is None else args.max_length
    same = {"max_length": max_length, "dropout": args.dropout, "attn_implementation": args.attn_implementation}
    same["quantization_config"] = lora.four_bit_config() if args.load_in_4bit else None
    if args.tower == "cross_encoder":
        encoder = model = CrossEncoder.from_pretrained(
            args.model_name_or_path, objective.classes, segment_ids=args.segment_ids, seed=seed, **same
        )
    else:
        encoder = SentenceEncoder.from_pretrained(args.model_name_or_path, pooling=args.pooling, seed=seed, **same)
        model = BiEncoder(encoder, objective.head(encoder.embedding_dimension, features, seed))
    encoder.packing = args.packing
    return model


def use_prompts(encoder: TextModel, args: SavedPromptArguments, make_room: bool) -> Prefixes:
    """The prompts of both sentences in a training; from now on those of the encoder, if they are to be saved.

    Args:
        make_room: whether to raise the maximum length, which is that of the sentences alone, by the longer prompt.
    """
    prompts = encoder.prompts.sides(args.prompt, args.prompt_name)
    if make_room:
        encoder.raise_max_length(max(map(encoder.count_tokens, prompts)))
    prefixes = encoder.prefixes(prompts)
    if args.save_prompt:
        encoder.prompts = encoder.prompts.trained_with(prompts)
    return prefixes


def adapter(args: ModelArguments, model: nn.Module, seed: int) -> lora.Adapter | None:
    """Adds the LoRA adapter of the arguments to the model, if any.

    Raises:
        InputError: settings of an adapter without --use_peft.
    """
    if not args.use_peft:
        names = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules")
        refuse_changed(args, names, "--use_peft true")
        return None
    inner = model.encoder.backbone if isinstance(model, BiEncoder) else model.model
    settings = (args.lora_r, args.lora_alpha, args.lora_dropout, args.lora_target_modules)
    return lora.add_adapter(model, inner, *settings, seed)
