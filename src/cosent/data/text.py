"""Text without labels: read from the files of `--text`, normalised for comparison."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from cosent.tables.reading import SENTENCE, open_table


def read_texts(paths: Iterable[str | Path]) -> Iterator[str]:
    """Streams the texts of files, stripped, in their order; empty ones are left out.

    Args:
        paths: files as `open_table` reads them: `.txt` with a text per line, or tables with a column `text` or
            `sentence`, or a single one.

    Raises:
        InputError: a file that is missing or of another kind, or a row that has no text.
    """
    for path in paths:
        table = open_table(path, None, SENTENCE, "a column named text", "--text")
        yield from filter(None, map(str.strip, table.texts(keep_empty=True)))


def normalized_text(text: str) -> str:
    """Normalises a sentence for comparison: no punctuation, spaces or case."""
    return re.sub(r"\W+", "", text).lower()
