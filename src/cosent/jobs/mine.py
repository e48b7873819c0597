"""Mine training pairs: neighbours as hard negatives, random pairs, and labels by teachers, as a prepared corpus.

cosent mine --model runs/bi --corpus lcqmc --output data/lcqmc_hard
cosent mine --model runs/bi --corpus lcqmc --output data/lcqmc_taught --teacher runs/bi --random 20000

Sentences come from the train split of --corpus and from --text; neighbours are found by the cosine of --model. The
corpus has the name of its folder.
"""

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cosent.data.files import FileArguments
from cosent.errors import InputError
from cosent.flags import REQUIRED, option, refuse_below_1, refuse_negative
from cosent.jobs.arguments import CorpusSource, ModelSource, OutputFolder, choose_device, open_model

if TYPE_CHECKING:
    from cosent.search.mining import Pairs


@dataclass(kw_only=True)
class MineArguments(OutputFolder, CorpusSource, FileArguments, ModelSource):
    """Mining options."""

    corpus: str = REQUIRED
    text: list[str] | None = option(None, "Text files, a sentence per line: .txt or .jsonl, also .gz.")
    range_min: int = option(10, "Nearest neighbours of a sentence to skip.")
    range_max: int = option(100, "Nearest neighbours of a sentence to consider.")
    margin: float | None = option(
        None, "Smallest distance of a neighbour's cosine below the lowest cosine of a pair labelled similar."
    )
    max_score: float | None = option(None, "Highest cosine of a neighbour.")
    neighbours: int | None = option(
        None, "Pairs of a sentence and its neighbour, drawn at random; default: one of every sentence."
    )
    random: int = option(0, "Pairs of random sentences.")
    own: int | None = option(
        None, "Pairs of the corpus itself, drawn at random, which a teacher relabels; default: all."
    )
    teacher: list[str] | None = option(
        None, "Bi- or cross-encoders whose scores label all pairs; default: 0 for mined pairs."
    )
    cross: str | None = option(
        None, "Model that filters out mined pairs it scores as similar, at the threshold of its training."
    )
    validation_pairs: int = option(1000, "Pairs of a validation split, drawn at random.")
    seed: int = option(42, "Seed of all random draws.")
    teacher_cache: str | None = option(
        None, "Folder for cached vectors and scores; default: ~/.cache/cosent/model_outputs."
    )

    def __post_init__(self):
        refuse_below_1(self, "range_max")
        counts = ("range_min", "neighbours", "random", "own", "validation_pairs")
        refuse_negative(self, *(name for name in counts if getattr(self, name) is not None))
        if self.range_max <= self.range_min:
            raise InputError(f"--range_min {self.range_min} needs a --range_max of at least {self.range_min + 1}.")


def main(args: MineArguments) -> None:
    from cosent.compute.distributed import locked_by_main

    with locked_by_main(args.output):
        mine(args)


def mine(args: MineArguments) -> None:
    """Writes a corpus of mined pairs."""
    from cosent.compute.distributed import rank, wait_for_everyone
    from cosent.data.corpus import load_corpus
    from cosent.data.files import read_texts
    from cosent.models.cache import default_cache
    from cosent.record import terms_of
    from cosent.search.mining import random_pairs, read_pool, sample_rows, score_by, teacher_labels, write_corpus

    start = time.time()
    args.new_folder()
    wait_for_everyone()  # else a late process finds the output of an early one
    corpus = load_corpus(args.corpus, args.data_dir)
    pool = read_pool(corpus, read_texts(args.text or [], args.options))
    check_labels(args, corpus)
    device, cache = choose_device(args.device), Path(args.teacher_cache or default_cache())
    score_pairs = partial(score_by, texts=pool.texts, device=device, cache=cache)
    rng, left_out = np.random.default_rng(args.seed), Counter(pool.left_out)
    manifest, mined = manifest_of(args, corpus)

    own = sample_rows((pool.first, pool.second), args.own, rng)
    neighbours = np.empty(0, np.int64), np.empty(0, np.int64)
    if args.neighbours != 0:
        neighbours, mined["neighbours_by"] = find_neighbours(args, corpus, pool, cache, left_out)
        rows = sample_rows(neighbours, args.neighbours, rng)
        neighbours = neighbours[0][rows], neighbours[1][rows]
    new_pairs = {"neighbours": neighbours, "random": random_pairs(pool, args.random, neighbours, rng)}
    if args.cross is not None:
        mined["cross"] = drop_similar(new_pairs, args.cross, score_pairs, corpus.manifest.name, left_out)
    pairs = {"own": (pool.first[own], pool.second[own]), **new_pairs}
    mined["pairs"] = {kind: len(first) for kind, (first, _) in pairs.items()}
    first, second = (np.concatenate([pair[side] for pair in pairs.values()]) for side in (0, 1))
    labels = np.r_[pool.labels[own], np.full(len(first) - len(own), manifest.label_min, np.float32)]
    if args.teacher is not None and len(first):
        scored = [score_pairs(teacher, first=first, second=second) for teacher in args.teacher]
        labels, manifest.label_min, manifest.label_max, mined["labels"] = teacher_labels(scored)
        manifest.label_kind, mined["teachers"] = "graded", [teacher.model for teacher in scored]
        terms = (manifest.terms, *terms_of(args.teacher).values())
        manifest.terms = " and ".join(dict.fromkeys(filter(None, terms)))
    splits = {name: (first[rows], second[rows], labels[rows]) for name, rows in split(args, labels).items()}
    manifest.splits["train"] = {"left_out": dict(+left_out), "mined": mined}
    if rank() == 0:
        write_corpus(Path(args.output), manifest, pool.texts, splits)
        counts = {name: len(labels) for name, (_, _, labels) in splits.items()}
        result = {"output": args.output} | counts | {"pairs": mined["pairs"], "left_out": dict(+left_out)}
        print(json.dumps(result | {"seconds": round(time.time() - start, 1)}))


def check_labels(args: MineArguments, corpus) -> None:
    """Refuses corpora whose labels do not fit the flags."""
    manifest, labels = corpus.manifest, corpus.labels("train")
    if Path(args.output).name == manifest.name:
        raise InputError(f"--output {args.output} has the name of the corpus that is mined. Name another folder.")
    if args.teacher is None and manifest.label_kind == "nli":
        raise InputError(f"{manifest.name} has NLI labels, and neighbours are no contradictions. Label with --teacher.")
    needs = "--margin" if args.margin is not None else None if args.teacher else "training without --teacher"
    if needs and not (labels >= manifest.similar_from).any():
        raise InputError(
            f"{corpus.folder} train has no similar pair, which {needs} needs. Take another corpus, or "
            "--teacher without --margin."
        )


def manifest_of(args: MineArguments, corpus):
    """Manifest of the corpus to write, and a dict of how it was made."""
    from cosent.data.manifest import Manifest
    from cosent.record import CorpusRecord

    source, text = corpus.manifest, args.text or []
    mined = {
        "corpus": {"name": source.name, **asdict(CorpusRecord.of(corpus.folder))},
        "text": text,
        "seed": args.seed,
        "labels": f"own pairs: those of {source.name}; others: {source.label_min:g}",
    }
    manifest = Manifest(
        name=Path(args.output).name,
        label_kind=source.label_kind,
        label_min=source.label_min,
        label_max=source.label_max,
        max_length=source.max_length,
        splits={},
        source=f"pairs made by `cosent mine` of {' and '.join([f'{source.name} train', *text])}",
        terms=source.terms,
    )
    return manifest, mined


def find_neighbours(args: MineArguments, corpus, pool, cache: Path, left_out: Counter) -> tuple["Pairs", dict]:
    """Pairs of a sentence with a neighbour, and the model and ranks for the manifest."""
    from cosent.models.cache import fingerprint, sentence_vectors
    from cosent.search.mining import Ranks, neighbour_pairs

    if args.range_max > pool.size - 1:
        raise InputError(f"--range_max {args.range_max}: a sentence has {pool.size - 1} others. Lower it.")
    model = open_model(args, bi_encoder=True)
    ranks = Ranks(args.range_min, args.range_max, args.margin, args.max_score)
    facts = {"model": args.model, "sha256": fingerprint(model, []), **asdict(ranks)}
    vectors = sentence_vectors(model, pool.texts, cache)[: pool.size]  # all of them, as a teacher reads them
    similar = pool.labels >= corpus.manifest.similar_from
    return neighbour_pairs(pool, vectors, ranks, similar, left_out), facts


def drop_similar(pairs: dict[str, "Pairs"], cross: str, score_pairs: Callable, corpus: str, left_out: Counter) -> dict:
    """Drops pairs that `--cross` scores as similar (likely false negatives) from `pairs`, in place."""
    from cosent.models.auto import load_model
    from cosent.models.decision import decision_rules, rule_for

    prompts = load_model(cross).prompts.sides()
    rule, reason = rule_for(cross, prompts, corpus if corpus in decision_rules(cross) else None)
    if rule is None:
        raise InputError(f"--cross: {reason}. Name another model.")
    facts = {"threshold": rule.threshold}
    for kind, (first, second) in pairs.items():
        if len(first):
            scored = score_pairs(cross, first=first, second=second)
            dissimilar = scored.scores.astype(np.float64) < facts["threshold"]
            left_out["pair that --cross finds similar"] += int((~dissimilar).sum())
            pairs[kind], facts = (first[dissimilar], second[dissimilar]), scored.model | facts
    return facts


def split(args: MineArguments, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of the train split, and of the validation split if there is to be one."""
    from cosent.evaluation.metrics import can_rank

    if not len(labels):
        raise InputError("No pair is left. Raise --own or --random, or filter less.")
    order = np.random.default_rng(args.seed).permutation(len(labels))
    validation, train = np.sort(order[: args.validation_pairs]), np.sort(order[args.validation_pairs :])
    if len(train) <= len(validation):
        raise InputError(f"--validation_pairs {args.validation_pairs} leaves {len(train)} for training. Lower it.")
    if not can_rank(labels[train]):
        raise InputError(f"All training pairs have the label {labels[train][0]:g}. Raise --own, or pass --teacher.")
    return {"train": train} | ({"validation": validation} if len(validation) else {})
