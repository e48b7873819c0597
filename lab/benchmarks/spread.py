"""Mean cosine of all pairs of the distinct test sentences of a corpus, before and after training.

cosent study recipes/studies/losses_stsb.yaml
python -m lab.benchmarks.spread --corpus stsb --untrained mini --studies losses_stsb --output lab/results/spread.json

Of vectors of length 1 it is (|sum|^2 - n) / (n (n - 1)).
"""

import argparse
from pathlib import Path

import numpy as np

from cosent.comparing.results import read_results
from cosent.data.corpus import load_corpus
from cosent.errors import messages_for_users
from cosent.models.auto import load_bi_encoder
from lab import RESULTS
from lab.benchmarks.common import save


def main(args: argparse.Namespace) -> None:
    split = load_corpus(args.corpus).split("test")
    sentences = list(dict.fromkeys([*split["sentence1"][:], *split["sentence2"][:]]))
    models = {"untrained": [args.untrained]}
    for name in args.studies:
        for method, runs in read_results(args.results / name).rows.items():
            models[f"{name} {method}"] = [str(Path("runs/studies", name, run.name)) for run in runs]
    rows = [{"name": name, "values": [mean_cosine(each, sentences) for each in some]} for name, some in models.items()]
    save(args.output, "spread", rows, corpus=args.corpus, setting="mini, the runs of the studies")


def mean_cosine(model: str, sentences: list[str]) -> float:
    units = load_bi_encoder(model).encode(sentences, normalize_embeddings=True).astype(np.float64)
    count = len(units)
    return float((np.square(units.sum(axis=0)).sum() - count) / (count * (count - 1)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--untrained", required=True, help="the encoder that the runs started from")
    parser.add_argument(
        "--studies", nargs="+", required=True, help="studies of bi-encoders, with models in runs/studies"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder with the results of the studies")
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--output", required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
