"""`VectorManifest`: which model embedded which sentences into a file of vectors; JSON next to the file."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from cosent import __version__
from cosent.errors import InputError, writing
from cosent.files import write_atomically
from cosent.schema import sha256_of_file
from cosent.tables.formats import format_of
from cosent.tables.reading import SENTENCE, open_table
from cosent.tables.records import open_parquet

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
