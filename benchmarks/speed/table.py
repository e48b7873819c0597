"""Table of speed against sentence-transformers."""

from cosent.reporting.document import Cell, markdown_table
from cosent.run import shortened


def speed_table(result: dict) -> str:
    """Speed against sentence-transformers: medians, ratio, memory, and the largest difference of results."""
    header = ["task", "encoder", "data", "ours", "theirs", "ratio", "MiB, ours / theirs", "largest difference"]
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        data, ours = f"{row['corpus']} {row['split']}", f"{row['ours']:.4g}"
        theirs = f"{row['theirs']:.4g} {row['unit'].replace('_per_second', '/s')}"
        memory = f"{row['ours_mib']:.0f} / {row['theirs_mib']:.0f}"
        difference = f"{row['largest_difference']:.0e}"
        share = f"{row['sgemm_share']:.0%}" if "sgemm_share" in row else None
        ratio = f"{row['ratio']:.2f}"
        rows.append([row["task"], row["encoder"], data, ours, theirs, ratio, memory, difference, share])
    ratios = [(place, header.index("ratio")) for place in range(len(rows))]
    commits = ", ".join(dict.fromkeys(shortened(row["commit"]) for row in result["rows"]))
    return (
        f"{markdown_table([*header, 'sgemm peak'], rows, strong=ratios)}\n\n"
        f"Medians of {result['repeats']} interleaved measurements, each in its own process; {result['device']}, "
        f"{result['threads']} threads, {result['when']}, commit {commits}."
    )
