"""Pretrain a small encoder on plain text, or continue pretraining one on your own text.

accelerate launch -q --config_file recipes/accelerate/cpu.yaml -m cosent.pretrain \\
    --config recipes/pretrain/mini.yaml --text corpus.txt.gz --output_dir runs/mini
"""

import logging
import time
from itertools import islice

import numpy as np
import torch
from transformers import set_seed

from cosent.cli import run
from cosent.compute.packed_backbone import POSITIONS
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.modeling.bi_encoder import SentenceEncoder
from cosent.modeling.loading import load_tokenizer
from cosent.modeling.pooling import Pooling
from cosent.pretraining.arguments import EncoderArguments, PretrainingArguments, TextArguments
from cosent.pretraining.batches import NeighbourBatches
from cosent.pretraining.comparisons import ComparedBatches
from cosent.pretraining.matching_head import add_matching_head
from cosent.pretraining.model import NO_DROPOUT, Pretraining, fresh_model, initial_model
from cosent.pretraining.sources import Texts
from cosent.pretraining.trainer import PretrainTrainer
from cosent.pretraining.vocabulary import learn_tokenizer
from cosent.run import PretrainingRecord, RunRecord
from cosent.training.checkpoints import claim_output_folder, find_checkpoint, has_finished, run_settings
from cosent.training.environment import environment, footprint, recipe
from cosent.training.finish import finish
from cosent.training.folder_proof import COMPARED, HALF, FolderProof

logger = logging.getLogger("cosent.pretrain")

WITHOUT_LIMIT = 10**9  # steps


def main(text_args: TextArguments, encoder_args: EncoderArguments, args: PretrainingArguments):
    start = time.time()
    if has_finished(args):
        return
    checkpoint, here = find_checkpoint(args), environment()
    untrained = args.max_steps == 0
    if args.max_steps <= 0:
        args.max_steps = WITHOUT_LIMIT
    set_seed(args.seed)
    check_arguments(text_args, encoder_args, args)
    texts = Texts(text_args)
    model, tokenizer = start_from(encoder_args, texts, checkpoint, args.seed, two_sentences=bool(args.compare_weight))
    if encoder_args.matching_head and checkpoint is None:
        add_matching_head(model, sample_tokens(texts, tokenizer), seed=args.seed)
    kept = {name: getattr(model.config, name) for name in NO_DROPOUT}
    without_dropout(model)
    if args.device.type == "cpu":
        model.set_attn_implementation("eager")  # 1.3 times as fast on a CPU, with a mask and bfloat16
    trainer = PretrainTrainer(
        model=Pretraining(model, tokenizer),
        args=args,
        train_dataset=packed_batches(texts, tokenizer, model.config.model_type, text_args, args),
        weights={"neighbour": args.neighbour_weight, "compare": args.compare_weight},
        max_minutes=args.max_minutes,
    )
    read = texts.hashes()
    claim_output_folder(args.output_dir, checkpoint, run_settings(args, text_args, encoder_args, data=read))
    dtype = getattr(torch, encoder_args.save_dtype)
    proof = FolderProof(
        SentenceEncoder(model.base_model, tokenizer, Pooling("mean", model.config.hidden_size)),
        texts.sample(COMPARED),
        HALF if dtype == torch.float16 else None,
    )
    if not untrained:
        logger.info("reading the text; progress is logged every %d steps", args.logging_steps)
        trainer.train(checkpoint, at_start=proof.begin if checkpoint is None else None)
    if trainer.is_world_process_zero():
        model.config.update(kept)
        trainer.model.save_pretrained(args.output_dir, dtype)
    proven = proof.check(args.output_dir)
    if trainer.is_world_process_zero():
        last = next((entry for entry in reversed(trainer.state.log_history) if "tokens" in entry), {})
        done = PretrainingRecord(
            text_sha256=read,
            excluded_sentences=len(texts.excluded),
            excluded_lines_per_pass=texts.left_out,
            tokens=last.get("tokens", 0),
            minutes=last.get("minutes", 0.0),
            mlm_loss=last.get("mlm"),
            neighbour_loss=last.get("neighbour"),
            compare_loss=last.get("compare"),
        )
        record = RunRecord(
            recipe=recipe(args, text_args, encoder_args),
            environment=here,
            processes=args.world_size,
            footprint=footprint(model, trainer.optimizer),
            pretraining=done,
            history=trainer.state.log_history,
            train_seconds=60 * done.minutes,
            seconds=time.time() - start,
            proof=proven,
        )
        finish(trainer, record)
        print(f"encoder in {args.output_dir}: {done.tokens:,} tokens in {done.minutes:.1f} minutes")


def check_arguments(text_args: TextArguments, encoder_args: EncoderArguments, args: PretrainingArguments) -> None:
    """Refuses arguments that do not go together."""
    if not text_args.text:
        raise InputError("--text is missing: name the files to read, e.g. --text corpus.txt.gz.")
    if args.compare_weight and encoder_args.init is None and encoder_args.architecture not in (None, "bert"):
        raise InputError(f"A {encoder_args.architecture} has no head on two sentences. Leave --architecture out.")
    if encoder_args.matching_head and not args.compare_weight:
        raise InputError("--matching_head looks into another sentence, but lines are read alone. Set --compare_weight.")


def start_from(args: EncoderArguments, texts: Texts, checkpoint: str | None, seed: int, two_sentences: bool):
    """The model and tokenizer of a checkpoint or of --init, or new ones with a vocabulary learnt from the text."""
    source = checkpoint or args.init
    if source is not None:
        return initial_model(source, args.architecture, two_sentences), load_tokenizer(resolve(source))
    logger.info("learning a vocabulary of %d entries from the text", args.vocabulary_size)
    tokenizer = learn_tokenizer(texts.read(), args.vocabulary_size)
    model = fresh_model(
        args.architecture or "bert", len(tokenizer), args.layers, args.width, seed=seed, two_sentences=two_sentences
    )
    return model, tokenizer


def sample_tokens(texts: Texts, tokenizer, lines: int = 2000) -> np.ndarray:
    """Tokens of lines spread over the beginning of the text, shape `(tokens,)`."""
    sample = list(islice(texts.read(), 0, 100 * lines, 100))
    return np.concatenate(tokenizer(sample, add_special_tokens=False, verbose=False)["input_ids"]).astype(np.int64)


def packed_batches(
    texts: Texts, tokenizer, model_type: str, text_args: TextArguments, args: PretrainingArguments
) -> NeighbourBatches:
    """Endless batches of this process."""
    batches = ComparedBatches if args.compare_weight else NeighbourBatches
    return batches(
        texts.read,
        tokenizer,
        text_args.piece_length,
        args.batch_tokens,
        args.mask_ratio,
        text_args.shuffle_buffer,
        positions=POSITIONS[model_type] != "relative",
        seed=args.seed,
        rank=args.process_index,
        world=args.world_size,
    )


def without_dropout(model: torch.nn.Module) -> None:
    """Switches dropout off: a small model on much text underfits."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


ARGUMENTS = (TextArguments, EncoderArguments, PretrainingArguments)

if __name__ == "__main__":
    run(main, *ARGUMENTS)
