"""Encode files of sentences as shards: each input has an output of its own, complete or absent."""

import glob
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from cosent.compute.distributed import decided_by_main
from cosent.data.prefix import NO_PREFIX, Prefix
from cosent.errors import InputError
from cosent.inference.vector_file import CHUNK_ROWS, ChunkTask, Runner, chunks_of, encode_file
from cosent.inference.vector_manifest import VectorManifest, manifest_path, read_manifest, read_vectors, rows_path
from cosent.schema import sha256_of_file
from cosent.tables.formats import stem_of
from cosent.tables.reading import SENTENCE, Table, open_table
from cosent.tables.writing import table_writer


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
            raise InputError(f"--input: there is no file {pattern}. Name files, or a pattern such as 'part-*.parquet'.")
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
                f"--input {path}: several files would be written to {other}, and one would be lost. Rename them, or "
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
