"""Processor time of a bi-encoder, of a cross-encoder of its size and of both, and what reranking gains.

OMP_NUM_THREADS=1 python -m lab.benchmarks.latency --corpus stsb --output lab/results/latency.json

Both are trained on the corpus for an epoch. Every query is put to all of them before the next one.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from cosent.comparing.document import Cell, markdown_table
from cosent.data.corpus import Corpus, load_corpus
from cosent.data.retrieval import pool_and_relevance
from cosent.evaluation.retrieval import mean_intervals
from cosent.jobs import train
from cosent.models.auto import load_model
from cosent.models.embedding import quantized
from cosent.record import shortened
from cosent.search.neighbours import nearest
from lab.benchmarks.common import finished, save

TOP = 20  # that the cross-encoder puts in order
FEW, MANY = 1000, 1_000_000  # sentences with vectors
CASES = {"pair": "one pair", "few": f"1 against {FEW:,}", "many": f"1 against {MANY:,}"}


def answers(bi, cross, sentences: list[str], many: np.ndarray) -> dict[str, dict[str, Callable[[str], object]]]:
    """What each tower is asked about a query, by case; the vectors of the sentences are there."""
    few = bi.encode(sentences, normalize_embeddings=True)

    def search(vectors: np.ndarray) -> Callable[[str], object]:
        return lambda query: nearest(bi.encode([query], normalize_embeddings=True), vectors, TOP)

    def both(vectors: np.ndarray) -> Callable[[str], object]:
        return lambda query: (search(vectors)(query), score(query, sentences[:TOP]))

    def score(query: str, some: list[str]) -> object:
        return cross.similarity([query] * len(some), some)

    return {
        "bi-encoder": {"pair": lambda query: bi.similarity(query, sentences[0])}
        | {"few": search(few), "many": search(many)},
        "cross-encoder": {
            "pair": lambda query: score(query, sentences[:1]),
            "few": lambda query: score(query, sentences),
        },
        "bi-encoder, then cross-encoder": {"few": both(few), "many": both(many)},
    }


def latencies(towers: dict[str, dict[str, Callable[[str], object]]], queries: list[str]) -> list[dict]:
    """Median processor milliseconds of each tower by case; the first query only warms up."""
    taken = {name: {case: [] for case in cases} for name, cases in towers.items()}
    for query in tqdm(queries, unit="query"):
        for name, cases in towers.items():
            for case, answer in cases.items():
                start = time.process_time()
                answer(query)
                taken[name][case].append(1000 * (time.process_time() - start))
    return [
        {"name": name} | {case: statistics.median(each[1:]) for case, each in cases.items()}
        for name, cases in taken.items()
    ]


def reranking(bi, cross, corpus: Corpus) -> dict:
    """Recall@1 of test sentences before and after, and the difference with its 95% interval over queries."""
    pool, relevance, _ = pool_and_relevance(corpus, "test")
    vectors = bi.encode(pool, normalize_embeddings=True)
    rows, _ = nearest(vectors[relevance.queries], vectors, TOP, exclude=relevance.queries)
    scores = cross.similarity(
        [pool[row] for row in np.repeat(relevance.queries, TOP)], [pool[row] for row in rows.flat]
    )
    order = np.argsort(-scores.reshape(rows.shape), axis=1, kind="stable")
    items = [relevance.items[slice(*relevance.starts[query : query + 2])] for query in range(len(relevance))]
    before, after = (
        np.array([np.isin(row, own) for row, own in zip(best[:, 0], items, strict=True)]) / relevance.counts
        for best in (rows, np.take_along_axis(rows, order, axis=1))
    )
    gain = after - before
    interval = [float(gain.mean()), *mean_intervals({"gain": gain})["gain"]]
    return {"before": float(before.mean()), "after": float(after.mean()), "gain": interval, "queries": len(relevance)}


def latency_table(result: dict) -> str:
    """Milliseconds by tower and type, and Recall@1 with and without reranking."""
    rows: list[list[Cell]] = [
        [*row["name"].rsplit(", ", 1), *(f"{row[case]:,.1f}" if case in row else None for case in CASES)]
        for row in result["rows"]
    ]
    found = result["reranking"]
    gain, low, high = (f"{100 * value:+.1f}" for value in found["gain"])
    before, after = (f"{100 * found[moment]:.1f}" for moment in ("before", "after"))
    return (
        f"{markdown_table(['model', 'type', *(f'{name}, ms' for name in CASES.values())], rows)}\n\n"
        f"Processor time of one thread, medians of {result['queries']} test sentences of {result['corpus']}. Recall@1 "
        f"of {found['queries']} among all: {before} by the bi-encoder, {after} with its first {TOP} in the order of "
        f"the cross-encoder, {gain} \\[{low}, {high}\\]; one epoch, one seed. {result['device']}, commit "
        f"{shortened(result['commit'])}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="stsb", help="corpus with a training split")
    parser.add_argument("--queries", type=int, default=15)
    parser.add_argument("--output", required=True, help="JSON file to write")
    args = parser.parse_args()
    models, towers = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for tower in ("bi_encoder", "cross_encoder"):
            output = Path(folder, tower)
            words = ["--config", f"{tower}/cosent_mini", "--corpus", args.corpus, "--output_dir", str(output)]
            finished(train.main, [*words, "--num_train_epochs", "1", "--seed", "1"], output)
            models[tower] = load_model(str(output)).eval()
    corpus = load_corpus(args.corpus)
    sentences = list(dict.fromkeys(corpus.split("test")["sentence2"][:]))[:FEW]
    many = np.random.default_rng(1).standard_normal((MANY, 256), dtype=np.float32)
    for form, of in (("float32", models), ("int8", {name: quantized(model) for name, model in models.items()})):
        asked = answers(of["bi_encoder"], of["cross_encoder"], sentences, many)
        towers |= {f"{name}, {form}": cases for name, cases in asked.items()}
    rows = latencies(towers, corpus.split("test")["sentence1"][: args.queries + 1])
    facts = {"corpus": args.corpus, "queries": args.queries}
    facts["reranking"] = reranking(models["bi_encoder"], models["cross_encoder"], corpus)
    print(latency_table(save(args.output, "latency", rows, **facts)))


if __name__ == "__main__":
    main()
