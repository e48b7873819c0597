"""Gains and costs of training on `cosent mine --contrasts`, by phenomenon, against as many steps without.

nice python -m lab.benchmarks.fix --seeds 1 2 3 --output lab/results/fix.json

5,000 pairs of LCQMC train, alone for three epochs and for six, and for three together with contrasts ("fix") of
4,500 of their sentences, or of sentences of LCQMC train that hold each phenomenon `EACH` times: as many steps as six
epochs. Probed with the templates, of which nothing was trained on. Finished runs in runs/fix are not repeated.
"""

import argparse
import random
from collections import Counter
from pathlib import Path

import numpy as np

from cosent.comparing.document import Cell, markdown_table, times_100
from cosent.comparing.runs import Run
from cosent.data.corpus import load_corpus, random_subset
from cosent.errors import messages_for_users
from cosent.evaluation.phenomena import CHANGES, PHENOMENA, pairs, passed, read_items
from cosent.evaluation.significance import spearman
from cosent.jobs.mine import write_contrasts
from cosent.models.auto import load_bi_encoder
from cosent.record import shortened
from cosent.search.contrasts import changed
from lab.benchmarks.common import gap, ranking_gap, save, trained
from lab.tables.studies import with_interval

FOLDER = Path("runs/fix")
PAIRS, SENTENCES, EACH = 5000, 4500, 180
CONTROL = "6 epochs"
ARMS = {"3 epochs": ((), 3), CONTROL: ((), 6), "fix": (("fix",), 3), "fix of chosen sentences": (("chosen",), 3)}
FLAGS = {
    "bf16": True,
    "limit_train": PAIRS,
    "limit_validation": 2000,
    "limit_seed": 42,
    "skip_test": True,
    "retrieval": False,
    "eval_corpora": ["lcqmc"],
    "use_cpu": True,
}
TESTS = {"lcqmc": "LCQMC test", "stsb": "STS-B test"}


def different(rows) -> list[str]:
    return list(dict.fromkeys([*rows["sentence1"], *rows["sentence2"]]))


def chosen(sentences: list[str]) -> list[str]:
    """Sentences in which a phenomenon can be changed that fewer than `EACH` of those before have."""
    rng, counts, found = random.Random(0), Counter(), []
    for sentence in rng.sample(sentences, 60_000):
        has = [name for name in CHANGES if counts[name] < EACH and changed(sentence, name, rng)]
        found += [sentence] if has else []
        counts.update(has)
    return found


def prepare() -> dict[str, dict[str, int]]:
    """Writes the corpora of both fixes, and counts their sentences by phenomenon."""
    rows = load_corpus("lcqmc").split("train")
    theirs = different(random_subset(rows, PAIRS, "--limit_train", FLAGS["limit_seed"]))[:SENTENCES]
    texts = {"fix": theirs, "chosen": chosen(different(rows))}
    for name, sentences in texts.items():
        file = FOLDER / f"{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(sentences) + "\n", encoding="utf-8")
        if not (FOLDER / name).is_dir():
            write_contrasts(FOLDER / name, sentences, [str(file)], seed=42)
    return {
        name: {kind: sum(changed(text, kind, random.Random(0)) is not None for text in sentences) for kind in CHANGES}
        for name, sentences in texts.items()
    }


def by_name() -> dict[str, list]:
    """The items of the probe by phenomenon."""
    return {name: [item for item in read_items() if item.phenomenon == name] for name in PHENOMENA}


def main(args: argparse.Namespace) -> None:
    counts, probes = prepare(), by_name()
    tests = {name: load_corpus(name) for name in TESTS}
    hits, scores = {name: {} for name in PHENOMENA}, {name: {} for name in TESTS}
    for seed in args.seeds:
        for arm in args.arms:
            fix, epochs = ARMS[arm]
            corpora = ("lcqmc", *(str(FOLDER / name) for name in fix))
            recipe = "recipes/bi_encoder/default.yaml"
            run = Run(f"{epochs}_epochs", recipe, corpora, seed, FLAGS | {"num_train_epochs": epochs})
            model = load_bi_encoder(trained(run, FOLDER))
            for name, of_name in probes.items():
                scores_of_name = np.asarray(model.similarity(*pairs(of_name).values()))
                hits[name].setdefault(arm, []).append(passed(scores_of_name))
            for name, corpus in tests.items():
                rows = corpus.split("test")
                scores[name].setdefault(arm, []).append(model.similarity(rows["sentence1"][:], rows["sentence2"][:]))
            print(seed, arm, flush=True)
    rows = []
    for name, by_arm in hits.items():
        templates = [item.template for item in probes[name]]
        gaps = {arm: gap(by_arm[CONTROL], values, templates) for arm, values in by_arm.items() if ARMS[arm][0]}
        values = {arm: [float(np.mean(each)) for each in every] for arm, every in by_arm.items()}
        sentences = {arm: counts[ARMS[arm][0][0]].get(name) for arm in gaps}
        rows.append({"name": name, "values": values, "gaps": gaps, "sentences": sentences})
    for name, by_arm in scores.items():
        labels = tests[name].labels("test")
        gaps = {arm: ranking_gap(by_arm[CONTROL], every, tests[name]) for arm, every in by_arm.items() if ARMS[arm][0]}
        values = {arm: [spearman(each, labels) for each in every] for arm, every in by_arm.items()}
        rows.append({"name": f"Spearman, {TESTS[name]}", "values": values, "gaps": gaps, "sentences": {}})
    print(fix_table(save(args.output, "fix", rows)))


def fix_table(result: dict) -> str:
    """Accuracy by phenomenon and Spearman of every arm, and of the fixes the difference to the control."""
    first = result["rows"][0]
    header = ["x100", *first["values"]]
    for arm in first["gaps"]:
        header += [f"{arm} minus {CONTROL} [95%]", f"sentences, {arm}"]
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        rows.append([row["name"], *map(times_100, row["values"].values())])
        for arm, ends in row["gaps"].items():
            rows[-1] += [with_interval(*(100 * value for value in ends)), row["sentences"].get(arm)]
    seeds = len(first["values"][CONTROL])
    return (
        f"{markdown_table(header, rows)}\n\nSeeds: {seeds}; mean ± std; intervals over templates or test rows, and "
        f"over seeds, not adjusted; {result['device']}, commit {shortened(result['commit'])}."
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS, help="trainings; default: all")
    parser.add_argument("--output", required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
