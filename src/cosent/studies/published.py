"""Published numbers that reports put next to ours."""

from dataclasses import dataclass
from pathlib import Path

import yaml

PUBLISHED_NAME = "published.yaml"


@dataclass(frozen=True)
class Published:
    """Rows of a published table: `{method, encoder, corpus: number, ...}`, and what they measure."""

    source: str
    measure: str
    rows: list[dict]
    tower: str = "bi_encoder"

    def of(self, method: str) -> list[dict]:
        """Rows for a method of ours, whose name is recipe and variant: those of the encoder that the variant names.

        A method that names no encoder of the table (`mini` was fine-tuned) gets the rows of all of them; one that
        names another tower gets none.
        """
        words = [word.removesuffix("_mini") for word in method.split()]
        if words[0] in ("bi_encoder", "cross_encoder") and words[0] != self.tower:
            return []
        rows = [row for row in self.rows if row["method"] in words[:2]]
        return [row for row in rows if row["encoder"] in words] or rows


def published(folder: Path) -> list[Published]:
    """The published tables for the study of a folder, from `published.yaml` beside it."""
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
