"""Encode sentences of any number into a `.npy` file, in constant memory and on one or more processes."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from numpy.lib.format import open_memmap, write_array_header_1_0
from torch import nn

from cosent.compute.distributed import decided_by_main, gather_object, rank, world_size
from cosent.compute.processes import end_with_parent
from cosent.data.prefix import NO_PREFIX, Prefix
from cosent.errors import InputError, writing
from cosent.files import partial_file
from cosent.inference.batches import check_finite
from cosent.inference.embedding import embed

CHUNK_ROWS = 4096  # read, sorted, encoded and written at a time; the bits of a vector depend on its chunk, not on more


@dataclass(frozen=True)
class Chunk:
    """Neighbouring sentences of a file, and the row of the first."""

    first: int
    sentences: list[str]


@dataclass(frozen=True)
class ChunkTask:
    """Everything except the encoder that a process needs to encode a chunk: a path and arguments of `embed`.

    Args:
        source: what has the sentences, for messages.
    """

    output_path: Path
    batch_size: int
    normalize: bool
    prefix: Prefix = NO_PREFIX
    source: str = "input"


# Task and chunks -> rows and number of cut sentences of each finished chunk.
Runner = Callable[[ChunkTask, Iterator[Chunk]], Iterator[tuple[int, int]]]


def chunks_of(sentences: Iterable[str], rows: int = CHUNK_ROWS) -> Iterator[Chunk]:
    sentences, first = iter(sentences), 0
    while some := list(islice(sentences, rows)):
        yield Chunk(first, some)
        first += len(some)


def encode_chunk(
    encoder: nn.Module, task: ChunkTask, chunk: Chunk, progress: Callable[[int], None] | None = None
) -> tuple[int, int]:
    """Encodes a chunk into its rows of the existing output; returns its rows and how many sentences were cut.

    Raises:
        InputError: a full disk, or a vector that is not finite.
    """
    vectors, truncated = embed(encoder, chunk.sentences, task.batch_size, task.normalize, progress, task.prefix)
    check_finite(vectors, chunk.first, task.source)
    start = open_memmap(task.output_path, mode="r").offset
    with writing(task.output_path), open(task.output_path, "r+b") as output:
        output.seek(start + chunk.first * vectors[0].nbytes)  # not into a memory map: there, a full disk is a SIGBUS
        output.write(vectors)
    return len(vectors), truncated


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
            for row in range(0, rows, CHUNK_ROWS):
                file.write(bytes(4 * columns * min(CHUNK_ROWS, rows - row)))
    return path


def encode_file(
    run: Runner,
    task: ChunkTask,
    chunks: Iterable[Chunk],
    shape: tuple[int, int],
    publish: Callable[[Path], None] = lambda partial: None,
) -> int:
    """Encodes all chunks to `task.output_path`, which appears when it is complete.

    Until then the rows are in a partial file next to it, see `partial_file`. Of several processes launched together,
    each takes every world_size-th chunk; they need a common file system.

    Args:
        run: of `chunk_runner`.
        chunks: from `chunks_of`.
        shape: rows of all chunks, and width of a vector.
        publish: called with the complete partial file by the first process, before the file gets its name.

    Returns:
        Number of sentences cut to the encoder's maximum, by all processes.

    Raises:
        InputError: the output does not fit on the disk, a worker died, there are not as many rows as expected, or this
            process does not see the file that the first one created.
    """
    own = (chunk for number, chunk in enumerate(chunks) if number % world_size() == rank())
    with partial_file(task.output_path) if rank() == 0 else nullcontext() as partial:
        partial_task = replace(task, output_path=decided_by_main(lambda: reserve(partial, *shape)))
        if not partial_task.output_path.exists():
            raise InputError(
                f"{partial_task.output_path}, created by process 0, is not here: its rows would be missing. Machines "
                "that encode together need an --output on a file system that all of them see."
            )
        parts = gather_object(tuple(map(sum, zip(*run(partial_task, own), strict=True))) or (0, 0))
        rows, truncated = (sum(part[place] for part in parts) for place in (0, 1))  # from here on, all are written
        if rows != shape[0]:
            raise InputError(
                f"{task.output_path}: expected {shape[0]} sentences, as were checked, got {rows}: the input changed "
                "while it was read, and rows would belong to others. Run this again."
            )
        if rank() == 0:
            publish(partial)
        return truncated


@contextmanager
def chunk_runner(
    encoder: nn.Module, load: Callable[[], nn.Module], workers: int, progress: Callable[[int], None] | None = None
) -> Iterator[Runner]:
    """Yields a `Runner` in this process, or in several that live until the block ends.

    Args:
        encoder: a `Embedder`, for this process.
        load: picklable, returns the same encoder; called in each worker if there are several.
        workers: processes; each takes the next chunk, with its share of the threads.
        progress: called with the number of further sentences that this process has completed.
    """
    if workers == 1:
        yield lambda task, chunks: (encode_chunk(encoder, task, chunk, progress) for chunk in chunks)
        return
    threads = max(1, torch.get_num_threads() // workers)
    context = multiprocessing.get_context("spawn")  # a forked process would have one thread, see `survive_forks`
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(workers, context, initializer=start_worker, initargs=(load, threads, os.getpid())) as pool:
        try:
            yield lambda task, chunks: run_in_pool(pool, 2 * workers, task, chunks, progress)
        except BrokenProcessPool as error:
            raise InputError(
                f"One of {workers} workers died before its rows were written, most likely for lack of memory: each "
                "holds the complete model. Nothing was kept of this file. Try fewer --workers or a smaller "
                "--batch_size."
            ) from error
        except BaseException:  # Ctrl-C, or a failed chunk: do not wait for the running ones
            for process in set(multiprocessing.active_children()) - set(others):
                process.terminate()
            raise


def run_in_pool(
    pool: ProcessPoolExecutor, most: int, task: ChunkTask, chunks: Iterator[Chunk], progress: Callable | None
) -> Iterator[tuple[int, int]]:
    """Yields rows and cut sentences of each completed chunk; at most `most` chunks wait or run."""

    def finished(futures: Iterable[Future]) -> Iterator[tuple[int, int]]:
        for future in futures:
            if progress is not None:
                progress(future.result()[0])
            yield future.result()

    waiting: set[Future] = set()
    for chunk in chunks:
        if len(waiting) == most:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from finished(done)
        waiting.add(pool.submit(work, task, chunk))
    yield from finished(as_completed(waiting))


def start_worker(load: Callable, threads: int, parent: int) -> None:
    global worker_encoder
    end_with_parent(parent)
    torch.set_num_threads(threads)
    worker_encoder = load()


def work(task: ChunkTask, chunk: Chunk) -> tuple[int, int]:
    return encode_chunk(worker_encoder, task, chunk)
