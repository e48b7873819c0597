"""Published numbers that reports put next to ours."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from cosent.studies.method import Method

PUBLISHED_NAME = "published.yaml"


@dataclass(frozen=True)
class Published:
    """A published table: its rows `{method, encoder, corpus: number, ...}`, and the quantity that they measure."""

    source: str
    measure: str
    rows: list[dict]
    tower: str = "bi_encoder"

    def of(self, method: Method) -> list[dict]:
        """Rows for a method of ours: those of the encoder named by its variant.

        A method whose variant does not name an encoder of the table (e.g. one that fine-tuned `mini`) gets the rows of
        all encoders; one of the other tower gets none.
        """
        if method.tower != self.tower:
            return []
        names = (method.recipe.removesuffix("_mini"), method.variant)  # of another loss, perhaps
        rows = [row for row in self.rows if row["method"] in names]
        return [row for row in rows if row["encoder"] == method.variant] or rows


def published(folder: Path) -> list[Published]:
    """Published tables for the study in a folder, from `published.yaml` next to the folder."""
    file = folder.resolve().parent / PUBLISHED_NAME
    if not file.is_file():
        return []
    study = folder.resolve().name.split("-")[0]
    tables = yaml.safe_load(file.read_text(encoding="utf-8"))
    return [
        Published(t["source"], t["measure"], t["rows"], t.get("tower", "bi_encoder"))
        for t in tables
        if study in t["studies"]
    ]
