"""The page of claims: a tally by theme, the primary family and a table of each theme; their settings as a CSV."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

from cosent.atomic import write_atomically
from cosent.comparing.report import Cell, markdown_table
from lab import RESULTS
from lab.tables.studies import median, with_interval

ONE = "one seed or model"
VERDICTS = ("agrees", "disagrees", "within a point", "unresolved at this size", ONE)
UNITS = {"accuracy": "accuracy", "recall_at_10": "Recall@10", "first_epoch": "validation", "epochs_to_90": "epochs"}
HEADER = ["claim", "source's figure", "ours [95%]", "differs from the source in; notes", "verdict"]
DETAILS = ["theme", "claim", "under", "source", "ours", "verdict", "study", "difference", "setting", "seeds", "p"]
DETAILS += ["p of sign"]
SEEDS, PRIMARY_SEEDS = 3, 10  # with fewer, the verdict says how many there are
RATES = RESULTS / "error_rate.json"
CORPUS = re.compile("STS-B|ATEC|BQ|LCQMC|PAWSX")
BREAK = " // "


def claims_table(result: dict[str, Any]) -> str:
    rows = [row for row in result["rows"] if "under" not in row]
    folded = [row for row in result["rows"] if "under" in row]
    themes = list(dict.fromkeys(row["theme"] for row in rows))
    counts = [tally(rows, theme) for theme in [*themes, None]] + [
        ["repeats of these, in the CSV", *tally(folded, None)[1:]]
    ]
    parts = [markdown_table(["theme", *VERDICTS, "to be measured"], counts)]
    primary = [row for row in rows if row.get("family") == "primary"]
    parts += ["## The primary family", error_rates(), table_of([row for row in primary if "verdict" in row])]
    for theme in themes:
        measured = [row for row in rows if row["theme"] == theme and row not in primary and "verdict" in row]
        parts += [f"## {theme}", table_of(measured)]
    listed = [f"* {row['claim']} ({row['source']}): {row['needs']}." for row in rows if "needs" in row]
    parts += [f"## To be measured\n\n{chr(10).join(listed)}"] if listed else []
    return "\n\n".join(parts)


def tally(rows: list[dict[str, Any]], theme: str | None) -> list[Cell]:
    """Number of each verdict in a theme, or in all."""
    ours = [row for row in rows if theme in (None, row["theme"])]
    each = [ONE if "one_model" in row or row.get("verdict") == "one seed" else row.get("verdict") for row in ours]
    counts = [each.count(name) for name in VERDICTS]
    return [theme or "all", *counts, sum("verdict" not in row for row in ours)]


def error_rates() -> str:
    """Simulated probability of a wrong verdict in the primary family, by a script that ended (lab/LOG.md)."""
    rates = json.loads(RATES.read_text(encoding="utf-8"))["primary"]
    names = ("with the seeds at hand", "with residuals of these seeds")
    normal, heavy = (f"{100 * rates[name]:.1f}%" for name in names)
    return (
        f"By Holm's procedure at 4%, the simulated probability of any wrong verdict in this family is {normal}, or "
        f"{heavy} with the heavy tails of these seeds."
    )


def table_of(rows: list[dict[str, Any]]) -> str:
    """A line for each claim; claims that differ in their corpus alone share one."""
    alike: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        alike.setdefault(CORPUS.sub("…", row["claim"], 1) if "corpus" in row else row["claim"], []).append(row)
    return markdown_table(HEADER, map(line_of, alike.values())).replace(BREAK, "<br>")


def line_of(rows: list[dict[str, Any]]) -> list[Cell]:
    """The cells of claims that share a line; what is not the same in all of them has its corpus in front."""
    if len(rows) == 1:
        return [rows[0]["claim"], *(cell(rows[0]) for cell in CELLS)]
    names = [CORPUS.findall(row["claim"])[0] for row in rows]
    cells = [CORPUS.sub(", ".join(names), rows[0]["claim"], 1)]
    for cell in CELLS:
        values = [cell(row) for row in rows]
        named = [f"{name}: {value}" for name, value in zip(names, values, strict=True) if value]
        cells.append(values[0] if len(set(values)) == 1 else BREAK.join(named))
    return cells


def figure(row: dict[str, Any]) -> str:
    gaps = ", ".join(f"{gap:+.2f} ({encoder})" for encoder, gap in row.get("published", {}).items())
    return gaps or row.get("figure", "")


def ours(row: dict[str, Any]) -> str:
    if "ours" in row:
        return row["ours"]
    if "of_score" in row:
        share = [row.get("share", row.get("times", 0)) + row[key] / row["of_score"] for key in ("mean", "low", "high")]
        text = "{:.1%} [{:.1%}, {:.1%}] of the score".format(*share)
        return text + "".join(f", {gain:.0%} of {name}" for name, gain in row.get("shares", {}).items())
    unit = f" {UNITS[row['quantity']]}" if row.get("quantity") in UNITS else ""
    text = with_interval(row["mean"], row["low"], row["high"]) if "low" in row else f"{row['mean']:+.2f}"
    text += "".join(f"; {mean:+.2f} without {corpus}" for corpus, mean in row.get("without", {}).items())
    return f"{text}{unit}{median(row.get('gaps', []))}"


def remarks(row: dict[str, Any]) -> str:
    differs = "no setting given" if "review" in row["source"] else ", ".join(row.get("differs", ["encoder"]))
    return "; ".join([differs, *([row["note"]] if "note" in row else [])])


def verdict(row: dict[str, Any]) -> str:
    beyond = f"; beyond the baselines {row['gain']['verdict']}" if "gain" in row else ""
    models = f" ({row['one_model']})" if "one_model" in row else ""
    enough = PRIMARY_SEEDS if row.get("family") == "primary" else SEEDS
    few = f" ({row['seeds']} seeds)" if row.get("seeds", enough) < enough else ""
    return f"{row['verdict']}{models or few}{beyond}"


CELLS = (figure, ours, remarks, verdict)


def write_csv(rows: list[dict[str, Any]], file: Path) -> None:
    """Settings of every measured claim."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([DETAILS, *(details(row) for row in rows if "verdict" in row)])
    write_atomically(file, text.getvalue())


def details(row: dict[str, Any]) -> list[Cell]:
    names = row.get("study") or row.get("fusion") or row.get("result") or row.get("fact") or "the claims averaged"
    difference = f"{' minus '.join(row['compared'])} on {row['corpus']}" if "compared" in row else None
    study = " and ".join(names) if isinstance(names, list) else names
    theme = "the primary family" if row.get("family") == "primary" else row["theme"]
    p = [f"{row[key]:.2g}" if key in row else None for key in ("p", "p_of_sign")]
    about = [row.get("setting"), row.get("seeds"), *p]
    return [theme, row["claim"], row.get("under"), row["source"], ours(row), verdict(row), study, difference, *about]
