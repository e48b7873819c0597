"""Embed the sentences of a file into a NumPy file: one JSON line on stdout, progress on stderr.

cosent encode --model runs/stsb --text sentences.txt --output vectors.npy

Row n is the float32 vector of row n of the input, scaled to length 1, so that a dot product is the cosine:
numpy.load("vectors.npy", mmap_mode="r"). The input may have any length. The JSON line, with the model and its hash, is
also in vectors.npy.json.
"""

import errno
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from cosent.atomic import locked, partial_file, write_atomically
from cosent.data.files import SENTENCE, open_table
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.flags import REQUIRED, option
from cosent.jobs.arguments import Int8, ModelSource, OutputFile, SentenceFile, choose_device
from cosent.models.prompts import PromptArguments, warn_of_other_prompts

CHUNK = 4096  # sentences in memory at a time


@dataclass(kw_only=True)
class EncodeArguments(OutputFile, SentenceFile, PromptArguments, Int8, ModelSource):
    """Precision."""

    text: str = REQUIRED
    output: str = REQUIRED
    dtype: str = option(
        "float32", "Floating-point type of the computation; vectors are float32.", ("float32", "bfloat16", "float16")
    )


def main(args: EncodeArguments) -> None:
    resolve(args.model)  # before imports that take seconds
    check_arguments(args)
    with locked(args.output):
        args.refuse_existing()
        import torch
        from tqdm.auto import tqdm

        from cosent.data.pairs import warn_truncated
        from cosent.models.bi_encoder import SentenceEncoder
        from cosent.models.cache import fingerprint
        from cosent.models.embedding import embed, quantized

        start, device = time.time(), choose_device(args.device, args.int8)
        encoder = SentenceEncoder.from_pretrained(args.model)
        facts: dict[str, Any] = {"model": args.model, "sha256": fingerprint(encoder)}  # before it gets another type
        encoder = encoder.to(device=device, dtype=getattr(torch, args.dtype)).eval()
        encoder = quantized(encoder) if args.int8 else encoder
        prompt = encoder.prefix(encoder.prompts.text(*args.single()))
        warn_of_other_prompts(args.model, encoder.prompts, prompt)
        columns = None if args.text_column is None else [args.text_column]
        table = open_table(args.text, columns, SENTENCE, "--text_column", "--text", args.options)
        shape = sum(1 for _ in table.texts()), encoder.embedding_dimension  # all texts are checked first
        with tqdm(unit="sentence", total=shape[0], file=sys.stderr) as progress:
            options: dict[str, Any] = {"normalize": True, "prefix": prompt, "progress": progress.update}
            truncated = write_vectors(Path(args.output), shape, table.texts(), partial(embed, encoder, **options))
        seconds = time.time() - start
        warn_truncated(truncated, shape[0], "sentences", encoder.max_length)
        facts |= {"output": args.output, "rows": shape[0], "dim": shape[1], "truncated": truncated, "prompt": prompt}
        facts |= {"seconds": round(seconds, 3), "sentences_per_second": round(shape[0] / seconds, 1)}
        line = json.dumps(facts, ensure_ascii=False)
        write_atomically(f"{args.output}.json", line + "\n")
        print(line)


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


def write_vectors(
    output: Path,
    shape: tuple[int, int],
    texts: Iterator[str],
    embed: Callable[[list[str]], tuple[np.ndarray, int]],
) -> int:
    """Writes a `.npy` file of float32, which appears when it is complete; returns how many texts were cut."""
    written = truncated = 0
    with partial_file(output) as path, open(path, "wb") as file:
        size, free = 4 * shape[0] * shape[1], shutil.disk_usage(output.parent).free
        if free < size:
            raise OSError(errno.ENOSPC, f"it takes {size / 2**20:.1f} MiB, and {free / 2**20:.1f} are free")
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        while chunk := list(islice(texts, CHUNK)):
            vectors, cut = embed(chunk)
            file.write(vectors.astype("<f4", copy=False).data)
            written, truncated = written + len(vectors), truncated + cut
        if written != shape[0]:
            raise InputError(f"The input changed while it was read: {shape[0]} sentences, then {written}. Try again.")
    return truncated
