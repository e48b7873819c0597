"""Table of the known corpora: label kind, files of each split, published sizes.

Everything that depends on the corpus is stored only here, and reaches training in the manifest of the prepared folder.
"""

import difflib
from dataclasses import dataclass, field

from cosent.data.manifest import LABEL_KINDS
from cosent.errors import InputError
from data_scripts.readers import COLUMN_NAMES, Layout

OWN_LABEL_KINDS = (*LABEL_KINDS, "scores")  # scores of a model: graded labels, whose range is that of the rows
TEXT = Layout("tsv")
NAMED_TSV = Layout("tsv", header=True, columns=COLUMN_NAMES, width=None)
JSON_LINES = Layout("jsonl", columns=COLUMN_NAMES, width=None)

Files = tuple[tuple[str, Layout], ...]  # alternatives, best first; one pattern may match several


@dataclass(frozen=True)
class Corpus:
    """One row of the table.

    Args:
        label_kind, label_min, label_max: as in `cosent.data.manifest.Manifest`.
        folders: names of the folder that holds the files, looked for at and directly below `--source`.
        files: by split, file patterns in order of preference.
        parts: by split, the (corpus, split) couples that it joins; in place of `folders` and `files`.
        published_rows: by split, the number of rows stated by the publisher (or by the paper that made the split).
        bi_encoder_length, cross_encoder_length: tokens with special tokens, per sentence and per pair.
        hub_repository, hub_revision: pinned dataset on the Hugging Face Hub with columns sentence1, sentence2, score.
        generated: written by the grammar of `data_scripts.demo`, without --source.
        notes: remarks for readers of the manifest, stored as its warnings.
    """

    name: str
    label_kind: str
    label_min: float = 0.0
    label_max: float = 1.0
    folders: tuple[str, ...] = ()
    files: dict[str, Files] = field(default_factory=dict)
    parts: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    published_rows: dict[str, int] = field(default_factory=dict)
    bi_encoder_length: int = 64
    cross_encoder_length: int = 128
    hub_repository: str = ""
    hub_revision: str = ""
    generated: bool = False
    notes: tuple[str, ...] = ()


def _rows(train: int, validation: int, test: int) -> dict[str, int]:
    return {"train": train, "validation": validation, "test": test}


def _senteval_cn(name: str) -> dict[str, Files]:
    return {
        "train": ((f"{name}.train.data", TEXT),),
        "validation": ((f"{name}.valid.data", TEXT),),
        "test": ((f"{name}.test.data", TEXT),),
    }


def _nli(published: dict[str, str]) -> dict[str, Files]:
    text = {"train": "train.txt", "validation": "dev.txt", "test": "test.txt"}
    return {
        split: ((name, TEXT), *((pattern, JSON_LINES) for pattern in published[split].split()))
        for split, name in text.items()
    }


PAWSX_FILES = {
    split: (*files, (publisher, NAMED_TSV))
    for (split, files), publisher in zip(
        _senteval_cn("PAWSX").items(), ("translated_train.tsv", "dev_2k.tsv", "test_2k.tsv"), strict=True
    )
}

# Row counts: kexue.fm 8847 and the corpora's own splits; OCNLI: its dataset card. Revisions: mteb 2.20, cmtebsts.py.
# CNSD states its sizes only in thousands, so SNLI-zh and CMNLI have no published count here.
CORPORA = {
    corpus.name: corpus
    for corpus in (
        Corpus(
            name="atec",
            label_kind="binary",
            folders=("ATEC", "atec"),
            files=_senteval_cn("ATEC"),
            published_rows=_rows(62_477, 20_000, 20_000),
            hub_repository="C-MTEB/ATEC",
            hub_revision="0f319b1142f28d00e055a6770f3f726ae9b7d865",
        ),
        Corpus(
            name="bq",
            label_kind="binary",
            folders=("BQ", "bq"),
            files=_senteval_cn("BQ"),
            published_rows=_rows(100_000, 10_000, 10_000),
            hub_repository="C-MTEB/BQ",
            hub_revision="e3dda5e115e487b39ec7e618c0c6a29137052a55",
        ),
        Corpus(
            name="lcqmc",
            label_kind="binary",
            folders=("LCQMC", "lcqmc"),
            files=_senteval_cn("LCQMC"),
            published_rows=_rows(238_766, 8_802, 12_500),
            hub_repository="C-MTEB/LCQMC",
            hub_revision="17f9b096f80380fce5ed12a9be8be7784b337daf",
        ),
        Corpus(
            name="pawsx",
            label_kind="binary",
            folders=("PAWSX", "pawsx", "zh", "x-final/zh"),
            files=PAWSX_FILES,
            published_rows=_rows(49_401, 2_000, 2_000),
            bi_encoder_length=128,
            cross_encoder_length=256,
            hub_repository="mteb/PAWSX",
            hub_revision="bd129d4230ee0551b5469c566bced8da75abae0a",
        ),
        Corpus(
            name="stsb",
            label_kind="graded",
            label_max=5.0,
            folders=("STS-B", "stsb"),
            files=_senteval_cn("STS-B"),
            published_rows=_rows(5_231, 1_458, 1_361),
            hub_repository="mteb/STSB",
            hub_revision="e036defee8f190911de6fc825a944b928c8cda53",
        ),
        Corpus(
            name="snli_zh",
            label_kind="nli",
            label_max=2.0,
            folders=("snli_zh", "cnsd-snli", "cnsd_snli", "SNLI"),
            files=_nli(
                {
                    "train": "cnsd_snli_v1.0.train.jsonl",
                    "validation": "cnsd_snli_v1.0.dev.jsonl",
                    "test": "cnsd_snli_v1.0.test.jsonl",
                }
            ),
        ),
        Corpus(
            name="cmnli",
            label_kind="nli",
            label_max=2.0,
            folders=("cmnli", "cnsd-mnli", "cnsd_mnli", "CMNLI"),
            files=_nli(
                {
                    "train": "cnsd_multil_train.jsonl train.json",
                    "validation": "cnsd_multil_dev_*.jsonl dev.json",
                    "test": "",  # CLUE's test.json carries no labels
                }
            ),
        ),
        Corpus(
            name="ocnli",
            label_kind="nli",
            label_max=2.0,
            folders=("ocnli", "OCNLI"),
            files=_nli(
                {
                    "train": "train.50k.json train.json train.30k.json train.10k.json train.3k.json",
                    "validation": "dev.json",
                    "test": "",  # published without labels
                }
            ),
            published_rows={"train": 50_437, "validation": 2_950},
        ),
        Corpus(
            name="nli",
            label_kind="nli",
            label_max=2.0,
            parts={
                "train": (
                    ("snli_zh", "train"),
                    ("cmnli", "train"),
                    ("ocnli", "train"),
                    ("snli_zh", "validation"),
                    ("snli_zh", "test"),
                    ("cmnli", "validation"),
                ),
                "validation": (("ocnli", "validation"),),
            },
            notes=(
                "A split of this project, not a published one: SNLI-zh dev and test and CMNLI dev are training data "
                "here, and OCNLI dev is the validation split.",
            ),
        ),
        Corpus(name="demo", label_kind="graded", label_max=4.0, generated=True),
        Corpus(name="demo_binary", label_kind="binary", generated=True),
    )
}


def unknown_name(name: str) -> InputError:
    near = difflib.get_close_matches(name, CORPORA, n=3, cutoff=0.5)
    return InputError(
        f"{name!r} is not in the table of corpora ({', '.join(CORPORA)})"
        + (f"; nearest: {', '.join(near)}" if near else "")
        + ". For pairs of your own with that name, state their labels: --label_kind "
        f"{'|'.join(OWN_LABEL_KINDS)} (rows of query, pos and neg need no flag)."
    )
