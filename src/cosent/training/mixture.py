"""Training sets of one or several corpora, tokenised, with the targets of the loss."""

from torch.utils.data import ConcatDataset

from cosent.data.corpus import Corpus, labels_of, load_corpus, random_negatives, random_subset
from cosent.data.pairs import PairDataset
from cosent.data.tokenization import warn_truncated
from cosent.errors import InputError
from cosent.training.arguments import DataArguments
from cosent.training.objective import loss_targets


def load_corpora(args: DataArguments) -> tuple[list[Corpus], list[Corpus]]:
    """The corpora to train on, and those that select the best epoch and are tested.

    Raises:
        InputError: a training corpus without training pairs, or two corpora of one name, whose results would overwrite
            each other.
    """
    training, selecting = (
        [load_corpus(name, args.data_dir) for name in names]
        for names in (args.corpus, args.eval_corpora or args.corpus)
    )
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
                    f"{flag} names {name} more than once, and results are kept by name. "
                    "Name each corpus once, or prepare one of them under another name."
                )
    return training, selecting


def training_set(
    corpora: list[Corpus], dataset: type[PairDataset], encoder, loss: str, args: DataArguments
) -> PairDataset | ConcatDataset:
    """Training pairs with the targets of the loss.

    Several corpora are drawn from in turn; `sbert_joint` draws from all similarity pairs and all NLI pairs in turn.
    """
    parts = {}
    for corpus in corpora:
        rows = random_subset(corpus.splits["train"], args.limit_train)
        rows = random_negatives(rows, corpus.manifest) if args.random_negatives else rows
        targets = loss_targets(loss, labels_of(rows), corpus.manifest)
        data = tokenised(corpus, "train", dataset, encoder, rows, targets)
        group = corpus.manifest.label_kind == "nli" if loss == "sbert_joint" else corpus.manifest.name
        parts.setdefault(group, []).append(data)
    groups = [group[0] if len(group) == 1 else ConcatDataset(group) for group in parts.values()]
    return groups[0] if len(groups) == 1 else ConcatDataset(groups)


def tokenised(corpus: Corpus, split: str, dataset: type[PairDataset], encoder, rows=None, labels=None) -> PairDataset:
    """Tokenises a split, or some `rows` of it, and warns of text that is cut off."""
    rows = corpus.splits[split] if rows is None else rows
    data = dataset(rows, encoder.tokenizer, encoder.max_length, labels)
    where = f"{corpus.manifest.name} {split}"
    warn_truncated(data.truncated, data.sequences, data.unit, encoder.max_length, where, "--max_length")
    return data


def check_corpus_weights(given: list[float] | None, corpora: int, loss: str) -> list[float] | None:
    """Checks `--corpus_weights`, the share of the batches of each corpus.

    Raises:
        InputError: not one positive number per corpus, or a loss that has shares of its own.
    """
    if given is None:
        return None
    if loss == "sbert_joint":
        raise InputError("--loss sbert_joint draws similarity pairs and NLI pairs 1:1. Leave --corpus_weights out.")
    if len(given) != corpora or corpora < 2 or not all(0 < value < float("inf") for value in given):
        raise InputError(
            f"--corpus_weights takes a positive number for each of several corpora, as 2 1; got {given} for {corpora}."
        )
    return given
