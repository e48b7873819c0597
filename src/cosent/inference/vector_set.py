"""`VectorSet`: one file of vectors, or a folder of shards, as a single memory-mapped array."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from cosent.errors import InputError
from cosent.inference.vector_manifest import VectorManifest, read_kept, read_manifest, read_sentences, read_vectors

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
