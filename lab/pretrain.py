"""Pretrain a small encoder on plain text, or continue pretraining one on your own text.

python -m lab.pretrain --config lab/pretraining/mini.yaml --text corpus.txt.gz --output_dir runs/mini
"""

import logging
import time
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from transformers import set_seed

from cosent.atomic import sha256_of_file
from cosent.cli import run
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.flags import REQUIRED, option
from cosent.models.loading import load_tokenizer
from cosent.record import RunRecord
from cosent.training.arguments import RunArguments
from cosent.training.checkpoints import claim_output_folder, final_folder, run_settings
from cosent.training.job import Start, begin, document, footprint, publish, recipe
from lab.pretraining.batches import ComparedBatches, NeighbourBatches, Texts, learn_tokenizer
from lab.pretraining.model import (
    CONFIGS,
    Pretraining,
    PretrainTrainer,
    add_matching_head,
    fresh_model,
    initial_model,
)

logger = logging.getLogger("cosent.pretraining")

WITHOUT_LIMIT = 10**9  # steps


@dataclass
class TextArguments:
    """Text to pretrain on."""

    text: list[str] = option(REQUIRED, "UTF-8 files of text, a line each: .txt, .jsonl (its `text`), also .gz.")
    exclude: list[str] | None = option(None, "Leave out the validation and test sentences of these corpora.")
    data_dir: str = option("data", "Folder of the prepared corpora.")


@dataclass
class NewEncoderArguments:
    """Encoder to pretrain."""

    init: str | None = option(None, "Encoder to continue from: a shipped one, a folder or a Hub id; default: random.")
    architecture: str | None = option(None, "Default: that of --init, else bert.", CONFIGS)
    layers: int = option(4, "Layers of a new encoder.")
    width: int = option(256, "Hidden size of a new encoder; 64 per head.")
    vocabulary_size: int = option(6000, "Entries of a new vocabulary, learnt from the text.")
    matching_head: bool = option(
        False, "Let a head of the first layer look for the same token in the other sentence, before training."
    )


@dataclass
class PretrainingArguments(RunArguments):
    """Training on text, which has no end of its own."""

    max_minutes: float | None = option(None, "Wall-clock budget in minutes; the learning rate reaches 0 at its end.")
    batch_tokens: int = option(8192, "Tokens per step.")
    neighbour_weight: float = option(0.3, "Weight of finding neighbouring lines.")
    compare_weight: float = option(
        0.0, "Weight of comparing lines that are joined to one input, for cross-encoders; 0: single lines only."
    )

    def __post_init__(self):
        if self.max_steps <= 0:
            if self.max_minutes is None:
                raise InputError("Text is streamed endlessly: give --max_minutes or --max_steps.")
            self.max_steps = WITHOUT_LIMIT
        super().__post_init__()
        self.dataloader_pin_memory = False
        self.disable_tqdm = self.disable_tqdm or self.max_minutes is not None  # a bar counts steps, which have no end


def main(text_args: TextArguments, encoder_args: NewEncoderArguments, args: PretrainingArguments):
    with begin(args) as start:
        if start is not None:
            pretrain(start, text_args, encoder_args, args)


def pretrain(
    start: Start, text_args: TextArguments, encoder_args: NewEncoderArguments, args: PretrainingArguments
) -> None:
    """The run, from its text to its record."""
    set_seed(args.seed)
    texts = Texts(text_args.text, text_args.exclude or [], text_args.data_dir)
    model, tokenizer = build_encoder(encoder_args, texts, start.checkpoint, args)
    batches = (ComparedBatches if args.compare_weight else NeighbourBatches)(
        texts.read, tokenizer, args.batch_tokens, positions=model.config.model_type != "roformer", seed=args.seed
    )
    trainer = PretrainTrainer(
        model=Pretraining(model, tokenizer),
        args=args,
        train_dataset=batches,
        weights={"neighbour": args.neighbour_weight, "compare": args.compare_weight},
        max_minutes=args.max_minutes,
    )
    read = {name: sha256_of_file(name) for name in text_args.text}
    claim_output_folder(args.output_dir, start.checkpoint, run_settings(args, text_args, encoder_args, data=read))
    logger.info("reading the text; progress is logged every %d steps", args.logging_steps)
    trainer.train(start.checkpoint)
    last = next((entry for entry in reversed(trainer.state.log_history) if "tokens" in entry), {})
    done = {
        "text_sha256": read,
        "excluded_sentences": len(texts.excluded),
        "excluded_lines_per_pass": texts.left_out,
        "tokens": last.get("tokens", 0),
        "minutes": last.get("minutes", 0.0),
        "mlm_loss": last.get("mlm"),
        "neighbour_loss": last.get("neighbour"),
        "compare_loss": last.get("compare"),
    }
    with final_folder(args) as folder:
        trainer.model.save_pretrained(folder, torch.float16)
        record = RunRecord(
            recipe=recipe(args, text_args, encoder_args),
            environment=start.environment,
            processes=args.world_size,
            footprint=footprint(model),
            pretraining=done,
            history=trainer.state.log_history,
            train_seconds=60 * done["minutes"],
            seconds=time.time() - start.time,
        )
        document(folder, args, record)
    publish(trainer)
    print(f"encoder in {args.output_dir}: {done['tokens']:,} tokens in {done['minutes']:.1f} minutes")


def build_encoder(args: NewEncoderArguments, texts: Texts, checkpoint: str | None, train_args: PretrainingArguments):
    """The model and tokenizer of a checkpoint or of --init, or new ones with a vocabulary learnt from the text."""
    source, compares = checkpoint or args.init, bool(train_args.compare_weight)
    if args.matching_head and not compares:
        raise InputError("--matching_head looks into another sentence, but lines are read alone. Set --compare_weight.")
    if source is not None:
        model, tokenizer = initial_model(source, args.architecture, compares), load_tokenizer(resolve(source))
    else:
        logger.info("learning a vocabulary of %d entries from the text", args.vocabulary_size)
        tokenizer = learn_tokenizer(texts.read(), args.vocabulary_size)
        size = (len(tokenizer), args.layers, args.width)
        model = fresh_model(args.architecture or "bert", *size, seed=train_args.seed, two_sentences=compares)
    if args.matching_head and checkpoint is None:
        sample = list(islice(texts.read(), 0, 200_000, 100))
        ids = tokenizer(sample, add_special_tokens=False, verbose=False)["input_ids"]
        add_matching_head(model, np.concatenate(ids).astype(np.int64), seed=train_args.seed)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0  # a small model on much text underfits
    if train_args.device.type == "cpu":
        model.set_attn_implementation("eager")  # 1.3 times as fast on a CPU, with a mask and bfloat16
    return model, tokenizer


if __name__ == "__main__":
    run(main)
