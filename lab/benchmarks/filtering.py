"""What filtering wrong labels out of fold gains: STS-B with the labels of a fifth of its training pairs replaced.

nice python -m lab.benchmarks.filtering --seeds 1 2 3 4 5 --output lab/results/filtering.json

A model of each half of the noisy pairs scores the other half; the pairs whose ranks of score and label differ most are
dropped, and the rest is trained on. Halves are read twice, so that their models have as many steps as the whole. Labels
are replaced as in study wrong_labels (lab/studies.yaml); finished runs in runs/filtering are not repeated.
"""

import argparse
from pathlib import Path

import numpy as np

from cosent.comparing.document import Cell, markdown_table, mean_of, times_100
from cosent.comparing.runs import Run
from cosent.data.corpus import load_corpus
from cosent.data.manifest import Manifest
from cosent.errors import messages_for_users
from cosent.evaluation.significance import ranks, spearman
from cosent.models.auto import load_bi_encoder
from cosent.record import shortened
from cosent.search.mining import write_corpus
from lab.benchmarks.common import ranking_gap, save, trained
from lab.tables.studies import with_interval

FOLDER = Path("runs/filtering")
NOISY, CLEAN = "a fifth of the labels wrong", "labels as they are"
FLAGS = {"bf16": True, "eval_corpora": ["stsb"], "retrieval": False, "skip_test": True, "use_cpu": True}


def main(args: argparse.Namespace) -> None:
    corpus = load_corpus("stsb")
    rows, test, every = corpus.split("train"), corpus.split("test"), np.arange(len(corpus.split("train")))
    first, second, labels = rows["sentence1"][:], rows["sentence2"][:], corpus.labels("train")
    noisy, draw = labels.copy(), np.random.default_rng(1)
    wrong = draw.permutation(every)[: len(every) // 5]
    noisy[wrong] = (labels[wrong] + draw.integers(1, 6, len(wrong))) % 6

    def encoder(name: str, of: np.ndarray, pairs: np.ndarray, epochs: int = 1):
        """The model of the pairs at some places with the labels `of`."""
        if not (FOLDER / name).is_dir():
            manifest = Manifest(name, "graded", 0.0, 5.0, corpus.manifest.max_length, {})
            write_corpus(FOLDER / name, manifest, [*first, *second], {"train": (pairs, pairs + len(every), of[pairs])})
        flags, recipe = FLAGS | {"num_train_epochs": epochs}, "recipes/bi_encoder/cosent_mini.yaml"
        return load_bi_encoder(trained(Run("cosent", recipe, (str(FOLDER / name),), seed, flags), FOLDER / "models"))

    scores, shares = {}, {}
    for seed in args.seeds:
        models = {NOISY: encoder("noisy", noisy, every), CLEAN: encoder("clean", labels, every)}
        halves, gaps = np.array_split(np.random.default_rng(seed).permutation(every), 2), np.empty(len(every))
        for number, other in enumerate(reversed(halves)):
            model = encoder(f"half_{number}_{seed}", noisy, halves[number], epochs=2)
            scored = model.similarity([first[place] for place in other], [second[place] for place in other])
            gaps[other] = abs(ranks(scored) - ranks(noisy[other]))
        for share in (0.1, 0.2):
            kept, dropped = np.split(np.argsort(gaps, kind="stable"), [round(len(every) * (1 - share))])
            name = f"{share:.0%} filtered out"
            models[name] = encoder(f"filtered_{100 * share:.0f}_{seed}", noisy, np.sort(kept))
            shares.setdefault(name, []).append(float(np.isin(dropped, wrong).mean()))
        for name, model in models.items():
            scores.setdefault(name, []).append(model.similarity(test["sentence1"][:], test["sentence2"][:]))
        print("finished seed", seed, flush=True)
    measured = []
    for name, of_seed in scores.items():
        values = [spearman(one, corpus.labels("test")) for one in of_seed]
        others = {base: ranking_gap(scores[base], of_seed, corpus) for base in (NOISY, CLEAN) if base != name}
        measured.append({"training": name, "wrong": shares.get(name), "values": values, "gaps": others})
    print(filtering_table(save(args.output, "filtering", measured)))


def filtering_table(result: dict) -> str:
    """Test Spearman by training set, and how far it is from those of the noisy and of the clean labels."""
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        gaps = [row["gaps"].get(base) for base in (NOISY, CLEAN)]
        cells = [gap and with_interval(*(100 * value for value in gap)) for gap in gaps]
        rows.append([row["training"], mean_of(row["wrong"] or (), ".0%"), times_100(row["values"]), *cells])
    header = ["stsb", "wrong among the dropped", "Spearman", *(f"minus {base} [95%]" for base in (NOISY, CLEAN))]
    note = f"Seeds: {len(result['rows'][0]['values'])}; test x100, mean ± std; intervals over rows and seeds."
    device = f"{result['device']}, commit {shortened(result['commit'])}"
    return f"{markdown_table(header, rows)}\n\n{note} CoSENT, `mini`, 1 epoch; {device}."


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--output", required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
