"""What it takes to repeat the published tables: results/published_runs.json, estimates without a GPU or weights.

python -m benchmarks.published_runs        then python -m benchmarks.tables writes docs/results.md

Memory: `benchmarks.memory`, the larger of the recipes of a study. Hours: 6 operations per weight of the layers and
token for training and 2 for scoring validation and test, on sentences as long as the 90th percentile of their corpus,
at `SPEED` operations per second.
"""

import json
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.memory import build, estimate
from cosent.errors import write_atomically
from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Number, times_100
from cosent.studies.definition import Run, expand, read_study
from cosent.studies.results import Study, read_results
from data_scripts.corpora import CORPORA

ROOT = Path(__file__).parents[1]
STUDIES = ("native", "nli_transfer", "interactive")
SPEED = 5e12  # about half of what a card of 8 GB reaches in float32
NLI_ROWS = 53_186  # of the part of the NLI corpora that is at hand here
SPECIAL = 2  # tokens around a sentence


def weights_of_layers(model: str, tower: str) -> int:
    with torch.device("meta"):
        built = build({"model_name_or_path": model, "tower": tower})
    return sum(weight.numel() for name, weight in built.named_parameters() if ".layer." in name)


def tokens(corpus: str, split: str) -> int:
    """Tokens of all pairs of a split of the published corpus, each sentence padded to the 90th percentile."""
    audit = json.loads((ROOT / f"results/audit/{corpus}.json").read_text(encoding="utf-8"))["splits"]
    characters = audit[split if split in audit else "test"]["characters"]["90"]
    rows = CORPORA[corpus].published_rows.get(split, NLI_ROWS if split == "train" else 0)
    return rows * 2 * (characters + SPECIAL)


def hours(run: Run) -> float:
    """Estimated time of a run: its epochs, a validation after each, and the test before and after training."""
    settings = run.settings
    tested = settings.get("eval_corpora") or run.corpora
    epochs = float(settings["num_train_epochs"])
    trained = sum(tokens(corpus, "train") for corpus in run.corpora) * epochs
    scored = sum((epochs + 2) * tokens(c, "validation") + 2 * tokens(c, "test") for c in tested)
    weights = weights_of_layers(settings["model_name_or_path"], settings["tower"])
    return weights * (6 * trained + 2 * scored) / SPEED / 3600


def requirements(study: str) -> dict[str, Any]:
    runs = expand(read_study(f"recipes/studies/{study}.yaml"), {})
    recipes = {run.recipe: run.settings for run in runs}.values()
    memory = max(sum(estimate(settings).values()) for settings in recipes)
    return {"study": study, "runs": len(runs), "gigabytes": memory / 1e9, "hours": sum(map(hours, runs))}


def published_table(results: Path) -> str:
    """Cost of every study of published tables, and every published number next to ours, where we have it."""
    needed = json.loads((results / "published_runs.json").read_text(encoding="utf-8"))["rows"]
    costs: list[list[Cell]] = [
        [row["study"], row["runs"], Number(row["gigabytes"], form=".0f"), Number(row["hours"], form=".0f")]
        for row in needed
    ]
    header = ["study", "runs", "GB of GPU memory (estimate)", "hours (estimate)"]
    parts = [markdown_table(header, costs)]
    for table in yaml.safe_load((results / "published.yaml").read_text(encoding="utf-8")):
        names = [name for name in table["studies"] if name in STUDIES]
        if names and table["measure"] in ("spearman", "accuracy"):
            parts.append(f"{table['source']}: test {table['measure']} x100, published / ours\n\n"
                         f"{numbers_table(table, results / names[0])}")  # fmt: skip
    return "\n\n".join(parts)


def numbers_table(table: dict[str, Any], folder: Path) -> str:
    study = read_results(folder) if any(folder.glob("*.json")) else None
    corpora = [key for key in table["rows"][0] if key not in ("method", "encoder")]
    rows: list[list[Cell]] = []
    for row in table["rows"]:
        name = f"{row['method']} {row['encoder']}"
        ours = (our_number(study, name, corpus, table["measure"]) for corpus in corpora)
        rows.append([name, *(f"{row[corpus]:.2f} / {found}" for corpus, found in zip(corpora, ours, strict=True))])
    return markdown_table(["method, encoder", *corpora], rows)


def our_number(study: Study | None, row: str, corpus: str, measure: str) -> str:
    """Mean and deviation over seeds of a row of ours; a dash where it has not been run."""
    runs = study.cell(row, corpus) if study and row in study.rows else []
    found = times_100(run.test(corpus, measure) for run in runs)
    return str(found) if found else "–"


def main() -> None:
    rows = [requirements(study) for study in STUDIES]
    text = json.dumps({"kind": "published_runs", "operations_per_second": SPEED, "rows": rows}, indent=1)
    write_atomically(ROOT / "results/published_runs.json", text + "\n")


if __name__ == "__main__":
    main()
