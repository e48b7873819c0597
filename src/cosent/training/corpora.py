"""Corpora of a training job, and their limits."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from cosent.cli import LAUNCHED_VARIABLE
from cosent.data.corpus import Corpus, load_corpus, random_subset
from cosent.data.files import read_texts
from cosent.data.labels import Labels
from cosent.errors import InputError
from cosent.losses import LOSSES, find_loss
from cosent.training.arguments import CorpusArguments, DataArguments
from cosent.training.pairs import simcse_pairs

logger = logging.getLogger(__name__)

TEXT = "text"  # name of the dataset that sentences without labels make


@dataclass(frozen=True)
class RunCorpora:
    """The corpora of a run.

    Args:
        selecting: for the best epoch; tested too.
        text: pairs of each sentence of the text with itself, if there is any.
    """

    training: list[Corpus]
    selecting: list[Corpus]
    text: Dataset | None = None

    @property
    def by_name(self) -> dict[str, Corpus]:
        return {corpus.manifest.name: corpus for corpus in [*self.training, *self.selecting]}

    @property
    def training_rows(self) -> dict[str, Dataset]:
        rows = {corpus.manifest.name: corpus.split("train") for corpus in self.training}
        return rows if self.text is None else rows | {TEXT: self.text}

    @property
    def validation_rows(self) -> dict[str, Dataset]:
        """Validation splits of the corpora for selection that have one."""
        return {c.manifest.name: c.split("validation") for c in self.selecting if "validation" in c.splits}

    @property
    def labels(self) -> dict[str, Labels]:
        """The meaning of the labels of `training_rows` and `validation_rows`."""
        meanings: dict[str, Labels] = {
            corpus.manifest.name: corpus.manifest
            for corpus in (*self.training, *self.selecting)
            if corpus in self.training or "validation" in corpus.splits
        }
        return meanings if self.text is None else meanings | {TEXT: Labels(TEXT, "binary", 0.0, 1.0)}

    def max_length(self, tower: str) -> int:
        """Maximum length in tokens of the corpus with the longest texts."""
        return max(corpus.manifest.max_length[tower] for corpus in self.by_name.values())


def defaults_of_run(flags: dict[str, Any], recipe: str, reason: str) -> dict[str, Any]:
    """Default recipe and output folder of a run; `reason` says what the recipe is for."""
    names = [Path(corpus).resolve().name for corpus in flags.get("corpus", [])]
    defaults: dict[str, Any] = {"output_dir": f"runs/{'_'.join(names)}"} if names else {}
    if "config" not in flags:
        if "launch" not in flags or LAUNCHED_VARIABLE in os.environ:  # otherwise the launched processes print it
            logger.info("recipe %s, the default for %s; --config takes another", recipe, reason)
        defaults["config"] = recipe
    return defaults


def corpora_of_run(args: DataArguments, loss: str | Mapping[str, str], seed: int) -> RunCorpora:
    """The corpora of a run of one loss, or of one for each corpus, with something to train on and to measure."""
    if not args.text and not args.corpus:
        raise InputError("--corpus is missing: name prepared corpora to train on, or --text for --loss simcse.")
    name = loss if isinstance(loss, str) else loss.get(TEXT)
    if args.text and name is not None and not find_loss(name).compares_sentences:
        losses = ", ".join(loss.name for loss in LOSSES.values() if loss.compares_sentences)
        raise InputError(f"--text has no labels, and --loss {name} learns from labels only. Choose one of {losses}.")
    if not args.corpus and not args.eval_corpora:
        raise InputError("--text has no labels to measure by: name --eval_corpora, e.g. lcqmc.")
    return load_corpora(args, lines_with_themselves, seed)


def load_corpora(args: CorpusArguments, pairs_of_text: Callable[[list[str]], Dataset], seed: int) -> RunCorpora:
    """Loads the corpora to train on, those for selection and test, by default the same, and the text.

    Of a limit, the rows depend only on the seed; a validation split is no larger than --limit_train.
    """
    names, eval_names = args.corpus or [], args.eval_corpora or args.corpus or []
    loaded = {name: load_corpus(name, args.data_dir) for name in dict.fromkeys([*names, *eval_names])}
    text = pairs_of_text(args.text) if args.text else None
    corpora = RunCorpora([loaded[name] for name in names], [loaded[name] for name in eval_names], text)
    for flag, named in (("--corpus", corpora.training), ("--eval_corpora", corpora.selecting)):
        names = [corpus.manifest.name for corpus in named]
        for name, corpus in zip(names, named, strict=True):
            namesakes = [c for c in corpora.training if c.manifest.name == name and c.folder != corpus.folder]
            if namesakes or names.count(name) > 1:
                raise InputError(f"{flag} names {name} more than once. Name each corpus once.")
            if text is not None and name == TEXT:
                raise InputError(f"{flag} names a corpus called {TEXT}, as --text is. Prepare it under another --name.")
    seed = seed if args.limit_seed is None else args.limit_seed
    for corpus in corpora.training:
        corpus.splits["train"] = random_subset(corpus.split("train"), args.limit_train, "--limit_train", seed)
    limits = [limit for limit in (args.limit_train, args.limit_validation) if limit is not None]
    for corpus in (*corpora.training, *corpora.selecting):
        if args.skip_test:
            corpus.splits.pop("test", None)
        if "validation" in corpus.splits:
            rows, count = corpus.splits["validation"], min(limits, default=None)
            corpus.splits["validation"] = random_subset(rows, count, "--limit_validation", seed)
    return corpora


def lines_with_themselves(files: list[str]) -> Dataset:
    """Each different line of files of sentences, paired with itself."""
    rows = simcse_pairs(read_texts(files))
    if len(rows) < 2:
        raise InputError(f"--text {' '.join(files)} has {len(rows)} different lines: too few to compare.")
    return rows


def adjacent_lines(files: list[str]) -> Dataset:
    """Pairs of adjacent lines of files of sentences, with the label 0: a teacher says how similar they are."""
    lines = list(read_texts(files))
    lines = lines[: len(lines) // 2 * 2]
    labels = np.zeros(len(lines) // 2, np.float32)
    return Dataset.from_dict({"sentence1": lines[::2], "sentence2": lines[1::2], "label": labels})
