"""`VectorSet`: one file of vectors, or a folder of shards, as a single memory-mapped array."""

import glob
import hashlib
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap, write_array_header_1_0
from torch import nn

from cosent import __version__
from cosent.cli import end_with_parent
from cosent.compute.distributed import decided_by_main, gather_object, rank, world_size
from cosent.data.files import SENTENCE, Table, format_of, open_parquet, open_table, stem_of, table_writer
from cosent.data.manifest import sha256_of_file
from cosent.data.pairs import NO_PREFIX, Prefix
from cosent.errors import InputError, partial_file, write_atomically, writing
from cosent.inference.embedding import check_finite, embed

SAMPLE = 1024  # rows whose bytes tie a manifest to its vectors: those of a chunk that was never written are among them


@dataclass(frozen=True)
class VectorManifest:
    """Contents of `vectors.npy.json`, next to `vectors.npy`.

    Args:
        model: folder or Hub id, as given.
        model_sha256: `fingerprint` of the model, which is the same wherever its folder is.
        prompt: text that the model read in front of every sentence.
        rows, dim: shape of the vectors.
        sample_sha256: `sample_hash` of the vectors.
        input: file of the sentences, from the folder of the vectors.
        input_sha256: hash of that file before it was read.
        text_column: column of the sentences in it.
        kept: columns that are kept in `rows_path`, row for row.
        normalize, dtype, int8: how the vectors were computed.
        shards: files that were to be encoded together with this one.
        version: of this package.
    """

    model: str
    model_sha256: str
    prompt: str
    rows: int
    dim: int
    sample_sha256: str
    input: str
    input_sha256: str
    text_column: str = "text"
    kept: tuple[str, ...] = ()
    normalize: bool = False
    dtype: str = "float32"
    int8: bool = False
    shards: int = 1
    version: str = __version__

    @classmethod
    def of(
        cls, vectors: Path, model: str, model_sha256: str, prompt: str, source: Path, input_sha256: str, **settings
    ) -> "VectorManifest":
        """The manifest of a complete file."""
        array = np.load(vectors, mmap_mode="r")
        rows, dim = array.shape
        return cls(model, model_sha256, prompt, rows, dim, sample_hash(array), from_folder(source, vectors.parent),
                   input_sha256, **settings)  # fmt: skip

    def save(self, vectors: Path) -> None:
        with writing(manifest_path(vectors)):
            write_atomically(manifest_path(vectors), json.dumps(asdict(self), ensure_ascii=False, indent=2) + "\n")


def manifest_path(vectors: Path) -> Path:
    return vectors.with_name(f"{vectors.name}.json")


def rows_path(vectors: Path) -> Path:
    """Where the kept columns of a file of vectors are: `vectors.rows.parquet` next to `vectors.npy`."""
    return vectors.with_suffix(".rows.parquet")


def read_manifest(vectors: Path) -> VectorManifest:
    """The manifest of a file of vectors.

    Raises:
        InputError: there is none, or another kind of JSON.
    """
    path = manifest_path(vectors)
    if not path.is_file():
        raise InputError(
            f"{vectors} has no {path.name} next to it, which says what model and sentences the rows are of: they could "
            "be anything. Write the vectors with `cosent encode` of this version; move both files together."
        )
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        values = {field.name: known[field.name] for field in fields(VectorManifest)}
        return VectorManifest(**values | {"kept": tuple(values["kept"])})
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path}: expected what `cosent encode` writes next to vectors, got {type(error).__name__}: {error}. Which "
            "sentences the rows are of is not known. Encode them again."
        ) from error


def read_vectors(path: Path, manifest: VectorManifest) -> np.ndarray:
    """The vectors of a file, memory-mapped, float32 of shape `(rows, dim)`.

    Raises:
        InputError: no such file, a truncated or torn one, or one that the manifest is not of.
    """
    try:
        vectors = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is no complete file of vectors: {error}. Encode the sentences again.") from error
    wanted = manifest.rows, manifest.dim
    if vectors.shape != wanted or vectors.dtype != np.float32 or sample_hash(vectors) != manifest.sample_sha256:
        raise InputError(
            f"{path}: expected the {wanted[0]} x {wanted[1]} vectors that {manifest_path(path).name} describes, got "
            f"{vectors.dtype} of shape {vectors.shape}, or others: sentences would be found that do not belong to the "
            "vectors. Encode the sentences again."
        )
    return vectors


def read_sentences(vectors: Path, manifest: VectorManifest) -> list[str]:
    """The sentences of the rows.

    Raises:
        InputError: the file is missing, or has changed since it was encoded.
    """
    if manifest.text_column in manifest.kept:
        return [row[manifest.text_column] for row in read_kept(vectors, manifest)]
    source = source_of(vectors, manifest)
    if not source.is_file():
        raise InputError(
            f"{vectors} has the vectors of {source}, which is not there: rows could not be shown as sentences. Put the "
            "file back there, or encode it where it is now."
        )
    if sha256_of_file(source) != manifest.input_sha256:
        raise InputError(
            f"{source} has changed since {vectors} was written: rows would be shown as the wrong sentences. Encode it "
            "again with --overwrite."
        )
    column = None if format_of(source) == "txt" else [manifest.text_column]
    return list(open_table(source, column, SENTENCE, "--text_column").texts(keep_empty=True))


def source_of(vectors: Path, manifest: VectorManifest) -> Path:
    """The file that a file of vectors was encoded from."""
    return Path(vectors.parent, manifest.input)


def read_kept(vectors: Path, manifest: VectorManifest) -> list[dict]:
    """The kept columns of the rows, `{column: value}` each.

    Raises:
        InputError: their file is missing, or of other vectors.
    """
    path = rows_path(vectors)
    rows: list[dict] = []
    if path.is_file():
        with open_parquet(path) as file:
            rows = file.read().to_pylist()
    if len(rows) != manifest.rows:
        raise InputError(
            f"{path}: expected the {manifest.rows} rows of {vectors.name}, got {len(rows)}. Results could not be "
            "shown. Encode again with --overwrite, and move all files of a shard together."
        )
    return rows


def sample_hash(vectors: np.ndarray) -> str:
    """SHA-256 of up to `SAMPLE` evenly spaced rows."""
    rows = np.linspace(0, len(vectors) - 1, min(SAMPLE, len(vectors))).astype(np.int64)
    return hashlib.sha256(np.ascontiguousarray(vectors[rows]).tobytes()).hexdigest()


def from_folder(path: Path, folder: Path) -> str:
    """A path as seen from a folder, so that both can be moved together; absolute where there is no way."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # on another drive of Windows
        return path.absolute().as_posix()


SAME = ("model_sha256", "prompt", "dim", "normalize", "dtype", "int8")  # in every shard of a set


@dataclass(frozen=True)
class VectorSet:
    """Vectors of one or several files, which are read where and when rows of them are asked for.

    Slices are read as with an array: `vectors[1000:2000]` is float32 of shape `(1000, dim)`, a view if all of it lies
    in one file. A list of row numbers gives those rows.

    Args:
        files: in the order of the rows, that of their names.
        manifests: of each file.
        parts: the memory-mapped vectors of each file.
    """

    files: list[Path]
    manifests: list[VectorManifest]
    parts: list[np.ndarray]

    @cached_property
    def starts(self) -> np.ndarray:
        """First row of each file, and the number of all rows."""
        return np.concatenate([[0], np.cumsum([len(part) for part in self.parts])])

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.starts[-1]), self.manifests[0].dim

    @property
    def ndim(self) -> int:
        return 2

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | list[int] | np.ndarray) -> np.ndarray:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step != 1:
                raise IndexError("a VectorSet is read in slices of step 1")
            spans = [(max(start, first), min(stop, last), first, part)
                     for first, last, part in zip(self.starts, self.starts[1:], self.parts, strict=False)]  # fmt: skip
            found = [part[low - first : high - first] for low, high, first, part in spans if low < high]
            return found[0] if len(found) == 1 else np.concatenate([np.empty((0, self.shape[1]), np.float32), *found])
        wanted = np.asarray(rows, np.int64)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < len(self):
            raise IndexError(f"rows are 0 to {len(self) - 1}, got {wanted.min()} to {wanted.max()}")
        vectors = np.empty((len(wanted), self.shape[1]), np.float32)
        number = np.searchsorted(self.starts, wanted, side="right") - 1
        for file in np.unique(number):
            vectors[number == file] = self.parts[file][wanted[number == file] - self.starts[file]]
        return vectors

    def sentences(self) -> list[str]:
        """The sentence of every row; see `read_sentences`."""
        return [
            text for file, about in zip(self.files, self.manifests, strict=True) for text in read_sentences(file, about)
        ]

    def kept(self) -> list[dict]:
        """The columns of every row that `--keep` kept; see `read_kept`."""
        pairs = zip(self.files, self.manifests, strict=True)
        return [row for file, manifest in pairs for row in read_kept(file, manifest)]


def open_vectors(path: str | Path, model_sha256: str | None = None) -> VectorSet:
    """Opens a `.npy` file that `cosent encode` wrote, or a folder of them.

    Args:
        model_sha256: `fingerprint` of the model that queries are embedded with; None accepts vectors of any model.

    Raises:
        InputError: nothing is there, a shard is missing, torn or not finished, shards of different models or settings,
            or vectors of another model.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"There are no vectors at {path}. Write them with `cosent encode --output {path}`.")
    files = [path]
    if path.is_dir():
        unfinished = {Path(str(file)[: -len(".json")]) for file in path.glob("*.npy.json")}
        files = sorted({*path.glob("*.npy"), *unfinished})
        torn = [file for file in files if not file.is_file()]
        if torn:
            raise InputError(f"{torn[0]} is not finished: its encoding was stopped at the end. Run it again.")
        if not files:
            raise InputError(f"{path} has no .npy file. Write them with `cosent encode --output {path}`.")
    manifests = [read_manifest(file) for file in files]
    first = manifests[0]
    for file, manifest in zip(files, manifests, strict=True):
        other = [name for name in SAME if getattr(manifest, name) != getattr(first, name)]
        if other:
            raise InputError(f"{files[0]} and {file} were encoded with another {', '.join(other)}: their vectors "
                             "cannot be compared. Encode them alike, or keep them in different folders.")  # fmt: skip
    expected = max(manifest.shards for manifest in manifests)
    if path.is_dir() and len(files) < expected:
        raise InputError(
            f"{path} has {len(files)} of {expected} shards: sentences would never be found. Run the others, or the "
            "same command again: it encodes only what is missing."
        )
    if model_sha256 is not None and first.model_sha256 != model_sha256:
        raise InputError(
            f"{path} was encoded by another model ({first.model}) than the one that reads queries: their vectors have "
            "nothing to do with each other. Take that model, or encode the sentences again."
        )
    return VectorSet(
        files, manifests, [read_vectors(file, about) for file, about in zip(files, manifests, strict=True)]
    )


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


@dataclass(frozen=True)
class ShardSettings:
    """What all shards of a set have in common.

    Args:
        model: folder or Hub id, as given.
        model_sha256: `fingerprint` of the model.
        dim: width of a vector.
        text_column, kept: columns of the sentences and of what is kept with the vectors; `open_table` finds the former
            if it is None.
        dtype, int8: how the model computes.
        shards: files of the whole set.
    """

    model: str
    model_sha256: str
    dim: int
    prefix: Prefix = NO_PREFIX
    batch_size: int = 512
    normalize: bool = False
    text_column: str | None = None
    kept: tuple[str, ...] = ()
    keep_empty_lines: bool = False
    dtype: str = "float32"
    int8: bool = False
    shards: int = 1


@dataclass(frozen=True)
class Encoded:
    """A shard that is there: its rows, how many sentences were cut, and whether an earlier run had encoded it."""

    output: str
    rows: int
    truncated: int
    skipped: bool


def find_inputs(patterns: Sequence[str]) -> list[Path]:
    """The files that names and patterns with `*` stand for.

    Raises:
        InputError: one that stands for no file.
    """
    found: list[Path] = []
    for pattern in patterns:
        files = [Path(pattern)] if Path(pattern).is_file() else sorted(map(Path, glob.glob(pattern)))
        files = [file for file in files if file.is_file()]
        if not files:
            raise InputError(f"--text: there is no file {pattern}. Name files, or a pattern such as 'part-*.parquet'.")
        found += [file for file in files if file not in found]
    return found


def outputs_of(inputs: Sequence[Path], output: Path) -> list[Path]:
    """The file of vectors of each input: `output` itself if it ends in `.npy`, else one of the same name below it.

    Raises:
        InputError: several inputs for one file.
    """
    if output.suffix == ".npy":
        if len(inputs) > 1:
            raise InputError(f"--output {output} is one file, and there are {len(inputs)} inputs. Name a folder.")
        return [output]
    outputs = [output / f"{stem_of(path)}.npy" for path in inputs]
    for path, other in zip(inputs, outputs, strict=True):
        if outputs.count(other) > 1:
            raise InputError(
                f"--text {path}: several files would be written to {other}, and one would be lost. Rename them, or "
                "encode them into different folders."
            )
    return outputs


def encode_shard(
    run: Runner, source: Path, output: Path, settings: ShardSettings, overwrite: bool = False,
    on_start: Callable[[int], None] = lambda rows: None,
) -> Encoded:  # fmt: skip
    """Encodes one input, unless its vectors are there; the output appears when it is complete.

    Args:
        run: of `chunk_runner`.
        on_start: called with the number of rows before any is encoded.

    Raises:
        InputError: a row that is no sentence, an output that was encoded otherwise, or what `encode_file` raises.
    """
    column = None if settings.text_column is None else [settings.text_column]
    table = open_table(source, column, SENTENCE, "--text_column")
    missing = [name for name in settings.kept if name not in table.names]
    if missing:
        raise InputError(f"{source}: --keep {missing[0]}: expected a column of {', '.join(table.names)}. Correct it.")
    about = manifest_facts(table, settings)
    there = decided_by_main(lambda: finished(output, about, overwrite))
    if there is not None:
        return Encoded(str(output), there, 0, skipped=True)
    rows = sum(1 for _ in table.rows(columns_of(table, settings), settings.keep_empty_lines))  # all are checked first
    on_start(rows)
    task = ChunkTask(output, settings.batch_size, settings.normalize, settings.prefix, str(source))

    def publish(partial: Path) -> None:
        output.unlink(missing_ok=True)  # from here on, a kill leaves a manifest without vectors: an unfinished shard
        if settings.kept:
            with table_writer(rows_path(output), settings.kept) as write:
                every = table.rows(columns_of(table, settings), settings.keep_empty_lines)
                while some := list(islice(every, CHUNK_ROWS)):
                    write([{name: row[name] for name in settings.kept} for row in some])
        else:
            rows_path(output).unlink(missing_ok=True)
        VectorManifest.of(partial, settings.model, source=source, **about).save(output)

    texts = table.texts(settings.keep_empty_lines)
    truncated = encode_file(run, task, chunks_of(texts), (rows, settings.dim), publish)
    return Encoded(str(output), rows, truncated, skipped=False)


def columns_of(table: Table, settings: ShardSettings) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*table.sentences, *settings.kept)))


def manifest_facts(table: Table, settings: ShardSettings) -> dict:
    """What makes a shard another one, by field of the manifest."""
    return {
        "model_sha256": settings.model_sha256,
        "prompt": settings.prefix.text,
        "input_sha256": sha256_of_file(table.path),
        "text_column": table.sentences[0],
        "kept": settings.kept,
        "normalize": settings.normalize,
        "dtype": settings.dtype,
        "int8": settings.int8,
        "shards": settings.shards,
    }


def finished(output: Path, about: dict, overwrite: bool) -> int | None:
    """The rows of a complete output that a run with the same input and settings left; None if it is to be encoded.

    Raises:
        InputError: other vectors are there, and `overwrite` is false.
    """
    if not output.exists() or overwrite:
        return None
    exists = f"--output {output} exists, and nothing was written"
    if not manifest_path(output).is_file():
        raise InputError(f"{exists}: it has no {manifest_path(output).name}, so whose it is is not known. Name another "
                         "output, or pass --overwrite.")  # fmt: skip
    manifest = read_manifest(output)
    known = asdict(manifest)
    other = [name for name, value in about.items() if known[name] != value and name != "shards"]
    if other:
        raise InputError(f"{exists}: it was encoded with another {', '.join(other)}. Vectors of both would be mixed. "
                         "Name another output, or pass --overwrite.")  # fmt: skip
    read_vectors(output, manifest)
    if manifest.shards != about["shards"]:
        replace(manifest, shards=about["shards"]).save(output)  # the set has grown
    return manifest.rows
