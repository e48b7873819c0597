"""Minimal pairs of the shipped models: accuracy of the order by phenomenon.

python -m lab.benchmarks.phenomena --output lab/results/phenomena.json
"""

import argparse
from typing import Any

import numpy as np

from cosent.comparing.report import Cell, markdown_table
from cosent.errors import messages_for_users
from cosent.models import load_model
from cosent.models.decision import rule_for
from cosent.record import shortened
from lab.benchmarks.common import save
from lab.probe.phenomena import CHANGES, PHENOMENA, by_phenomenon, pairs, passed, read_items

MODELS = ("mini", "similar", "similar-lookup", "similar-writer")
VERDICTS = "similar"  # the model that has a threshold
KEPT = ("accuracy", "interval", "same", "different", "similar_same", "similar_different")


def main(args: argparse.Namespace) -> None:
    items, found = read_items(), {path: describe(path) for path in MODELS}
    rows = []
    for name in PHENOMENA:
        item = min((item for item in items if item.phenomenon == name), key=lambda item: len(item.anchor))
        other = item.different if name in CHANGES else item.same
        models = {path: {key: found[path][name][key] for key in KEPT} for path in MODELS}
        overlap = found[VERDICTS][name]["overlap"]
        rows.append({"name": name, "example": [item.anchor, other], "overlap": overlap, "models": models})
    print(phenomena_table(save(args.output, "phenomena", rows)))


def describe(path: str) -> dict[str, dict[str, Any]]:
    """Accuracy, mean scores of both forms, and share of the verdict "similar" for each, by phenomenon."""
    items, model = read_items(), load_model(path)
    scores = np.asarray(model.similarity(*pairs(items).values()), np.float64)
    (rule, _), names = rule_for(path, model.prompts.sides()), np.array([item.phenomenon for item in items])
    found = by_phenomenon(items, passed(scores))
    for name, facts in found.items():
        for form, values in zip(("same", "different"), np.split(scores, 2), strict=True):
            of_name = values[names == name]
            facts[form] = float(of_name.mean())
            facts[f"similar_{form}"] = None if rule is None else float(rule.similar(of_name).mean())
    return found


def between(ends: list[float]) -> str:
    return f"{100 * ends[0]:.0f} to {100 * ends[1]:.0f}"


def phenomena_table(result: dict) -> str:
    """Accuracy by phenomenon and model, and how often `VERDICTS` calls a rewording and a change similar."""
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        cells = [f"{100 * of['accuracy']:.0f} ({between(of['interval'])})" for of in row["models"].values()]
        verdicts = (f"{100 * row['models'][VERDICTS][key]:.0f}" for key in KEPT[-2:])
        rows.append(
            [row["name"], " / ".join(row["example"]), f"{100 * row['overlap']:.0f}", *cells, ", ".join(verdicts)]
        )
    header = ["phenomenon", "example", "overlap", *result["rows"][0]["models"], "verdicts"]
    return f"{markdown_table(header, rows)}\n\n{result['device']}, commit {shortened(result['commit'])}."


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
