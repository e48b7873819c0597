"""Pretrain a small encoder on plain text, or go on pretraining one on text of your own.

accelerate launch -q --config_file recipes/accelerate/cpu.yaml -m cosent.pretrain \
    --config recipes/pretrain/mini.yaml --text corpus.txt.gz --output_dir runs/mini
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from transformers import AutoTokenizer, TrainingArguments, set_seed

from cosent.cli import run
from cosent.compute.packed_backbone import POSITIONS
from cosent.data.pairs import load_corpus
from cosent.encoders import resolve
from cosent.pretraining.batches import NeighbourBatches, bare, read_texts
from cosent.pretraining.joined import JoinedBatches
from cosent.pretraining.model import ARCHITECTURES, NO_DROPOUT, Pretraining, PretrainTrainer, fresh_model, initial_model
from cosent.pretraining.vocabulary import learn_tokenizer
from cosent.schema import InputError, sha256_of_file
from cosent.training import environment as records
from cosent.training.arguments import option
from cosent.training.checkpoints import find_checkpoint, has_finished, make_room

logger = logging.getLogger("cosent.pretrain")

WITHOUT_LIMIT = 10**9  # steps


@dataclass
class TextArguments:
    """What to read."""

    text: str | None = option(None, "UTF-8 text, a line each: .txt, .jsonl (its `text`), also .gz. Several: a,b.")
    pairs: str | None = option(
        None, "Instead of text: the training pairs of these corpora, both sentences in one input; labels are not read."
    )
    exclude: str | None = option(None, "Leave out validation and test sentences of these corpora too: a,b.")
    data_dir: str = option("data", "Folder of the prepared corpora.")
    piece_length: int = option(128, "Tokens of a piece of text; longer lines are cut into several.")
    shuffle_buffer: int = option(1_000_000, "Pairs of pieces that are shuffled together.")


@dataclass
class EncoderArguments:
    """What to train."""

    init: str | None = option(None, "Encoder to go on from: a shipped one, a folder or a Hub id; default: random.")
    architecture: str | None = option(None, "Default: that of --init, else bert.", ARCHITECTURES)
    layers: int = option(4, "Layers of a new encoder.")
    width: int = option(256, "Hidden size of a new encoder; 64 to a head.")
    vocabulary_size: int = option(6000, "Entries of a new vocabulary, learnt from the text.")
    save_dtype: str = option("float32", "Type of the final weights.", ("float32", "float16"))


@dataclass
class PretrainingArguments(TrainingArguments):
    """`TrainingArguments` with this project's defaults (no evaluation, no reports) and flags of its own."""

    output_dir: str | None = option(None, "Folder for the encoder, run.json and the checkpoints.")
    max_minutes: float | None = option(None, "Wall-clock budget; the learning rate reaches 0 when it is used up.")
    batch_tokens: int = option(8192, "Tokens per device and step.")
    mask_ratio: float = option(0.3, "Share of the tokens to predict.")
    neighbour_weight: float = option(0.3, "Weight of finding neighbouring lines, or of telling pairs from strangers.")
    save_strategy: str = option("steps", "When to write a checkpoint: no or steps.")
    save_total_limit: int | None = option(1, "Checkpoints kept on disk.")
    logging_steps: float = option(50, "Steps between two lines of the log.")
    report_to: str = option("none", "Where else to log, e.g. tensorboard.")
    remove_unused_columns: bool = option(False, "Leave as it is.")
    overwrite_output_dir: bool = option(False, "Train although output_dir holds a model, which will be replaced.")

    def __post_init__(self):
        if not self.output_dir:
            raise InputError("--output_dir is missing: name the folder for the encoder, e.g. runs/mini.")
        if self.max_steps < 0 and self.max_minutes is None:
            raise InputError("Text is streamed and has no end: give --max_minutes or --max_steps.")
        if not 0 < self.mask_ratio < 1:
            raise InputError(f"--mask_ratio is a share between 0 and 1, got {self.mask_ratio}.")
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()  # bf16 is refused on a CPU without it
        super().__post_init__()
        self.dataloader_pin_memory = False
        self.disable_tqdm = self.disable_tqdm or self.max_minutes is not None  # a bar counts steps, which have no end


def main(text_args: TextArguments, encoder_args: EncoderArguments, args: PretrainingArguments):
    start = time.time()
    if has_finished(args):
        return
    checkpoint = find_checkpoint(args)
    untrained = args.max_steps == 0
    if args.max_steps <= 0:
        args.max_steps = WITHOUT_LIMIT
    set_seed(args.seed)
    check_arguments(text_args, encoder_args)
    texts = (Pairs if text_args.pairs else Texts)(text_args)
    model, tokenizer = start_from(encoder_args, texts, checkpoint, args.seed)
    kept = {name: getattr(model.config, name) for name in NO_DROPOUT}
    without_dropout(model)
    if args.device.type == "cpu":
        model.set_attn_implementation("eager")  # 1.3 times as fast there, with a mask and bfloat16
    batches = (JoinedBatches if text_args.pairs else NeighbourBatches)(
        texts.read,
        tokenizer,
        text_args.piece_length,
        args.batch_tokens,
        args.mask_ratio,
        text_args.shuffle_buffer,
        positions=POSITIONS[model.config.model_type] != "relative",
        seed=args.seed,
        rank=args.process_index,
        world=args.world_size,
    )
    trainer = PretrainTrainer(
        model=Pretraining(model, tokenizer),
        args=args,
        train_dataset=batches,
        neighbour_weight=args.neighbour_weight,
        max_minutes=args.max_minutes,
    )
    make_room(args, checkpoint, asdict(text_args) | asdict(encoder_args))
    if not untrained:
        logger.warning("reading the text; every %d steps a line follows", args.logging_steps)
        trainer.train(resume_from_checkpoint=checkpoint)
    if trainer.is_world_process_zero():
        model.config.update(kept)
        trainer.model.save_pretrained(args.output_dir, getattr(torch, encoder_args.save_dtype))
        last = next((entry for entry in reversed(trainer.state.log_history) if "tokens" in entry), {})
        record = {
            "recipe": asdict(text_args) | asdict(encoder_args) | args.to_sanitized_dict(),
            "text_sha256": texts.hashes(),
            "excluded_sentences": len(texts.excluded),
            "excluded_lines_per_pass": texts.left_out,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "tokens": last.get("tokens", 0),
            "minutes": last.get("minutes", 0.0),
            "mlm_loss": last.get("mlm"),
            "neighbour_loss": last.get("neighbour"),
            "match_loss": last.get("match"),
            "history": trainer.state.log_history,
            "seconds": time.time() - start,
            **records.environment(),
        }
        records.save_record(args.output_dir, record)
        print(f"encoder in {args.output_dir}: {record['tokens']:,} tokens in {record['minutes']:.1f} minutes")


def check_arguments(text_args: TextArguments, encoder_args: EncoderArguments) -> None:
    """Refuses what does not go together."""
    if (text_args.text is None) == (text_args.pairs is None):
        raise InputError("Name what to read: either --text FILES, or --pairs CORPORA.")
    if text_args.pairs and encoder_args.init is None:
        raise InputError("--pairs are too little text for a new encoder. Name one to go on from, e.g. --init mini.")


class Texts:
    """The lines of all files without held-out sentences; `left_out` counts those of the last whole pass."""

    def __init__(self, args: TextArguments):
        self.names = [name.strip() for name in (args.text or args.pairs).split(",")]
        excluded = ",".join(filter(None, (args.exclude, args.pairs)))  # of what is read, always
        self.excluded = held_out_sentences(excluded, args.data_dir) if excluded else frozenset()
        self.left_out = None

    def read(self) -> Iterator[str]:
        left_out = 0
        for text in read_texts(self.names):
            if bare(text) in self.excluded:
                left_out += 1
            else:
                yield text
        self.left_out = left_out

    def hashes(self) -> dict[str, str]:
        return {name: sha256_of_file(name) for name in self.names}


class Pairs(Texts):
    """The training pairs of prepared corpora without those that have a held-out sentence."""

    def __init__(self, args: TextArguments):
        super().__init__(args)
        self.corpora = {name: load_corpus(name, args.data_dir) for name in self.names}

    def read(self) -> Iterator[tuple[str, str]]:
        left_out = 0
        for corpus in self.corpora.values():
            rows = corpus.split("train")
            for pair in zip(rows["sentence1"][:], rows["sentence2"][:], strict=True):
                if self.excluded.isdisjoint(map(bare, pair)):
                    yield pair
                else:
                    left_out += 1
        self.left_out = left_out

    def hashes(self) -> dict[str, str]:
        return {name: corpus.manifest.splits["train"]["sha256"] for name, corpus in self.corpora.items()}


def held_out_sentences(corpora: str, data_dir: str) -> frozenset[str]:
    """Every sentence of the validation and test splits of prepared corpora, `bare`."""
    sentences = set()
    for name in corpora.split(","):
        corpus = load_corpus(name.strip(), data_dir)
        for split in set(corpus.splits) - {"train"}:
            for column in ("sentence1", "sentence2"):
                sentences.update(map(bare, corpus.split(split)[column]))
    return frozenset(sentences)


def start_from(args: EncoderArguments, texts: Texts, checkpoint: str | None, seed: int):
    """The model and tokenizer of a checkpoint or of --init, or new ones with a vocabulary learnt from the text."""
    source = checkpoint or args.init
    if source is not None:
        return initial_model(source, args.architecture, isinstance(texts, Pairs)), AutoTokenizer.from_pretrained(
            resolve(source)
        )
    logger.warning("learning a vocabulary of %d entries from the text", args.vocabulary_size)
    tokenizer = learn_tokenizer(texts.read(), args.vocabulary_size)
    return fresh_model(args.architecture or "bert", len(tokenizer), args.layers, args.width, seed=seed), tokenizer


def without_dropout(model: torch.nn.Module) -> None:
    """Switches dropout off: a small model on much text underfits."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


if __name__ == "__main__":
    run(main, TextArguments, EncoderArguments, PretrainingArguments)
