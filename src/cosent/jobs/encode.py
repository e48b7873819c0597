"""Embed the sentences of a file into a NumPy file: one JSON line on stdout, progress on stderr.

cosent encode --model runs/stsb --text sentences.txt --output vectors.npy --normalize
cosent encode --launch ddp --processes 2 ...    shares the chunks out over GPUs, or over processes on a CPU

Row n is the vector of row n of the input; vectors.npy.json, next to vectors.npy, records model and input. The
output is float32, to be read by `numpy.load("vectors.npy", mmap_mode="r")`; the input may have any length.
"""

import json
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.flags import REQUIRED, option
from cosent.jobs.arguments import Int8, ModelSource, OutputFile, SentenceFile, choose_device
from cosent.models.prompts import PromptArguments, warn_of_other_prompts


@dataclass(kw_only=True)
class EncodeArguments(OutputFile, SentenceFile, PromptArguments, Int8, ModelSource):
    """Vectors and precision."""

    text: str = REQUIRED
    output: str = REQUIRED
    normalize: bool = option(False, "Scale every vector to length 1, so that a dot product is the cosine.")
    dtype: str = option(
        "float32", "Floating-point type of the computation; vectors are float32.", ("float32", "bfloat16", "float16")
    )


def main(args: EncodeArguments) -> None:
    resolve(args.model)  # before imports that take seconds
    from cosent.compute.distributed import locked_by_main

    check_arguments(args)
    with locked_by_main(args.output):
        import torch
        from tqdm.auto import tqdm

        from cosent.compute.distributed import rank, wait_for_everyone
        from cosent.data.pairs import warn_truncated
        from cosent.models import load_bi_encoder
        from cosent.models.cache import fingerprint
        from cosent.models.embedding import quantized
        from cosent.search.vectors import VectorManifest, encode_file

        start, output = time.time(), Path(args.output)
        device = choose_device(args.device, args.int8)
        args.refuse_existing()
        wait_for_everyone()  # else a late process finds the output of an early one
        encoder = load_bi_encoder(args.model)
        sha256 = fingerprint(encoder)  # before it gets another type
        encoder = encoder.to(device=device, dtype=getattr(torch, args.dtype)).eval()
        encoder = quantized(encoder) if args.int8 else encoder
        prefix = encoder.prefix(encoder.prompts.text(*args.single()))
        flags = {name: getattr(args, name) for name in ("normalize", "text_column", "dtype", "int8")}
        dim = encoder.embedding_dimension
        settings = VectorManifest(args.model, sha256, dim, prefix=prefix, file_options=args.options, **flags)
        warn_of_other_prompts(args.model, encoder.prompts, prefix)
        with tqdm(unit="sentence", total=0, file=sys.stderr, disable=rank() > 0) as progress:
            rows, truncated = encode_file(encoder, Path(args.text), output, settings, progress.reset, progress.update)
        if rank() > 0:
            return
        seconds = time.time() - start
        warn_truncated(truncated, rows, "sentences", encoder.max_length)
        result = {"output": args.output, "rows": rows, "dim": dim, "truncated": truncated}
        result |= {"prompt": prefix, "seconds": round(seconds, 3)}
        print(json.dumps(result | {"sentences_per_second": round(rows / seconds, 1)}))
        if args.normalize:
            words = shlex.join(["cosent", "search", "--model", args.model, "--index", args.output])
            print(f"next: {words} --query 怎么还款", file=sys.stderr)


def check_arguments(args: EncodeArguments) -> None:
    """Refuses arguments that would fail only after minutes of work."""
    source, output = Path(args.text), Path(args.output)
    if not source.is_file():
        raise InputError(f"--text: there is no file {source}. Name one file; of several, run this once for each.")
    if output.suffix != ".npy" or not output.parent.is_dir():
        raise InputError(f"--output {output}: expected a file x.npy in a folder that exists. Name one.")
    args.single()
    if args.int8 and args.dtype != "float32":
        raise InputError(f"--int8 already sets the type, got --dtype {args.dtype} too. Drop one of the two.")
