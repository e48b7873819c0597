"""The page of claims: a tally by theme, the primary family, and a table of each theme with its settings folded."""

import json
from typing import Any

from cosent.comparing.document import Cell, markdown_table
from lab import RESULTS
from lab.tables.studies import with_interval

VERDICTS = ("agrees", "disagrees", "within a point", "unresolved at this size")
NOT_MEASURED = {
    "answered": "Answered by the code or by another page",
    "needs": "Needs a GPU, data or runs",
    "absent": "No such feature",
}
UNITS = {"accuracy": "accuracy", "recall_at_10": "Recall@10", "first_epoch": "validation", "epochs_to_90": "epochs"}
HEADER = ["claim", "source's figure", "ours [95%]", "same setting as the source?", "verdict"]
FOLDED = ["claim", "source", "study", "difference", "setting", "seeds", "p"]
SEEDS, PRIMARY_SEEDS = 3, 10  # with fewer, the verdict says how many there are
RATES = RESULTS / "error_rate.json"


def claims_table(result: dict[str, Any]) -> str:
    rows = result["rows"]
    themes = list(dict.fromkeys(row["theme"] for row in rows))
    parts = [markdown_table(["theme", *VERDICTS, "not measured"], [tally(rows, theme) for theme in [*themes, None]])]
    primary = [row for row in rows if row.get("family") == "primary"]
    parts += ["## The primary family", error_rates(), table_of([row for row in primary if "verdict" in row])]
    for theme in themes:
        measured = [row for row in rows if row["theme"] == theme and row not in primary and "verdict" in row]
        parts += [f"## {theme}", table_of(measured)]
    parts.append("## Not measured")
    for key, title in NOT_MEASURED.items():
        listed = [f"* {row['claim']} ({row['source']}): {row[key]}." for row in rows if key in row]
        parts.append(f"{title}:\n\n" + "\n".join(listed))
    return "\n\n".join(parts)


def tally(rows: list[dict[str, Any]], theme: str | None) -> list[Cell]:
    """How often each verdict was given in a theme, or in all."""
    ours = [row for row in rows if theme in (None, row["theme"])]
    counts = [sum(row.get("verdict") == name for row in ours) for name in VERDICTS]
    return [theme or "all", *counts, sum("verdict" not in row for row in ours)]


def error_rates() -> str:
    """The simulated error rates of the procedure, from lab/claims/error_rate.py."""
    rates = json.loads(RATES.read_text(encoding="utf-8"))
    primary = ", ".join(f"{100 * rate:.1f}% {name}" for name, rate in rates["primary"].items())
    return (
        f"Simulated {rates['repetitions']:,} times without any difference, with the variances measured here, the "
        f"probability of any wrong verdict in this family, by Holm's procedure at 4%, is {primary}. "
        f"{rates['measured_in_primary']} of its claims have variances over rows; the one on validation has those of "
        "another claim, and is not in the last figure. Of "
        f"{rates['others']} other claims, judged with the seeds that they have, {rates['others_wrong']:.2f} are "
        "decided wrongly on average."
    )


def table_of(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "Not run yet."
    cells = [[row["claim"], figure(row), ours(row), same_setting(row), verdict(row)] for row in rows]
    settings = markdown_table(FOLDED, map(how, rows))
    notes = "\n".join(f"* {row['claim']}: {row['note']}." for row in rows if "note" in row)
    parts = [markdown_table(HEADER, cells), "<details><summary>Studies, settings, seeds and notes</summary>", settings]
    return "\n\n".join([*parts, *([notes] if notes else []), "</details>"])


def figure(row: dict[str, Any]) -> str:
    gaps = ", ".join(f"{gap:+.2f} ({encoder})" for encoder, gap in row.get("published", {}).items())
    return gaps or row.get("figure", "")


def ours(row: dict[str, Any]) -> str:
    if "ours" in row:
        return row["ours"]
    if "shares" in row:
        return ", ".join(f"{share:.0%} of {name}" for name, share in row["shares"].items())
    unit = f" {UNITS[row['quantity']]}" if row.get("quantity") in UNITS else ""
    mean = with_interval(row["mean"], row["low"], row["high"]) if "low" in row else f"{row['mean']:+.2f}"
    return f"{mean}{unit}"


def same_setting(row: dict[str, Any]) -> str:
    if "review" in row["source"]:
        return "it gives none; ours: mini"
    return f"no: {', '.join(row.get('differs', ['encoder']))}"


def verdict(row: dict[str, Any]) -> str:
    models = f" ({row['one_model']})" if "one_model" in row else ""
    enough = PRIMARY_SEEDS if row.get("family") == "primary" else SEEDS
    few = f" ({row['seeds']} seeds)" if row.get("seeds", enough) < enough else ""
    return f"{row['verdict']}{models or few}"


def how(row: dict[str, Any]) -> list[Cell]:
    """Claim, source, study, compared rows, setting, seeds and p-value."""
    names = row.get("study") or row.get("fusion") or row.get("result") or row.get("fact") or "the claims averaged"
    difference = f"{' minus '.join(row['compared'])} on {row['corpus']}" if "compared" in row else None
    study = " and ".join(names) if isinstance(names, list) else names
    p = f"{row['p']:.2g}" if "p" in row else None
    return [row["claim"], row["source"], study, difference, row.get("setting"), row.get("seeds"), p]
