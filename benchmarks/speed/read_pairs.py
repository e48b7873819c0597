"""Forward and backward of a backbone on cross-encoder inputs, packed against padded; the model alone."""

from contextlib import nullcontext

import torch
from transformers import AutoTokenizer

from benchmarks.common import BATCH_SIZE, seconds_per_pass, shuffled_rows
from benchmarks.weights import encoder_folder
from cosent.compute.onednn import trainable_onednn_linears
from cosent.compute.packed_backbone import packed_forward, plain_forward
from cosent.models.loading import load_backbone

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def measure(args) -> dict:
    """`pairs_per_second` over `count` batches of `BATCH_SIZE` pairs, and [CLS] of the first two pairs of each."""
    rows, max_length = shuffled_rows(args.corpus, args.split, BATCH_SIZE * args.count)
    folder = encoder_folder(args.encoder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    backbone, _ = load_backbone(folder, 1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    backbone.train().to(DEVICE)
    batches = [
        tokenizer(
            rows[start : start + BATCH_SIZE]["sentence1"],
            rows[start : start + BATCH_SIZE]["sentence2"],
            padding=True,
            truncation=True,
            max_length=max_length["cross_encoder"],
            return_tensors="pt",
        ).to(DEVICE)
        for start in range(0, len(rows), BATCH_SIZE)
    ]
    run = packed_forward if args.side == "ours" else plain_forward
    outputs = []

    def step(index: int) -> None:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda"):
            first = run(backbone, dict(batches[index]))[:, 0]  # [CLS] of every pair
        outputs.extend(first[:2].detach().float().flatten().tolist())
        first.square().mean().backward()
        backbone.zero_grad()

    with trainable_onednn_linears() if args.side == "ours" else nullcontext():
        seconds = seconds_per_pass(step, len(batches))
    return {"pairs_per_second": BATCH_SIZE / seconds, "outputs": outputs}
