"""Formats of tables, by the ending of a file's name, and the usual names of their columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cosent.errors import InputError

FORMATS = {
    **{".txt": "txt", ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"},
    **{".parquet": "parquet", ".xlsx": "xlsx"},
}
TEXT_FORMATS = ("txt", "tsv", "csv", "jsonl")  # may be compressed, as .csv.gz
KEYED = ("jsonl", "parquet")  # formats whose rows name their columns
ENCODINGS = ("utf-8", "gb18030", "utf-16")  # of text; GB18030 includes GBK and GB2312

_NOUNS = ("句子", "文本", "问题")
TEXT_NAMES = ("text", "sentence", "文本", "句子")  # of columns that are found without being asked for
SENTENCE1_NAMES = (
    *("sentence1", "text1", "s1", "premise", "query1", "question1", "query", "anchor"),
    *(noun + number for noun in _NOUNS for number in "1一"),
)
SENTENCE2_NAMES = (
    *("sentence2", "text2", "s2", "hypothesis", "query2", "question2", "passage", "document"),
    *(noun + number for noun in _NOUNS for number in "2二"),
)
LABEL_NAMES = ("gold_label", "label", "score", "similarity", "gold", "标签", "相似", "是否相似", "分数")
SCORE_NAMES = ("score", "reranker_score", "similarity", "分数")  # of a model, never the label next to them


@dataclass(frozen=True)
class FileOptions:
    """What a file does not tell about itself.

    Args:
        sheet: the sheet of an xlsx workbook to read; default: the only one with content.
        encoding: of text, one of `ENCODINGS`.
    """

    sheet: str | None = None
    encoding: str = "utf-8"


AS_USUAL = FileOptions()


def ending_of(path: str | Path) -> str:
    """The ending of a file's name in small letters: `.tsv`, or `.tsv.gz` of a compressed one."""
    name = Path(path).name.lower()
    return Path(name.removesuffix(".gz")).suffix + ".gz" * name.endswith(".gz")


def stem_of(path: str | Path) -> str:
    """The name of a file without its ending: `part-1` of `a/part-1.csv.gz`."""
    name = Path(path).name
    return name[: len(name) - len(ending_of(path))]


def format_of(path: str | Path, formats: dict[str, str] = FORMATS) -> str | None:
    """The format of a file by its ending; None if it is none of `formats`, or compressed and not text."""
    ending = ending_of(path)
    format = formats.get(ending.removesuffix(".gz"))
    return None if ending.endswith(".gz") and format not in TEXT_FORMATS else format


def separator_hint(fields: Sequence[object]) -> str:
    """What to do about line 1 of a TSV or CSV file that other characters separate; empty if none do."""
    line = str(fields[0]) if len(fields) == 1 else ""
    if "\t" in line:
        return " Line 1 holds tabs: rename the file to .tsv, or pass --format tsv to prepare."
    if "," in line:
        return " Line 1 holds commas: rename the file to .csv, or pass --format csv to prepare."
    if ";" in line:
        return " Line 1 holds semicolons, which separate no format here: save it as xlsx, or with commas."
    return ""


def known_format(path: str | Path, what: str) -> str:
    """As `format_of`.

    Args:
        what: the flag that names the file, for the message.

    Raises:
        InputError: another ending.
    """
    if (found := format_of(path)) is None:
        raise InputError(
            f"{what} {path}: expected a file that ends in {', '.join(FORMATS)} (those of text also in .gz), since its "
            "format is known by that. Read as another one, it would be other sentences. Rename or convert it."
        )
    return found


def import_openpyxl(path: str | Path):
    """The library for xlsx.

    Raises:
        InputError: it is not installed.
    """
    try:
        import openpyxl
    except ImportError as error:
        raise InputError(
            f"{path}: xlsx needs openpyxl, which is not installed. Run pip install 'cosent[xlsx]', or save the sheet "
            "as CSV (UTF-8)."
        ) from error
    return openpyxl
