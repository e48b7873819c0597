"""Spearman by `cosent evaluate`, by mteb, and by mteb on sentence-transformers, of one model on the same rows.

python -m benchmarks.mteb_equality --model mini --data_dir data     into results/mteb.json

A task that is in the output already is not measured again, so that the command continues after a kill.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from cosent.data.corpus import load_corpus
from cosent.data.retrieval import RetrievalArguments
from cosent.encoders import resolve
from cosent.errors import messages_for_users, write_atomically
from cosent.evaluate import EvaluateArguments, evaluate_corpus
from cosent.inference.mteb import MtebArguments, chosen_tasks, evaluate_tasks, figures, import_mteb, with_rows
from cosent.models.auto import load_model
from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Number
from cosent.run_record import shortened
from cosent.training.record import environment

TASKS = ("STSB", "PAWSX", "LCQMC", "BQ", "ATEC")
SIDES = {
    "ours": "evaluate --corpus",
    "mteb": "evaluate --mteb",
    "sentence_transformers": "mteb + sentence-transformers",
}


def mteb_table(result: dict) -> str:
    """A row per task: three Spearmans and their largest difference."""
    rows: list[list[Cell]] = []
    for name, row in result["tasks"].items():
        values = [row[side] for side in SIDES]
        rows.append([name, f"{row['pairs']:,}", *(Number(100 * value, form=".4f") for value in values),
                     Number(100 * (max(values) - min(values)), form=".5f")])  # fmt: skip
    header = ["task", "pairs", *SIDES.values(), "largest difference"]
    versions = ", ".join(f"{name} {result['versions'][name]}" for name in ("mteb", "sentence-transformers"))
    return (
        f"{markdown_table(header, rows)}\n\n"
        f"Test Spearman x100 of `{result['model']}` as it ships, not fine-tuned; {versions}, {result['device']}, "
        f"commit {shortened(result['commit'])}."
    )


def by_sentence_transformers(name: str, model: str, data_dir: str) -> float:
    """What mteb finds without any code of this project but the rows."""
    from sentence_transformers import SentenceTransformer

    mteb = import_mteb()
    (task,) = chosen_tasks(mteb, MtebArguments(mteb=[name]), data_dir)
    with_rows(task, data_dir)
    done = mteb.evaluate(SentenceTransformer(resolve(model), device="cpu"), task, cache=None, co2_tracker=False)
    return figures(task, done.task_results[0])["cosine_spearman"]


def measured(name: str, args: argparse.Namespace) -> dict:
    settings, model = EvaluateArguments(model=args.model, data_dir=args.data_dir), load_model(args.model)
    corpus = load_corpus(name.lower(), args.data_dir)
    ours, _ = evaluate_corpus(model, corpus, settings, RetrievalArguments(retrieval=False), ("", ""))
    with tempfile.TemporaryDirectory() as folder:
        chosen = MtebArguments(mteb=[name], mteb_output=folder)
        (theirs,) = evaluate_tasks(model, settings, chosen, ("", ""))["tasks"].values()
    return {
        "pairs": theirs["pairs"],
        "rows": theirs["rows"],
        "ours": ours["spearman"],
        "mteb": theirs["cosine_spearman"],
        "sentence_transformers": by_sentence_transformers(name, args.model, args.data_dir),
    }


def main(args: argparse.Namespace) -> None:
    from importlib.metadata import version

    here = environment()
    result = {"kind": "mteb", "model": args.model, "commit": here.commit, "device": here.device, "tasks": {}}
    result["versions"] = {name: version(name) for name in ("mteb", "sentence-transformers", "torch", "transformers")}
    if args.output.is_file():
        result["tasks"] = json.loads(args.output.read_text(encoding="utf-8"))["tasks"]
    for name in TASKS:
        if name not in result["tasks"]:
            start = time.time()
            result["tasks"][name] = measured(name, args) | {"seconds": time.time() - start}
            write_atomically(args.output, json.dumps(result, indent=1) + "\n")
    print(mteb_table(result))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini", help="folder of a bi-encoder or a shipped encoder")
    parser.add_argument("--data_dir", default="data", help="folder of the prepared corpora")
    parser.add_argument("--output", type=Path, default=Path("results/mteb.json"), help="JSON to write")
    return parser


if __name__ == "__main__":
    with messages_for_users():
        main(parser().parse_args())
