"""The table of claims: those that were measured with their differences, the others with the reason."""

from typing import Any

from cosent.reporting.document import Cell, Number, Range, markdown_table

HOLDS, FAILS, OPEN = "holds", "does not hold", "not decided at this size"
UNITS = {
    "accuracy": "accuracy",
    "recall_at_10": "Recall@10",
    "first_epoch": "validation after one epoch",
    "epochs_to_90": "epochs to 90%",
}
ABOUT = ["claim", "source", "measured in"]
MEASURED = [*ABOUT, "difference", "setting", "mean", "95% interval", "published", "seeds", "verdict"]


def claims_table(result: dict[str, Any]) -> str:
    measured = [measured_row(row) for row in result["rows"] if "mean" in row]
    others = [other_row(row) for row in result["rows"] if "mean" not in row]
    found = ", ".join(f"{name} {count}" for name, count in counts(result["rows"]).items())
    summary = f"Of {len(result['rows'])} claims, {len(measured)} are measured ({found})."
    tables = [markdown_table(MEASURED, measured), markdown_table([*ABOUT, "because"], others)]
    for name in {row[key] for row in result["rows"] for key in ("study", "result") if key in row}:
        target = f"results/{name}.json" if any(row.get("result") == name for row in result["rows"]) else None
        for place, study in enumerate((f"results/{name}", f"recipes/studies/{name}.yaml")):
            tables[place] = tables[place].replace(f"| {name} |", f"| [{name}](../{target or study}) |")
    return f"{summary}\n\n{tables[0]}\n\nNot measured:\n\n{tables[1]}"


def counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    """How often each verdict was given."""
    return {name: sum(row["verdict"].startswith(name) for row in rows) for name in (HOLDS, FAILS, OPEN)}


def about(row: dict[str, Any]) -> list[Cell]:
    measured_in = row.get("study") or row.get("result") or ("claims of this page" if "mean_of" in row else None)
    return [row["claim"], row["source"], measured_in]


def measured_row(row: dict[str, Any]) -> list[Cell]:
    unit = f", {UNITS[row['quantity']]}" if row.get("quantity") in UNITS else ""
    note = f"; {row['note']}" if "note" in row else ""
    interval = None if row["low"] is None else Range(row["low"], row["high"])
    setting = f"{row['corpus']}; {row['setting']}{note}"
    published = ", ".join(f"{gap:+.2f} ({encoder})" for encoder, gap in row.get("published", {}).items()) or None
    numbers = [Number(row["mean"], form="+.2f"), interval, published, row["seeds"]]
    first, *second = row["compared"]
    of_second = f"{row['share']:.0%} of " if "share" in row else ""
    compared = " - ".join([first, *(of_second + name for name in second)])
    return [*about(row), compared + unit, setting, *numbers, row["verdict"]]


def other_row(row: dict[str, Any]) -> list[Cell]:
    return [*about(row), row["verdict"].removeprefix("not measured: ")]
