"""Rows of a `datasets.Dataset` as tokenised pairs: training pairs with the targets of their losses, evaluation sets."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch.utils.data import ConcatDataset

from cosent.data.corpus import COLUMNS, labels_of, reversed_labels, sentence_groups, unknown_characters
from cosent.data.labels import Labels
from cosent.data.pairs import JoinedPairCollator, JoinedPairDataset, PairCollator, PairDataset, Prefixes, warn_truncated
from cosent.data.retrieval import RetrievalTask
from cosent.errors import InputError
from cosent.evaluation.metrics import can_rank
from cosent.evaluation.retrieval import METRICS
from cosent.evaluation.similarity import unit
from cosent.models.cross_encoder import rising_classes
from cosent.models.text_model import TextModel
from cosent.training.arguments import PairTrainingArguments
from cosent.training.objective import Objective, loss_targets

logger = logging.getLogger(__name__)

PAIR_FEATURES = datasets.Features(
    sentence1=datasets.Value("string"), sentence2=datasets.Value("string"), label=datasets.Value("float32")
)
TOO_LARGE = 2**24  # from here on, float32 skips whole numbers
Rows: TypeAlias = datasets.Dataset
Datasets: TypeAlias = Rows | Mapping[str, Rows]
# Dataset and collator of each tower.
TOWER_DATA: dict[str, tuple[type[PairDataset], type[PairCollator] | type[JoinedPairCollator]]] = {
    "bi_encoder": (PairDataset, PairCollator),
    "cross_encoder": (JoinedPairDataset, JoinedPairCollator),
}


def simcse_pairs(sentences: Iterable[str], label: float = 1.0) -> Rows:
    """SimCSE pairs: each distinct sentence with itself, in the order of their first occurrence, all with one label."""
    column = pc.unique(pa.array(sentences, pa.string()))  # both columns share its memory
    labels = pa.array([label] * len(column), pa.float32())
    return Rows(pa.table([column, column, labels], names=list(COLUMNS)))


def rows_by_name(rows: Datasets | None, split: str = "") -> dict[str, Rows]:
    """The columns of the contract of every dataset, see `check_rows`; a single dataset is called `pairs`."""
    if isinstance(rows, datasets.DatasetDict):
        raise InputError(f"A DatasetDict has the splits {', '.join(rows)}. Pass one of them, as pairs['train'].")
    by_name = {} if rows is None else rows if isinstance(rows, Mapping) else {"pairs": rows}
    return {name: check_rows(part, name + split) for name, part in by_name.items()}


def check_rows(rows: Any, where: str) -> Rows:
    """The columns of the contract of a dataset of pairs; an error names the first row that is no pair with a number."""
    if not isinstance(rows, datasets.Dataset):
        raise InputError(
            f"{where} is a {type(rows).__name__}, not a datasets.Dataset. Load it without streaming, or take "
            "Dataset.from_list."
        )
    for name in COLUMNS:
        if name not in rows.column_names:
            names = ", ".join(rows.column_names)
            raise InputError(f"{where} has no column {name}, only {names}. Rename it: rename_column(YOURS, {name!r}).")
    if rows.format["type"] == "custom":
        raise InputError(f"{where} has a transform, and pairs are tokenised once. Take map instead of set_transform.")
    rows = rows.with_format(None)
    rows = rows if tuple(rows.column_names) == COLUMNS else rows.select_columns(list(COLUMNS))
    if not len(rows):
        raise InputError(f"{where} has no rows.")
    for name in COLUMNS:
        value, types = rows[0][name], (int, float, Decimal) if name == "label" else (str,)
        if value is not None and not isinstance(value, types):
            expected = "a number: cast_column('label', Value('float32'))" if name == "label" else "text"
            raise InputError(f"{where}: {name} is {value!r} in row 0, and should be {expected}.")
        if name == "label":
            labels = labels_of(rows)
            missing = ~np.isfinite(labels)
            if isinstance(rows.features[name], datasets.ClassLabel):
                missing |= labels == -1  # as the Hub marks rows without a label
            large = abs(labels) >= TOO_LARGE
            if large.any() and pa.types.is_integer(rows.data.schema.field("label").type):
                row = int(large.argmax())
                raise InputError(
                    f"{where}: label is {rows[row]['label']} in row {row}, and float32 holds each whole number below "
                    f"{TOO_LARGE:,} only. Scale the labels."
                )
        else:
            missing = pc.is_null(rows.with_format("arrow")[name][:]).to_numpy()
        if missing.any():
            raise InputError(
                f"{where}: {name} is missing or not finite in row {int(missing.argmax())}. Filter such rows out."
            )
    if isinstance(rows.features["label"], datasets.ClassLabel):
        rows = by_class_names(rows, where)
    return rows if rows.features == PAIR_FEATURES else rows.cast(PAIR_FEATURES)


def by_class_names(rows: Rows, where: str) -> Rows:
    """Renumbers a `ClassLabel` by its names, so that it rises with similarity; warns if the names do not say."""
    names = rows.features["label"].names
    places = rising_classes(names)
    if places is None:
        classes = " ".join(f"{name}={number}" for number, name in enumerate(names))
        logger.warning("%s: labels are read as %s, the last as the most similar. Is that right?", where, classes)
        return rows
    order = [names[place] for place in places]
    if order == names:
        return rows
    numbers = {name: number for number, name in enumerate(order)}
    logger.warning("%s: labels are exchanged to rise: %s.", where, " ".join(f"{n}={v}" for n, v in numbers.items()))
    return rows.align_labels_with_mapping(numbers, "label")


def meanings(
    labels: Labels | Mapping[str, Labels] | None, rows: Mapping[str, Rows], held_out: Mapping[str, Rows]
) -> dict[str, Labels]:
    """The meaning of the labels of every dataset: as in `labels`, else read from its values, in training if there."""
    names = {**held_out, **rows}
    by_name = labels if isinstance(labels, Mapping) else {} if labels is None else dict.fromkeys(names, labels)
    if unknown := [name for name in by_name if name not in names]:
        raise InputError(f"labels names {unknown[0]}, and the datasets are {', '.join(sorted(names))}.")
    for split, parts in (("", rows), (" validation", held_out)):
        for name in parts.keys() & by_name.keys():
            meaning = by_name[name]
            if not meaning.fits(labels_of(parts[name])):
                raise InputError(
                    f"labels: {name} is {meaning.label_kind} from {meaning.label_min:g} to {meaning.label_max:g}, and "
                    f"the rows of {name}{split} have other labels. Give their range, the lowest first."
                )
    return {name: by_name.get(name) or Labels.of_values(name, labels_of(part)) for name, part in names.items()}


def pair_dataset(
    rows: Rows, encoder: TextModel, prefixes: Prefixes, where: str, labels: np.ndarray | None = None, **targets
) -> PairDataset:
    """Tokenises pairs through the cache on disk, and warns about truncated text."""
    dataset, _ = TOWER_DATA[encoder.tower]
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
        sentences = [*corpus_rows["sentence1"], *corpus_rows["sentence2"]]
        share, examples = unknown_characters(sentences, encoder.tokenizer.backend_tokenizer)
        if share:
            logger.info("%s train: %.3g%% of characters are unknown to the model: %s.", name, 100 * share, examples)
        if objective.name == "simcse":
            corpus_rows = simcse_pairs(sentences, meaning.label_max)
        elif (question := reversed_labels(corpus_rows, meaning)) is not None:
            logger.warning("%s train: %s.", name, question)
        targets = {"objective": np.full(len(corpus_rows), number, np.int64)} if several else {}
        values = labels_of(corpus_rows)
        groups = sentence_groups(corpus_rows, meaning.similar_from)
        has_negatives = bool((groups != groups[0, 0]).any())
        if objective.compares_sentences:
            targets["groups"] = groups
            if not has_negatives:
                remedy = "Take --loss cosent" if can_rank(values) else "Add sentences of another meaning"
                raise InputError(
                    f"--loss {objective.name} compares sentences of different meaning, and the similar pairs of {name} "
                    f"train connect all of its sentences. {remedy}."
                )
        loss_labels = loss_targets(objective, values, meaning, objective.classes, has_negatives)
        pairs = pair_dataset(corpus_rows, encoder, prefixes, f"{name} train", loss_labels, **targets)
        together = meaning.label_kind == "nli" if objective.name == "sbert_joint" else name
        parts.setdefault(together, []).append(pairs)
    joined = [part[0] if len(part) == 1 else ConcatDataset(part) for part in parts.values()]
    return joined[0] if len(joined) == 1 else ConcatDataset(joined)


@dataclass(frozen=True)
class EvaluationSet(torch.utils.data.Dataset):
    """Tokenised pairs to evaluate on, and a retrieval task on their sentences.

    Args:
        task: None for a cross-encoder, and where nothing is similar.
        pool: with two different prompts, each sentence of the task's pool as query and as document; else None, as
            `pairs` embed them all.
    """

    pairs: PairDataset
    task: RetrievalTask | None = None
    pool: PairDataset | None = None

    @property
    def labels(self) -> np.ndarray:
        return self.pairs.labels

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple:
        return self.pairs[index]


def pool_vectors(task: RetrievalTask, embeddings: np.ndarray) -> np.ndarray:
    """Unit vectors of the pool of a task, float32 `(pool, hidden)`, from its pairs' embeddings `(pairs, 2, hidden)`."""
    pool = np.empty((len(task.pool), embeddings.shape[-1]), np.float32)
    pool[task.places.ravel()] = embeddings.reshape(-1, embeddings.shape[-1])
    return unit(pool)


def selection(
    args: PairTrainingArguments, sets: Mapping[str, EvaluationSet]
) -> EvaluationSet | dict[str, EvaluationSet] | None:
    """Evaluation sets that select the best epoch: one, or a dict compared by its mean metric.

    Sets `args` to keep the last epoch if none of the sets can select.
    """
    metric = args.metric_for_best_model
    if metric in METRICS and all(pairs.task is None for pairs in sets.values()):
        raise InputError(
            f"--metric_for_best_model {metric} needs queries, and validation has none ({', '.join(sets)}): "
            "they come from bi-encoders, --retrieval true and similar pairs. Use spearman, or other --eval_corpora."
        )
    usable = {name: pairs for name, pairs in sets.items() if metric in METRICS or can_rank(pairs.labels)}
    idle = [name for name in sets if name not in usable]
    if args.eval_strategy != "no" and (idle or not usable):
        consequence = "it selects nothing."
        if not usable:
            consequence = "the last epoch is kept, best or not. Similar pairs alone can select a bi-encoder by "
            consequence += "--metric_for_best_model recall_at_10."
        where = ", ".join(idle) or "This training"
        logger.warning("%s has no validation split with two different labels: %s", where, consequence)
    if not usable:
        args.eval_strategy, args.load_best_model_at_end, args.metric_for_best_model = "no", False, None
    return next(iter(usable.values()), None) if len(usable) < 2 else usable
