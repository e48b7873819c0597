"""Argument dataclasses of the training jobs, filled from recipes and flags, with the help of each parameter."""

import logging
from dataclasses import dataclass, fields
from typing import Any

import torch
from peft import LoraConfig
from transformers import TrainingArguments

from cosent.compute.distributed import launched_with
from cosent.data.corpus import DataFolder
from cosent.errors import InputError
from cosent.evaluation.retrieval import METRICS
from cosent.flags import RECIPES, UNSUPPORTED, option, refuse_below_1, refuse_changed, refuse_negative
from cosent.losses import LOSSES, TOWERS, file_of
from cosent.losses.cosent import COSINE_SCALE, LOGIT_SCALE
from cosent.models.lora import lora_config
from cosent.models.modules import CHOICES
from cosent.models.prompts import PromptArguments

logger = logging.getLogger(__name__)

# Default learning rates: of any encoder, and of those that descend from a shipped one or have random weights.
RATE, LORA_RATE = 5e-5, 2e-4  # 5e-5: the grid of lab/results/public_stsb and public_bq, and the default of transformers
OUR_RATE, OUR_LORA_RATE = 5e-4, 2e-3
OUR_TUNED_RATE = 1e-4  # of an encoder of ours that was trained on pairs, as `similar`: at 5e-4 it forgets
TABLE_RATE = 3e-3  # of a lookup: few batches read each of its rows

# `UNSUPPORTED` fields that are set here or by transformers.
DERIVED = {
    *("accelerator_config", "debug", "do_eval", "hub_strategy", "label_names", "logging_nan_inf_filter"),
    "remove_unused_columns",
}
BY_METRIC = ("reduce_lr_on_plateau", "greedy")  # schedules that lower the rate while the metric falls, as a loss should


@dataclass
class EncoderArguments:
    """Starting encoder."""

    model_name_or_path: str = option("mini", "A shipped encoder (similar), a folder, or a Hub id.")
    pooling: str | None = option(None, f"{', '.join(CHOICES)}; default: the model's, else mean (students: linear_cls).")
    max_length: int | None = option(None, "Tokens per sentence (cross_encoder: pair); default: the corpus says.")
    dropout: float | None = option(None, "Dropout of hidden states and attention; default: as in the model.")


@dataclass
class ModelArguments(EncoderArguments):
    """Model type and LoRA settings."""

    tower: str = option("bi_encoder", "One encoder for each sentence, or a classifier that reads both.", TOWERS)
    segment_ids: str = option(
        "tokenizer", "cross_encoder: segment ids of the tokenizer, or 0 for both.", ("tokenizer", "zero")
    )
    use_peft: bool = option(False, "Train a LoRA adapter and new heads only.")
    lora_r: int = option(8, "Rank of the adapter.")
    lora_alpha: float = option(16.0, "The adapter's output is scaled by lora_alpha / lora_r.")
    lora_dropout: float = option(0.0, "Dropout before the adapter.")
    lora_target_modules: list[str] = option(
        ["all-linear"], "Linear layers that get an adapter, e.g. query value; all-linear: all but heads."
    )

    def __post_init__(self):
        if not self.use_peft:
            refuse_changed(self, ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules"), "--use_peft true")

    def peft_config(self) -> LoraConfig | None:
        if not self.use_peft:
            return None
        return lora_config(self.lora_r, self.lora_alpha, self.lora_dropout, self.lora_target_modules)


@dataclass
class CorpusArguments(DataFolder):
    """Prepared corpora."""

    corpus: list[str] | None = option(None, "Prepared corpora: names in --data_dir, or folders.")
    eval_corpora: list[str] | None = option(
        None, "Corpora of validation (by their mean) and of a further test; default: --corpus."
    )
    text: list[str] | None = option(
        None,
        "Unlabelled sentences in UTF-8, one a line (.txt, .jsonl, also .gz), for SimCSE (--loss simcse) or a teacher.",
    )
    limit_train: int | None = option(None, "Train on a random subset of N pairs, and validate on at most N.")
    limit_validation: int | None = option(None, "Validate on a random subset of N pairs of each corpus.")
    limit_seed: int | None = option(None, "Seed of these subsets; default: --seed.")
    skip_test: bool = option(False, "Do not use the test splits, e.g. while settings are chosen.")


@dataclass
class DataArguments(CorpusArguments):
    """Composition of the batches."""

    corpus_weights: list[float] | None = option(
        None, "Several corpora: share of the batches of each, e.g. 2 1, and of --text last; default: equal."
    )


@dataclass
class LossArguments:
    """Loss and its parameters.

    Parameters that a loss does not have are refused.
    """

    loss: str | list[str] = option(
        "cosent",
        f"{', '.join(LOSSES)}, or your own as FILE.py:FUNCTION (docs/losses.md). One per corpus: stsb=cosent "
        "faq=infonce; for --text: text=simcse.",
    )
    scale: float | None = option(
        None,
        f"Inverse temperature of cosent..., angle, infonce, simcse; default: {COSINE_SCALE:g}, logits {LOGIT_SCALE:g}.",
    )
    loss_args: list[str] | None = option(
        None, "Other parameters of the loss, e.g. floor=0.5 or negative_weight=0.2 (docs/losses.md)."
    )
    sbert_classes: int | None = option(
        None, "sbert, or your own loss of logits: classes of graded labels, equal parts of their range; default 2."
    )

    def __post_init__(self):
        self.files = [file_of(name)[0] for name in self.names if name not in LOSSES]  # of losses of one's own

    @property
    def by_corpus(self) -> str | dict[str, str]:
        """The `loss` of `PairTrainer`: one for all datasets, or one for each."""
        words = [self.loss] if isinstance(self.loss, str) else self.loss
        if len(words) == 1 and "=" not in words[0]:
            return words[0]
        losses = dict(word.split("=", 1) for word in words if "=" in word)
        if len(losses) < len(words):
            raise InputError(f"--loss takes one loss, or one NAME=LOSS for each corpus, got {' '.join(words)}.")
        return losses

    @property
    def names(self) -> list[str]:
        return [self.by_corpus] if isinstance(self.by_corpus, str) else list(self.by_corpus.values())

    def parameters(self) -> dict[str, Any]:
        """The `loss_args` of `PairTrainer`, numbers as text; None for the default of the loss."""
        values: dict[str, Any] = {"scale": self.scale, "sbert_classes": self.sbert_classes}
        for word in self.loss_args or []:
            name, equals, value = word.partition("=")
            if not equals or name in values:
                raise InputError(
                    f"--loss_args takes NAME=VALUE, each name once, and none with a flag of its own, got {word!r}."
                )
            values[name] = value
        return values


@dataclass
class RunArguments(TrainingArguments):
    """Training, checkpoints and logging.

    `TrainingArguments` with the defaults of this project, for every training job.
    """

    config: str | None = option(None, f"Recipe: a YAML file, or a name in {RECIPES}")
    output_dir: str | None = option(None, "Folder of the model, checkpoints and run.json; default: runs/CORPUS.")
    save_total_limit: int | None = 2
    logging_steps: float = option(50, "Steps between two lines of the log.")
    per_device_train_batch_size: int = option(8, "Pairs per device and step.")
    resume_from_checkpoint: str | None = option(None, "Checkpoint folder to continue from; auto: the last one.")
    push_to_hub: bool = option(False, "Publish the model on the Hugging Face Hub at the end of the run.")
    hub_private_repo: bool | None = option(True, "Create the repository as a private one.")
    overwrite_output_dir: bool = option(False, "Replace the model that output_dir holds.")

    def __post_init__(self):
        if not self.output_dir:
            raise InputError("--output_dir is missing: name a folder, or on a command line a corpus: --corpus demo.")
        refuse_below_1(self, "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
        refuse_negative(self, "weight_decay", "max_grad_norm")
        if self.learning_rate is not None:
            refuse_negative(self, "learning_rate")
        for flag in fields(TrainingArguments):  # set by a Python caller; on a command line they do not exist
            if flag.name in UNSUPPORTED - DERIVED and getattr(self, flag.name) not in (flag.default, []):
                raise InputError(f"{flag.name} is not supported. Leave it out.")
        if self.lr_scheduler_type in BY_METRIC:
            raise InputError(f"--lr_scheduler_type {self.lr_scheduler_type} follows a loss. Take linear or cosine.")
        self.hub_strategy = "end"  # publishes no checkpoints
        if launched_with() is None:  # FSDP and DeepSpeed choose their device themselves
            self.use_cpu = self.use_cpu or not torch.accelerator.is_available()  # bf16 is refused on a CPU without it
        super().__post_init__()
        if self.fp16 and self.device.type == "cpu":
            raise InputError("--fp16 does nothing on a CPU. Take --bf16 true, or leave it out.")
        if self.n_gpu > 1:
            # Trainer would use `nn.DataParallel`, which multiplies the batch by their number.
            logger.warning(
                "This process sees %d GPUs and trains on the first. To train on all: --launch ddp.", self.n_gpu
            )
            self._n_gpu = 1
        # Trainer would request pinned memory on a CPU too, and warn at every epoch that there is none.
        self.dataloader_pin_memory = self.dataloader_pin_memory and self.device.type == "cuda"


@dataclass
class PairTrainingArguments(RunArguments):
    """Evaluation and large batches.

    Changed defaults of `TrainingArguments` without a flag here: `data_seed` as `seed`,
    `ddp_find_unused_parameters` and `ddp_broadcast_buffers` false, as all weights get gradients and no buffer changes.
    """

    eval_strategy: str = option("epoch", "When to validate: no, steps or epoch.")
    save_strategy: str = "epoch"
    load_best_model_at_end: bool = True
    metric_for_best_model: str | None = option(
        "spearman",
        "Validation metric that decides which checkpoint is best.",
        ("spearman", "pearson", "kendall", *METRICS),
    )
    learning_rate: float | None = option(
        None,
        f"Peak learning rate; default: {RATE:g}; from `mini` {OUR_RATE:g}, from `similar` {OUR_TUNED_RATE:g}, from "
        f"`similar-lookup` {TABLE_RATE:g}; LoRA: {LORA_RATE:g}, from `mini` or `similar` {OUR_LORA_RATE:g}.",
    )
    retrieval: bool = option(True, "bi_encoder: measure Recall@1, 5 and 10, MRR@10, nDCG@10 and MAP too.")
    per_device_eval_batch_size: int = 128
    cached_batch_size: int | None = option(
        None,
        "Pairs compared in one batch, over all devices (GradCache): computed in parts of per_device_train_batch_size, "
        "for one more forward pass. Default: no caching.",
    )

    def __post_init__(self):
        if self.max_steps == 0:
            raise InputError("--max_steps 0 trains nothing. Name a number of steps, or leave it out.")
        if self.num_train_epochs <= 0 and self.max_steps <= 0:
            raise InputError(f"--num_train_epochs must be greater than 0, got {self.num_train_epochs:g}.")
        if self.train_sampling_strategy not in ("random", "sequential"):
            raise InputError(
                f"--train_sampling_strategy {self.train_sampling_strategy} compares pairs of similar length. Omit it."
            )
        if self.metric_for_best_model is not None:
            self.metric_for_best_model = self.metric_for_best_model.removeprefix("eval_")
        if self.metric_for_best_model == "loss":
            raise InputError("--metric_for_best_model loss: the loss of a batch depends on its size. Take spearman.")
        if self.eval_strategy == "no":
            self.metric_for_best_model = None
        if "no" in (self.eval_strategy, self.save_strategy):
            self.load_best_model_at_end = False
        steps = self.eval_steps or self.logging_steps, self.save_steps
        if self.load_best_model_at_end and self.save_strategy == self.eval_strategy == "steps" and steps[0] < steps[1]:
            logger.warning(
                "--eval_steps %g and --save_steps %g: the best of the saved steps is kept, not of all.", *steps
            )
        self.data_seed = self.seed if self.data_seed is None else self.data_seed
        self.logging_nan_inf_filter = False  # a loss that is not finite stops the run
        self.remove_unused_columns, self.label_names = False, ["labels"]  # pairs are not a model's own columns
        self.ddp_find_unused_parameters = bool(self.ddp_find_unused_parameters)
        self.ddp_broadcast_buffers = bool(self.ddp_broadcast_buffers)
        super().__post_init__()
        if self.cached_batch_size is not None:
            parts = self.per_device_train_batch_size * self.world_size
            if self.cached_batch_size < 1 or self.cached_batch_size % parts:
                raise InputError(f"--cached_batch_size must be a multiple of {parts}, got {self.cached_batch_size}.")

    @property
    def train_batch_size(self) -> int:
        """Pairs per device of a batch, which `cached_batch_size` cuts into parts of `per_device_train_batch_size`."""
        if self.cached_batch_size is None:
            return super().train_batch_size
        return self.cached_batch_size // self.world_size


@dataclass
class StudentTrainingArguments(PairTrainingArguments):
    """Training of a student.

    Batches have equal sizes, since the similarity loss depends on it.
    """

    retrieval: bool = False
    dataloader_drop_last: bool = True


# Arguments of `cosent train`.
TRAIN_ARGUMENTS = (
    ModelArguments,
    PromptArguments,
    DataArguments,
    LossArguments,
    PairTrainingArguments,
)
