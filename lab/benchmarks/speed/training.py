"""Speed of the trainers of both projects: same weights, same batches in the same order, AdamW, dropout 0."""

import tempfile

import numpy as np
import torch
from torch.utils.data import BatchSampler, SequentialSampler
from transformers import TrainerCallback

from cosent.data.corpus import labels_of, load_corpus
from cosent.losses import LOSSES
from cosent.training.objective import loss_targets
from lab.benchmarks.common import (
    BATCH_SIZE,
    WARM_UP,
    clock,
    cross_encoder_folder,
    encoder_folder,
    shuffled_rows,
    theirs,
)


class Clock(TrainerCallback):
    """Records the time and the loss after every optimizer step."""

    def __init__(self):
        self.times = []
        self.losses = []

    def on_step_end(self, args, state, control, **kwargs):
        self.times.append(clock())

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.losses.append(logs["loss"])

    def result(self) -> dict:
        """`pairs_per_second` of the timed steps, and the loss of every step."""
        seconds = float(np.diff(self.times)[WARM_UP - 1 :].mean())
        return {"pairs_per_second": BATCH_SIZE / seconds, "outputs": self.losses}


def bi_encoder(args) -> dict:
    """CoSENT on cosines; also the FLOP/s of the real tokens of the timed steps."""
    rows, max_length = shuffled_rows(args.corpus, args.split, BATCH_SIZE * args.count)
    clock, length = Clock(), max_length["bi_encoder"]
    with tempfile.TemporaryDirectory() as folder:
        side = bi_ours if args.side == "ours" else bi_theirs
        arguments = flags(folder, args.count) | ({"bf16": True} if args.task == "train_bf16" else {})
        model = side(encoder_folder(args.encoder), rows, length, arguments, clock)
    result = clock.result()
    if args.side == "ours":
        result["flops_per_second"] = flops_per_pair(model, rows, length) * result["pairs_per_second"]
    return result


def cross_encoder(args) -> dict:
    """Binary cross entropy on one logit."""
    rows, max_length = shuffled_rows(args.corpus, args.split, BATCH_SIZE * args.count)
    labels = loss_targets(LOSSES["bce"], labels_of(rows), load_corpus(args.corpus).manifest)
    model, clock = cross_encoder_folder(args.encoder, max_length["cross_encoder"]), Clock()
    with tempfile.TemporaryDirectory() as folder:
        if args.side == "ours":
            cross_ours(model, rows, flags(folder, args.count), clock)
        else:
            cross_theirs(model, rows, labels, flags(folder, args.count), clock)
    return clock.result()


def flags(folder: str, steps: int) -> dict:
    """Training arguments of both trainers."""
    cuda = torch.cuda.is_available()
    return {
        "output_dir": folder,
        "max_steps": steps,
        "per_device_train_batch_size": BATCH_SIZE,
        "learning_rate": 2e-5,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "eval_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not cuda,
        "bf16": cuda,
        "seed": 1,
    }


def in_order(dataset, batch_size, drop_last, **_):
    return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)


def train_ours(encoder, loss: str, rows, flags: dict, clock: TrainerCallback) -> None:
    from cosent import Labels, PairTrainer, PairTrainingArguments

    arguments = PairTrainingArguments(**flags, train_sampling_strategy="sequential")
    labels = rows["label"][:]
    scaled = Labels("pairs", "binary" if set(labels) <= {0.0, 1.0} else "graded", 0.0, max(1.0, *labels))
    PairTrainer(encoder, arguments, loss=loss, train_dataset=rows, labels=scaled, callbacks=[clock]).train()


def bi_ours(model: str, rows, max_length: int, flags: dict, clock: TrainerCallback, dropout: float | None = 0.0):
    from cosent import SentenceEncoder

    encoder = SentenceEncoder.from_pretrained(model, pooling="mean", max_length=max_length, dropout=dropout)
    train_ours(encoder, "cosent", rows, flags, clock)
    return encoder


def cross_ours(model: str, rows, flags: dict, clock: Clock) -> None:
    from cosent import CrossEncoder

    train_ours(CrossEncoder.from_pretrained(model), "bce", rows, flags, clock)


def bi_theirs(model: str, rows, max_length: int, flags: dict, clock: Clock) -> None:
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss

    encoder = theirs(model, max_length)
    prompt = encoder.prompts.get(encoder.default_prompt_name or "") or None
    arguments = SentenceTransformerTrainingArguments(**flags, batch_sampler=in_order, prompts=prompt)
    rows = rows.rename_column("label", "score")
    SentenceTransformerTrainer(
        model=encoder, args=arguments, train_dataset=rows, loss=CoSENTLoss(encoder), callbacks=[clock]
    ).train()


def cross_theirs(model: str, rows, labels: np.ndarray, flags: dict, clock: Clock) -> None:
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    encoder = CrossEncoder(model)
    arguments = CrossEncoderTrainingArguments(**flags, batch_sampler=in_order)
    rows = rows.remove_columns("label").add_column("label", labels)
    CrossEncoderTrainer(
        model=encoder, args=arguments, train_dataset=rows, loss=BinaryCrossEntropyLoss(encoder), callbacks=[clock]
    ).train()


def flops_per_pair(encoder, rows, max_length: int) -> float:
    """Matrix-multiply FLOPs of forward and backward over the real tokens of a pair, on average.

    Per layer and token, forward: 2 x (4 hidden^2 + 2 hidden x intermediate) for the linear layers and
    4 x tokens x hidden for attention; the backward pass costs twice the forward pass.
    """
    config = encoder.backbone.config
    prompt = encoder.prompts.text(None, None)
    sentences = [prompt + sentence for side in ("sentence1", "sentence2") for sentence in rows[side][:]]
    lengths = encoder.tokenizer(sentences, truncation=True, max_length=max_length, return_length=True)["length"]
    tokens = np.array(lengths, dtype=np.float64)
    hidden, inner = config.hidden_size, config.intermediate_size
    forward = config.num_hidden_layers * (tokens * 2 * (4 * hidden**2 + 2 * hidden * inner) + 4 * tokens**2 * hidden)
    return 3 * float(forward.sum()) / len(rows)
