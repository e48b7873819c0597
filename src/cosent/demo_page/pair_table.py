"""The table of labelled pairs: read from a file, scored, and written as one that `data_scripts.prepare` reads."""

from base64 import b64encode
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from cosent.data.files import LABEL_NAMES, PAIR, is_label, open_table, value_of
from cosent.demo_page.models import Judge
from cosent.demo_page.sentences import sentence
from cosent.errors import InputError

COLUMNS = ("sentence1", "sentence2", "label")
MOST_ROWS = 200
FILE_TYPES = (".tsv", ".csv", ".txt", ".jsonl", ".json")

Row = Sequence[object]


def read_pairs(path: str) -> tuple[list[list[str]], bool]:
    """The first rows of a file, and whether it has more.

    Raises:
        InputError: a file without two columns of sentences.
    """
    name = Path(path).name
    try:
        table = open_table(path, None, PAIR, "sentence1, sentence2", name)
        label = next((one for one in LABEL_NAMES if one in table.names), None)
        rows = list(islice(table.rows(), MOST_ROWS + 1))
    except InputError as error:
        needed = "需要 UTF-8 编码、有两列句子的文件，表格已清空"
        raise InputError(f"读不了：{needed}。The file cannot be read. {error}".replace(path, name)) from error
    pairs = [[row[one] for one in table.sentences] + [label_text(row.get(label))] for row in rows]
    return [[*pair, ""] for pair in pairs[:MOST_ROWS]], len(rows) > MOST_ROWS


def filled(rows: Sequence[Row]) -> list[tuple[int, list[object]]]:
    """The rows that hold anything besides a score, with their numbers from 1."""
    cells = [(number, list(row[:3])) for number, row in enumerate(rows, start=1)]
    return [(number, row) for number, row in cells if any(str(cell or "").strip() for cell in row)]


def checked(rows: Sequence[Row]) -> list[list[str]]:
    """Both sentences and the label of each row that is not empty.

    Raises:
        InputError: no row, too many, or a sentence that is missing or too long.
    """
    found = filled(rows)
    if not found:
        raise InputError("表里没有句子对，请先填写。The table has no pair: write one.")
    if len(found) > MOST_ROWS:
        raise InputError(f"最多 {MOST_ROWS} 行。Expected at most {MOST_ROWS} rows, got {len(found)}.")
    named = [(f"第 {number} 行 row {number}", row) for number, row in found]
    return [
        [sentence(row[0], f"{name}, sentence1"), sentence(row[1], f"{name}, sentence2"), label_text(row[2])]
        for name, row in named
    ]


def scored(judge: Judge, rows: Sequence[Row]) -> list[list[str]]:
    """The rows with the judge's score of each; see `checked`."""
    pairs = checked(rows)
    scores = judge.scores([row[0] for row in pairs], [row[1] for row in pairs])
    return [[*row, f"{score:.4f}"] for row, score in zip(pairs, scores, strict=True)]


def as_tsv(rows: Sequence[Row]) -> str:
    """The pairs as TSV with a header, without quotes; see `checked`.

    Raises:
        InputError: a label that is not a number.
    """
    pairs = checked(rows)
    for (number, _), (_, _, label) in zip(filled(rows), pairs, strict=True):
        if not is_label(label):
            raise InputError(
                f"第 {number} 行：标签 {label!r} 不是数字，请改正。Row {number}: expected a number as the label, got "
                f"{label!r}. Training could not read it: correct it."
            )
    return "".join("\t".join(row) + "\n" for row in [COLUMNS, *pairs])


def label_text(label: object) -> str:
    """A label as a number where it is one of the words for 0 and 1, e.g. 是; other text as it is."""
    return "" if label is None else str(value_of(label, None)).strip()


def data_address(text: str) -> str:
    """A `data:` address that holds a text, so that a download needs no file on this side."""
    return f"data:text/tab-separated-values;charset=utf-8;base64,{b64encode(text.encode()).decode()}"
