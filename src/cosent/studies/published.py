"""Published numbers that reports put next to ours."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from cosent.studies.method import Method

PUBLISHED_NAME = "published.yaml"


@dataclass(frozen=True)
class Published:
    """Rows of a published table: `{method, encoder, corpus: number, ...}`, and what they measure."""

    source: str
    measure: str
    rows: list[dict]
    tower: str = "bi_encoder"

    def of(self, method: Method) -> list[dict]:
        """Rows for a method of ours: those of the encoder that its variant names.

        A method whose variant names no encoder of the table (`mini` was fine-tuned) gets the rows of all of them; one
        of the other tower gets none.
        """
        if method.tower != self.tower:
            return []
        names = (method.recipe.removesuffix("_mini"), method.variant)  # a variant may set another loss, and be named so
        rows = [row for row in self.rows if row["method"] in names]
        return [row for row in rows if row["encoder"] == method.variant] or rows


def published(folder: Path) -> list[Published]:
    """The published tables for the study of a folder, from `published.yaml` next to the folder."""
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
