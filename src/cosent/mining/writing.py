"""Write made pairs as a prepared corpus."""

from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import parquet

from cosent import __version__
from cosent.errors import writing
from cosent.files import complete_folder
from cosent.schema import COLUMNS, SPLITS, Manifest, sha256_of_file

BINS = 10  # of a histogram of more different labels than that


def write_corpus(
    folder: Path, manifest: Manifest, texts: list[str], splits: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]
) -> None:
    """Writes a prepared corpus whose folder is complete or absent.

    Args:
        manifest: its `splits` are completed by what is known of every prepared split.
        splits: by name: places of the first and second sentences in `texts`, and labels.
    """
    with writing(folder), complete_folder(folder) as partial:
        for name, (first, second, labels) in splits.items():
            file = partial / f"{name}.parquet"
            columns = [[texts[place] for place in first], [texts[place] for place in second], labels.astype(np.float32)]
            parquet.write_table(pyarrow.table(dict(zip(COLUMNS, columns, strict=True))), file)
            facts = {"rows": len(labels), "sha256": sha256_of_file(file), "label_histogram": histogram(labels)}
            manifest.splits[name] = facts | manifest.splits.get(name, {})
        manifest.absent_splits = [split for split in SPLITS if split not in splits]
        manifest.builder_version = f"cosent {__version__}"
        manifest.save(partial)


def histogram(labels: np.ndarray) -> dict[str, int]:
    """Number of pairs by label, or by range of labels."""
    values, counts = np.unique(labels, return_counts=True)
    if len(values) <= BINS:
        return {f"{value:g}": int(count) for value, count in zip(values, counts, strict=True)}
    counts, edges = np.histogram(labels, BINS)
    ranges = zip(edges[:-1], edges[1:], strict=True)
    return {f"{low:.3g} to {high:.3g}": int(count) for (low, high), count in zip(ranges, counts, strict=True)}
