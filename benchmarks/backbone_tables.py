"""Tables of architectures: the speed of packing, and what each architecture can do."""

from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Number

TASKS = ("train_bi_encoder", "train_cross_encoder", "encode")


def packing_table(result: dict) -> str:
    """Speed of packed batches next to padded ones."""
    header: list[str] = ["architecture"]
    for task in ("bi-encoder, pairs/s trained", "cross-encoder, pairs/s trained", "sentences/s encoded"):
        header += [f"{task}, packed / padded", "ratio"]
    rows: list[list[Cell]] = []
    for name, row in result["rows"].items():
        if row["per_second"]:
            ways = [row["per_second"][task] for task in TASKS]
            cells = [[f"{way['packed']:.3g} / {way['padded']:.3g}", Number(ratio(way))] for way in ways]
            rows.append([name, *(cell for pair in cells for cell in pair)])
    ratios = [(place, column) for place in range(len(rows)) for column in (2, 4)]
    size = result["size"]
    return (
        f"{markdown_table(header, rows, strong=ratios)}\n\n"
        f"Random models of {size['layers']} layers x {size['width']}, {result['pairs']} pairs of {result['corpus']} in "
        f"batches of 32, forward and backward; medians of interleaved turns, in processor seconds; {result['device']}, "
        f"{result['threads']} thread, commit {commits(result)}."
    )


def ratio(way: dict[str, float]) -> float:
    return way["packed"] / way["padded"]


def commits(result: dict) -> str:
    return ", ".join(dict.fromkeys((row["commit"] or "unknown")[:10] for row in result["rows"].values()))
