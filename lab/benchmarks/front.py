"""The first table of README: models by size, time, four published test sets, and questions that none has seen.

cosent prepare atec ... stsb --source DIR
OMP_NUM_THREADS=1 python -m lab.benchmarks.front similar-lookup similar runs/e5-small-zh --output lab/results/front.json

The 150 questions of unseen.tsv were written for this test, each in two wordings: each second wording searches the first
ones for its own, and equal scores count by their expectation. Models that the file has and the command leaves out stay.
Times a sentence are those of encode.py; published rows are those of `PUBLISHED`.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from cosent.data.corpus import load_corpus
from cosent.errors import messages_for_users
from cosent.evaluation.metrics import correlations
from cosent.evaluation.retrieval import Relevance, tied_metrics, tied_ranks
from cosent.models.auto import load_bi_encoder
from cosent.models.bi_encoder import SentenceEncoder
from lab.benchmarks.common import save

QUESTIONS = Path(__file__).with_name("unseen.tsv")
CORPORA = ("atec", "bq", "lcqmc", "stsb")
PUBLISHED = {  # test Spearman of these, github.com/embeddings-benchmark/results; of Qwen revision b22da49, for BQ "1"
    "bge-small-zh-v1.5": (43.0, 55.2, 72.2, 76.7),
    "Qwen3-Embedding-0.6B": (48.55, 64.66, 76.46, 84.03),
}
MEGABYTES = {
    "similar-lookup": 8,
    "bge-small-zh-v1.5": 48,
    "Qwen3-Embedding-0.6B": 1192,
}  # in float16; the lookup in int8
LABELS = {  # of a row: its words in each language
    "similar-lookup": ("`similar-lookup`, a table of characters and bigrams", "`similar-lookup`，单字和 bigram 查表"),
    "similar": ("`similar`, BERT with 4 layers", "`similar`，4 层 BERT"),
    "e5-small-zh": ("multilingual-e5-small, 12 layers", "multilingual-e5-small，12 层"),
    "e5-small-stsb": ("the same after CoSENT on STS-B", "同上，再用 CoSENT 在 STS-B 上训练"),
    "bge-small-zh-v1.5": ("bge-small-zh-v1.5, published", "bge-small-zh-v1.5，公布值"),
    "Qwen3-Embedding-0.6B": ("Qwen3-Embedding-0.6B, published", "Qwen3-Embedding-0.6B，公布值"),
}
HEADERS = {
    None: ["model", "MB", "ms a sentence", "mean of ATEC, BQ, LCQMC, STS-B", "Recall@1, unseen questions"],
    "zh": ["模型", "MB", "每句毫秒", "ATEC、BQ、LCQMC、STS-B 平均", "Recall@1，全新问句"],
}
TRAINED = {"similar-lookup", "similar", "e5-small-stsb"}  # on training splits of some or all of `CORPORA`


def main(args: argparse.Namespace) -> None:
    before = json.loads(args.output.read_text(encoding="utf-8"))["rows"] if args.output.is_file() else []
    rows = {row["name"]: row for row in before}
    for folder in args.models:
        name = args.name or Path(folder).name
        encoder = load_bi_encoder(folder).eval()
        rows[name] = {"name": name, "millions": sum(weight.numel() for weight in encoder.parameters()) / 1e6}
        rows[name] |= {"spearman": {corpus: spearman(encoder, corpus) for corpus in CORPORA}} | search(encoder)
        save(str(args.output), "front", list(rows.values()))


def spearman(encoder: SentenceEncoder, corpus: str) -> float:
    loaded = load_corpus(corpus)
    split = loaded.split("test")
    scores = encoder.similarity(split["sentence1"][:], split["sentence2"][:])
    return correlations(scores, loaded.labels("test"))["spearman"]


def search(encoder: SentenceEncoder) -> dict[str, float]:
    """Recall@1 and Recall@10 of the paraphrases, and the standard error of the first."""
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    questions, paraphrases = map(list, zip(*(line.split("\t") for line in lines), strict=True))
    queries, documents = (encoder.encode(texts, normalize_embeddings=True) for texts in (paraphrases, questions))
    count = len(lines)
    relevance = Relevance(np.full(count, -1), np.arange(count + 1), np.arange(count), np.ones(count))
    metrics = tied_metrics(*tied_ranks(queries, documents, relevance), relevance, depth=count)
    recall = {name: float(metrics[name].mean()) for name in ("recall_at_1", "recall_at_10")}
    return recall | {"standard_error": float(metrics["recall_at_1"].std(ddof=1) / count**0.5)}


def front_table(result: dict, encode: dict, language: str | None = None) -> str:
    """The table of README, `*` where a model was trained on the training splits behind the mean.

    Args:
        encode: the result of encode.py.
        language: `zh` for README.zh-CN.md.
    """
    measured = {row["name"]: row for row in result["rows"]}
    times = {row["name"]: row["milliseconds"] for row in encode["rows"]}
    times |= dict.fromkeys(("e5-small-zh", "e5-small-stsb"), times.get("multilingual-e5-small"))
    rows: list[list[str]] = []
    for name, words in LABELS.items():
        row = measured.get(name, {})
        if not row and name not in PUBLISHED:
            continue
        mean = np.mean(PUBLISHED[name] if name in PUBLISHED else [100 * value for value in row["spearman"].values()])
        cells = [str(MEGABYTES.get(name) or f"{2 * row['millions']:.0f}")]
        cells += [
            f"{times[name]:.1g}" if (times.get(name) or 1) < 0.01 else f"{times[name]:.2g}" if times.get(name) else "–"
        ]
        cells += [f"{mean:.1f}{'*' * (name in TRAINED)}"]
        cells += [f"{100 * row['recall_at_1']:.0f}" if row else "–"]
        rows.append([words[language == "zh"], *cells])
    lines = [HEADERS[language], ["---"] * len(HEADERS[language]), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="shipped encoders or folders")
    parser.add_argument("--name", help="name of the row of a single folder; default: that of the folder")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
