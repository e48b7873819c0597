"""Rows of a `datasets.Dataset` as tokenised pairs: training pairs with the targets of their losses, evaluation sets."""

import difflib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch.utils.data import ConcatDataset

from cosent.data.collators import JoinedPairCollator, PairCollator
from cosent.data.corpus import labels_of, reversed_labels, unknown_characters
from cosent.data.groups import sentence_groups, share_of_known_similar
from cosent.data.labels import LABEL_KINDS, NLI_CLASSES, Labels
from cosent.data.manifest import COLUMNS
from cosent.data.pairs import JoinedPairDataset, PairDataset, Prefixes, warn_truncated
from cosent.data.retrieval import RetrievalTask
from cosent.errors import InputError
from cosent.evaluation.metrics import can_rank
from cosent.evaluation.retrieval import METRICS
from cosent.evaluation.similarity import unit
from cosent.models.cross_encoder import CrossEncoder, scored_classes
from cosent.models.loading import dropout_names
from cosent.models.prompts import Prompts, warn_of_other_prompts
from cosent.models.text_model import TextModel
from cosent.training.arguments import BY_METRIC, PairTrainingArguments
from cosent.training.objective import Objective, loss_targets

logger = logging.getLogger(__name__)

PAIR_FEATURES = datasets.Features(
    sentence1=datasets.Value("string"), sentence2=datasets.Value("string"), label=datasets.Value("float32")
)
TOO_LARGE = 2**24  # up to here float32 holds every whole number
MANY = 0.5  # of the pairs of sentences
Rows: TypeAlias = datasets.Dataset
Datasets: TypeAlias = Rows | Mapping[str, Rows]


def simcse_pairs(sentences: Iterable[str], label: float = 1.0) -> Rows:
    """SimCSE pairs: each distinct sentence with itself, in the order of their first occurrence, all with one label."""
    column = pc.unique(pa.array(sentences, pa.string()))  # both columns share its memory
    labels = pa.array([label] * len(column), pa.float32())
    return Rows(pa.table([column, column, labels], names=list(COLUMNS)))


class Tower(NamedTuple):
    """Dataset and collator of a tower; its model's `forward` does the scoring."""

    dataset: type[PairDataset]
    collator: type[PairCollator] | type[JoinedPairCollator]


TOWER_DATA = {
    "bi_encoder": Tower(PairDataset, PairCollator),
    "cross_encoder": Tower(JoinedPairDataset, JoinedPairCollator),
}


def tower_of(encoder: TextModel) -> str:
    return "cross_encoder" if isinstance(encoder, CrossEncoder) else "bi_encoder"


def check_rows(rows: Any, where: str) -> Rows:
    """The columns of the contract of a dataset of pairs; an error names the first row that is no pair with a number."""
    if isinstance(rows, datasets.IterableDataset):
        raise InputError(
            f"{where} is streamed, and pairs are read from Arrow files on disk. Load it without streaming."
        )
    if not isinstance(rows, datasets.Dataset):
        raise InputError(
            f"{where} is a {type(rows).__name__}, not a datasets.Dataset. Try Dataset.from_list or from_dict."
        )
    for name in COLUMNS:
        if name not in rows.column_names:
            near = difflib.get_close_matches(name, rows.column_names, n=1, cutoff=0.4)
            remedy = f" Rename it: rename_column({near[0]!r}, {name!r})." if near else " Rename yours."
            raise InputError(f"{where} has no column {name}, only {', '.join(rows.column_names)}.{remedy}")
    if rows.format["type"] == "custom":
        raise InputError(
            f"{where} has a transform, which is applied at each access, and pairs are tokenised once. Replace "
            "set_transform by map: rows.map(TRANSFORM, batched=True)."
        )
    rows = rows.with_format(None)
    rows = rows if tuple(rows.column_names) == COLUMNS else rows.select_columns(list(COLUMNS))
    if not len(rows):
        raise InputError(f"{where} has no rows.")
    for name in COLUMNS:
        value, types = rows[0][name], (int, float, Decimal) if name == "label" else (str,)
        if value is not None and not isinstance(value, types):
            expected = "a number: cast_column('label', Value('float32'))" if name == "label" else "text"
            raise InputError(f"{where}: {name} is {value!r} in row 0, and should be {expected}.")
        column = rows.with_format("arrow")[name][:]
        missing = pc.is_null(column, nan_is_null=True).to_numpy()
        if isinstance(rows.features[name], datasets.ClassLabel):
            missing |= pc.equal(column, -1).to_numpy(zero_copy_only=False)  # as the Hub marks rows without a label
        if missing.any():
            raise InputError(f"{where}: {name} is missing in row {int(missing.argmax())}. Filter such rows out.")
    labels = labels_of(rows)
    if not (finite := np.isfinite(labels)).all():
        raise InputError(f"{where}: label is not finite in row {int((~finite).argmax())}. Filter such rows out.")
    if (large := abs(labels) >= TOO_LARGE).any() and pa.types.is_integer(rows.data.schema.field("label").type):
        raise InputError(
            f"{where}: label is {rows[int(large.argmax())]['label']} in row {int(large.argmax())}, and float32 holds "
            f"each whole number below {TOO_LARGE:,} only. Scale the labels."
        )
    if isinstance(rows.features["label"], datasets.ClassLabel):
        rows = by_class_names(rows, where)
    return rows if rows.features == PAIR_FEATURES else rows.cast(PAIR_FEATURES)


def by_class_names(rows: Rows, where: str) -> Rows:
    """Rows whose `ClassLabel` rises with similarity by its names; a warning where they do not say."""
    names = rows.features["label"].names
    if all(name.isdecimal() for name in names):
        order = sorted(names, key=int)
    else:
        try:
            similar, dissimilar = scored_classes(dict(enumerate(names)))
        except InputError:
            similar = dissimilar = None
        if dissimilar is None or len(names) > len(NLI_CLASSES):
            classes = " ".join(f"{name}={number}" for number, name in enumerate(names))
            logger.warning("%s: labels are read as %s, the last as the most similar. Is that right?", where, classes)
            return rows
        order = [name for name in names if name not in (names[similar], names[dissimilar])]
        order = [names[dissimilar], *order, names[similar]]
    if order == names:
        return rows
    numbers = {name: number for number, name in enumerate(order)}
    logger.warning("%s: labels are exchanged to rise: %s.", where, " ".join(f"{n}={v}" for n, v in numbers.items()))
    return rows.align_labels_with_mapping(numbers, "label")


def rows_by_name(rows: Datasets | None, split: str = "") -> dict[str, Rows]:
    """The columns of the contract of every dataset, see `check_rows`; a single dataset is called `pairs`."""
    if isinstance(rows, datasets.DatasetDict):
        raise InputError(f"A DatasetDict has the splits {', '.join(rows)}. Pass one of them, as pairs['train'].")
    by_name = {} if rows is None else rows if isinstance(rows, Mapping) else {"pairs": rows}
    return {name: check_rows(part, name + split) for name, part in by_name.items()}


def read_labels(name: str, rows: Rows) -> Labels:
    """The meaning of labels by their values: binary if all are 0 or 1, else graded from the least to the greatest."""
    values = labels_of(rows)
    low, high = float(values.min()), float(values.max())
    if low == high and low not in (0.0, 1.0):
        raise InputError(
            f"All labels of {name} are {low:g}, so that their range is unknown. Give it: labels=Labels({name!r}, "
            "'graded', 0, 5)."
        )
    return (
        Labels(name, "binary", 0.0, 1.0) if set(np.unique(values)) <= {0.0, 1.0} else Labels(name, "graded", low, high)
    )


def meanings(
    labels: Labels | Mapping[str, Labels] | None, rows: Mapping[str, Rows], held_out: Mapping[str, Rows]
) -> dict[str, Labels]:
    """The meaning of the labels of every dataset: as in `labels`, else read from its values, in training if there."""
    names = held_out.keys() | rows.keys()
    by_name = labels if isinstance(labels, Mapping) else {} if labels is None else dict.fromkeys(names, labels)
    if unknown := [name for name in by_name if name not in names]:
        raise InputError(f"labels names {unknown[0]}, and the datasets are {', '.join(sorted(names))}.")
    for name, meaning in by_name.items():
        for split, datasets_of_split in (("", rows), (" validation", held_out)):
            if name in datasets_of_split and not fits(meaning, datasets_of_split[name]):
                raise InputError(
                    f"labels: {name} is {meaning.label_kind} from {meaning.label_min:g} to {meaning.label_max:g}, and "
                    f"the rows of {name}{split} have other labels. Give their range, the lowest first."
                )
    return {name: by_name.get(name) or read_labels(name, part) for name, part in {**held_out, **rows}.items()}


def fits(meaning: Labels, rows: Rows) -> bool:
    """Whether all labels fit `meaning`."""
    values = labels_of(rows)
    within = meaning.label_min < meaning.label_max and values.min() >= meaning.label_min
    within = within and values.max() <= meaning.label_max and meaning.label_kind in LABEL_KINDS
    return bool(within) and (meaning.label_kind != "binary" or bool(np.isin(values, (0, 1)).all()))


def meaning_of(by_name: Mapping[str, Labels], name: str | Labels | None, rows: Rows, where: str) -> Labels:
    """The meaning of the labels of the dataset `name`, or of the only dataset, if it fits the rows; else by values."""
    if isinstance(name, Labels):
        return name
    meaning = by_name.get(name) if name is not None else None
    if name is None and len(by_name) == 1:
        (meaning,) = by_name.values()
    return meaning if meaning is not None and fits(meaning, rows) else read_labels(where, rows)


def trained_prompts(
    encoder: TextModel, prompt: str | Sequence[str] | None, prompt_name: str | Sequence[str] | None
) -> tuple[Prefixes, Prompts]:
    """The prompts of both sentences in a training, and the prompts of the model after it."""
    sides = encoder.prompts.sides(prompt, prompt_name)
    warn_of_other_prompts(encoder.backbone.config.name_or_path, encoder.prompts, *sides)
    return encoder.prefixes(sides), encoder.prompts.trained_with(sides)


def pair_dataset(
    rows: Rows, encoder: TextModel, prefixes: Prefixes, where: str, labels: np.ndarray | None = None, **targets
) -> PairDataset:
    """Tokenises pairs through the cache on disk, and warns about truncated text."""
    dataset = TOWER_DATA[tower_of(encoder)].dataset
    pairs = dataset(rows, encoder.tokenizer, encoder.max_length, labels, prefixes, **targets)
    warn_truncated(pairs.truncated, pairs.sequences, pairs.unit, encoder.max_length, where, "--max_length")
    return pairs


def training_pairs(
    rows: Mapping[str, Rows],
    labels: Mapping[str, Labels],
    objectives: Mapping[str, Objective],
    encoder: TextModel,
    prefixes: Prefixes,
) -> PairDataset | ConcatDataset:
    """Training pairs of several corpora with the targets of their losses, which batches are drawn from in turn.

    `sbert_joint` draws from all similarity pairs and all NLI pairs in turn; `simcse` pairs each sentence with itself.

    Args:
        rows, labels, objectives: by corpus. With different objectives, pairs have the target `objective`, the number of
            theirs in the order of the corpora.
    """
    several = len({id(objective) for objective in objectives.values()}) > 1
    parts: dict[str | bool, list[PairDataset]] = {}
    for number, (name, corpus_rows) in enumerate(rows.items()):
        objective, meaning = objectives[name], labels[name]
        if objective.name != "simcse" and (question := reversed_labels(corpus_rows, meaning)) is not None:
            logger.warning("%s train: %s.", name, question)
        share, shown = unknown_characters(
            [*corpus_rows["sentence1"], *corpus_rows["sentence2"]], encoder.tokenizer.backend_tokenizer
        )
        if share:
            logger.info("%s train: %.3g%% of characters are unknown to the model: %s.", name, 100 * share, shown)
        if objective.name == "simcse":
            corpus_rows = simcse_pairs([*corpus_rows["sentence1"], *corpus_rows["sentence2"]], meaning.label_max)
        targets = {"objective": np.full(len(corpus_rows), number, np.int64)} if several else {}
        values = labels_of(corpus_rows)
        alone, share_similar = len(np.unique(values)) < 2, 0.0  # the share of sentences that are no in-batch negatives
        if alone or objective.compares_sentences:
            groups = sentence_groups(corpus_rows, meaning.similar_from)
            share_similar = share_of_known_similar(groups)
        if objective.compares_sentences:
            targets["groups"] = groups
            check_in_batch_negatives(name, objective.name, share_similar, alone)
        loss_labels = loss_targets(objective, values, meaning, objective.classes, share_similar < 1)
        pairs = pair_dataset(corpus_rows, encoder, prefixes, f"{name} train", loss_labels, **targets)
        together = meaning.label_kind == "nli" if objective.name == "sbert_joint" else name
        parts.setdefault(together, []).append(pairs)
    groups = [group[0] if len(group) == 1 else ConcatDataset(group) for group in parts.values()]
    return groups[0] if len(groups) == 1 else ConcatDataset(groups)


def warn_without_dropout(encoder: TextModel) -> None:
    """Warns that pairs of a sentence with itself teach a model without dropout nothing."""
    config = encoder.backbone.config
    if not any(getattr(config, name, 0.0) for name in dropout_names(config)):
        logger.warning(
            "This %s has no dropout, so a sentence read twice has the same vector twice. Add --dropout 0.1 (or, with "
            "--use_peft, --lora_dropout 0.1).",
            config.model_type,
        )


def check_in_batch_negatives(name: str, loss: str, known: float, one_label: bool) -> None:
    """Warns if similar pairs connect most sentences of a corpus, so that a loss finds few in-batch negatives.

    Args:
        known: see `share_of_known_similar`.
        one_label: whether no loss could compare labels either.
    """
    if known == 1:
        raise InputError(
            f"--loss {loss} compares sentences of different meaning, and the similar pairs of {name} train connect all "
            f"of its sentences. {'Add sentences of another meaning' if one_label else 'Take --loss cosent'}."
        )
    if known > MANY:
        logger.warning(
            "%s train: chains of similar pairs connect most sentences, so %.0f%% of what --loss %s could compare is "
            "taken for similar and left out: are labels too generous?",
            name,
            100 * known,
            loss,
        )


@dataclass(frozen=True)
class RetrievalSet:
    """A retrieval task on pairs that are evaluated anyway.

    Args:
        rest: with two different prompts, each sentence of the pool as query and as document; else None, as the pairs of
            the split embed them all.
    """

    task: RetrievalTask
    rest: PairDataset | None

    @classmethod
    def of(cls, task: RetrievalTask, encoder: TextModel, prefixes: Prefixes) -> "RetrievalSet":
        if prefixes[0] == prefixes[1]:
            return cls(task, None)
        return cls(task, PairDataset(simcse_pairs(task.pool), encoder.tokenizer, encoder.max_length, prefixes=prefixes))

    def vectors(self, own: np.ndarray, rest: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of the pool as queries and as documents, each float32 of shape `(pool, hidden)` and of length 1.

        Args:
            own, rest: embeddings of the pairs of the split and of `rest`, of shape `(pairs, 2, hidden)`.
        """
        if rest is not None:
            return unit(rest[:, 0]), unit(rest[:, 1])
        pool = np.empty((len(self.task.pool), own.shape[-1]), np.float32)
        pool[self.task.places.ravel()] = own.reshape(-1, own.shape[-1])
        pool = unit(pool)
        return pool, pool


@dataclass(frozen=True)
class EvaluationSet(torch.utils.data.Dataset):
    """Tokenised pairs to evaluate on, and the retrieval task on their sentences, if it is measured."""

    pairs: PairDataset
    retrieval: RetrievalSet | None = None

    @property
    def labels(self) -> np.ndarray:
        return self.pairs.labels

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple:
        return self.pairs[index]


def selection(
    args: PairTrainingArguments, sets: Mapping[str, EvaluationSet]
) -> EvaluationSet | dict[str, EvaluationSet] | None:
    """Evaluation sets that select the best epoch: one, or a dict compared by its mean metric.

    Sets `args` to keep the last epoch if none of the sets can select.
    """
    metric = args.metric_for_best_model
    if metric in METRICS and all(pairs.retrieval is None for pairs in sets.values()):
        raise InputError(
            f"--metric_for_best_model {metric} needs queries, and validation has none ({', '.join(sets)}): "
            "they come from bi-encoders, --retrieval true and similar pairs. Use spearman, or other --eval_corpora."
        )
    usable = {name: pairs for name, pairs in sets.items() if metric in METRICS or can_rank(pairs.labels)}
    idle = ", ".join(name for name in sets if name not in usable)
    if not usable:
        if args.lr_scheduler_type in BY_METRIC:
            raise InputError(
                f"--lr_scheduler_type {args.lr_scheduler_type.value} follows validation, which has no metric."
            )
        if args.eval_strategy != "no":
            logger.warning(
                "%s has no validation split with two different labels: the last epoch is kept, best or not. Similar "
                "pairs alone can select a bi-encoder by --metric_for_best_model recall_at_10.",
                idle or "This training",
            )
        args.eval_strategy, args.load_best_model_at_end, args.metric_for_best_model = "no", False, None
    elif idle and args.eval_strategy != "no":
        logger.warning("%s selects nothing: it has no validation split with two different labels.", idle)
    return next(iter(usable.values()), None) if len(usable) < 2 else usable
