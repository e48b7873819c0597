"""A file of labelled pairs as a corpus with one split, so that everything an evaluation does works on it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import datasets

from cosent.data.corpus import Corpus
from cosent.errors import InputError
from cosent.run import read_record
from cosent.schema import Manifest
from cosent.tables.formats import AS_USUAL, LABEL_NAMES, SENTENCE1_NAMES, SENTENCE2_NAMES, FileOptions
from cosent.tables.labels import LabelColumn
from cosent.tables.reading import open_table

SPLIT = "test"
FEATURES = datasets.Features(
    sentence1=datasets.Value("string"), sentence2=datasets.Value("string"), label=datasets.Value("float32")
)


def read_labelled(
    path: str,
    text_columns: list[str] | None,
    label_column: str | None,
    name: str,
    options: FileOptions = AS_USUAL,
    values: Mapping[str, str] | None = None,
) -> Corpus:
    """Reads all pairs of a file: labels of 0 and 1 are binary, other numbers graded.

    Args:
        text_columns, label_column: their names, or positions from 0 in a file without a header; default: the usual
            names, or the only three columns.
        name: of the corpus.
        values: what labels stand for; see `value_of`.

    Raises:
        InputError: a file, a column or a row that cannot be read.
    """
    wanted = None
    if text_columns is not None or label_column is not None:
        wanted = [*(text_columns or ("sentence1", "sentence2")), label_column or "label"]
        if len(wanted) != 3:
            raise InputError(f"--text_columns takes two column names, got {' '.join(wanted[:-1])}. Name two.")
    known = (SENTENCE1_NAMES, SENTENCE2_NAMES, LABEL_NAMES)
    table = open_table(path, wanted, known, "--text_columns and --label_column", "--pairs", options)
    *sentences, label = table.sentences
    labels = LabelColumn(table.path, label, values)
    table, columns = replace(table, sentences=tuple(sentences)), {name: [] for name in FEATURES}
    for number, row in enumerate(table.rows([*sentences, label]), start=1):
        values = (row[sentences[0]], row[sentences[1]], labels.read(row, number))
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    binary = set(columns["label"]) <= {0.0, 1.0}
    low, high = (0.0, 1.0) if binary else (min(columns["label"]), max(columns["label"]))
    manifest = Manifest(name, "binary" if binary else "graded", low, high, {}, {SPLIT: {"rows": len(columns["label"])}})
    return Corpus(Path(path), manifest, {SPLIT: datasets.Dataset.from_dict(columns, features=FEATURES)})


def rule_name(model: str, path: str, corpus: str | None) -> str:
    """The corpus whose threshold and probabilities count: `corpus`, or the only one that the model has them for."""
    record = read_record(model)
    known = list(record.thresholds) if record is not None else []
    return corpus or (known[0] if len(known) == 1 else Path(path).stem)
