"""What training for similarity does to finding: retrieval of a model before and after it, on several corpora.

python -m benchmarks.finding --after runs/atec --corpora atec bq     into results/finding.json

The test split of each corpus, with all its sentences as the pool; paired bootstrap intervals over queries.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from cosent.compute.onednn import choose_device
from cosent.data.corpus import load_corpus
from cosent.data.retrieval import RetrievalArguments, retrieval_task
from cosent.errors import messages_for_users, write_atomically
from cosent.evaluation.retrieval import METRICS, mean_intervals
from cosent.evaluation.significance import spearman
from cosent.inference.embedding import embed_pool
from cosent.inference.neighbours import found_by_vectors
from cosent.models.auto import load_model
from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Range
from cosent.run_record import read_record, shortened
from cosent.training.record import environment


def main(args: argparse.Namespace) -> None:
    record, here = read_record(args.after), environment()
    assert record is not None, f"{args.after} was not trained here"
    trained = {key: record.recipe[key] for key in ("corpus", "loss", "learning_rate", "num_train_epochs")}
    result = {"kind": "finding", "before": args.before, "trained": trained, "commit": here.commit}
    result |= {"device": here.device, "rows": []}
    for name in args.corpora:
        result["rows"].append(measured(name, args))
        print(result["rows"][-1])
        write_atomically(args.output, json.dumps(result, ensure_ascii=False, indent=1) + "\n")


def measured(name: str, args: argparse.Namespace) -> dict:
    """Metrics of both models on the test split of a corpus, and the intervals of their differences."""
    corpus = load_corpus(name, args.data_dir)
    task = retrieval_task(corpus, "test", RetrievalArguments())
    assert task is not None, f"nothing is similar in {name}"
    values, row = [], {"corpus": name} | task.size
    for moment in ("before", "after"):
        model = load_model(getattr(args, moment)).to(choose_device(None, False))
        vectors, _ = embed_pool(model, task.pool, 512, ("", ""))
        values.append(found_by_vectors(vectors, vectors, task.relevance))
        scores = (vectors[task.places[:, 0]] * vectors[task.places[:, 1]]).sum(axis=1)
        row[moment] = {metric: float(np.mean(values[-1][metric])) for metric in METRICS}
        row[moment]["spearman"] = spearman(scores, corpus.labels("test"))
    return row | {"gain": mean_intervals({metric: values[1][metric] - values[0][metric] for metric in METRICS})}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="mini", help="the model that training started from")
    parser.add_argument("--after", required=True, help="folder of a run of cosent train")
    parser.add_argument("--corpora", nargs="+", required=True, help="prepared corpora")
    parser.add_argument("--data_dir", default="data", help="folder of the prepared corpora")
    parser.add_argument("--output", type=Path, default=Path("results/finding.json"), help="JSON to write")
    return parser


def finding_table(result: dict) -> str:
    """Spearman and retrieval of a model before and after training, by corpus that it is tested on."""
    header = ["tested on", "queries", "pool", "Spearman", "Recall@1", "Recall@10", "gain in Recall@10"]
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        moved = (f"{100 * row['before'][key]:.2f} → {100 * row['after'][key]:.2f}"
                 for key in ("spearman", "recall_at_1", "recall_at_10"))  # fmt: skip
        low, high = row["gain"]["recall_at_10"]
        gain = Range(100 * low, 100 * high)
        rows.append([row["corpus"], row["queries"], row["pool"], *moved, gain])
    trained = result["trained"]
    return (
        f"{markdown_table(header, rows)}\n\n"
        f"Test x100 of `{result['before']}`, before → after {trained['loss']} on {', '.join(trained['corpus'])} "
        f"(learning rate {trained['learning_rate']:g}, {trained['num_train_epochs']:g} epochs), and the paired 95% "
        f"interval of the gain over queries; one seed, {result['device']}, commit {shortened(result['commit'])}."
    )


if __name__ == "__main__":
    with messages_for_users():
        main(parser().parse_args())
