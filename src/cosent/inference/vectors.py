"""Files of vectors: encode sentences into `.npy` files with a JSON manifest each, and read them as one array.

Rows are written to a partial file, which gets its name when it is complete. The last bits of a vector depend on the
`CHUNK_ROWS` rows that it is encoded with, and on nothing else that a run decides: files that are encoded again, by
whatever process, have the same bytes.
"""

import errno
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import count, islice
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap
from torch import nn

from cosent import __version__
from cosent.compute.distributed import decided_by_main, gather_object, rank, world_size
from cosent.data.files import KEYED, SENTENCE, format_of, open_table, stem_of
from cosent.data.manifest import sha256_of_file
from cosent.errors import InputError, partial_file, write_atomically, writing
from cosent.inference.embedding import check_finite, embed

CHUNK_ROWS = 4096
SAMPLE = 1024  # rows whose bytes tie a manifest to its vectors: those of a chunk that was never written are among them
SAME = ("model_sha256", "prefix", "dim", "normalize", "dtype", "int8")  # in every shard of a set


@dataclass(frozen=True)
class ShardSettings:
    """What all shards of a set have in common: the model, its `fingerprint`, and how it reads and computes."""

    model: str
    model_sha256: str
    dim: int
    prefix: str = ""
    normalize: bool = False
    text_column: str | None = None  # None to let `open_table` find it
    dtype: str = "float32"
    int8: bool = False
    shards: int = 1  # files of the whole set


@dataclass(frozen=True, kw_only=True)
class VectorManifest(ShardSettings):
    """Contents of `vectors.npy.json`, next to `vectors.npy`: how it was encoded, and from what."""

    rows: int = 0
    sample_sha256: str = ""  # `sample_hash` of the vectors
    input: str  # file of the sentences, relative to the folder of the vectors
    input_sha256: str
    version: str = __version__

    @classmethod
    def read(cls, vectors: Path) -> "VectorManifest":
        """The manifest of a file of vectors."""
        path = manifest_path(vectors)
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return cls(**values)
        except FileNotFoundError as error:
            raise InputError(f"{vectors} has no {path.name} next to it. Move both files, or encode again.") from error
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path} is no manifest of `cosent encode`: {error!r}. Encode again.") from error

    def save(self, vectors: Path) -> None:
        with writing(manifest_path(vectors)):
            write_atomically(manifest_path(vectors), json.dumps(asdict(self), ensure_ascii=False, indent=2) + "\n")


def manifest_path(vectors: Path) -> Path:
    return vectors.with_name(f"{vectors.name}.json")


def fingerprint(model: nn.Module, texts: Iterable[str] = ()) -> str:
    """Hash of a `TextModel`: its weights, modules, tokenizer and maximum length; and of texts that it reads."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    digest.update(model.rules.encode())
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:40]


def sample_hash(vectors: np.ndarray) -> str:
    """SHA-256 of up to `SAMPLE` evenly spaced rows."""
    rows = np.linspace(0, len(vectors) - 1, min(SAMPLE, len(vectors))).astype(np.int64)
    return hashlib.sha256(np.ascontiguousarray(vectors[rows]).tobytes()).hexdigest()


@dataclass(frozen=True)
class VectorSet:
    """Vectors of one or several files, read where and when rows of them are asked for.

    `vectors[1000:2000]` is float32 of shape `(1000, dim)`, a view if all of it lies in one file. A list of row numbers
    gives those rows.
    """

    files: list[Path]  # in the order of the rows, that of their names
    manifests: list[VectorManifest]
    parts: list[np.ndarray]  # memory-mapped

    @cached_property
    def starts(self) -> np.ndarray:
        """First row of each file, and the number of all rows."""
        return np.concatenate([[0], np.cumsum([len(part) for part in self.parts])])

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.starts[-1]), self.manifests[0].dim

    @property
    def inputs(self) -> list[Path]:
        """The files that the vectors were encoded from."""
        return [Path(file.parent, about.input) for file, about in zip(self.files, self.manifests, strict=True)]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Sequence[int] | np.ndarray) -> np.ndarray:
        if not isinstance(rows, slice):
            return np.concatenate([self[row : row + 1] for row in rows])
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise IndexError("a VectorSet is read in slices of step 1")
        spans = [(max(start, first) - first, min(stop, last) - first, part)
                 for first, last, part in zip(self.starts, self.starts[1:], self.parts, strict=False)]  # fmt: skip
        parts = [part[low:high] for low, high, part in spans if low < high]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty((0, self.shape[1]), np.float32), *parts])

    def sentences(self) -> list[str]:
        """The sentence of every row, of the inputs, which must not have changed."""
        texts: list[str] = []
        for vectors, about, source in zip(self.files, self.manifests, self.inputs, strict=True):
            if not source.is_file() or sha256_of_file(source) != about.input_sha256:
                raise InputError(f"{source}, the input of {vectors}, is missing or has changed. Put it back, or encode "
                                 "again with --overwrite.")  # fmt: skip
            column = None if format_of(source) == "txt" else [about.text_column]
            texts += open_table(source, column, SENTENCE, "--text_column").texts()
        return texts


def read_vectors(path: Path, manifest: VectorManifest) -> np.ndarray:
    """The vectors of a file, memory-mapped, float32 of shape `(rows, dim)`."""
    try:
        vectors = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is no complete file of vectors: {error}. Encode the sentences again.") from error
    shape = manifest.rows, manifest.dim
    if vectors.shape != shape or vectors.dtype != np.float32 or sample_hash(vectors) != manifest.sample_sha256:
        raise InputError(f"{path} does not hold the vectors of its manifest, float32 of shape {shape}. Encode again.")
    return vectors


def open_vectors(path: str | Path, model_sha256: str | None = None) -> VectorSet:
    """A `.npy` file that `cosent encode` wrote, or a folder of them; None for `model_sha256` accepts any model's."""
    path = Path(path)
    files = sorted({*path.glob("*.npy"), *(file.with_suffix("") for file in path.glob("*.npy.json"))})
    files = files if path.is_dir() else [path]
    if not (path.exists() and files):
        raise InputError(f"There are no vectors at {path}. Write them with `cosent encode --output {path}`.")
    manifests = [VectorManifest.read(file) for file in files]
    for file, manifest in zip(files, manifests, strict=True):
        if not file.is_file():
            raise InputError(f"{file} is not finished: its encoding was stopped. Run it again.")
        different = [name for name in SAME if getattr(manifest, name) != getattr(manifests[0], name)]
        if different:
            raise InputError(f"{files[0]} and {file} were encoded with different {', '.join(different)}.")
    expected = max(manifest.shards for manifest in manifests)
    if path.is_dir() and len(files) < expected:
        raise InputError(f"{path} has {len(files)} of {expected} shards. Encode again: only those missing are encoded.")
    if model_sha256 not in (None, manifests[0].model_sha256):
        raise InputError(f"{path} was encoded by another model, {manifests[0].model}. Use that one, or encode again.")
    return VectorSet(files, manifests, list(map(read_vectors, files, manifests)))


def shards_of(patterns: Sequence[str], output: Path) -> list[tuple[Path, Path]]:
    """The files of names and patterns with `*`, each with its file of vectors: `output.npy`, or one in that folder."""
    sources: dict[Path, None] = {}
    for pattern in patterns:
        names = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern))
        files = [Path(name) for name in names if Path(name).is_file()]
        if not files:
            raise InputError(f"--text: there is no file {pattern}. Name files, or a pattern such as 'part-*.parquet'.")
        sources |= dict.fromkeys(files)
    outputs = [output if output.suffix == ".npy" else output / f"{stem_of(source)}.npy" for source in sources]
    if twice := {path for path in outputs if outputs.count(path) > 1}:
        raise InputError(f"Several files of --text would be written to {twice.pop()}. Name a folder as --output, and "
                         "inputs of different names.")  # fmt: skip
    return list(zip(sources, outputs, strict=True))


def encode_shard(
    encoder: nn.Module, source: Path, output: Path, settings: ShardSettings, overwrite: bool = False,
    on_start: Callable[[int], None] = lambda rows: None, progress: Callable[[int], None] | None = None,
) -> tuple[int, int | None]:  # fmt: skip
    """Encodes one input, unless its vectors are there; the output appears when it is complete.

    Of several processes launched together, each encodes every world_size-th chunk; they need a common file system.

    Args:
        encoder: an `SentenceEncoder`.
        on_start: called with the number of rows before any is encoded.
        progress: called with the number of further sentences that are embedded.

    Returns:
        The rows, and how many sentences were cut; None of what an earlier run had encoded.
    """
    column = None if settings.text_column is None else [settings.text_column]
    table = open_table(source, column, SENTENCE, "--text_column")
    (name,) = table.sentences
    made_up = not table.header and table.format not in ("txt", *KEYED)
    manifest = VectorManifest(
        **vars(settings) | {"text_column": str(table.names.index(name)) if made_up else name},
        input=relative_to(source, output.parent),
        input_sha256=sha256_of_file(source),
    )
    existing = decided_by_main(lambda: existing_manifest(output, manifest, overwrite))
    if existing is not None:
        if existing.shards != settings.shards and rank() == 0:  # the set has grown
            replace(existing, shards=settings.shards).save(output)
        return existing.rows, None
    rows = sum(1 for _ in table.texts())  # all are checked first
    on_start(rows)
    texts = table.texts()
    chunks = iter(lambda: list(islice(texts, CHUNK_ROWS)), [])
    own = (
        embed(encoder, chunk, normalize=settings.normalize, progress=progress, prefix=settings.prefix)
        for chunk in islice(chunks, rank(), None, world_size())
    )
    with partial_file(output) if rank() == 0 else nullcontext(output) as named:
        partial, start = decided_by_main(lambda: create(named, rows, settings.dim))
        if not partial.exists():
            raise InputError(f"{partial}, created by process 0, is not visible here. All machines must share --output.")
        parts = gather_object(write_chunks(own, partial, start, source))
        written, truncated = map(sum, zip(*parts, strict=True))
        if written != rows:
            raise InputError(f"{source} changed while it was read: {rows} sentences, then {written}. Run this again.")
        if rank() == 0:
            output.unlink(missing_ok=True)  # a kill from here on leaves a manifest without vectors: an unfinished shard
            sample = sample_hash(np.load(partial, mmap_mode="r"))
            replace(manifest, rows=rows, sample_sha256=sample).save(output)
    return rows, truncated


def relative_to(path: Path, folder: Path) -> str:
    """A path as seen from a folder, so that both can be moved together; absolute on another drive of Windows."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:
        return path.absolute().as_posix()


def existing_manifest(output: Path, manifest: VectorManifest, overwrite: bool) -> VectorManifest | None:
    """The manifest of a complete output that an earlier run encoded alike; None if it is to be encoded."""
    if not output.exists() or overwrite:
        return None
    existing = VectorManifest.read(output)
    names = (*SAME, "input_sha256", "text_column")
    if different := [name for name in names if getattr(existing, name) != getattr(manifest, name)]:
        raise InputError(f"--output {output} exists, encoded with another {', '.join(different)}. Name another, or "
                         "pass --overwrite.")  # fmt: skip
    read_vectors(output, existing)
    return existing


def create(path: Path, rows: int, dim: int) -> tuple[Path, int]:
    """Creates a `.npy` file of zeros; returns its path and the offset of the first row."""
    size = 4 * rows * dim
    with writing(path, needed=size):
        if shutil.disk_usage(path.absolute().parent).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return path, open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, dim)).offset


def write_chunks(encoded: Iterable[tuple[np.ndarray, int]], path: Path, start: int, source: Path) -> tuple[int, int]:
    """Writes this process's chunks into a `.npy` file, behind `start` bytes; returns rows, and how many were cut."""
    rows = truncated = 0
    for number, (vectors, cut) in zip(count(rank(), world_size()), encoded, strict=False):
        first = number * CHUNK_ROWS
        check_finite(vectors, first, str(source))
        with writing(path), open(path, "r+b") as file:  # not a memory map: there, a full disk is a SIGBUS
            file.seek(start + first * vectors[0].nbytes)
            file.write(vectors.data)
        rows, truncated = rows + len(vectors), truncated + cut
    return rows, truncated
