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
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from benchmarks.choosing import FORMS, load, parser_of_models
from cosent.data.corpus import Corpus, load_corpus
from cosent.data.retrieval import RetrievalArguments, RetrievalTask, retrieval_task
from cosent.errors import InputError, messages_for_users
from cosent.evaluation.metrics import correlations
from cosent.evaluation.retrieval import Relevance, mean_intervals, retrieval_metrics, sampled
from cosent.inference.neighbours import nearest_to_queries
from cosent.models.bi_encoder import TextModel
from cosent.training.record import environment


def reranked(rows: np.ndarray, relevance: Relevance, pool: list[str], model: TextModel, top: int) -> np.ndarray:
    """`rows` of shape `(queries, depth)`, the first `top` of each in the order of the model's scores of the pairs."""
    first = rows[:, :top]
    queries = [pool[query] for query in np.repeat(relevance.queries, first.shape[1])]
    scores = model.similarity(queries, [pool[row] for row in first.ravel()]).reshape(first.shape)
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.concatenate([np.take_along_axis(first, order, axis=1), rows[:, top:]], axis=1)


def qualities(corpus: Corpus, task: RetrievalTask, relevance: Relevance, args: argparse.Namespace) -> Iterator[dict]:
    """Yields a row per model and number type: Spearman of the pairs, and retrieval metrics."""
    test, labels = corpus.split("test"), corpus.labels("test")
    for form in FORMS:
        folders = {"bi": args.bi, "student": args.student, "cross": args.cross}
        models = {name: load(folder, form) for name, folder in folders.items() if folder}
        places, metrics = {}, {}
        for name, model in models.items():
            if name != "cross":
                vectors = model.encode(task.pool, normalize=True)
                places[name] = nearest_to_queries(vectors, vectors, relevance)
                metrics[name] = retrieval_metrics(places[name], relevance)
            scores = model.similarity(test["sentence1"][:], test["sentence2"][:])
            yield row_of(name, form, correlations(scores, labels)["spearman"], metrics.get(name, {}))
        both = retrieval_metrics(reranked(places["bi"], relevance, task.pool, models["cross"], args.top), relevance)
        gain = mean_intervals({key: both[key] - metrics["bi"][key] for key in both})
        yield row_of("both", form, None, both) | {"gain": gain}


def row_of(name: str, form: str, spearman: float | None, metrics: dict[str, np.ndarray]) -> dict:
    means = {key: float(value.mean()) for key, value in metrics.items()}
    return {"model": name, "form": form, "spearman": spearman} | means


def main(args: argparse.Namespace) -> None:
    corpus = load_corpus(args.corpus)
    task = retrieval_task(corpus, "test", RetrievalArguments())
    if task is None:
        raise InputError(f"{corpus.folder}: no pair of the test split is labelled similar, so nothing can be found.")
    relevance = sampled(task.relevance, args.queries)
    result = {
        "kind": "choosing_quality",
        "corpus": corpus.manifest.name,
        "top": args.top,
        "queries": len(relevance),
        "trained_on": args.trained_on,
        "rows": list(tqdm(qualities(corpus, task, relevance, args), unit="model")),
        "when": time.strftime("%Y-%m-%d"),
        **asdict(environment()),
    }
    Path(args.output).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def parser() -> argparse.ArgumentParser:
    parser = parser_of_models(__doc__)
    parser.add_argument("--student", help="folder of a student, if there is one")
    parser.add_argument("--trained_on", required=True, help="what they were trained on, in words, for the table")
    parser.add_argument("--queries", type=int, default=2000, help="queries, drawn at random, that are searched for")
    return parser


if __name__ == "__main__":
    with messages_for_users():
        main(parser().parse_args())
