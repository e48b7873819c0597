"""Mine pairs of sentences, label them, and write them as a prepared corpus for training.

cosent mine --model runs/bi --corpus lcqmc --output data/lcqmc_hard
cosent mine --model runs/bi --corpus lcqmc --output data/lcqmc_taught --teacher runs/bi --random 20000
cosent mine --corpus faq --output data/faq_contrasts --contrasts
cosent mine --corpus faq --output suspects.xlsx --suspects

Sentences are those of the train split of --corpus and of --text; neighbours are found by the cosine of --model. The
corpus that is written has the name of its folder.
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

from cosent.cli import REQUIRED, flags_of, option, refuse_below_1, refuse_negative
from cosent.errors import InputError
from cosent.jobs.arguments import CorpusSource, ModelSource, OutputFolder, open_model

if TYPE_CHECKING:
    from cosent.search.mining import Pairs


@dataclass(kw_only=True)
class MineArguments(OutputFolder, CorpusSource, ModelSource):
    """Mining options."""

    corpus: str = REQUIRED
    text: list[str] | None = option(None, "Text files, a sentence per line: .txt or .jsonl, also .gz.")
    range_min: int = option(10, "Nearest neighbours of a sentence to skip.")
    range_max: int = option(100, "Nearest neighbours of a sentence to consider.")
    per_sentence: int = option(1, "Neighbours to take per sentence.")
    margin: float | None = option(
        None, "Smallest distance of a neighbour's cosine below the lowest cosine of a pair labelled similar."
    )
    relative_margin: float | None = option(
        None, "The same as a share of that cosine: 0.05 skips neighbours above 0.95 of it (TopK-PercPos)."
    )
    max_score: float | None = option(None, "Highest cosine of a neighbour.")
    min_score: float | None = option(None, "Lowest cosine of a neighbour.")
    draw: str = option("nearest", "Which of the remaining neighbours to take.", ("nearest", "random"))
    neighbours: int | None = option(None, "Pairs of a sentence and a neighbour, drawn at random; default: all.")
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
    contrasts: bool = option(
        False,
        "Instead of neighbours, pair each sentence with a rewording (2), a change of a number, date, negation, ... (1) "
        "and a random sentence (0), for `cosent train --corpus faq FOLDER`.",
    )
    suspects: bool = option(
        False,
        "Instead of a corpus, write a table of the least plausible labels (--own, default 50) and the nearest pairs "
        "without one (--neighbours, default 50), to be corrected for `cosent prepare --corrected`.",
    )
    seed: int = option(42, "Seed of all random draws.")
    teacher_cache: str | None = option(
        None, "Folder for cached vectors and scores; default: ~/.cache/cosent/model_outputs."
    )

    def __post_init__(self):
        refuse_below_1(self, "range_max", "per_sentence")
        counts = ("range_min", "neighbours", "random", "own")
        refuse_negative(self, *(name for name in counts if getattr(self, name) is not None))
        if self.range_max < (least := self.range_min + self.per_sentence):
            raise InputError(f"--range_min and --per_sentence need a --range_max of at least {least}.")


INSTEAD = {  # by flag: those that it reads
    "contrasts": ("corpus", "output", "text", "data_dir", "contrasts", "seed"),
    "suspects": (
        *("corpus", "output", "text", "data_dir", "suspects", "own", "neighbours"),
        *("model", "device", "teacher_cache"),
    ),
}
LEAST = 10  # sentences to contrast
SUSPECTS = 50  # of either kind


def main(args: MineArguments) -> None:
    from cosent.compute.distributed import locked_by_main

    with locked_by_main(args.output):
        mine(args)


def mine(args: MineArguments) -> None:
    """Writes a corpus of mined pairs."""
    from cosent.compute.devices import choose_device
    from cosent.compute.distributed import rank, wait_for_everyone
    from cosent.data.corpus import load_corpus
    from cosent.data.files import read_texts
    from cosent.models.cache import default_cache
    from cosent.record import terms_of
    from cosent.search.mining import random_pairs, read_pool, score_by, some_of, teacher_labels, write_corpus

    start = time.time()
    args.new_folder()
    for instead in INSTEAD:
        if getattr(args, instead):
            refuse_others(args, instead)
    refuse_negative(args, "validation_pairs")
    wait_for_everyone()  # else a late process finds the output of an early one
    corpus = load_corpus(args.corpus, args.data_dir)
    pool = read_pool(corpus, read_texts(args.text or []))
    if args.contrasts:
        if rank() == 0:
            made_of = [f"{corpus.manifest.name} train", *(args.text or [])]
            texts, terms = pool.texts[: pool.size], corpus.manifest.terms
            print(json.dumps(write_contrasts(Path(args.output), texts, made_of, terms, args.seed)))
        return
    if args.suspects:
        write_suspects(args, corpus, pool)
        return
    check_labels(args, corpus)
    device, cache = choose_device(args.device), Path(args.teacher_cache or default_cache())
    score_pairs = partial(score_by, texts=pool.texts, device=device, cache=cache)
    rng, left_out = np.random.default_rng(args.seed), Counter(pool.left_out)
    manifest, mined = manifest_of(args, corpus)

    own = some_of((pool.first, pool.second), args.own, rng)
    neighbours = np.empty(0, np.int64), np.empty(0, np.int64)
    if args.neighbours != 0:
        (one, other), mined["neighbours_by"] = find_neighbours(args, corpus, pool, cache, left_out)
        drawn = some_of((one, other), args.neighbours, rng)
        neighbours = one[drawn], other[drawn]
    made = {"neighbours": neighbours, "random": random_pairs(pool, args.random, neighbours, rng)}
    if args.cross is not None:
        mined["cross"] = drop_similar(made, args.cross, score_pairs, corpus.manifest.name, left_out)
    pairs = {"own": (pool.first[own], pool.second[own]), **made}
    mined["pairs"] = {kind: len(first) for kind, (first, _) in pairs.items()}
    first, second = (np.concatenate([pair[side] for pair in pairs.values()]) for side in (0, 1))
    labels = np.r_[pool.labels[own], np.full(len(first) - len(own), manifest.label_min, np.float32)]
    if args.teacher is not None and len(first):
        scored = [score_pairs(teacher, first=first, second=second) for teacher in args.teacher]
        labels, manifest.label_min, manifest.label_max, mined["labels"] = teacher_labels(scored)
        manifest.label_kind, mined["teachers"] = "graded", [one.model for one in scored]
        both = (manifest.terms, *terms_of(args.teacher).values())
        manifest.terms = " and ".join(dict.fromkeys(one for one in both if one))
    splits = {name: (first[rows], second[rows], labels[rows]) for name, rows in split(args, labels).items()}
    manifest.splits["train"] = {"left_out": dict(+left_out), "mined": mined}
    if rank() == 0:
        write_corpus(Path(args.output), manifest, pool.texts, splits)
        counts = {name: len(labels) for name, (_, _, labels) in splits.items()}
        result = {"output": args.output} | counts | {"pairs": mined["pairs"], "left_out": dict(+left_out)}
        print(json.dumps(result | {"seconds": round(time.time() - start, 1)}))


def refuse_others(args: MineArguments, instead: str) -> None:
    """Refuses mining flags that have no effect with `--contrasts` or `--suspects`."""
    for name, flag in flags_of(MineArguments).items():
        if name not in INSTEAD[instead] and getattr(args, name) != flag.default:
            raise InputError(f"--{name} does nothing with --{instead}. Leave it out.")


def write_suspects(args: MineArguments, corpus, pool) -> None:
    """Writes the table of pairs to look at, and counts them."""
    from cosent.compute.distributed import rank
    from cosent.data.files import check_output, table_writer
    from cosent.models.cache import default_cache, sentence_vectors
    from cosent.search.suspects import COLUMNS_OF_SUSPECTS, suspects

    check_output(args.output, corpus.folder, overwrite=False)
    if corpus.manifest.label_kind == "nli":
        raise InputError(
            f"--suspects: {corpus.manifest.name} has NLI labels, which no cosine contradicts. Leave it out."
        )
    encoder = open_model(args, bi_encoder=True)
    vectors = sentence_vectors(encoder, pool.texts, Path(args.teacher_cache or default_cache()))
    own, neighbours = (SUSPECTS if count is None else count for count in (args.own, args.neighbours))
    left_out: Counter[str] = Counter()
    rows = suspects(pool, vectors, corpus.manifest, own, neighbours, left_out)
    if rank() == 0:
        with table_writer(args.output, COLUMNS_OF_SUSPECTS) as write:
            write(rows)
        counts = Counter(row["why"] for row in rows)
        print(json.dumps({"output": args.output} | counts | {"left_out": left_out}))


def write_contrasts(folder: Path, sentences: list[str], made_of: list[str], terms: str, seed: int) -> dict:
    """Writes a prepared corpus of contrasts, and counts its pairs; validation has a tenth of the sentences to itself.

    Args:
        made_of: what the manifest calls the sentences.
        terms: those of the sentences.
    """
    from cosent.data.manifest import Manifest
    from cosent.search.contrasts import LABELS, training_pairs
    from cosent.search.mining import write_corpus

    order = np.random.default_rng(seed).permutation(len(sentences))
    held_out = set(order[: max(LEAST // 5, len(sentences) // 10)].tolist())
    splits: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    texts: dict[str, int] = {}
    counts = {}
    for split in ("train", "validation"):
        own = [text for place, text in enumerate(sentences) if (place in held_out) == (split == "validation")]
        pairs = training_pairs(own, seed)
        counts[split] = {name: Counter(pairs.values())[label] for name, label in LABELS.items()}
        if not all(counts[split].values()):
            raise InputError(
                f"--contrasts: {len(own)} sentences make {counts[split]} pairs for {split}. Add sentences with "
                "numbers, dates, places, negations, ... by --text."
            )
        first, second = (
            np.array([texts.setdefault(text, len(texts)) for text in side]) for side in zip(*pairs, strict=True)
        )
        splits[split] = first, second, np.array(list(pairs.values()), np.float32)
    longest = max(map(len, texts)) + 2
    manifest = Manifest(
        name=folder.name,
        label_kind="graded",
        label_min=min(LABELS.values()),
        label_max=max(LABELS.values()),
        max_length={"bi_encoder": min(512, longest), "cross_encoder": min(512, 2 * longest)},
        splits={"train": {"made": {"of": made_of, "seed": seed, "labels": LABELS}}},
        source=f"pairs made by `cosent mine --contrasts` of {' and '.join(made_of)}",
        terms=terms,
    )
    write_corpus(folder, manifest, list(texts), splits)
    return {"output": str(folder)} | counts


def check_labels(args: MineArguments, corpus) -> None:
    """Refuses corpora whose labels do not serve the request."""
    manifest, labels = corpus.manifest, corpus.labels("train")
    if Path(args.output).name == manifest.name:
        raise InputError(f"--output {args.output} has the name of the corpus that is mined. Name another folder.")
    if args.teacher is None and manifest.label_kind == "nli":
        raise InputError(f"{manifest.name} has NLI labels, and neighbours are no contradictions. Label with --teacher.")
    by_margin = args.margin is not None or args.relative_margin is not None
    needs = "--margin" if by_margin else None if args.teacher else "training without --teacher"
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
    """Pairs of a sentence with its neighbours, and the model, ranks and search that found them."""
    from cosent.models.cache import fingerprint, sentence_vectors
    from cosent.search.mining import Ranks, neighbour_pairs

    if args.range_max > pool.size - 1:
        raise InputError(f"--range_max {args.range_max}: a sentence has {pool.size - 1} others. Lower it.")
    model = open_model(args, bi_encoder=True)
    ranks = Ranks(
        *(args.range_min, args.range_max, args.per_sentence, args.margin, args.relative_margin),
        *(args.max_score, args.min_score, args.seed if args.draw == "random" else None),
    )
    facts = {"model": args.model, "sha256": fingerprint(model, []), **asdict(ranks)}
    vectors = sentence_vectors(model, pool.texts, cache)[: pool.size]  # all of them, as a teacher reads them
    similar = pool.labels >= corpus.manifest.similar_from
    return neighbour_pairs(pool, vectors, ranks, similar, left_out), facts


def drop_similar(made: dict[str, "Pairs"], cross: str, score_pairs: Callable, corpus: str, left_out: Counter) -> dict:
    """Drops pairs of `made` that `--cross` scores as similar (likely false negatives); prints their number."""
    from cosent.models.decision import decision_rules, needed_rule

    rule = needed_rule(cross, corpus if corpus in decision_rules(cross) else None, "Name another --cross.")
    facts = {"threshold": rule.threshold}
    for kind, (first, second) in made.items():
        if len(first):
            scored = score_pairs(cross, first=first, second=second)
            dissimilar = scored.scores.astype(np.float64) < facts["threshold"]
            left_out["pair that --cross finds similar"] += int((~dissimilar).sum())
            made[kind], facts = (first[dissimilar], second[dissimilar]), scored.model | facts
    return facts


def split(args: MineArguments, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of the train split, and of the validation split if there is to be one."""
    from cosent.evaluation.metrics import can_rank

    if not len(labels):
        raise InputError("No pair is left. Raise --own, --per_sentence or --random, or filter less.")
    order = np.random.default_rng(args.seed).permutation(len(labels))
    validation, train = np.sort(order[: args.validation_pairs]), np.sort(order[args.validation_pairs :])
    if len(train) <= len(validation):
        raise InputError(f"--validation_pairs {args.validation_pairs} leaves {len(train)} for training. Lower it.")
    if not can_rank(labels[train]):
        raise InputError(f"All training pairs have the label {labels[train][0]:g}. Raise --own, or pass --teacher.")
    return {"train": train} | ({"validation": validation} if len(validation) else {})
