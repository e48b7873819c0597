"""Helpers of the data tests: write a raw file, run `prepare`, read back what it wrote."""

import json
from pathlib import Path

import openpyxl
import pyarrow.parquet
import pytest
from cosent.data_scripts import prepare

from cosent.cli import arguments_of
from cosent.errors import InputError
from cosent.flags import parse


class Workbench:
    """A raw file or folder, and `prepare` on it, below one temporary folder."""

    def __init__(self, folder: Path):
        self.folder, self.output, self.overwrite = folder, folder / "out", ["--overwrite"]

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    def workbook(self, **sheets: list) -> Path:
        book = openpyxl.Workbook()
        book.remove(book.active)
        for title, rows in sheets.items():
            sheet = book.create_sheet(title)
            for row in rows:
                sheet.append(row)
        book.save(self.folder / "pairs.xlsx")
        return self.folder / "pairs.xlsx"

    def prepare(self, name: str, *flags: str | Path) -> dict:
        """Runs the command and returns the manifest that it wrote; an earlier output is replaced."""
        words = [name, "--output", str(self.output), *self.overwrite, *map(str, flags)]
        prepare.main(*parse(words, *arguments_of(prepare.main)))
        return json.loads((self.output / "MANIFEST.json").read_text(encoding="utf-8"))

    def binary(self, path: Path, *flags: str) -> dict:
        """As `prepare`, of own pairs labelled 0 and 1."""
        return self.prepare("mine", "--source", path, "--label_kind", "binary", *flags)

    def stops(self, match: str, name: str, *flags: str | Path) -> str:
        """The error of a command that must fail."""
        with pytest.raises(InputError, match=f"(?s){match}") as caught:
            self.prepare(name, *flags)
        return str(caught.value)

    def refuses(self, match: str, path: Path, *flags: str) -> str:
        """As `stops`, of own pairs labelled 0 and 1."""
        return self.stops(match, "mine", "--source", path, "--label_kind", "binary", *flags)

    def rows(self, split: str = "train") -> list[tuple]:
        columns = pyarrow.parquet.read_table(self.output / f"{split}.parquet").to_pydict()
        return list(zip(*columns.values(), strict=True))


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    return Workbench(tmp_path)
