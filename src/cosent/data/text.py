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
        for number, line in numbered_lines(path):
            text = json_text(line, f"{path}, line {number}") if is_json else line.strip()
            if text:
                yield text


def numbered_lines(path: str | Path, what: str = "a UTF-8 text file") -> Iterator[tuple[int, str]]:
    """Streams the lines of a UTF-8 file, compressed if it ends in `.gz`, each with its number from 1.

    Line ends and a byte order mark in front of a line are left out.

    Args:
        what: which file to name where there is none.

    Raises:
        InputError: no such file, a line that is not UTF-8, or a damaged gzip file.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no file {path}. Name {what}.")
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        try:
            for number, line in enumerate(file, start=1):
                yield number, decode_line(line, f"{path}, line {number}")
        except (EOFError, gzip.BadGzipFile) as error:
            raise InputError(f"{path} is not a complete gzip file: {error}. Compress it again.") from error


def decode_line(line: bytes, place: str) -> str:
    """One line as text, without its line end and a byte order mark in front of it.

    Raises:
        InputError: it is not UTF-8.
    """
    try:
        return line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{place}: expected UTF-8, got the byte 0x{error.object[error.start]:02x} in {line[:60]!r}. In another "
            "encoding it would be another text. Convert the file (iconv -f GB18030 -t UTF-8)."
        ) from error


def json_text(line: str, place: str) -> str:
    """The `text` of a line of JSON, stripped; empty for an empty line."""
    if not line.strip():
        return ""
    try:
        text = json.loads(line)["text"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(f'{place}: expected {{"text": "..."}}, got {line[:60]!r}.') from error
    if not isinstance(text, str):
        raise InputError(f"{place}: `text` must be a string, got {text!r}.")
    return text.strip()


def normalized_text(text: str) -> str:
    """Normalises a sentence for comparison: no punctuation, spaces or case."""
    return re.sub(r"\W+", "", text).lower()
