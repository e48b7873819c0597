"""A file of vectors: encode the sentences of a file into a `.npy` file with a JSON manifest, and read both.

Rows are written to a partial file, which gets its name when it is complete. The last bits of a vector depend on the
`CHUNK_ROWS` rows that it is encoded with, and not on the number of processes.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import count, islice
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

from cosent import __version__
from cosent.atomic import partial_file, write_atomically
from cosent.compute.distributed import decided_by_main, gather_object, rank, world_size
from cosent.data.files import KEYED, SENTENCE, open_table
from cosent.data.formats import AS_USUAL, FileOptions, format_of
from cosent.errors import InputError, reading, writing
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.embedding import Progress, embed, ignore
from cosent.seal import sha256_of_file

CHUNK_ROWS = 4096


@dataclass(frozen=True)
class VectorManifest:
    """Contents of `vectors.npy.json`, next to `vectors.npy`: the model, how it computed, and from what."""

    model: str
    model_sha256: str  # its `fingerprint`
    dim: int
    prefix: str = ""
    normalize: bool = False
    text_column: str | None = None  # None to let `open_table` find it
    file_options: FileOptions = AS_USUAL
    dtype: str = "float32"
    int8: bool = False
    rows: int = 0
    sha256: str = ""  # of the file of the vectors
    input: str = ""  # file of the sentences, relative to the folder of the vectors
    input_sha256: str = ""
    version: str = __version__

    @classmethod
    def read(cls, vectors: Path) -> "VectorManifest":
        """The manifest of a file of vectors."""
        path = manifest_path(vectors)
        if not path.is_file():
            raise InputError(f"{vectors} has no {path.name} next to it. Move both files, or encode again.")
        with reading(path, advice="Encode again."):
            facts = json.loads(path.read_text(encoding="utf-8"))
            return cls(**facts | {"file_options": FileOptions(**facts["file_options"])})

    def save(self, vectors: Path) -> None:
        write_atomically(manifest_path(vectors), json.dumps(asdict(self), ensure_ascii=False, indent=2) + "\n")


def manifest_path(vectors: Path) -> Path:
    return vectors.with_name(f"{vectors.name}.json")


@dataclass(frozen=True)
class StoredVectors:
    """What `cosent encode` wrote: `vectors`, memory-mapped float32 of shape `(rows, dim)`, and their manifest."""

    file: Path
    manifest: VectorManifest
    vectors: np.ndarray

    @property
    def input(self) -> Path:
        """The file that the vectors were encoded from."""
        return Path(self.file.parent, self.manifest.input)

    def sentences(self) -> list[str]:
        """The sentence of every row, of the input, which must not have changed."""
        if not self.input.is_file() or sha256_of_file(self.input) != self.manifest.input_sha256:
            raise InputError(
                f"{self.input}, the input of {self.file}, is missing or has changed. Put it back, or "
                "encode again with --overwrite."
            )
        column = None if format_of(self.input) == "txt" else [str(self.manifest.text_column)]
        options = self.manifest.file_options
        return list(open_table(self.input, column, SENTENCE, "--text_column", "--text", options).texts())


def open_vectors(path: str | Path, model_sha256: str | None = None) -> StoredVectors:
    """A `.npy` file that `cosent encode` wrote; None for `model_sha256` accepts any model's."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There are no vectors at {path}. Write them with `cosent encode --output {path}`.")
    manifest = VectorManifest.read(path)
    if model_sha256 not in (None, manifest.model_sha256):
        raise InputError(f"{path} was encoded by another model, {manifest.model}. Use that one, or encode again.")
    with reading(path, advice="Encode the sentences again."):
        vectors = np.load(path, mmap_mode="r")
    shape = manifest.rows, manifest.dim
    if vectors.shape != shape or vectors.dtype != np.float32 or sha256_of_file(path) != manifest.sha256:
        raise InputError(f"{path} does not hold the vectors of its manifest, float32 of shape {shape}. Encode again.")
    return StoredVectors(path, manifest, vectors)


def encode_file(
    encoder: SentenceEncoder,
    source: Path,
    output: Path,
    settings: VectorManifest,
    on_start: Callable[[int], None] = lambda rows: None,
    progress: Progress = ignore,
) -> tuple[int, int]:
    """Encodes a file; the output appears when it is complete. Returns the rows, and how many sentences were cut.

    Of several processes launched together, each encodes every world_size-th chunk; they need a common file system.

    Args:
        settings: the manifest without the facts of the input and the output.
        on_start: called with the number of rows before any is encoded.
        progress: called with the number of further sentences that are embedded.
    """
    column = None if settings.text_column is None else [settings.text_column]
    table = open_table(source, column, SENTENCE, "--text_column", "--text", settings.file_options)
    (name,) = table.sentences
    is_numbered = not table.header and table.format not in ("txt", *KEYED)
    rows = sum(1 for _ in table.texts())  # all are checked first
    manifest = replace(
        settings,
        text_column=str(table.names.index(name)) if is_numbered else name,
        rows=rows,
        input=relative_to(source, output.parent),
        input_sha256=sha256_of_file(source),
    )
    on_start(rows)
    texts = table.texts()
    chunks = iter(lambda: list(islice(texts, CHUNK_ROWS)), [])
    encoded = (
        embed(encoder, chunk, normalize=settings.normalize, progress=progress, prefix=settings.prefix)
        for chunk in islice(chunks, rank(), None, world_size())
    )
    with partial_file(output) if rank() == 0 else nullcontext(output) as named:
        partial, start = decided_by_main(lambda: create(named, rows, settings.dim))
        if not partial.exists():
            raise InputError(f"{partial}, created by process 0, is not visible here. All machines must share --output.")
        parts = gather_object(write_chunks(encoded, partial, start))
        written, truncated = map(sum, zip(*parts, strict=True))
        if written != rows:
            raise InputError(f"{source} changed while it was read: {rows} sentences, then {written}. Run this again.")
        if rank() == 0:
            output.unlink(missing_ok=True)  # a kill from here on leaves a manifest without vectors
            replace(manifest, sha256=sha256_of_file(partial)).save(output)
    return rows, truncated


def relative_to(path: Path, folder: Path) -> str:
    """A path as seen from a folder, so that both can be moved together; absolute on another drive of Windows."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:
        return path.absolute().as_posix()


def create(path: Path, rows: int, dim: int) -> tuple[Path, int]:
    """Creates a `.npy` file of zeros; returns its path and the offset of the first row."""
    size = 4 * rows * dim
    with writing(path):
        if (free := shutil.disk_usage(path.absolute().parent).free) < size:
            raise OSError(errno.ENOSPC, f"it takes {size / 2**20:.1f} MiB, and {free / 2**20:.1f} are free")
        return path, open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, dim)).offset


def write_chunks(encoded: Iterable[tuple[np.ndarray, int]], path: Path, start: int) -> tuple[int, int]:
    """Writes this process's chunks into a `.npy` file, behind `start` bytes; returns rows, and how many were cut."""
    rows = truncated = 0
    for number, (vectors, cut) in zip(count(rank(), world_size()), encoded, strict=False):
        first = number * CHUNK_ROWS
        with writing(path), open(path, "r+b") as file:  # not a memory map: there, a full disk is a SIGBUS
            file.seek(start + first * vectors[0].nbytes)
            file.write(vectors.data)
        rows, truncated = rows + len(vectors), truncated + cut
    return rows, truncated
