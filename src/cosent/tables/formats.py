"""Formats of tables, by the ending of a file's name."""

from pathlib import Path

from cosent.errors import InputError

FORMATS = {
    **{".txt": "txt", ".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl"},
    **{".parquet": "parquet", ".xlsx": "xlsx"},
}
TEXT_FORMATS = ("txt", "tsv", "csv", "jsonl")  # may be compressed, as .csv.gz
KEYED = ("jsonl", "parquet", "xlsx")  # formats whose rows name their columns

TEXT_NAMES = ("text", "sentence")  # of columns that are found without being asked for
SENTENCE1_NAMES = ("sentence1", "text1", "s1", "premise", "query1", "question1", "query", "anchor")
SENTENCE2_NAMES = ("sentence2", "text2", "s2", "hypothesis", "query2", "question2", "passage", "document")
LABEL_NAMES = ("gold_label", "label", "score", "similarity")


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
