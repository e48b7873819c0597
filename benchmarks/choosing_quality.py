"""Quality of the towers side by side, in float32 and int8: pairs scored, and sentences found.

python -m benchmarks.choosing_quality --bi runs/bi --cross runs/cross --student runs/student \\
    --corpus lcqmc --trained_on "20,000 pairs of LCQMC" --output FILE

All score the pairs of the test split, and a bi-encoder and a student find the sentences that are labelled similar among
all of the split, as training measures it (`docs/retrieval.md`). A cross-encoder puts the first of those that the
bi-encoder has found in order.
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from benchmarks.choosing import FORMS, load
from cosent.data.corpus import load_corpus
from cosent.data.retrieval import retrieval_task
from cosent.data.retrieval_arguments import RetrievalArguments
from cosent.errors import InputError, messages_for_users
from cosent.evaluation.metrics import correlations
from cosent.evaluation.retrieval import DEPTH, Relevance, mean_intervals, retrieval_metrics, sampled
from cosent.inference.neighbours import nearest
from cosent.modeling.text_model import TextModel
from cosent.training.environment import environment


def found(vectors: np.ndarray, relevance: Relevance) -> np.ndarray:
    """The nearest sentences of each query, best first, int64 of shape `(queries, depth)`; none finds itself."""
    depth = min(DEPTH, len(vectors) - 1)
    return nearest(vectors[relevance.queries], vectors, depth, exclude=relevance.queries)[0]


def reranked(rows: np.ndarray, relevance: Relevance, pool: list[str], model: TextModel, top: int) -> np.ndarray:
    """`rows` of shape `(queries, depth)`, the first `top` of each in the order of the model's scores of the pairs."""
    first = rows[:, :top]
    queries = [pool[query] for query in np.repeat(relevance.queries, first.shape[1])]
    scores = model.similarity(queries, [pool[row] for row in first.ravel()]).reshape(first.shape)
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.concatenate([np.take_along_axis(first, order, axis=1), rows[:, top:]], axis=1)


def qualities(args: argparse.Namespace) -> tuple[list[dict], int]:
    """A row per model and number type, of Spearman of the pairs and retrieval metrics, and the number of queries."""
    corpus = load_corpus(args.corpus)
    test, task = corpus.split("test"), retrieval_task(corpus, "test", RetrievalArguments())
    if task is None:
        raise InputError(f"{corpus.folder}: no pair of the test split is labelled similar, so nothing can be found.")
    relevance, rows = sampled(task.relevance, args.queries), []
    names = [name for name in ("bi", "student", "cross") if getattr(args, name)]
    with tqdm(total=(len(names) + 1) * len(FORMS), unit="model") as bar:

        def add(name: str, form: str, spearman: float | None, metrics: dict[str, np.ndarray]) -> None:
            means = {key: float(value.mean()) for key, value in metrics.items()}
            rows.append({"model": name, "form": form, "spearman": spearman} | means)
            bar.update()

        for form in FORMS:
            towers = {name: load(getattr(args, name), form) for name in names}
            pairs = {
                name: correlations(model.similarity(test["sentence1"][:], test["sentence2"][:]), corpus.labels("test"))
                for name, model in towers.items()
            }
            for name in [name for name in names if name != "cross"]:
                places = found(towers[name].encode(task.pool, normalize=True), relevance)
                metrics = retrieval_metrics(places, relevance)
                add(name, form, pairs[name]["spearman"], metrics)
                if name == "bi":
                    ours = places, metrics
            places, before = ours
            after = retrieval_metrics(reranked(places, relevance, task.pool, towers["cross"], args.top), relevance)
            add("cross", form, pairs["cross"]["spearman"], {})
            add("both", form, None, after)
            rows[-1]["gain"] = mean_intervals({key: after[key] - before[key] for key in after})
    return rows, len(relevance)


def main(args: argparse.Namespace) -> None:
    rows, queries = qualities(args)
    corpus = load_corpus(args.corpus)
    result = {
        "kind": "choosing_quality",
        "corpus": corpus.manifest.name,
        "top": args.top,
        "queries": queries,
        "trained_on": args.trained_on,
        "rows": rows,
        "when": time.strftime("%Y-%m-%d"),
        **asdict(environment()),
    }
    Path(args.output).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bi", required=True, help="folder of a trained bi-encoder")
    parser.add_argument("--cross", required=True, help="folder of a cross-encoder, trained on the same pairs")
    parser.add_argument("--student", help="folder of a student, if there is one")
    parser.add_argument("--trained_on", required=True, help="what they were trained on, in words, for the table")
    parser.add_argument("--corpus", default="lcqmc", help="prepared corpus with a test split")
    parser.add_argument("--queries", type=int, default=2000, help="queries, drawn at random, that are searched for")
    parser.add_argument("--top", type=int, default=20, help="sentences that the cross-encoder reads after a search")
    parser.add_argument("--output", required=True, help="JSON file to write")
    return parser


if __name__ == "__main__":
    with messages_for_users():
        main(parser().parse_args())
