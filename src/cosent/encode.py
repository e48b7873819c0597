"""Embed a text file, one sentence per line, into a NumPy file: one JSON line on stdout, progress on stderr.

cosent encode --model runs/stsb --input sentences.txt --output vectors.npy --normalize
accelerate launch -q --config_file recipes/accelerate/ddp.yaml -m cosent.encode ...    shares the chunks out over GPUs

Next to vectors.npy, vectors.npy.json says which model and sentences the rows are of.
"""

import json
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cosent.cli import run
from cosent.errors import InputError
from cosent.flags import REQUIRED, option, refuse_below_1
from cosent.inference.prompt_arguments import check_line_breaks, warn_of_other_prompts


@dataclass
class EncodeArguments:
    """Input, output and speed of encoding."""

    model: str = option(REQUIRED, "Folder of a trained model, a shipped encoder or a Hub id.")
    input: str = option(REQUIRED, "UTF-8 text file of any length, one sentence per line.")
    output: str = option(REQUIRED, "File to write: float32, a row per line; numpy.load(..., mmap_mode='r').")
    batch_size: int = option(512, "Most sentences per forward pass; their tokens are limited too.")
    prompt: str | None = option(
        None, 'Text in front of every sentence; "" for none; default: the default prompt of the model.'
    )
    prompt_name: str | None = option(None, "Instead: the name of a prompt of the model.")
    normalize: bool = option(False, "Scale every vector to length 1, so that a dot product is the cosine.")
    int8: bool = option(False, "Linear layers in int8 (CPU).")
    dtype: str = option("float32", "Type of the computation; vectors are float32.", ("float32", "bfloat16", "float16"))
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available, cpu with --int8.")
    workers: int = option(1, "Processes on the CPU, which share the threads.")
    keep_empty_lines: bool = option(False, "Give an empty line the vector of the empty sentence instead of stopping.")
    overwrite: bool = option(False, "Replace the output if it exists.")


def main(args: EncodeArguments) -> None:
    from tqdm.auto import tqdm

    from cosent.compute.devices import choose_device
    from cosent.compute.distributed import rank, world_size
    from cosent.data.tokenization import warn_truncated
    from cosent.inference.vector_file import ChunkTask, encode_file, read_chunks
    from cosent.inference.vector_manifest import VectorManifest
    from cosent.modeling.auto import load_bi_encoder
    from cosent.modeling.teacher import fingerprint
    from cosent.schema import sha256_of_file

    start = time.time()
    device = choose_device(args.device, args.int8)
    check(args, device)
    load = partial(load_encoder, args.model, args.dtype, args.int8, device)
    encoder = load_bi_encoder(args.model)
    model_sha256 = fingerprint(encoder, [])  # before it gets another type
    encoder = placed(encoder, args.dtype, args.int8, device)
    prefix = encoder.prefix(encoder.prompts.text(args.prompt, args.prompt_name))
    warn_of_other_prompts(args.model, prefix.text)
    paths = Path(args.input), Path(args.output)
    task = ChunkTask(*paths, args.batch_size, args.normalize, args.keep_empty_lines, prefix)
    chunks = read_chunks(task.input_path, args.keep_empty_lines)
    rows, input_sha256 = chunks[-1].first + chunks[-1].rows, sha256_of_file(task.input_path)
    own = sum(chunk.rows for chunk in chunks[rank() :: world_size()])
    with tqdm(total=own, unit="sentence", file=sys.stderr, disable=rank() > 0) as progress:
        truncated = encode_file(encoder, task, chunks, load, args.workers, progress.update)
    if rank() > 0:
        return
    about = args.model, model_sha256, prefix.text, task.input_path, input_sha256
    VectorManifest.of(task.output_path, *about).save(task.output_path)
    seconds = time.time() - start
    warn_truncated(truncated, rows, "sentences", encoder.max_length)
    result = {"output": args.output, "rows": rows, "dim": encoder.embedding_dimension, "truncated": truncated}
    result |= {"prompt": prefix.text, "seconds": round(seconds, 3), "sentences_per_second": round(rows / seconds, 1)}
    print(json.dumps(result))


def check(args: EncodeArguments, device: str) -> None:
    """Refuses arguments that would fail only after minutes of work.

    Raises:
        InputError: an output that exists or cannot be written, or flags that do not go together.
    """
    output = Path(args.output)
    if not output.parent.is_dir():
        raise InputError(f"--output {output}: the folder {output.parent} does not exist. Create it first.")
    if output.exists() and (output.is_dir() or not args.overwrite):
        raise InputError(f"--output {output} exists, and nothing was written. Name another, or pass --overwrite.")
    if output.resolve() == Path(args.input).resolve():
        raise InputError(f"--output {output} is the --input: the sentences would be lost. Name another output.")
    refuse_below_1(args, "batch_size", "workers")
    check_line_breaks(args.prompt and [args.prompt])
    if device != "cpu" and args.workers > 1:
        raise InputError(f"--workers is for the CPU, got device {device}. Add --device cpu, or drop it.")
    if args.int8 and args.dtype != "float32":
        raise InputError(f"--int8 already sets the type, got --dtype {args.dtype} too. Drop one of the two.")


def load_encoder(model: str, dtype: str, int8: bool, device: str):
    from cosent.modeling.auto import load_bi_encoder

    return placed(load_bi_encoder(model), dtype, int8, device)


def placed(encoder, dtype: str, int8: bool, device: str):
    """A loaded encoder on its device, in the type of the computation."""
    import torch

    from cosent.inference.embedding import quantized

    encoder = encoder.to(device=device, dtype=getattr(torch, dtype)).eval()
    return quantized(encoder) if int8 else encoder


ARGUMENTS = (EncodeArguments,)

if __name__ == "__main__":
    run(main, *ARGUMENTS)
