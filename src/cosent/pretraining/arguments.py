"""Arguments of the pretraining job."""

from dataclasses import dataclass

import torch
from transformers import TrainingArguments

from cosent.errors import InputError
from cosent.flags import option, refuse_below_1, refuse_negative
from cosent.pretraining.model import ARCHITECTURES
from cosent.training.arguments import refuse_sharding_flags, use_one_gpu
from cosent.training.tensorboard import check_reporters


@dataclass
class TextArguments:
    """Text to pretrain on."""

    text: list[str] | None = option(None, "UTF-8 files of text, a line each: .txt, .jsonl (its `text`), also .gz.")
    exclude: list[str] | None = option(None, "Leave out the validation and test sentences of these corpora.")
    data_dir: str = option("data", "Folder of the prepared corpora.")
    piece_length: int = option(128, "Tokens of a piece of text; longer lines are cut into several.")
    shuffle_buffer: int = option(1_000_000, "Pairs of pieces that are shuffled together.")


@dataclass
class EncoderArguments:
    """The encoder to pretrain."""

    init: str | None = option(None, "Encoder to continue from: a shipped one, a folder or a Hub id; default: random.")
    architecture: str | None = option(None, "Default: that of --init, else bert.", ARCHITECTURES)
    layers: int = option(4, "Layers of a new encoder.")
    width: int = option(256, "Hidden size of a new encoder; 64 per head.")
    vocabulary_size: int = option(6000, "Entries of a new vocabulary, learnt from the text.")
    matching_head: bool = option(
        False, "Let a head of the first layer look for the same token in the other sentence, before training."
    )
    save_dtype: str = option("float32", "Type of the final weights.", ("float32", "float16"))


@dataclass
class PretrainingArguments(TrainingArguments):
    """`TrainingArguments` with this project's defaults (no evaluation, no reports) and flags of its own."""

    output_dir: str | None = option(None, "Folder for the encoder, run.json and the checkpoints.")
    max_minutes: float | None = option(None, "Wall-clock budget in minutes; the learning rate reaches 0 at its end.")
    batch_tokens: int = option(8192, "Tokens per device and step.")
    mask_ratio: float = option(0.3, "Share of the tokens to predict.")
    neighbour_weight: float = option(0.3, "Weight of finding neighbouring lines.")
    compare_weight: float = option(
        0.0, "Weight of comparing lines that are joined to one input, for cross-encoders; 0: single lines only."
    )
    save_strategy: str = option("steps", "When to write a checkpoint: no or steps.")
    save_total_limit: int | None = option(1, "Checkpoints kept on disk.")
    logging_steps: float = option(50, "Steps between two lines of the log.")
    report_to: str = option("none", "Where else to log: tensorboard, for curves.")
    remove_unused_columns: bool = option(False, "Leave as it is.")
    overwrite_output_dir: bool = option(False, "Replace the model that output_dir holds.")

    def __post_init__(self):
        if not self.output_dir:
            raise InputError("--output_dir is missing: name the folder for the encoder, e.g. runs/mini.")
        refuse_below_1(self, "gradient_accumulation_steps")
        refuse_negative(self, "learning_rate", "weight_decay")
        refuse_sharding_flags(self)
        check_reporters(self.report_to)
        if self.max_steps < 0 and self.max_minutes is None:
            raise InputError("Text is streamed endlessly: give --max_minutes or --max_steps.")
        if not 0 < self.mask_ratio < 1:
            raise InputError(f"--mask_ratio is a share between 0 and 1, got {self.mask_ratio}.")
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()  # bf16 is refused on a CPU without it
        super().__post_init__()
        use_one_gpu(self)
        self.dataloader_pin_memory = False
        self.disable_tqdm = self.disable_tqdm or self.max_minutes is not None  # a bar counts steps, which have no end
