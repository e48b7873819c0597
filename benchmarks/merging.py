"""Merge runs that differ in their seed, in every way that there is, and test each merged model on one corpus.

python -m benchmarks.merging --models runs/stsb_1 runs/stsb_2 runs/stsb_3 --corpus stsb --output results/merged.json
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from cosent.cli import parse
from cosent.data.corpus import load_corpus
from cosent.errors import InputError, messages_for_users
from cosent.evaluation.significance import difference, mean_of_ranks, resampled_spearman, spearman
from cosent.merge import MergeArguments
from cosent.merge import main as merge
from cosent.models.auto import load_model
from cosent.models.bi_encoder import Embedder
from cosent.run_record import read_record
from cosent.training.record import environment

WAYS = {"bi_encoder": ("weights", "vectors"), "cross_encoder": ("weights",)}


def main(args: argparse.Namespace) -> None:
    corpus = load_corpus(args.corpus, args.data_dir)
    split, labels = corpus.split("test"), corpus.labels("test")
    pairs = split["sentence1"][:], split["sentence2"][:]
    rows, singles = [], []
    for models in args.models:
        records = [read_record(model) for model in models]
        if any(record is None for record in records):
            raise InputError(f"{' '.join(models)}: a merged model is compared with runs, and one has no run.json.")
        base = {"tower": records[0].recipe["tower"], "runs": len(models)}
        found = [answer(model, pairs) for model in models]
        merged = all_ways(base["tower"], models, found, args, pairs)
        rows += [base | row for row in compared(found, merged, labels)]
        singles += found
    if len(args.models) > 1:
        both = {"ranks": fused(singles)}
        rows += [{"tower": "both", "runs": len(singles)} | row for row in compared(singles, both, labels)]
    result = {"kind": "merged", "corpus": args.corpus, "rows": rows, "device": environment().device}
    result["commit"] = environment().commit
    args.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(args.output)


def all_ways(tower: str, models: list[str], singles: list[dict], args: argparse.Namespace, pairs) -> dict[str, dict]:
    """What every merged model answers, by the way it was merged, and the mean of ranks."""
    merged = {}
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS[tower]:
            output = str(Path(folder, way))
            words = [
                "--by",
                way,
                "--models",
                *models,
                "--output",
                output,
                "--corpus",
                args.corpus,
                "--data_dir",
                args.data_dir,
            ]
            merge(*parse([*words, "--device", "cpu"], MergeArguments))
            merged[way] = answer(output, pairs)
    return merged | {"ranks": fused(singles)}


def fused(singles: list[dict]) -> dict:
    return {"scores": mean_of_ranks(np.stack([single["scores"] for single in singles]))}


def compared(singles: list[dict], merged: dict[str, dict], labels: np.ndarray) -> list[dict]:
    """A row for the single runs, and one for each merged model, with its gain over their mean on resampled rows."""
    scores = np.stack([*(single["scores"] for single in singles), *(one["scores"] for one in merged.values())])
    resampled, values = resampled_spearman(scores, labels), [spearman(row, labels) for row in scores]
    count = len(singles)
    mean, single = resampled[:, :count].mean(axis=1, keepdims=True), float(np.mean(values[:count]))
    rows = [{"model": "single", "spearman": values[:count]} | sizes(singles[0])]
    for place, (way, one) in enumerate(merged.items(), start=count):
        gain = difference(resampled[:, [place]], mean, values[place] - single)
        row = {"model": way, "spearman": [values[place]], "gain": [gain.mean, gain.low, gain.high]}
        rows.append(row | sizes(one))
    return rows


def answer(model: str, pairs: tuple[list[str], list[str]]) -> dict:
    """Scores of the test pairs, parameters and, of vectors, their width."""
    loaded = load_model(model)
    found = {"scores": loaded.similarity(*pairs), "parameters": sum(weight.numel() for weight in loaded.parameters())}
    return found | ({"width": loaded.embedding_dimension} if isinstance(loaded, Embedder) else {})


def sizes(one: dict) -> dict:
    return {name: one[name] for name in ("width", "parameters") if name in one}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", action="append", required=True, help="runs; again for another tower")
    parser.add_argument("--corpus", default="stsb", help="prepared corpus that all of them were trained on")
    parser.add_argument("--data_dir", default="data", help="folder of the prepared corpora")
    parser.add_argument("--output", type=Path, default=Path("results/merged.json"), help="JSON to write")
    return parser


if __name__ == "__main__":
    with messages_for_users():
        main(parser().parse_args())
