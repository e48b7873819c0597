"""Speed of the two bi-encoder trainers: same weights, same batches in the same order, AdamW, dropout 0."""

import tempfile
import time

import numpy as np
import torch
from torch.utils.data import BatchSampler, SequentialSampler
from transformers import TrainerCallback

from benchmarks.common import BATCH_SIZE, WARM_UP, shuffled_rows, theirs
from benchmarks.weights import encoder_folder


class Clock(TrainerCallback):
    """Records the time and the loss after every optimizer step."""

    def __init__(self):
        self.times = []
        self.losses = []

    def on_step_end(self, args, state, control, **kwargs):
        self.times.append(time.perf_counter())

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.losses.append(logs["loss"])


def measure(args) -> dict:
    """`pairs_per_second` of `count` steps, the loss of each, and `flops` of the real tokens of the timed steps."""
    rows, max_length = shuffled_rows(args.corpus, args.split, BATCH_SIZE * args.count)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        train = train_ours if args.side == "ours" else train_theirs
        model = train(encoder_folder(args.encoder), rows, max_length["bi_encoder"], args.count, clock, folder)
    seconds = float(np.diff(clock.times)[WARM_UP - 1 :].mean())
    result = {"pairs_per_second": BATCH_SIZE / seconds, "outputs": clock.losses}
    if args.side == "ours":
        result["flops_per_second"] = flops_per_pair(model, rows, max_length["bi_encoder"]) * BATCH_SIZE / seconds
    return result


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


def train_ours(model: str, rows, max_length: int, steps: int, clock: Clock, folder: str):
    from cosent.data.pairs import PairCollator, PairDataset
    from cosent.losses.cosent import cosent_loss
    from cosent.models.bi_encoder import BiEncoder, SentenceEncoder
    from cosent.training.arguments import PairTrainingArguments
    from cosent.training.objective import Objective
    from cosent.training.trainer import PairTrainer

    encoder = SentenceEncoder.from_pretrained(model, pooling="mean", max_length=max_length, dropout=0.0)
    ours = {"load_best_model_at_end": False, "train_sampling_strategy": "sequential"}
    PairTrainer(
        model=BiEncoder(encoder),
        args=PairTrainingArguments(**flags(folder, steps), **ours),
        objective=Objective(cosent_loss, "scores", compares_pairs=True),
        train_dataset=PairDataset(rows, encoder.tokenizer, max_length),
        data_collator=PairCollator(encoder.tokenizer.pad_token_id),
        callbacks=[clock],
    ).train()
    return encoder


def train_theirs(model: str, rows, max_length: int, steps: int, clock: Clock, folder: str):
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss

    def in_order(dataset, batch_size, drop_last, **_):
        return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)

    encoder = theirs(model, max_length)
    SentenceTransformerTrainer(
        model=encoder,
        args=SentenceTransformerTrainingArguments(**flags(folder, steps), batch_sampler=in_order),
        train_dataset=rows.rename_column("label", "score"),
        loss=CoSENTLoss(encoder),
        callbacks=[clock],
    ).train()
    return encoder


def flops_per_pair(encoder, rows, max_length: int) -> float:
    """Matrix-multiply FLOPs of forward and backward over the real tokens of a pair, on average.

    Per layer and token, forward: 2 x (4 hidden^2 + 2 hidden x intermediate) for the linear layers and
    4 x tokens x hidden for attention; the backward pass costs twice the forward pass.
    """
    config = encoder.backbone.config
    sentences = [*rows["sentence1"][:], *rows["sentence2"][:]]
    lengths = encoder.tokenizer(sentences, truncation=True, max_length=max_length, return_length=True)["length"]
    tokens = np.array(lengths, dtype=np.float64)
    hidden, inner = config.hidden_size, config.intermediate_size
    forward = config.num_hidden_layers * (tokens * 2 * (4 * hidden**2 + 2 * hidden * inner) + 4 * tokens**2 * hidden)
    return 3 * float(forward.sum()) / len(rows)
