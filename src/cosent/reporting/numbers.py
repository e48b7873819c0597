"""Format numbers for tables: means, deviations, missing values."""

import statistics


def known(values) -> list[float]:
    return [value for value in values if value is not None]


def spread(values) -> str:
    """Mean and standard deviation, times 100; empty where nothing was measured."""
    values = [100 * value for value in known(values)]
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}" if values else ""


def average(cells: list[list]) -> str:
    """Mean over corpora of the mean over seeds, times 100, where all corpora were measured and there are several."""
    means = [statistics.mean(known(cell)) for cell in cells if known(cell)]
    return f"{100 * statistics.mean(means):.2f}" if len(means) == len(cells) > 1 else ""
