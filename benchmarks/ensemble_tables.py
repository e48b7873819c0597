"""Tables of merged models and of fused runs."""

import statistics

from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Number, times_100
from cosent.run_record import shortened

WAYS = {
    "single": "one run, mean ± std",
    "weights": "by weights",
    "vectors": "by vectors",
    "ranks": "mean of ranks",
}
TOWERS = {"bi_encoder": "bi-encoder", "cross_encoder": "cross-encoder", "both": "both towers"}


def merged_table(result: dict) -> str:
    """Merged models next to the runs that they are made of."""
    header = [
        "runs",
        "model",
        "parameters",
        "width",
        f"{result['corpus']} test Spearman x100",
        "gain over one run [95%]",
    ]
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        if row["tower"] == "both" and row["model"] == "single":
            continue
        parameters = f"{row['parameters'] / 1e6:.1f} M" if "parameters" in row and row["tower"] != "both" else None
        gain = interval(row["gain"]) if "gain" in row else None
        runs = f"{row['runs']} x {TOWERS[row['tower']]}" if row["tower"] != "both" else f"all {row['runs']}"
        rows.append([runs, WAYS[row["model"]], parameters, row.get("width"), times_100(row["spearman"]), gain])
    return (
        f"{markdown_table(header, rows)}\n\nThe runs differ in their seed. The gain is over their mean, with a paired "
        f"bootstrap over test rows. {result['device']}, commit {shortened(result['commit'])}."
    )


def fusion_table(result: dict) -> str:
    """Two methods fused, next to two seeds of each."""
    header = ["study", "A", "B", "A", "B", "A + A", "B + B", "A + B", "A + B over the better pair [95%]"]
    header.append("over the mean of both pairs [95%]")
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        numbers = [Number(100 * value) for value in (*row["single"], *row["two_seeds"], row["two_methods"])]
        gains = [interval([row[key][end] for end in ("mean", "low", "high")]) for key in ("beyond_best", "beyond_mean")]
        rows.append([f"{row['study']}, {row['corpus']}", *row["methods"], *numbers, *gains])
    runs = statistics.mode(count for row in result["rows"] for count in row["runs"])
    return (
        f"{markdown_table(header, rows)}\n\nTest Spearman x100: means over {runs} seeds, and over all fusions of two "
        "runs of different seeds by the mean of ranks. Paired bootstrap over test rows."
    )


def interval(ends: list[float]) -> str:
    mean, low, high = (100 * end for end in ends)
    return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"
