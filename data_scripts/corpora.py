"""Table of the known corpora: label kind, files of each split, published sizes.

Everything that depends on the corpus is stored only here, and reaches training in the manifest of the prepared folder.
"""

from dataclasses import dataclass, field

from cosent.data.labels import LABEL_KINDS, Labels
from cosent.errors import InputError
from cosent.flags import nearest

RESEARCH, UNSTATED = "research use only", "nothing stated"  # terms
OWN_LABEL_KINDS = (*LABEL_KINDS, "scores")  # scores of a model: graded labels with the range of the rows


@dataclass
class Corpus(Labels):
    """One row of the table: the meaning of its labels, and

    Args:
        folders: names of the folder that holds the files, looked for at and directly below `--source`.
        files: by split, file patterns, best first; one may match several files. Those in .data and .txt have lines of
            sentence1 TAB sentence2 TAB label, all others names of columns.
        parts: by split, the (corpus, split) couples that it joins; in place of `folders` and `files`.
        published_rows: by split, the number of rows stated by the publisher (or by the paper that made the split).
        max_length: tokens with special tokens, per sentence and per pair.
        hub_repository, hub_revision: pinned dataset on the Hugging Face Hub with columns sentence1, sentence2, score.
        notes: remarks for readers of the manifest, stored as its warnings.
        terms: what its publisher allows, as in `cosent.data.corpus.Manifest`; `nothing stated` if that is not said.
    """

    label_min: float = 0.0
    label_max: float = 1.0
    folders: tuple[str, ...] = ()
    files: dict[str, tuple[str, ...]] = field(default_factory=dict)
    parts: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    published_rows: dict[str, int] = field(default_factory=dict)
    max_length: tuple[int, int] = (64, 128)
    hub_repository: str = ""
    hub_revision: str = ""
    notes: tuple[str, ...] = ()
    terms: str = ""


def _senteval_cn(folder: str, rows: tuple[int, int, int], hub: str, *others: str, **differences) -> Corpus:
    """A corpus of the senteval_cn collection; `others` are further names of its folder."""
    name = folder.replace("-", "").lower()
    files = {"train": "train", "validation": "valid", "test": "test"}
    repository, revision = hub.split("@")
    return Corpus(
        **{
            "name": name,
            "label_kind": "binary",
            "folders": (folder, name, *others),
            "files": {split: (f"{folder}.{word}.data",) for split, word in files.items()},
            "published_rows": dict(zip(files, rows, strict=True)),
            "hub_repository": repository,
            "hub_revision": revision,
            "terms": UNSTATED,
        }
        | differences
    )


def _nli(name: str, folders: tuple[str, ...], train: str, validation: str, test: str = "", **differences) -> Corpus:
    """An NLI corpus, whose publisher's files have the given patterns, best first."""
    patterns = {"train": ("train.txt", train), "validation": ("dev.txt", validation), "test": ("test.txt", test)}
    files = {split: (text, *published.split()) for split, (text, published) in patterns.items()}
    return Corpus(name, "nli", label_max=2.0, folders=folders, files=files, **{"terms": UNSTATED} | differences)


# Row counts: kexue.fm 8847 and the corpora's own splits; OCNLI: its dataset card. Revisions: mteb 2.20, cmtebsts.py.
# CNSD states its sizes only in thousands, so SNLI-zh and CMNLI have no published count here. The test files of CMNLI
# and OCNLI were published without labels.
_TABLE = (
    _senteval_cn("ATEC", (62_477, 20_000, 20_000), "C-MTEB/ATEC@0f319b1142f28d00e055a6770f3f726ae9b7d865"),
    _senteval_cn("BQ", (100_000, 10_000, 10_000), "C-MTEB/BQ@e3dda5e115e487b39ec7e618c0c6a29137052a55", terms=RESEARCH),
    _senteval_cn(
        "LCQMC",
        (238_766, 8_802, 12_500),
        "C-MTEB/LCQMC@17f9b096f80380fce5ed12a9be8be7784b337daf",
        terms=RESEARCH,
    ),
    _senteval_cn(
        "PAWSX",
        (49_401, 2_000, 2_000),
        "mteb/PAWSX@bd129d4230ee0551b5469c566bced8da75abae0a",
        "zh",
        "x-final/zh",
        files={
            "train": ("PAWSX.train.data", "translated_train.tsv"),
            "validation": ("PAWSX.valid.data", "dev_2k.tsv"),
            "test": ("PAWSX.test.data", "test_2k.tsv"),
        },
        max_length=(128, 256),
    ),
    _senteval_cn(
        "STS-B",
        (5_231, 1_458, 1_361),
        "mteb/STSB@e036defee8f190911de6fc825a944b928c8cda53",
        label_kind="graded",
        label_max=5.0,
    ),
    _nli(
        "snli_zh",
        ("snli_zh", "cnsd-snli", "cnsd_snli", "SNLI"),
        *(f"cnsd_snli_v1.0.{word}.jsonl" for word in ("train", "dev", "test")),
    ),
    _nli(
        "cmnli",
        ("cmnli", "cnsd-mnli", "cnsd_mnli", "CMNLI"),
        "cnsd_multil_train.jsonl train.json",
        "cnsd_multil_dev_*.jsonl dev.json",
    ),
    _nli(
        "ocnli",
        ("ocnli", "OCNLI"),
        "train.50k.json train.json train.30k.json train.10k.json train.3k.json",
        "dev.json",
        terms="CC BY-NC 2.0",
        published_rows={"train": 50_437, "validation": 2_950},
    ),
    Corpus(
        name="nli",
        label_kind="nli",
        label_max=2.0,
        parts={
            "train": (
                *((name, "train") for name in ("snli_zh", "cmnli", "ocnli")),
                *(("snli_zh", "validation"), ("snli_zh", "test"), ("cmnli", "validation")),
            ),
            "validation": (("ocnli", "validation"),),
        },
        notes=(
            "A split of this project, not a published one: SNLI-zh dev and test and CMNLI dev are training data here, "
            "and OCNLI dev is the validation split.",
        ),
        terms="CC BY-NC 2.0",  # of OCNLI; the others state nothing
    ),
    Corpus("demo", "graded", label_max=4.0, terms="Apache-2.0"),
)
CORPORA = {corpus.name: corpus for corpus in _TABLE}


def unknown_name(name: str) -> InputError:
    return InputError(
        f"{name!r} is not in the table of corpora ({', '.join(CORPORA)}).{nearest(name, CORPORA)} For pairs of your "
        f"own with that name, state their labels: --label_kind {'|'.join(OWN_LABEL_KINDS)} (rows of query, pos and neg "
        "need no flag)."
    )
