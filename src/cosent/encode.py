"""Embed files of sentences into NumPy files: one JSON line on stdout, progress on stderr.

cosent encode --model runs/stsb --text sentences.txt --output vectors.npy --normalize
cosent encode --model runs/stsb --text 'part-*.parquet' --text_column question --output vectors/
cosent encode --launch ddp --processes 2 ...    shares the chunks out over GPUs, or over processes on a CPU

Row n is the vector of row n of the input; vectors.npy.json, next to vectors.npy, says of which model and input. What is
there already is not encoded again: after a kill, the same command continues with the next file.
"""

import json
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from cosent.cli import REQUIRED, option, run
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.models.prompts import check_line_breaks, warn_of_other_prompts


@dataclass
class EncodeArguments:
    """Input, output and speed of encoding."""

    text: list[str] = option(
        REQUIRED, "Files of any length, or patterns such as 'part-*.parquet': txt (one sentence per line), tsv, csv, "
        "jsonl, parquet, xlsx; text also as .gz.", commas=True,
    )  # fmt: skip
    output: str = option(
        REQUIRED, "File to write, x.npy: float32, a row per sentence; numpy.load(..., mmap_mode='r'). Any other name "
        "is that of a folder, which gets one such file per input.",
    )  # fmt: skip
    model: str = option("similar", "Folder of a trained model, a shipped model or a Hub id.")
    text_column: str | None = option(None, "Column of the sentences; default: text or sentence, or the only one.")
    shard: str | None = option(
        None,
        "I/N, as 1/8 to 8/8: encode every N-th input, beginning with the I-th; other processes take the others.",
    )
    prompt: str | None = option(
        None, 'Text in front of every sentence; "" for none; default: the default prompt of the model.'
    )
    prompt_name: str | None = option(None, "Instead: the name of a prompt of the model.")
    long_texts: str = option(
        "truncate", "What becomes of texts longer than the model reads: cut, or the mean of the vectors of overlapping "
        "windows.", ("truncate", "mean"),
    )  # fmt: skip
    truncate_dim: int | None = option(None, "Keep the first numbers of every vector only.")
    normalize: bool = option(False, "Scale every vector to length 1, so that a dot product is the cosine.")
    int8: bool = option(False, "Linear layers in int8 (CPU).")
    dtype: str = option("float32", "Type of the computation; vectors are float32.", ("float32", "bfloat16", "float16"))
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available, cpu with --int8.")
    overwrite: bool = option(False, "Encode again what is there, also if it was encoded otherwise.")


def main(args: EncodeArguments) -> None:
    resolve(args.model)  # before imports that take seconds
    from tqdm.auto import tqdm

    from cosent.compute.distributed import rank, wait_for_everyone
    from cosent.compute.onednn import choose_device
    from cosent.data.pairs import warn_truncated
    from cosent.inference.vectors import encode_shard, shards_of
    from cosent.models.teacher import load_with_settings

    output = Path(args.output)
    device = choose_device(args.device, args.int8)
    shards = shards_of(args.text, output)
    check(args, [source for source, _ in shards])
    first, step = (int(number) for number in (args.shard or "1/1").split("/"))
    encoder, settings = load_with_settings(
        args.model, device, args.prompt, args.prompt_name, args.dtype, args.int8, args.long_texts, args.truncate_dim,
        normalize=args.normalize, text_column=args.text_column, shards=len(shards),
    )  # fmt: skip
    warn_of_other_prompts(args.model, settings.prefix)
    if rank() == 0 and output.suffix != ".npy":
        output.mkdir(exist_ok=True)
    wait_for_everyone()
    start = time.time()
    with tqdm(unit="sentence", total=0, file=sys.stderr, disable=rank() > 0) as progress:

        def more(rows: int) -> None:
            progress.total += rows

        done = [
            encode_shard(encoder, *shard, settings, args.overwrite, more, progress.update)
            for shard in shards[first - 1 :: step]
        ]
    if rank() > 0:
        return
    new = [(rows, truncated) for rows, truncated in done if truncated is not None]
    seconds, encoded, truncated = time.time() - start, sum(rows for rows, _ in new), sum(cut for _, cut in new)
    warn_truncated(truncated, encoded, "sentences", encoder.max_length)
    result = {"output": args.output, "rows": sum(rows for rows, _ in done), "dim": settings.dim}
    result |= {"truncated": truncated, "files": len(done), "already_there": len(done) - len(new)}
    result |= {"prompt": settings.prefix, "seconds": round(seconds, 3)}
    print(json.dumps(result | {"sentences_per_second": round(encoded / seconds, 1)}))
    if args.normalize:
        words = shlex.join(["cosent", "search", "--model", args.model, "--index", args.output])
        print(f"next: {words} --query 怎么还款", file=sys.stderr)


def check(args: EncodeArguments, sources: list[Path]) -> None:
    """Refuses arguments that would fail only after minutes of work."""
    output, (first, _, step) = Path(args.output), (args.shard or "1/1").partition("/")
    if not output.parent.is_dir():
        raise InputError(f"--output {output}: the folder {output.parent} does not exist. Create it first.")
    if output.resolve() in {path.resolve() for path in sources} or (output.is_file() and output.suffix != ".npy"):
        raise InputError(f"--output {output} is a file, perhaps of --text. Name an .npy file, or a folder.")
    if not (first.isdecimal() and step.isdecimal() and 1 <= int(first) <= int(step)):
        raise InputError(f"--shard {args.shard}: expected I/N with I from 1 to N, as 1/8 to 8/8.")
    if args.shard and output.suffix == ".npy":
        raise InputError(f"--shard {args.shard} shares out several files, and --output is one. Name a folder.")
    check_line_breaks(args.prompt and [args.prompt])
    if args.int8 and args.dtype != "float32":
        raise InputError(f"--int8 already sets the type, got --dtype {args.dtype} too. Drop one of the two.")


ARGUMENTS = (EncodeArguments,)

if __name__ == "__main__":
    run(main, *ARGUMENTS)
