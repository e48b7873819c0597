"""`encode` of both projects on the two columns of a split: same weights, float32 (ours also in int8 on a CPU)."""

import time
from functools import cache

import torch

from benchmarks.common import shuffled_rows, theirs
from benchmarks.weights import encoder_folder


def measure(args) -> dict:
    """`sentences_per_second` of at most `count` sentences, and the first 32 vectors for comparison.

    No row stands twice; a sentence that the corpus itself repeats is computed once by ours.
    """
    rows, max_length = shuffled_rows(args.corpus, args.split, args.count // 2, start_over=False)
    sentences = [*rows["sentence1"][:], *rows["sentence2"][:]]
    model = load(args.side, encoder_folder(args.encoder), max_length["bi_encoder"])
    model.encode(sentences[:64])
    start = time.perf_counter()
    vectors = model.encode(sentences)
    seconds = time.perf_counter() - start
    return {"sentences_per_second": len(sentences) / seconds, "outputs": vectors[:32].ravel().tolist()}


@cache
def load(side: str, folder: str, max_length: int):
    cuda = torch.cuda.is_available()
    if side == "theirs":
        model = theirs(folder, max_length)
        return model.bfloat16() if cuda else model
    from cosent.inference.embedding import quantized
    from cosent.models.bi_encoder import SentenceEncoder

    model = SentenceEncoder.from_pretrained(folder, pooling="mean", max_length=max_length)
    if cuda:
        model = model.to("cuda", torch.bfloat16)
    return quantized(model) if side == "ours_int8" else model
