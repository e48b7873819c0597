"""Ensembles of runs that differ only in the seed: averaged weights, concatenated vectors, or mean ranks.

for seed in 1 2 3; do for tower in bi_encoder cross_encoder; do
  cosent train --config $tower/cosent_mini --corpus stsb --num_train_epochs 3 --seed $seed \
    --output_dir runs/$tower-$seed; done; done
python -m lab.benchmarks.merged --models runs/bi_encoder-? --models runs/cross_encoder-? --corpus stsb \
    --output lab/results/merged.json

The cosine of vectors of length 1 side by side is the mean of their cosines.
"""

import argparse

import numpy as np

from cosent.comparing.document import Cell, markdown_table, times_100
from cosent.data.corpus import load_corpus
from cosent.data.groups import pair_groups
from cosent.errors import messages_for_users
from cosent.evaluation.significance import difference, independent, mean_of_ranks, resampled_spearman, spearman
from cosent.models.auto import load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.merging import average
from cosent.record import shortened
from lab.benchmarks.common import save
from lab.tables.studies import with_interval


def main(args: argparse.Namespace) -> None:
    corpus = load_corpus(args.corpus)
    split, labels = corpus.split("test"), corpus.labels("test")
    pairs, groups = (split["sentence1"][:], split["sentence2"][:]), pair_groups(split)
    rows, every = [], []
    for names in args.models:
        models = [load_model(name).eval() for name in names]
        vectors = isinstance(models[0], SentenceEncoder)
        single = np.stack([np.asarray(model.similarity(*pairs), np.float64) for model in models])
        ways = {"vectors": single.mean(axis=0)} if vectors else {}
        ways |= {"ranks": mean_of_ranks(single), "weights": average(models, names).similarity(*pairs)}
        rows += compared("bi_encoder" if vectors else "cross_encoder", single, ways, labels, groups)
        every.append(single)
    if len(every) > 1:
        both = np.concatenate(every)
        rows += compared("both", both, {"ranks": mean_of_ranks(both)}, labels, groups)
    print(merged_table(save(args.output, "merged", rows, corpus=args.corpus, setting=args.setting)))


def compared(
    name: str, single: np.ndarray, ways: dict[str, np.ndarray], labels: np.ndarray, groups: np.ndarray
) -> list[dict]:
    """A row for the single runs `(runs, pairs)`, and one for each ensemble with the gain over their mean."""
    scores = np.concatenate([single, *(np.asarray(way, np.float64)[None] for way in ways.values())])
    values = [spearman(row, labels) for row in scores]
    resampled, count = resampled_spearman(scores, labels, groups=groups), len(single)
    rows = [{"name": f"{name} single", "values": values[:count], "runs": count}]
    for place, way in enumerate(ways, count):
        gain = np.array([values[place] - np.mean(values[:count])])
        drawn = resampled[:, [place]] - resampled[:, :count].mean(axis=1, keepdims=True)
        found = difference(gain, drawn, independent(groups))
        row = {"name": f"{name} {way}", "values": [values[place]], "runs": count}
        rows.append(row | {"difference": [found.mean, found.low, found.high]})
    return rows


def merged_table(result: dict) -> str:
    """Test Spearman x100 of single runs and of ensembles, with the gain over the mean of the runs."""
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        gain = with_interval(*(100 * value for value in row["difference"])) if "difference" in row else None
        rows.append([row["name"].replace("_", "-"), row["runs"], times_100(row["values"]), gain])
    header = ["", "runs", f"{result['corpus']} test Spearman x100", "gain over one run [95%]"]
    note = f"{result['setting']}; intervals over test rows; {result['device']}, commit {shortened(result['commit'])}."
    return f"{markdown_table(header, rows)}\n\n{note}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", action="append", required=True, help="runs; again for another tower")
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--setting", default="mini, CoSENT, three epochs", help="what the table says of the runs")
    parser.add_argument("--output", required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
