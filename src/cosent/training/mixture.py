"""Load, check and tokenise the corpora of a run, with the targets of the loss."""

from dataclasses import dataclass

from torch.utils.data import ConcatDataset

from cosent.data.corpus import Corpus, labels_of, load_corpus, random_subset
from cosent.data.negatives import random_negatives
from cosent.data.pairs import PairDataset
from cosent.data.prefix import Prefixes
from cosent.data.tokenization import warn_truncated
from cosent.errors import InputError
from cosent.modeling.text_model import TextModel
from cosent.schema import Manifest
from cosent.training.arguments import DataArguments
from cosent.training.held_out import HeldOut, validation_sets
from cosent.training.objective import loss_targets


@dataclass(frozen=True)
class TokenisedMixture:
    """Tokenised corpora of a run.

    Args:
        train: training pairs with the targets of the loss; several corpora are drawn from in turn.
        held_out: validation and test pairs, by corpus and split.
        validation: evaluation sets of Trainer, see `validation_sets`.
    """

    train: PairDataset | ConcatDataset
    held_out: HeldOut
    validation: PairDataset | dict[str, PairDataset] | None


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
        train = training_set(self.training, dataset, encoder, prefixes, loss, args)
        held_out = {
            name: {s: tokenised(corpus, s, dataset, encoder, prefixes) for s in corpus.splits if s != "train"}
            for name, corpus in self.corpora.items()
        }
        names = [corpus.manifest.name for corpus in self.selecting]
        return TokenisedMixture(train, held_out, validation_sets(held_out, names))


def load_mixture(args: DataArguments, loss: str) -> Mixture:
    """Loads the corpora that the arguments name.

    Raises:
        InputError: as `load_corpora`, or weights that do not fit.
    """
    training, selecting = load_corpora(args.corpus, args.eval_corpora, args.data_dir)
    check_corpus_weights(args.corpus_weights, len(training), loss)
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

    Several corpora are drawn from in turn; `sbert_joint` draws from all similarity pairs and all NLI pairs in turn.
    """
    parts = {}
    for corpus in corpora:
        rows = random_subset(corpus.splits["train"], args.limit_train)
        rows = random_negatives(rows, corpus.manifest) if args.random_negatives else rows
        targets = loss_targets(loss, labels_of(rows), corpus.manifest)
        data = tokenised(corpus, "train", dataset, encoder, prefixes, rows, targets)
        group = corpus.manifest.label_kind == "nli" if loss == "sbert_joint" else corpus.manifest.name
        parts.setdefault(group, []).append(data)
    groups = [group[0] if len(group) == 1 else ConcatDataset(group) for group in parts.values()]
    return groups[0] if len(groups) == 1 else ConcatDataset(groups)


def tokenised(
    corpus: Corpus, split: str, dataset: type[PairDataset], encoder, prefixes: Prefixes, rows=None, labels=None
) -> PairDataset:
    """Tokenises a split, or some `rows` of it, and warns about truncated text."""
    rows = corpus.splits[split] if rows is None else rows
    data = dataset(rows, encoder.tokenizer, encoder.max_length, labels, prefixes)
    where = f"{corpus.manifest.name} {split}"
    warn_truncated(data.truncated, data.sequences, data.unit, encoder.max_length, where, "--max_length")
    return data


def check_corpus_weights(given: list[float] | None, corpora: int, loss: str) -> None:
    """Checks `--corpus_weights`, the share of the batches of each corpus.

    Raises:
        InputError: not one positive number per corpus, or a loss that sets its own shares.
    """
    if given is None:
        return
    if loss == "sbert_joint":
        raise InputError("--loss sbert_joint draws similarity pairs and NLI pairs 1:1. Leave --corpus_weights out.")
    if len(given) != corpora or corpora < 2 or not all(0 < value < float("inf") for value in given):
        raise InputError(
            f"--corpus_weights takes a positive number for each of several corpora, as 2 1; got {given} for {corpora}."
        )
