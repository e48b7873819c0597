"""Table of published figures of the five corpora."""

import statistics
from pathlib import Path

from cosent.cli import read_yaml
from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Number

CORPORA = ("atec", "bq", "lcqmc", "pawsx", "stsb")
SOURCE = "embeddings-benchmark/results f4cc6c8"


def anchors_table(results: Path) -> str:
    """A row per published model, best mean first."""
    file = results / "anchors.yaml"
    rows: list[tuple[float, list[Cell]]] = []
    for row in read_yaml(file.read_text(encoding="utf-8"), str(file)):
        values = [float(row[name]) for name in CORPORA]
        trained = "each on its own corpus" if row.get("tuned") else row["declared"]
        source = f"{SOURCE}, {row['source']}" if "source" in row and not row.get("tuned") else row.get("source", SOURCE)
        mean = statistics.fmean(values)
        cells: list[Cell] = [row["model"], row["parameters"], *map(Number, values), Number(mean), trained, source]
        rows.append((mean, cells))
    header = ["model", "parameters", *(name.upper() for name in CORPORA), "mean", "trained on, of these", "source"]
    return markdown_table(header, [cells for _, cells in sorted(rows, key=lambda row: -row[0])])
