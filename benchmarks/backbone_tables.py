"""Tables of architectures: the speed of packing, and what each architecture can do."""

from collections.abc import Iterable

from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Number
from cosent.run_record import shortened

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
            cells = [[f"{way['packed']:.4g} / {way['padded']:.4g}", Number(ratio(way))] for way in ways]
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
    return ", ".join(dict.fromkeys(shortened(row["commit"]) for row in result["rows"].values()))


def backbones_table(result: dict) -> str:
    """What each architecture can do; two values are those of the bi-encoder and the cross-encoder."""
    header = ["architecture", "trains in full", "trains LoRA", "packs", "packed and padded differ, outputs / gradients"]
    header += ["reloaded, full / LoRA", "in sentence-transformers", "training speed, packed / padded"]
    rows: list[list[Cell]] = []
    for name, row in result["rows"].items():
        towers = [row["bi_encoder"], row["cross_encoder"]]
        packing = [tower.get("packing", {}) for tower in towers]
        full, lora = ([tower.get(way, tower) for tower in towers] for way in ("full", "lora"))
        rows.append(
            [
                name,
                both(map(learns, full)),
                both(map(learns, lora)),
                both(map(packs, packing)),
                " / ".join(filter(None, (worst(packing, key) for key in ("outputs", "gradients")))),
                " / ".join(filter(None, (worst(way, "reloaded") for way in (full, lora)))),
                worst(full + lora, "sentence_transformers"),
                " / ".join(f"{row['speed'][task]:.2f}" for task in TASKS[:2] if task in row.get("speed", {})),
            ]
        )
    size = result["size"]
    return (
        f"{markdown_table(header, rows)}\n\n"
        f"Random models of {size['layers']} layers x {size['width']}, trained on {result['pairs']} pairs of "
        f"{result['corpus']}; differences relative to the largest value, the larger of both towers; "
        f"two speeds are those of bi-encoder and cross-encoder, see [speed.md](speed.md#packing). "
        f"{result['device']}, commit {commits(result)}."
    )


def both(values: Iterable[str]) -> str:
    """One word where both towers agree, two otherwise."""
    return " / ".join(dict.fromkeys(filter(None, values)))


def learns(way: dict) -> str:
    if "losses" not in way:
        return "refused" if "refused" in way else "fails"
    return "yes" if way["losses"][1] < way["losses"][0] else "no"


def packs(packing: dict) -> str:
    if "packs" not in packing:
        return ""
    return "yes" if packing["packs"] else "no, reads padding" if packing["reads_padding"] else "no"


def worst(records: list[dict], key: str) -> str:
    values = [record[key] for record in records if key in record]
    return f"{max(values):.0e}" if values else ""
