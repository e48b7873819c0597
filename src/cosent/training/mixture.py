"""Load, check and tokenise the corpora of a run, with the targets of the loss."""

import logging
from dataclasses import dataclass
from itertools import islice

import numpy as np
from torch.utils.data import ConcatDataset

from cosent.data.corpus import Corpus, labels_of, load_corpus, measured_splits, random_subset
from cosent.data.groups import sentence_groups, share_without_strangers
from cosent.data.negatives import random_negatives
from cosent.data.pairs import PairDataset
from cosent.data.prefix import Prefixes
from cosent.data.text import read_texts
from cosent.data.tokenization import warn_truncated
from cosent.data.twice import twice
from cosent.errors import InputError
from cosent.losses import LOSSES
from cosent.modeling.loading import DROPOUTS
from cosent.modeling.text_model import TextModel
from cosent.schema import Manifest
from cosent.training.arguments import DataArguments
from cosent.training.held_out import HeldOut
from cosent.training.objective import loss_targets

logger = logging.getLogger(__name__)

MANY = 0.5  # of the pairs of sentences


@dataclass(frozen=True)
class TokenisedMixture:
    """Tokenised corpora of a run.

    Args:
        train: training pairs with the targets of the loss; several corpora are drawn from in turn.
        held_out: validation and test pairs, by corpus and split.
    """

    train: PairDataset | ConcatDataset
    held_out: HeldOut


@dataclass(frozen=True)
class Mixture:
    """The corpora of a run.

    Args:
        training: corpora to train on.
        selecting: corpora for selection of the best epoch, which are tested too.
        weights: share of the batches of each training corpus; None for equal shares.
    """

    training: list[Corpus]
    selecting: list[Corpus]
    weights: list[float] | None

    @property
    def corpora(self) -> dict[str, Corpus]:
        """All of them by name."""
        return {corpus.manifest.name: corpus for corpus in [*self.training, *self.selecting]}

    @property
    def selecting_names(self) -> list[str]:
        return [corpus.manifest.name for corpus in self.selecting]

    @property
    def training_manifests(self) -> list[Manifest]:
        return [corpus.manifest for corpus in self.training]

    @property
    def binary(self) -> list[str]:
        """Names of the corpora with labels of 0 and 1, for which a threshold is defined."""
        return [name for name, corpus in self.corpora.items() if corpus.manifest.label_kind == "binary"]

    def max_length(self, tower: str) -> int:
        """Maximum length in tokens of the corpus with the longest texts."""
        return max(corpus.manifest.max_length[tower] for corpus in self.corpora.values())

    def tokenise(
        self, dataset: type[PairDataset], encoder: TextModel, prefixes: Prefixes, loss: str, args: DataArguments
    ) -> TokenisedMixture:
        """Tokenises every split through the cache on disk; warns about truncated text."""
        if args.text or loss == "simcse":
            warn_without_dropout(encoder.backbone.config)
        train = training_set(self.training, dataset, encoder, prefixes, loss, args)
        held_out = {
            name: {
                split: tokenised(f"{name} {split}", rows, dataset, encoder, prefixes)
                for split, rows in corpus.splits.items()
                if split != "train"
            }
            for name, corpus in self.corpora.items()
        }
        return TokenisedMixture(train, held_out)


def load_mixture(args: DataArguments, loss: str) -> Mixture:
    """Loads the corpora that the arguments name.

    Raises:
        InputError: as `load_corpora`, weights that do not fit, or text that the loss cannot learn from.
    """
    check_text(args, loss)
    training, selecting = load_corpora(args.corpus or [], args.eval_corpora, args.data_dir)
    check_corpus_weights(args.corpus_weights, len(training) + bool(args.text), loss)
    for corpus in (*training, *selecting):
        corpus.splits = measured_splits(corpus.splits, args.limit_validation, args.skip_test)
    return Mixture(training, selecting, args.corpus_weights)


def load_corpora(names: list[str], eval_names: list[str] | None, data_dir: str) -> tuple[list[Corpus], list[Corpus]]:
    """Loads the corpora to train on, and those for selection and test, by default the same.

    Raises:
        InputError: a training corpus without training pairs, or two corpora of one name, whose results would overwrite
            each other.
    """
    training, selecting = ([load_corpus(name, data_dir) for name in some] for some in (names, eval_names or names))
    for corpus in training:
        if "train" not in corpus.splits:
            raise InputError(
                f"{corpus.folder} has no train split, only {', '.join(corpus.splits)}: nothing to train on. "
                "Train on another corpus and use this one with `cosent evaluate`."
            )
    for flag, corpora in (("--corpus", training), ("--eval_corpora", selecting)):
        for corpus in corpora:
            name = corpus.manifest.name
            others = [other for other in training if other.manifest.name == name and other.folder != corpus.folder]
            if others or [other.manifest.name for other in corpora].count(name) > 1:
                raise InputError(
                    f"{flag} names {name} more than once, but results are kept by name. "
                    "Name each corpus once, or prepare one of them under another name."
                )
    return training, selecting


def training_set(
    corpora: list[Corpus], dataset: type[PairDataset], encoder, prefixes: Prefixes, loss: str, args: DataArguments
) -> PairDataset | ConcatDataset:
    """Training pairs with the targets of the loss.

    Several corpora are drawn from in turn, and text as one more of them, each line paired with itself; `sbert_joint`
    draws from all similarity pairs and all NLI pairs in turn. Of corpora, `simcse` pairs each sentence with itself.
    """
    parts: dict[str | bool, list] = {}
    for corpus in corpora:
        rows, manifest = random_subset(corpus.splits["train"], args.limit_train), corpus.manifest
        rows = random_negatives(rows, manifest) if args.random_negatives else rows
        rows = twice([*rows["sentence1"], *rows["sentence2"]], manifest.label_max) if loss == "simcse" else rows
        targets = loss_targets(loss, labels_of(rows), manifest)
        groups = None
        if LOSSES[loss].compares_sentences:
            groups = sentence_groups(rows, manifest.similar_from)
            check_strangers(manifest.name, loss, groups)
        data = tokenised(f"{manifest.name} train", rows, dataset, encoder, prefixes, targets, groups)
        group = manifest.label_kind == "nli" if loss == "sbert_joint" else manifest.name
        parts.setdefault(group, []).append(data)
    if args.text:
        rows = twice(islice(read_texts(args.text), args.limit_text))
        if len(rows) < 2:
            raise InputError(
                f"--text {' '.join(args.text)} has {len(rows)} different lines, and each is compared with the others. "
                "Name a file with more lines."
            )
        parts["--text"] = [tokenised("--text", rows, dataset, encoder, prefixes, groups=sentence_groups(rows, 1.0))]
    groups = [group[0] if len(group) == 1 else ConcatDataset(group) for group in parts.values()]
    return groups[0] if len(groups) == 1 else ConcatDataset(groups)


def check_strangers(name: str, loss: str, groups: np.ndarray) -> None:
    """Warns if a loss finds few strangers in a corpus, whose pairs labelled similar connect most sentences.

    Raises:
        InputError: they connect all sentences.
    """
    known = share_without_strangers(groups)
    if known == 1:
        raise InputError(
            f"--loss {loss} compares sentences of different meaning, and the similar pairs of {name} train connect all "
            "of its sentences (a with b, b with c, ...): no two of them would be compared, and nothing learnt from it. "
            "Train on more pairs, look for labels that are too generous, or take a loss of labels, as --loss cosent."
        )
    if known > MANY:
        logger.warning(
            "%s train: chains of similar pairs connect most sentences, so %.0f%% of what --loss %s could compare is "
            "taken for similar and left out. Labels that are too generous make such chains.",
            name,
            100 * known,
            loss,
        )


def tokenised(
    where: str, rows, dataset: type[PairDataset], encoder, prefixes: Prefixes, labels=None, groups=None
) -> PairDataset:
    """Tokenises pairs and warns about truncated text."""
    data = dataset(rows, encoder.tokenizer, encoder.max_length, labels, prefixes, groups)
    warn_truncated(data.truncated, data.sequences, data.unit, encoder.max_length, where, "--max_length")
    return data


def warn_without_dropout(config) -> None:
    """Warns if both readings of a sentence would be the same."""
    if not any(getattr(config, name, 0.0) for name in DROPOUTS):
        logger.warning(
            "This %s has no dropout, so a sentence read twice has twice the same vector: its pair with itself teaches "
            "nothing but distance to others. Add --dropout 0.1 (or, with --use_peft, --lora_dropout 0.1).",
            config.model_type,
        )


def check_text(args: DataArguments, loss: str) -> None:
    """Checks `--text`, which has no labels, and that there is something to train on and to measure.

    Raises:
        InputError: no corpus where one is needed, or a loss that learns nothing without labels.
    """
    if not args.text:
        if args.limit_text is not None:
            raise InputError("--limit_text does nothing without --text. Leave it out.")
        if not args.corpus:
            raise InputError("--corpus is missing: name prepared corpora to train on, or --text for --loss simcse.")
    elif not LOSSES[loss].compares_sentences:
        able = ", ".join(name for name, other in LOSSES.items() if other.compares_sentences)
        raise InputError(
            f"--text has no labels, and --loss {loss} learns from labels only. Leave it out, or choose one of {able}."
        )
    elif not args.corpus and not args.eval_corpora:
        raise InputError("--text has no labels to measure by: name --eval_corpora, e.g. lcqmc.")
    if args.limit_text is not None and args.limit_text < 1:
        raise InputError(f"--limit_text must be at least 1 line, got {args.limit_text}. Leave it out to read all.")


def check_corpus_weights(given: list[float] | None, corpora: int, loss: str) -> None:
    """Checks `--corpus_weights`, the share of the batches of each corpus.

    Raises:
        InputError: not one positive number per corpus (and text), or a loss that sets its own shares.
    """
    if given is None:
        return
    if loss == "sbert_joint":
        raise InputError("--loss sbert_joint draws similarity pairs and NLI pairs 1:1. Leave --corpus_weights out.")
    if len(given) != corpora or corpora < 2 or not all(0 < value < float("inf") for value in given):
        raise InputError(
            f"--corpus_weights takes a positive number for each of several corpora, as 2 1; got {given} for {corpora}."
        )
