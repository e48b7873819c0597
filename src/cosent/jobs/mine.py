"""Mine training pairs: neighbours as hard negatives, random pairs, and labels by a teacher, as a prepared corpus.

cosent mine --model runs/bi --corpus lcqmc --output data/lcqmc_hard
cosent mine --model runs/bi --corpus lcqmc --output data/lcqmc_taught --teacher runs/bi --random 20000

Sentences come from the train split of --corpus and from --text; neighbours are found by the cosine of --model. The
corpus has the name of its folder, all labelled pairs of --corpus, and a train split alone: select by --eval_corpora.
"""

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cosent.atomic import locked
from cosent.data.corpus import Corpus, load_corpus
from cosent.data.files import FileArguments, read_texts
from cosent.errors import InputError
from cosent.flags import REQUIRED, option, refuse_negative
from cosent.jobs.arguments import CorpusSource, ModelSource, OutputFolder, choose_device, open_model
from cosent.record import CorpusRecord, terms_of

if TYPE_CHECKING:
    from cosent.search.mining import Pairs, Pool

CONSIDERED = 100  # nearest neighbours of a sentence, as `range_max` of sentence-transformers


@dataclass(kw_only=True)
class MineArguments(OutputFolder, CorpusSource, FileArguments, ModelSource):
    """Mining options."""

    corpus: str = REQUIRED
    text: list[str] | None = option(None, "Text files, a sentence per line: .txt or .jsonl, also .gz.")
    range_min: int = option(10, "Nearest neighbours of a sentence to skip.")
    margin: float | None = option(
        None, "Smallest distance of a neighbour's cosine below the lowest cosine of a pair labelled similar."
    )
    random: int = option(0, "Pairs of random sentences.")
    teacher: str | None = option(None, "Bi- or cross-encoder whose scores label all pairs; default: 0 for mined pairs.")
    seed: int = option(42, "Seed of all random draws.")

    def __post_init__(self):
        refuse_negative(self, "range_min", "random")


def main(args: MineArguments) -> None:
    with locked(args.output):
        from cosent.evaluation.metrics import can_rank
        from cosent.search.mining import labels_by, random_pairs, read_pool, write_corpus

        start, output = time.time(), args.new_folder()
        corpus = load_corpus(args.corpus, args.data_dir)
        check_labels(args, corpus)
        pool = read_pool(corpus, read_texts(args.text or [], args.options))
        sources = " and ".join([f"{corpus.manifest.name} train", *(args.text or [])])
        source = f"pairs made by `cosent mine` of {sources}"
        manifest = replace(corpus.manifest, name=output.name, splits={}, source=source, warnings=[])
        neighbours, facts = find_neighbours(args, corpus, pool)
        pairs = {"own": (pool.first, pool.second), "neighbours": neighbours}
        pairs["random"] = random_pairs(pool, args.random, neighbours, np.random.default_rng(args.seed))
        first, second = (np.concatenate([pair[side] for pair in pairs.values()]) for side in (0, 1))
        labels = np.r_[pool.labels, np.full(len(first) - len(pool.labels), manifest.label_min, np.float32)]
        if args.teacher is not None:
            taught = labels_by(args.teacher, pool.texts, (first, second), choose_device(args.device))
            labels, (manifest.label_min, manifest.label_max), facts["teacher"] = taught
            manifest.label_kind = "graded"
            terms = (manifest.terms, *terms_of([args.teacher]).values())
            manifest.terms = " and ".join(dict.fromkeys(filter(None, terms)))
        if not can_rank(labels):
            raise InputError(f"All pairs have the label {labels[0]:g}. Lower --range_min, or raise --random.")
        counts = {kind: len(side) for kind, (side, _) in pairs.items()}
        manifest.splits["train"] = {"mined": facts | {"pairs": counts}}
        write_corpus(output, manifest, pool.texts, (first, second), labels)
        result = {"output": args.output, "train": len(labels), "pairs": counts}
        print(json.dumps(result | {"seconds": round(time.time() - start, 1)}))


def check_labels(args: MineArguments, corpus: Corpus) -> None:
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


def find_neighbours(args: MineArguments, corpus: Corpus, pool: "Pool") -> tuple["Pairs", dict]:
    """Pairs of a sentence with a neighbour, and for the manifest what they were made of."""
    from cosent.models.cache import fingerprint, sentence_vectors
    from cosent.search.mining import neighbour_pairs

    if args.range_min >= min(CONSIDERED, pool.size - 1):
        raise InputError(f"--range_min {args.range_min} of {min(CONSIDERED, pool.size - 1)} neighbours. Lower it.")
    model = open_model(args, bi_encoder=True)
    flags = {name: getattr(args, name) for name in ("model", "range_min", "margin")}
    facts = {
        "corpus": {"name": corpus.manifest.name, **asdict(CorpusRecord.of(corpus.folder))},
        "text": args.text or [],
        "seed": args.seed,
        "neighbours_by": flags | {"sha256": fingerprint(model)},
    }
    vectors = sentence_vectors(model, pool.texts)[: pool.size]  # all of them, as a teacher reads them
    similar = pool.labels >= corpus.manifest.similar_from
    return neighbour_pairs(pool, vectors, (args.range_min, CONSIDERED), args.margin, similar), facts
