"""Encode a text file of any length into a `.npy` file, in constant memory and on one or more processes."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from numpy.lib.format import open_memmap, write_array_header_1_0
from torch import nn

from cosent.compute.distributed import decided_by_main, gather_object, rank, world_size
from cosent.compute.processes import end_with_parent
from cosent.data.prefix import NO_PREFIX, Prefix
from cosent.errors import InputError, writing
from cosent.files import partial_file
from cosent.inference.embedding import embed

CHUNK_LINES = 4096  # read, sorted, encoded and written at a time


@dataclass(frozen=True)
class Chunk:
    """A range of lines: number of the first from 0, count, and start in bytes."""

    first: int
    rows: int
    offset: int


@dataclass(frozen=True)
class ChunkTask:
    """Everything except the encoder that a process needs to encode a chunk: two paths and arguments of `embed`."""

    input_path: Path
    output_path: Path
    batch_size: int
    normalize: bool
    keep_empty_lines: bool
    prefix: Prefix = NO_PREFIX


def read_chunks(path: Path, keep_empty_lines: bool = False, chunk_lines: int = CHUNK_LINES) -> list[Chunk]:
    """Checks every line of a file and returns where its chunks start.

    Raises:
        InputError: a missing or empty file, or a line that is not UTF-8 or empty.
    """
    if not path.is_file():
        raise InputError(f"There is no file {path}. Pass a UTF-8 text file with one sentence per line.")
    chunks, first, offset = [], 0, 0
    with open(path, "rb") as file:
        while lines := read_lines(file, path, first, chunk_lines, keep_empty_lines):
            chunks.append(Chunk(first, len(lines), offset))
            first, offset = first + len(lines), file.tell()
    if not chunks:
        raise InputError(f"{path} is empty: there is nothing to encode. Pass a file with one sentence per line.")
    return chunks


def read_lines(file, path: Path, first: int, count: int, keep_empty_lines: bool) -> list[str]:
    """Reads the next `count` sentences of a binary file; `first` is the number of the next line from 0."""
    return [
        decode(line, f"{path}, line {first + number + 1}", keep_empty_lines)
        for number, line in zip(range(count), iter(file.readline, b""), strict=False)
    ]


def decode(line: bytes, place: str, keep_empty_lines: bool) -> str:
    """One line as text, without its line end and a byte order mark, checked not to be empty."""
    try:
        sentence = line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{place}: expected UTF-8, got the byte 0x{error.object[error.start]:02x} in {line[:60]!r}. In another "
            "encoding it would be another text. Convert the file (iconv -f GB18030 -t UTF-8)."
        ) from error
    if not sentence.strip() and not keep_empty_lines:
        raise InputError(
            f"{place}: expected a sentence, got an empty line. Skipping it would shift all rows that follow; "
            "remove it, or pass --keep_empty_lines to encode it as an empty sentence."
        )
    return sentence


def encode_chunk(
    encoder: nn.Module, task: ChunkTask, chunk: Chunk, progress: Callable[[int], None] | None = None
) -> int:
    """Encodes a chunk into its rows of the existing output; returns how many sentences were cut."""
    with open(task.input_path, "rb") as file:
        file.seek(chunk.offset)
        sentences = read_lines(file, task.input_path, chunk.first, chunk.rows, task.keep_empty_lines)
    vectors, truncated = embed(encoder, sentences, task.batch_size, task.normalize, progress, task.prefix)
    start = open_memmap(task.output_path, mode="r").offset
    with writing(task.output_path), open(task.output_path, "r+b") as output:
        output.seek(start + chunk.first * vectors[0].nbytes)  # not into a memory map: there, a full disk is a SIGBUS
        output.write(vectors)
    return truncated


def reserve(path: Path, rows: int, columns: int) -> Path:
    """Creates a `.npy` file of zeros with all of its disk space allocated.

    Raises:
        InputError: it does not fit.
    """
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, columns)}
    with writing(path, needed=4 * rows * columns), open(path, "wb", buffering=0) as file:
        write_array_header_1_0(file, header)
        if sys.platform == "linux":
            os.posix_fallocate(file.fileno(), file.tell(), 4 * rows * columns)
        else:
            for row in range(0, rows, CHUNK_LINES):
                file.write(bytes(4 * columns * min(CHUNK_LINES, rows - row)))
    return path


def encode_file(
    encoder: nn.Module,
    task: ChunkTask,
    chunks: list[Chunk],
    load: Callable[[], nn.Module] | None = None,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Encodes all chunks of a file to `task.output_path`, which appears when it is complete.

    Until then the rows are in a partial file next to it, see `partial_file`. Of several processes launched together,
    each takes every world_size-th chunk; they need a common file system.

    Args:
        encoder: a `SentenceEncoder`.
        chunks: from `read_chunks`.
        load: picklable, returns the same encoder; called in each worker if there are several.
        workers: processes; each takes the next chunk, with its share of the threads.
        progress: called with the number of further sentences that this process has completed.

    Returns:
        Number of sentences cut to the encoder's maximum, by all processes.

    Raises:
        InputError: the output does not fit on the disk, a worker died, or this process does not see the file that the
            first one created.
    """
    rows, columns = chunks[-1].first + chunks[-1].rows, encoder.embedding_dimension
    own = chunks[rank() :: world_size()]
    with partial_file(task.output_path) if rank() == 0 else nullcontext() as partial:
        partial_task = replace(task, output_path=decided_by_main(lambda: reserve(partial, rows, columns)))
        if not partial_task.output_path.exists():
            raise InputError(
                f"{partial_task.output_path}, created by process 0, is not here: its rows would be missing. Machines "
                "that encode together need an --output on a file system that all of them see."
            )
        if workers == 1:
            truncated = sum(encode_chunk(encoder, partial_task, chunk, progress) for chunk in own)
        else:
            truncated = sum(encode_in_workers(load, partial_task, own, workers, progress))
        return sum(gather_object(truncated))  # from here on, all rows are written


def encode_in_workers(
    load: Callable, task: ChunkTask, chunks: list[Chunk], workers: int, progress: Callable[[int], None] | None
) -> Iterator[int]:
    """Yields the number of cut sentences of each completed chunk; ends the workers in any case."""
    threads = max(1, torch.get_num_threads() // workers)
    context = multiprocessing.get_context("spawn")  # a forked process would have one thread, see `survive_forks`
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(workers, context, initializer=start_worker, initargs=(load, threads, os.getpid())) as pool:
        done = {pool.submit(work, task, chunk): chunk for chunk in chunks}
        try:
            for future in as_completed(done):
                yield future.result()
                if progress is not None:
                    progress(done[future].rows)
        except BrokenProcessPool as error:
            raise InputError(
                f"One of {workers} workers died before its rows were written, most likely for lack of memory: each "
                "holds the complete model. Nothing was kept. Try fewer --workers or a smaller --batch_size."
            ) from error
        except BaseException:  # Ctrl-C, or a failed chunk: do not wait for the running ones
            for process in set(multiprocessing.active_children()) - set(others):
                process.terminate()
            raise


def start_worker(load: Callable, threads: int, parent: int) -> None:
    global worker_encoder
    end_with_parent(parent)
    torch.set_num_threads(threads)
    worker_encoder = load()


def work(task: ChunkTask, chunk: Chunk) -> int:
    return encode_chunk(worker_encoder, task, chunk)
