"""Format of prepared corpora, shared by `data_scripts` and training: columns and the manifest.

A prepared corpus is a folder with up to one `<split>.parquet` per split and a `MANIFEST.json`. Labels are always
numbers that rise with similarity, so that every loss that only needs their order can use them unchanged.
"""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from cosent.data.labels import Labels
from cosent.errors import InputError, reading
from cosent.flags import nearest, option

COLUMNS = ("sentence1", "sentence2", "label")  # string, string, float32
SPLITS = ("train", "validation", "test")
MANIFEST_NAME = "MANIFEST.json"


@dataclass
class Manifest(Labels):
    """Manifest of a prepared corpus: the meaning of its labels, and

    Args:
        max_length: tokens, by tower (`bi_encoder`: per sentence, `cross_encoder`: per pair), special tokens counted.
        splits: by split name: `rows`, `sha256` of the Parquet file, `label_histogram`, `source_files` (name, SHA-256,
            rows read), `published_rows` (or None), `left_out` (reason -> rows), `repeated_rows`, `contradictory_pairs`,
            `bad_rows` (file, line, text, reason); of made pairs `mined` or `made`: how `mine` or `probe` made them.
        absent_splits: splits that the source does not have.
        warnings: caveats for users of the figures, e.g. a partial corpus.
        source: origin of the rows, in words.
        terms: what the publisher allows; empty for pairs of one's own.
    """

    max_length: dict[str, int]
    splits: dict[str, dict]
    absent_splits: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    source: str = ""
    terms: str = ""

    def save(self, folder: str | Path) -> None:
        text = json.dumps(asdict(self), ensure_ascii=False, indent=2)
        Path(folder, MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> "Manifest":
        """Reads the manifest of a prepared folder."""
        path = Path(folder, MANIFEST_NAME)
        if not path.is_file():
            raise InputError(f"{folder} has no {MANIFEST_NAME}. Run `cosent prepare NAME --source {folder}` first.")
        with reading(path, advice="Copy it again, or prepare the corpus again."):
            raw = json.loads(path.read_text(encoding="utf-8"))
            manifest = cls(**{item.name: raw[item.name] for item in fields(cls) if item.name in raw})
            if not all({"rows", "sha256"} <= facts.keys() for facts in manifest.splits.values()):
                raise KeyError("rows or sha256")
            return manifest


@dataclass(kw_only=True)
class DataFolder:
    """Prepared corpora."""

    data_dir: str = option("data", "Folder of the prepared corpora.")


def corpus_folder(name_or_folder: str, data_dir: str | Path) -> Path | None:
    """Folder of a prepared corpus, by name under `data_dir` or as a folder; None if there is none."""
    places = (Path(data_dir, name_or_folder), Path(name_or_folder))
    return next((place for place in places if (place / MANIFEST_NAME).is_file()), None)


def existing_corpus(name_or_folder: str, data_dir: str | Path) -> Path:
    """As `corpus_folder`; where there is none, an error with the nearest name."""
    folder = corpus_folder(name_or_folder, data_dir)
    if folder is None:
        names = [manifest.parent.name for manifest in Path(data_dir).glob(f"*/{MANIFEST_NAME}")]
        raise InputError(
            f"There is no prepared corpus {name_or_folder!r}, neither under {data_dir}/ nor as a folder."
            f"{nearest(name_or_folder, names)} Run `cosent prepare {Path(name_or_folder).stem} --source FILES` first "
            "(demo needs no --source)."
        )
    return folder
