"""Speed of the two cross-encoder trainers: same weights, same batches in the same order, AdamW, dropout 0."""

import tempfile

import numpy as np
from torch.utils.data import BatchSampler, SequentialSampler

from benchmarks.common import BATCH_SIZE, WARM_UP, shuffled_rows
from benchmarks.speed.train_bi_encoder import Clock, flags
from benchmarks.weights import cross_encoder_folder
from cosent.data.corpus import labels_of, load_corpus
from cosent.training.objective import loss_targets


def measure(args) -> dict:
    """`pairs_per_second` of `count` steps with binary cross entropy on one logit, and the loss of each."""
    rows, max_length = shuffled_rows(args.corpus, args.split, BATCH_SIZE * args.count)
    labels = loss_targets("bce", labels_of(rows), load_corpus(args.corpus).manifest)
    model = cross_encoder_folder(args.encoder, max_length["cross_encoder"])
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        train = train_ours if args.side == "ours" else train_theirs
        train(model, rows, labels, args.count, clock, folder)
    seconds = float(np.diff(clock.times)[WARM_UP - 1 :].mean())
    return {"pairs_per_second": BATCH_SIZE / seconds, "outputs": clock.losses}


def train_ours(model: str, rows, labels: np.ndarray, steps: int, clock: Clock, folder: str) -> None:
    from cosent.data.pairs import JoinedPairCollator, JoinedPairDataset
    from cosent.losses.classification import binary_cross_entropy_loss
    from cosent.models.cross_encoder import CrossEncoder
    from cosent.training.arguments import PairTrainingArguments
    from cosent.training.objective import Objective
    from cosent.training.trainer import PairTrainer

    encoder = CrossEncoder.from_pretrained(model)
    ours = {"load_best_model_at_end": False, "train_sampling_strategy": "sequential"}
    PairTrainer(
        model=encoder,
        args=PairTrainingArguments(**flags(folder, steps), **ours),
        objective=Objective(binary_cross_entropy_loss, "scores", compares_pairs=False),
        train_dataset=JoinedPairDataset(rows, encoder.tokenizer, encoder.max_length, labels),
        data_collator=JoinedPairCollator.from_tokenizer(encoder.tokenizer),
        callbacks=[clock],
    ).train()


def train_theirs(model: str, rows, labels: np.ndarray, steps: int, clock: Clock, folder: str) -> None:
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    def in_order(dataset, batch_size, drop_last, **_):
        return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)

    encoder = CrossEncoder(model)
    CrossEncoderTrainer(
        model=encoder,
        args=CrossEncoderTrainingArguments(**flags(folder, steps), batch_sampler=in_order),
        train_dataset=rows.remove_columns("label").add_column("label", labels),
        loss=BinaryCrossEntropyLoss(encoder),
        callbacks=[clock],
    ).train()
