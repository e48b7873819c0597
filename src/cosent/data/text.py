"""Read lines of plain text from .txt and .jsonl files, compressed or not."""

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from cosent.errors import InputError

SUFFIXES = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz")


def read_texts(paths: Iterable[str | Path]) -> Iterator[str]:
    """Streams the non-empty lines of text files, stripped, in their order.

    Args:
        paths: UTF-8 files: `.txt` with a text per line, `.jsonl` with an object per line whose `text` is read, or
            either compressed as `.gz`.

    Raises:
        InputError: a file that is missing or of another kind, a line that is not UTF-8, or an object without text.
    """
    for path in map(Path, paths):
        if not path.is_file():
            raise InputError(f"There is no text file at {path}. --text takes files, separated by spaces.")
        if not path.name.endswith(SUFFIXES):
            raise InputError(f"{path}: text is read from {', '.join(SUFFIXES)}. Rename or convert the file.")
        is_json = ".jsonl" in path.suffixes
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            try:
                for number, line in enumerate(file, start=1):
                    text = text_of(line, is_json, f"{path}, line {number}")
                    if text:
                        yield text
            except (EOFError, gzip.BadGzipFile) as error:
                raise InputError(f"{path} is not a complete gzip file: {error}. Compress it again.") from error


def text_of(line: bytes, is_json: bool, place: str) -> str:
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: not UTF-8: {line[:40]!r}. Save the file as UTF-8.") from error
    if is_json and text.strip():
        try:
            text = json.loads(text)["text"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise InputError(f'{place}: expected {{"text": "..."}}, got {text[:60]!r}.') from error
        if not isinstance(text, str):
            raise InputError(f"{place}: `text` must be a string, got {text!r}.")
    return text.strip()


def normalized_text(text: str) -> str:
    """Normalises a sentence for comparison: no punctuation, spaces or case."""
    return re.sub(r"\W+", "", text).lower()
