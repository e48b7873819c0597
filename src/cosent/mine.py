"""Make pairs of sentences, label them, and write them as a prepared corpus to train on.

cosent mine --model runs/bi --corpus lcqmc --output data/lcqmc_hard
cosent mine --model runs/bi --corpus lcqmc --output data/lcqmc_taught --teacher runs/bi --random 20000
"""

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from cosent.cli import REQUIRED, option, refuse_negative, run
from cosent.errors import InputError
from cosent.inference.mining import PairArguments, check_pairs


@dataclass(kw_only=True)
class MineArguments(PairArguments):
    """What to mine, and what labels the pairs."""

    corpus: str = option(REQUIRED, "Prepared corpus whose train split is mined: a name under --data_dir, or a folder.")
    output: str = option(REQUIRED, "Folder to write: a prepared corpus of that name.")
    model: str | None = option(None, "Bi-encoder whose cosine finds neighbours; not needed with --neighbours 0.")
    data_dir: str = option("data", "Folder of the prepared corpora.")
    teacher: list[str] | None = option(
        None, "Models of either tower whose scores label all pairs; default: 0 for pairs that are made."
    )
    cross: str | None = option(None, "Model that drops made pairs which it scores as similar, e.g. a cross-encoder.")
    cross_threshold: float | None = option(None, "Its lowest score of a similar pair; default: that of its training.")
    validation_pairs: int = option(1000, "Pairs for a validation split, drawn at random.")
    seed: int = option(42, "Seed of all that is drawn.")
    faiss: str | None = option(
        None,
        "Find neighbours approximately, for millions of sentences; auto: hnsw up to a million, ivf above.",
        ("auto", "hnsw", "ivf"),
    )


def main(args: MineArguments) -> None:
    from cosent.compute.distributed import rank, wait_for_everyone
    from cosent.compute.onednn import choose_device
    from cosent.data.corpus import load_corpus
    from cosent.data.pairs import read_texts
    from cosent.inference.mining import judge, read_pool, write_corpus
    from cosent.models.teacher import DEFAULT_CACHE

    start = time.time()
    check(args)
    wait_for_everyone()  # else a late process finds the output of an early one
    corpus = load_corpus(args.corpus, args.data_dir)
    check_labels(args, corpus, corpus.manifest.similar_from)
    pool = read_pool(corpus, read_texts(args.text or []))
    judged_by = partial(judge, device=choose_device(args.device), cache=Path(args.teacher_cache or DEFAULT_CACHE))
    rng, left_out, about = np.random.default_rng(args.seed), Counter(pool.left_out), {}
    own, made = make_pairs(args, corpus, pool, rng, left_out, about)
    if args.cross is not None:
        made = drop_similar(args, corpus, pool, made, judged_by, left_out, about)
    pairs = {"own": (pool.first[own], pool.second[own]), **made}
    about["pairs"] = {kind: len(first) for kind, (first, _) in pairs.items()}
    first, second = joined(pairs)
    manifest = manifest_of(args, corpus, about, left_out)
    if args.teacher is None:
        labels = np.r_[pool.labels[own], np.full(len(first) - len(own), manifest.label_min, np.float32)]
    else:
        labels = taught(args.teacher, pool.texts, first, second, judged_by, manifest, about)
    splits = {name: (first[rows], second[rows], labels[rows]) for name, rows in split(args, labels).items()}
    if rank() == 0:
        write_corpus(Path(args.output), manifest, pool.texts, splits)
        counts = {name: len(labels) for name, (_, _, labels) in splits.items()}
        result = {"output": args.output} | counts | {"pairs": about["pairs"], "left_out": dict(+left_out)}
        print(json.dumps(result | {"seconds": round(time.time() - start, 1)}))


def check(args: MineArguments) -> None:
    """Refuses arguments that would fail only after minutes of work.

    Raises:
        InputError: an output that exists, or flags that do not go together.
    """
    output = Path(args.output)
    if output.exists():
        raise InputError(f"--output {output} exists, and nothing was written. Name another folder, or remove it.")
    check_pairs(args)
    refuse_negative(args, "validation_pairs")
    if args.model is None and args.neighbours != 0:
        raise InputError("--model is missing: a bi-encoder that finds neighbours. --neighbours 0 does without it.")
    if args.cross_threshold is not None and args.cross is None:
        raise InputError("--cross_threshold is the threshold of a model, and there is none. Name it with --cross.")


def check_labels(args: MineArguments, corpus, from_label: float) -> None:
    """Refuses corpora whose labels do not serve what was asked for.

    Raises:
        InputError: a name that the corpus has, no similar pair, or labels that pairs without a teacher cannot have.
    """
    manifest, labels = corpus.manifest, corpus.labels("train")
    if Path(args.output).name == manifest.name:
        raise InputError(
            f"--output {args.output}: {manifest.name} is the name of the corpus that is mined, and results are kept by "
            "name, so that both could not be trained on. Name another folder."
        )
    if args.teacher is None and manifest.label_kind == "nli":
        raise InputError(
            f"{manifest.name} has NLI labels, and a neighbour of a sentence is no contradiction. Label with --teacher."
        )
    needs = "--margin" if args.margin is not None else None if args.teacher else "training without --teacher"
    if needs and not (labels >= from_label).any():
        raise InputError(
            f"{corpus.folder} train has no pair with a label of at least {from_label:g}, and {needs} needs "
            "similar pairs to set the others apart from. Take another corpus, or --teacher without --margin."
        )


def make_pairs(args: MineArguments, corpus, pool, rng: np.random.Generator, left_out: Counter, about: dict):
    """Places of the corpus' own pairs, and the pairs that are made, by kind."""
    from cosent.compute.onednn import choose_device
    from cosent.inference.mining import Ranks, check_ranks, neighbour_pairs, random_pairs, some_of
    from cosent.models.auto import load_bi_encoder
    from cosent.models.teacher import DEFAULT_CACHE, fingerprint, sentence_vectors

    own = some_of(pool.first, args.own, rng)
    neighbours = np.empty(0, np.int64), np.empty(0, np.int64)
    if args.neighbours != 0:
        ranks = Ranks(args.range_min, args.range_max, args.per_sentence, args.margin, args.max_score)
        check_ranks(ranks, pool)
        model = load_bi_encoder(args.model).to(choose_device(args.device))
        about["neighbours_by"] = {"model": args.model, "sha256": fingerprint(model, []), **asdict(ranks)}
        cache = Path(args.teacher_cache or DEFAULT_CACHE)
        vectors = sentence_vectors(model, pool.texts, cache)[: pool.size]  # all of them, as a teacher reads them
        similar = pool.labels >= corpus.manifest.similar_from
        find = None
        if args.faiss is not None:
            about["neighbours_by"]["faiss"] = args.faiss
            find = by_faiss(vectors, args.faiss, cache, fingerprint(model, pool.texts))
        first, second = neighbour_pairs(pool, vectors, ranks, similar, left_out, find)
        chosen = some_of(first, args.neighbours, rng)
        neighbours = first[chosen], second[chosen]
    return own, {"neighbours": neighbours, "random": random_pairs(pool, args.random, neighbours, rng)}


def by_faiss(vectors: np.ndarray, kind: str, cache: Path, key: str):
    """A search by an index of faiss, which the first process builds and the others read."""
    from cosent.compute.distributed import rank, wait_for_everyone
    from cosent.inference.neighbours import approximate

    if rank() == 0:
        approximate(vectors, kind, cache, key)
    wait_for_everyone()
    return approximate(vectors, kind, cache, key).nearest


def drop_similar(args: MineArguments, corpus, pool, made: dict, judged_by, left_out: Counter, about: dict) -> dict:
    """The pairs, by kind, without those that `--cross` finds similar, most likely unlabelled similar ones."""
    from cosent.inference.mining import threshold_of

    threshold = threshold_of(args.cross, corpus.manifest.name, args.cross_threshold)
    kept = {}
    for kind, (first, second) in made.items():
        if not len(first):
            kept[kind] = first, second
            continue
        judged = judged_by(args.cross, pool.texts, first, second)
        dissimilar = judged.scores.astype(np.float64) < threshold
        left_out["pair that --cross finds similar"] += int((~dissimilar).sum())
        about["cross"] = judged.model | {"threshold": threshold}
        kept[kind] = first[dissimilar], second[dissimilar]
    return kept


def joined(pairs: dict) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of all kinds, one kind after the other.

    Raises:
        InputError: there are none.
    """
    first, second = (np.concatenate([pair[side] for pair in pairs.values()]) for side in (0, 1))
    if not len(first):
        raise InputError(
            "No pair is left: none of the corpus itself, no neighbour and no random one. Nothing was written. Raise "
            "--own, --per_sentence or --random, or filter less."
        )
    return first, second


def manifest_of(args: MineArguments, corpus, about: dict, left_out: Counter):
    """Manifest of the made corpus, with labels of the mined one."""
    from cosent.data.manifest import Manifest
    from cosent.run import CorpusRecord

    mined = corpus.manifest
    about["corpus"] = {"name": mined.name, **asdict(CorpusRecord.of(corpus.folder))}
    about["text"], about["seed"] = args.text or [], args.seed
    about["labels"] = f"own pairs: those of {mined.name}; others: {mined.label_min:g}"
    return Manifest(
        name=Path(args.output).name,
        label_kind=mined.label_kind,
        label_min=mined.label_min,
        label_max=mined.label_max,
        max_length=mined.max_length,
        splits={"train": {"left_out": dict(+left_out), "mined": about}},
        source=f"pairs made by `cosent mine` of {mined.name} train"
        + (f" and {', '.join(args.text or [])}" * bool(args.text)),
    )


def taught(teachers: list[str], texts: list[str], first, second, judged_by, manifest, about: dict) -> np.ndarray:
    """Labels by teachers; the manifest says so."""
    from cosent.inference.mining import teacher_labels

    given = teacher_labels([judged_by(teacher, texts, first, second) for teacher in teachers])
    manifest.label_kind, manifest.label_min, manifest.label_max = "graded", given.low, given.high
    about["teachers"], about["labels"] = given.teachers, given.how
    return given.labels


def split(args: MineArguments, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of the train split, and of the validation split if there is to be one.

    Raises:
        InputError: fewer training pairs than validation pairs, or training pairs of a single label.
    """
    from cosent.evaluation.metrics import can_rank

    order = np.random.default_rng(args.seed).permutation(len(labels))
    held_out, train = np.sort(order[: args.validation_pairs]), np.sort(order[args.validation_pairs :])
    if len(train) <= len(held_out):
        raise InputError(
            f"--validation_pairs {args.validation_pairs} leaves {len(train)} of {len(labels)} pairs for training. "
            "Lower it, or make more pairs."
        )
    if not can_rank(labels[train]):
        raise InputError(
            f"All {len(train)} training pairs would have the label {labels[train][0]:g}: training learns from their "
            "order, and would refuse them. Raise --own, or label with --teacher."
        )
    return {"train": train} | ({"validation": held_out} if len(held_out) else {})


ARGUMENTS = (MineArguments,)

if __name__ == "__main__":
    run(main, *ARGUMENTS)
