"""What 100 checked rows of `cosent mine --suspects` gain: 2,000 training pairs, the labels of a fifth of them flipped.

nice python -m lab.benchmarks.suspects --corpora bq lcqmc --seeds 1 2 3 --output runs/suspects.json

A run on the noisy pairs lists the least plausible labels; checking gives the first 100 their true ones. Next to it: the
true labels of 100 random pairs, and of all. A seed draws pairs, flips and training; finished runs in runs/suspects are
not repeated.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

from cosent.comparing.document import Cell, markdown_table, mean_of, times_100
from cosent.comparing.runs import Run
from cosent.data.corpus import load_corpus
from cosent.data.manifest import Manifest
from cosent.errors import messages_for_users
from cosent.evaluation.significance import spearman
from cosent.models.auto import load_bi_encoder
from cosent.record import shortened
from cosent.search.mining import read_pool, write_corpus
from cosent.search.suspects import suspects
from lab.benchmarks.common import ranking_gap, save, trained
from lab.tables.studies import with_interval

FOLDER, PAIRS, CHECKED = Path("runs/suspects"), 2000, 100
FLAGS = {"retrieval": False, "skip_test": True, "use_cpu": True}
NOISY, RANDOM, SUSPECTS, CLEAN = "a fifth flipped", "100 random checked", "100 suspects checked", "all labels true"


def main(args: argparse.Namespace) -> None:
    measured = []
    for name in args.corpora:
        corpus, scores, wrong = load_corpus(name), {}, {RANDOM: [], SUSPECTS: []}
        test = corpus.split("test")
        for seed in args.seeds:
            draw = np.random.default_rng(seed)
            rows = corpus.split("train").select(draw.permutation(len(corpus.split("train")))[:PAIRS])
            first, second = rows["sentence1"][:], rows["sentence2"][:]
            true = np.asarray(rows["label"][:], np.float32)
            flipped, some = draw.permutation(PAIRS)[: PAIRS // 5], draw.permutation(PAIRS)[:CHECKED]
            noisy = true.copy()
            noisy[flipped] = 1 - true[flipped]

            def encoder(arm: str, labels: np.ndarray, corpus=corpus, first=first, second=second, seed=seed):
                folder = FOLDER / f"{corpus.manifest.name}_{seed}_{arm.replace(' ', '_')}"
                if not folder.is_dir():
                    manifest = Manifest(folder.name, "binary", 0.0, 1.0, corpus.manifest.max_length, {})
                    places = np.arange(PAIRS), np.arange(PAIRS, 2 * PAIRS)
                    write_corpus(folder, manifest, [*first, *second], {"train": (*places, labels)})
                run = Run("cosent", "bi_encoder/default", (str(folder),), seed, FLAGS)
                return load_bi_encoder(trained(run, FOLDER / "models")), load_corpus(str(folder))

            model, of_noisy = encoder(NOISY, noisy)
            pool = read_pool(of_noisy, [])
            vectors = model.encode(pool.texts, normalize_embeddings=True)
            listed = suspects(pool, vectors, of_noisy.manifest, CHECKED, 0, Counter())
            place = {frozenset(pair): row for row, pair in enumerate(zip(first, second, strict=True))}
            chosen = [place[frozenset((row["sentence1"], row["sentence2"]))] for row in listed]
            models = {NOISY: model, CLEAN: encoder(CLEAN, true)[0]}
            for arm, checked in {RANDOM: some, SUSPECTS: chosen}.items():
                labels = noisy.copy()
                labels[checked] = true[checked]
                wrong[arm].append(float(np.isin(checked, flipped).mean()))
                models[arm] = encoder(arm, labels)[0]
            for arm in (NOISY, RANDOM, SUSPECTS, CLEAN):
                scores.setdefault(arm, []).append(models[arm].similarity(test["sentence1"][:], test["sentence2"][:]))
            print(name, "seed", seed, {arm: values[-1] for arm, values in wrong.items()}, flush=True)
        for arm, of_seed in scores.items():
            values = [spearman(one, corpus.labels("test")) for one in of_seed]
            gap = None if arm == NOISY else ranking_gap(scores[NOISY], of_seed, corpus)
            measured.append({"corpus": name, "labels": arm, "wrong": wrong.get(arm), "values": values, "gap": gap})
            print(name, arm, values, gap, flush=True)
    print(suspects_table(save(args.output, "suspects", measured)))


def suspects_table(result: dict) -> str:
    """Test Spearman by corpus and labels, and how far it is from that of the noisy ones."""
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        gap = row["gap"] and with_interval(*(100 * value for value in row["gap"]))
        rows.append([row["corpus"], row["labels"], mean_of(row["wrong"] or (), ".0%"), times_100(row["values"]), gap])
    header = ["corpus", "labels", "wrong among the checked", "Spearman", f"minus {NOISY} [95%]"]
    note = f"Seeds: {len(result['rows'][0]['values'])}; test x100, mean ± std; intervals over rows and seeds."
    device = f"{result['device']}, commit {shortened(result['commit'])}"
    return f"{markdown_table(header, rows)}\n\n{note} `bi_encoder/default`, {PAIRS:,} pairs; {device}."


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", nargs="+", default=["bq", "lcqmc"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--output", required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
