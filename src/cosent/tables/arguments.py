"""Flags of the jobs that read pairs of a file."""

from dataclasses import dataclass

from cosent.flags import option
from cosent.tables.formats import ENCODINGS, FileOptions


@dataclass
class TableArguments:
    """What the file of --pairs does not tell about itself."""

    sheet: str | None = option(None, "Sheet to read of a workbook with several.")
    encoding: str = option("utf-8", "Encoding of text.", ENCODINGS)
    label_values: list[str] | None = option(
        None, "All labels and what they stand for, as in 否=0 是=1; default: numbers, and 是, 相似, true, yes as 1, "
        "否, 不相似, false, no as 0.", commas=True,
    )  # fmt: skip

    @property
    def options(self) -> FileOptions:
        return FileOptions(self.sheet, self.encoding)


OF_TABLES = ("sheet", "encoding", "label_values")
