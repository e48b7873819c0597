r"""The first table of README: models by size, time, four published test sets, and questions that none has seen.

cosent prepare atec ... stsb --source DIR
cosent train --config bi_encoder/similar --model_name_or_path runs/e5-small-zh --prompt "query: " --learning_rate 1e-4 \
    --corpus atec bq lcqmc stsb --corpus_weights 3 2 6 1 --per_device_train_batch_size 32 --max_steps 1800 \
    --limit_validation 1000 --output_dir runs/e5-joint
OMP_NUM_THREADS=1 python -m lab.benchmarks.front similar-lookup similar runs/e5-small-zh runs/e5-joint \
    --output lab/results/front.json

The 150 questions of unseen.tsv were written for this test, each in two wordings: each second wording searches the first
ones for its own, and equal scores count by their expectation. Models that the file has and the command leaves out stay.
Times a sentence are those of encode.py; published rows are those of `PUBLISHED`.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from cosent.comparing.figures import saved, styled
from cosent.data.corpus import load_corpus
from cosent.errors import messages_for_users
from cosent.evaluation.metrics import correlations
from cosent.evaluation.retrieval import Relevance, tied_metrics, tied_ranks
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
    "e5-joint": ("the same after CoSENT on these four", "同上，再用 CoSENT 在这四个语料上训练"),
    "bge-small-zh-v1.5": ("bge-small-zh-v1.5, published", "bge-small-zh-v1.5，公布值"),
    "Qwen3-Embedding-0.6B": ("Qwen3-Embedding-0.6B, published", "Qwen3-Embedding-0.6B，公布值"),
}
HEADERS = {
    None: ["model", "MB", "ms a sentence", "mean of ATEC, BQ, LCQMC, STS-B", "Recall@1, unseen questions"],
    "zh": ["模型", "MB", "每句毫秒", "ATEC、BQ、LCQMC、STS-B 平均", "Recall@1，全新问句"],
}
TRAINED = {"similar-lookup", "similar", "e5-joint"}  # on training splits of `CORPORA`
DRAWN = {  # name in the picture, and places of its label in both panels: points to the right and up, alignment
    "similar-lookup": ("similar-lookup", (-4, -25, "left"), (-4, -37, "left")),
    "similar": ("similar", (10, 2, "left"), (10, 2, "left")),
    "bge-small-zh-v1.5": ("bge-small-zh-v1.5", (10, -3, "left"), None),
    "e5-small-zh": ("e5-small", (10, -10, "left"), (10, 4, "left")),
    "e5-joint": ("e5-small + CoSENT", (10, 2, "left"), (10, -11, "left")),
    "Qwen3-Embedding-0.6B": ("Qwen3-Embedding-0.6B", (-11, -3, "right"), None),
}
INKS = {  # of a theme of GitHub: text, faint text, grid, background, our colour, the others' colour
    "light": ("#1f2328", "#59636e", "#d8dee4", "#ffffff", "#0969da", "#bc4c00"),
    "dark": ("#e6edf3", "#9198a1", "#30363d", "#0d1117", "#58a6ff", "#f0883e"),
}


def main(args: argparse.Namespace) -> None:
    before = json.loads(args.output.read_text(encoding="utf-8"))["rows"] if args.output.is_file() else []
    rows = {row["name"]: row for row in before}
    for folder in args.models:
        name = args.name or Path(folder).name
        encoder = SentenceEncoder.from_pretrained(folder).eval()
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
    measured, times = {row["name"]: row for row in result["rows"]}, times_of(encode)
    rows: list[list[str]] = []
    for name, words in LABELS.items():
        row = measured.get(name, {})
        if not row and name not in PUBLISHED:
            continue
        cells = [f"{megabytes(name, row):.0f}"]
        cells += [milliseconds(times[name]) if times.get(name) else "–"]
        cells += [f"{mean(name, row):.1f}{'*' * (name in TRAINED)}"]
        cells += [f"{100 * row['recall_at_1']:.0f}" if row else "–"]
        rows.append([words[language == "zh"], *cells])
    lines = [HEADERS[language], ["---"] * len(HEADERS[language]), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def times_of(encode: dict) -> dict[str, float]:
    """Milliseconds a sentence by model."""
    times = {row["name"]: row["milliseconds"] for row in encode["rows"]}
    return times | dict.fromkeys(("e5-small-zh", "e5-joint"), times.get("multilingual-e5-small"))


def milliseconds(time: float) -> str:
    return f"{time:.1g}" if time < 0.01 else f"{time:.2g}"


def megabytes(name: str, row: dict) -> float:
    return MEGABYTES.get(name) or round(2 * row["millions"])


def mean(name: str, row: dict) -> float:
    """Mean test Spearman x100 of `CORPORA`."""
    return float(np.mean(PUBLISHED[name] if name in PUBLISHED else [100 * each for each in row["spearman"].values()]))


def themed(theme: str, height: float):
    """A transparent figure of 8.6 inches by `height` in the colours of a theme."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    text, faint, grid, *_ = INKS[theme]
    rcParams.update({"text.color": text, "axes.edgecolor": faint, "xtick.color": faint, "ytick.color": faint})
    rcParams.update({"grid.color": grid, "font.size": 9, "axes.titlesize": 10})
    figure = Figure(figsize=(8.6, height))
    figure.patch.set_alpha(0)
    return figure


@styled
def front_picture(result: dict, encode: dict, theme: str) -> str:
    """Score against size: left the four published test sets, right the questions that no model has seen.

    A hollow dot was trained on the training splits of the sets, a square is a published value.

    Args:
        theme: a key of `INKS`.
    """
    from matplotlib.lines import Line2D

    _, faint, _, background, ours, others = INKS[theme]
    figure = themed(theme, 3.2)
    measured, times = {row["name"]: row for row in result["rows"]}, times_of(encode)
    panels = figure.subplots(1, 2, sharex=True)
    titles = ("ATEC, BQ, LCQMC, STS-B: mean Spearman ×100", "150 questions that no model has seen: Recall@1, %")
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title)
        axes.set_axisbelow(True)
        axes.set_facecolor("none")
        axes.set_xscale("log")
        axes.set_xlim(5.5, 2000)
        axes.set_xticks(ticks := [10, 100, 1000], ticks)
        axes.set_xlabel("MB, in float16", color=faint)
        axes.minorticks_off()
    panels[0].set_ylim(54, 71)
    panels[1].set_ylim(20, 100)
    for name, (label, *places) in DRAWN.items():
        row = measured.get(name, {})
        size, color = megabytes(name, row), others if name in PUBLISHED or name == "e5-small-zh" else ours
        time = f", {milliseconds(times[name])} ms" if times.get(name) and name != "e5-joint" else ""
        scores = [mean(name, row), 100 * row["recall_at_1"] if row else None]
        for axes, score, place, seen in zip(panels, scores, places, (name in TRAINED, False), strict=True):
            if score is None or place is None:
                continue
            if axes is panels[1]:
                spread = 196 * row["standard_error"]
                axes.plot([size, size], [score - spread, score + spread], color=color, alpha=0.45, linewidth=1.6)
            fill = {"color": background if seen else color, "markeredgecolor": color, "markeredgewidth": 2}
            axes.plot([size], [score], "s" if name in PUBLISHED else "o", markersize=8, zorder=3, **fill)
            right, up, side = place
            axes.annotate(label + time, (size, score), (right, up), textcoords="offset points", ha=side, fontsize=8.5)
    shapes = {"trained here": ("o", ours, ours), "public, measured here": ("o", others, others)}
    shapes |= {
        "public, as published": ("s", others, others),
        "trained on training splits of these sets": ("o", ours, background),
    }
    style = {"linestyle": "none", "markersize": 8, "markeredgewidth": 2}
    handles = [
        Line2D([], [], marker=marker, color=fill, markeredgecolor=edge, label=label, **style)
        for label, (marker, edge, fill) in shapes.items()
    ]
    figure.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.03), ncol=4, frameon=False, handletextpad=0
    )
    figure.subplots_adjust(left=0.04, right=0.99, top=0.9, bottom=0.16, wspace=0.12)
    return saved(panels[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="shipped encoders or folders")
    parser.add_argument("--name", help="name of the row of a single folder; default: that of the folder")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
