"""Table rows of published numbers."""

import statistics

from cosent.reporting.numbers import Cell, Number
from cosent.studies.method import Method
from cosent.studies.results import Study


def published_rows(
    study: Study, measure: str, method: Method, columns: list[str], form: str = ".2f"
) -> list[tuple[str, list[Number | None]]]:
    """Names and numbers of the published rows for a method, one number per column; empty rows are omitted."""
    rows = []
    for table in study.tables(measure):
        for row in table.of(method):
            numbers = [Number(row[column], form=form) if column in row else None for column in columns]
            if any(numbers):
                rows.append((f"published: {row['method']}, {row['encoder']} ({table.source})", numbers))
    return rows


def published_means(study: Study, measure: str, method: Method, columns: list[str]) -> list[list[Cell]]:
    """Published rows for a table by corpus: name, numbers, their mean if there are several, and one run."""
    rows: list[list[Cell]] = []
    for name, numbers in published_rows(study, measure, method, columns):
        values = [number.value for number in numbers if number is not None]
        mean = Number(statistics.mean(values)) if len(values) == len(numbers) > 1 else None
        rows.append([name, *numbers, mean, 1])
    return rows
