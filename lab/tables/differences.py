"""Differences of two rows of studies with 95% intervals, kept in lab/results/differences.json.

Resampling takes two minutes. An entry holds while the results of its studies are the same; `python -m lab.tables`
writes what it had to measure.
"""

import hashlib
import json
from collections.abc import Callable
from functools import cache
from typing import Any

from cosent.atomic import write_atomically
from lab import RESULTS
from lab.claims.measures import of_fusion, of_studies, study_of

FILE = RESULTS / "differences.json"
KEPT = ("mean", "low", "high", "gaps")
USED: set[str] = set()  # entries that a page has asked for

Rows = tuple[str, str]


def difference(names: str, rows: Rows, corpus: str, metric: str = "spearman") -> dict[str, Any]:
    """The first row less the second on their common seeds: `mean`, `low`, `high`, and `gaps` by seed.

    Args:
        names: the study, or `STUDY + STUDY` of the two rows.
    """
    claim = {"claim": "", "source": "", "compared": rows, "corpus": corpus, "quantity": metric}
    first, *other = [study for name in names.split(" + ") if (study := study_of(name))]
    return kept(names, [*rows, corpus, metric], lambda: of_studies(claim, (first, other[0] if other else first)))


def fusion(name: str, rows: Rows, corpus: str) -> dict[str, Any]:
    """What fusing two rows gains over fusing two seeds of either."""
    claim = {"claim": "", "source": "", "compared": rows, "corpus": corpus}
    study = study_of(name)
    assert study is not None
    return kept(name, [*rows, corpus, "fused"], lambda: of_fusion(claim, study))


def kept(names: str, words: list[str], measure: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    """The stored entry if its studies are unchanged, else the measured one."""
    key = "|".join([names, *words])
    digest = " ".join(digest_of(name) for name in names.split(" + "))
    if stored().get(key, {}).get("of") != digest:
        found = measure() or {}
        stored()[key] = {name: found[name] for name in KEPT if name in found} | {"of": digest}
    USED.add(key)
    return stored()[key]


@cache
def stored() -> dict[str, dict[str, Any]]:
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}


@cache
def digest_of(name: str) -> str:
    """Hash of the results of a study, whose lines have the hashes of its arrays."""
    return hashlib.sha256((RESULTS / name / "study.jsonl").read_bytes()).hexdigest()[:12]


def save(everything: bool) -> None:
    """Writes the entries; after a pass over all pages, those that a page has asked for."""
    entries = {key: value for key, value in sorted(stored().items()) if key in USED or not everything}
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items())
    if not FILE.is_file() or json.loads(FILE.read_text(encoding="utf-8")) != entries:
        write_atomically(FILE, "{\n" + lines + "\n}\n")
