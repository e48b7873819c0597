"""`encode` of both projects on the two columns of a split: same weights, float32 (ours also in int8 on a CPU)."""

import time

import numpy as np
import torch

from benchmarks.common import shuffled_rows, theirs
from benchmarks.weights import encoder_folder


def measure(args) -> dict:
    """`sentences_per_second` of `count` sentences, and the mean norm of the vectors as a check of equality."""
    return timed(args, quantise=False)


def measure_int8(args) -> dict:
    """As `measure`, with our linear layers in int8; theirs stay in float32."""
    return timed(args, quantise=True)


def timed(args, quantise: bool) -> dict:
    rows, max_length = shuffled_rows(args.corpus, args.split, args.count // 2)
    sentences = [*rows["sentence1"][:], *rows["sentence2"][:]]
    folder = encoder_folder(args.encoder)
    if args.side == "ours":
        from cosent.encoding import quantized
        from cosent.modeling import SentenceEncoder

        model = SentenceEncoder.from_pretrained(folder, pooling="mean", max_length=max_length["bi_encoder"])
        if torch.cuda.is_available():
            model = model.to("cuda", torch.bfloat16)
        if quantise:
            model = quantized(model)
    else:
        model = theirs(folder, max_length["bi_encoder"])
        if torch.cuda.is_available():
            model = model.bfloat16()
    model.encode(sentences[:256])
    start = time.perf_counter()
    vectors = model.encode(sentences)
    seconds = time.perf_counter() - start
    return {"sentences_per_second": len(sentences) / seconds, "losses": [float(np.linalg.norm(vectors, axis=1).mean())]}
