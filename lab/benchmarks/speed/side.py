"""One side of a measurement, in its own process: measures once for every line on stdin, one JSON line each.

`lab.benchmarks.speed` starts a process per side and lets them take turns, so that both see the same machine.
"""

import argparse
import json
import os
import statistics
import sys
import time
from contextlib import nullcontext
from functools import cache

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import torch
from transformers import AutoTokenizer, set_seed

from cosent.compute.onednn import trainable_onednn_linears
from cosent.compute.packing import packed_forward, plain_forward
from cosent.compute.processes import peak_memory_mib
from cosent.models.loading import load_backbone
from lab.benchmarks.common import BATCH_SIZE, clock, encoder_folder, seconds_per_pass, shuffled_rows, theirs
from lab.benchmarks.speed.training import bi_encoder, cross_encoder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def encode(args) -> dict:
    """`sentences_per_second` of at most `count` sentences, float32 (ours also in int8), and the first 32 unit vectors.

    No row stands twice; a sentence that the corpus itself repeats is computed once by ours.
    """
    rows, max_length = shuffled_rows(args.corpus, args.split, args.count // 2, start_over=False)
    sentences = [*rows["sentence1"][:], *rows["sentence2"][:]]
    model = load(args.side, encoder_folder(args.encoder), max_length["bi_encoder"])
    model.encode(sentences[:64])
    start = clock()
    vectors = model.encode(sentences, normalize_embeddings=True)
    seconds = clock() - start
    return {"sentences_per_second": len(sentences) / seconds, "outputs": vectors[:32].ravel().tolist()}


@cache
def load(side: str, folder: str, max_length: int):
    if side == "theirs":
        model = theirs(folder, max_length)
        return model.bfloat16() if DEVICE == "cuda" else model
    from cosent.models.bi_encoder import SentenceEncoder
    from cosent.models.embedding import quantized

    model = SentenceEncoder.from_pretrained(folder, pooling="mean", max_length=max_length)
    if DEVICE == "cuda":
        model = model.to("cuda", torch.bfloat16)
    return quantized(model) if side == "ours_int8" else model


def pair_inputs(args) -> dict:
    """`pairs_per_second` of a backbone alone on joined pairs, packed against padded, and [CLS] of two pairs a batch."""
    rows, max_length = shuffled_rows(args.corpus, args.split, BATCH_SIZE * args.count)
    folder = encoder_folder(args.encoder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    backbone, _ = load_backbone(folder, 1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    backbone.train().to(DEVICE)
    options = {"padding": True, "truncation": True, "max_length": max_length["cross_encoder"], "return_tensors": "pt"}
    parts = [rows[start : start + BATCH_SIZE] for start in range(0, len(rows), BATCH_SIZE)]
    batches = [tokenizer(part["sentence1"], part["sentence2"], **options).to(DEVICE) for part in parts]
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


def kernel(args) -> dict:
    """Median `calls_per_second` of 15 CoSENT losses, forward and backward, for `count` pairs of labels 0 and 1."""
    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(args.count, generator=generator, requires_grad=True)
    labels = torch.randint(2, (args.count,), generator=generator).float()
    if args.side == "ours":
        from cosent.losses.cosent import cosent_loss as loss_of
    else:
        from sentence_transformers.sentence_transformer.losses import CoSENTLoss

        theirs = CoSENTLoss(model=torch.nn.Identity(), similarity_fct=lambda a, b: a)

        def loss_of(scores, labels):
            return theirs.compute_loss_from_embeddings([scores, scores], labels)

    times = []
    for _ in range(17):
        scores.grad = None
        start = time.perf_counter()
        loss = loss_of(scores, labels)
        loss.backward()
        times.append(time.perf_counter() - start)
    return {"calls_per_second": 1 / statistics.median(times[2:]), "outputs": [loss.item()]}


TASKS = {
    "train": bi_encoder,
    "train_bf16": bi_encoder,
    "train_cross_encoder": cross_encoder,
    "pair_inputs": pair_inputs,
    "encode": encode,
    "kernel": kernel,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", required=True, choices=TASKS)
    parser.add_argument("--side", required=True, choices=("ours", "ours_int8", "theirs"))
    parser.add_argument("--encoder", default="mini", help="mini, base (12 x 768, random) or a folder")
    parser.add_argument("--corpus", help="prepared corpus")
    parser.add_argument("--split", default="train")
    args = parser.parse_args()
    stdout, sys.stdout = sys.stdout, sys.stderr  # trainers print their own lines; ours are the only ones on stdout
    for line in sys.stdin:
        args.count = int(line)  # steps, sentences or pairs, as the task counts
        set_seed(1)
        result = TASKS[args.task](args)
        result["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20 if DEVICE == "cuda" else peak_memory_mib()
        print(json.dumps(result), file=stdout, flush=True)


if __name__ == "__main__":
    main()
