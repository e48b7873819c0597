"""What the shipped models have understood: accuracy of the order of minimal pairs by phenomenon.

python -m lab.benchmarks.phenomena --output lab/results/phenomena.json
"""

import argparse

from cosent.errors import messages_for_users
from cosent.evaluation.minimal_pairs import CHANGES, PHENOMENA
from cosent.models.auto import load_model
from cosent.probe import ProbeArguments, describe, items_to_score, overlap, scores_of
from cosent.reporting.document import Cell, markdown_table
from cosent.reporting.probing import between
from cosent.run import shortened
from lab.benchmarks.common import save

MODELS = ("mini", "similar", "similar-writer")
VERDICTS = "similar"  # the model that has a threshold
KEPT = ("accuracy", "interval", "same", "different", "similar_same", "similar_different")


def main(args: argparse.Namespace) -> None:
    asked = ProbeArguments(model=list(MODELS))
    items = items_to_score(asked, PHENOMENA, [])
    counted, found = overlap(items), {}
    for path in MODELS:
        model = load_model(path)
        found[path] = describe(path, asked, model, items, *scores_of(model.similarity, items, path))["phenomena"]
    rows = []
    for name in PHENOMENA:
        item = min((item for item in items if item.phenomenon == name), key=lambda item: len(item.anchor))
        other = item.different if name in CHANGES else item.same
        models = {path: {key: found[path][name][key] for key in KEPT} for path in MODELS}
        rows.append({"name": name, "example": [item.anchor, other], "overlap": counted[name], "models": models})
    print(phenomena_table(save(args.output, "phenomena", rows)))


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
