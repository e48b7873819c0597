"""Table of speed against sentence-transformers."""

from cosent.reporting.document import Cell, Number, markdown_table
from cosent.run import shortened


def speed_table(result: dict) -> str:
    """Speed against sentence-transformers: medians, ratio, memory, and the largest difference of results."""
    header = ["task", "encoder", "data", "ours", "theirs", "ratio", "MiB, ours / theirs", "largest difference"]
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        data, ours = f"{row['corpus']} {row['split']}", Number(row["ours"], form=".4g")
        theirs = f"{row['theirs']:.4g} {row['unit'].replace('_per_second', '/s')}"
        memory = f"{row['ours_mib']:.0f} / {row['theirs_mib']:.0f}"
        difference = Number(row["largest_difference"], form=".0e")
        share = Number(row["sgemm_share"], form=".0%") if "sgemm_share" in row else None
        ratio = Number(row["ratio"])
        rows.append([row["task"], row["encoder"], data, ours, theirs, ratio, memory, difference, share])
    ratios = [(place, header.index("ratio")) for place in range(len(rows))]
    commits = ", ".join(dict.fromkeys(shortened(row["commit"]) for row in result["rows"]))
    return (
        f"{markdown_table([*header, 'sgemm peak'], rows, strong=ratios)}\n\n"
        f"Medians of {result['repeats']} interleaved measurements, each in its own process; {result['device']}, "
        f"{result['threads']} threads, {result['when']}, commit {commits}."
    )
