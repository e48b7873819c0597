"""Verdicts on the claims of the sources: lab/results/claims.json and lab/claims.csv, from lab/claims/claims.yaml.

python -m lab.claims        then python -m lab.tables writes lab/claims.md

A claim says that a difference of two rows is positive (`above`) or smaller than a point (`equal`). Its p-value is that
of Student's t over test rows and seeds. A family with a name is judged by Holm's procedure (any wrong verdict has a
probability below 5%), the others by Benjamini and Hochberg's (an expected 5% of the verdicts are wrong). Fewer than
three seeds decide nothing, and what one seed or one model shows is tallied apart. A share of a score has a second
verdict, as `gain`, on the same share of what training gains.

Sources: Holm 1979, A Simple Sequentially Rejective Multiple Test Procedure; Benjamini and Hochberg 1995, Controlling
the False Discovery Rate.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from scipy.stats import binomtest, false_discovery_control

from cosent.atomic import write_atomically
from cosent.errors import InputError, messages_for_users
from cosent.evaluation.significance import LEVEL, Difference
from lab import RESULTS
from lab.claims.facts import FACTS
from lab.claims.measures import QUANTITIES, Claim, mean_of, of_fusion, of_result, of_studies, study_of, two_sided
from lab.claims.table import write_csv
from lab.tables.figures import QUERY, figure

CLAIMS = Path(__file__).with_name("claims.yaml")
PRIMARY_LEVEL = 0.04  # of Holm, chosen after a simulation: 1.7% wrong verdicts, 5.5% with heavy tails
COMPARED = {"compared", "corpus", "expected"}
# Of the keys of a claim, those that say how it was measured, or why not.
KINDS = (
    *({"study", *COMPARED}, {"fusion", *COMPARED}, {"result", "one_model", *COMPARED}, {"result", *COMPARED}),
    *({"mean_of", "beyond", *COMPARED}, {"fact"}, {"needs"}),
)
OPTIONAL = {
    *("theme", "claim", "source", "family", "quantity", "share", "times", "beyond", "published_corpus"),
    *("figure", "differs", "note", "under"),
}
AGREES, DISAGREES, WITHIN, OPEN = "agrees", "disagrees", "within a point", "unresolved at this size"
TEXTS = {"note", "needs"}  # with figures as queries, see lab.tables.figures
SEEDS = 3
SIGN_SEEDS = 10  # with fewer, all seeds on one side decide nothing in a family
POINT = 1.0  # of Spearman x100, below which a difference counts as none


def read_claims(file: Path = CLAIMS) -> list[Claim]:
    """Reads the claims, each with its theme.

    Raises:
        InputError: an entry that is neither measured in one way nor says why it is not.
    """
    themes = yaml.safe_load(file.read_text(encoding="utf-8"))
    claims = [{"theme": theme} | claim for theme, listed in themes.items() for claim in listed]
    names = {claim["claim"] for claim in claims}
    for claim in claims:
        kind = claim.keys() - OPTIONAL
        known = claim.get("expected", "equal") in ("above", "equal") and set(claim.get("mean_of", ())) <= names
        known = known and claim.get("under") in {None, *(each["claim"] for each in claims if "under" not in each)}
        known = known and claim.get("quantity", "spearman") in QUANTITIES and claim.get("fact", "colours") in FACTS
        if not known or not any(kind == each - OPTIONAL for each in KINDS) or not {"claim", "source"} <= claim.keys():
            raise InputError(f"{file}: {claim} is not complete, or names something unknown. See the top of the file.")
    return claims


def claims_of(claims: list[Claim], results: Path) -> list[Claim]:
    """Claims with difference, interval, setting and verdict."""
    rows = []
    for claim in claims:
        row = claim | {key: QUERY.sub(lambda query: figure(query[1]), claim[key]) for key in TEXTS & claim.keys()}
        if "fact" in claim:
            row["ours"], row["verdict"] = FACTS[claim["fact"]]()
        elif "result" in claim:
            row |= of_result(claim, results / f"{claim['result']}.json")
        elif "fusion" in claim:
            study = study_of(claim["fusion"])
            assert study is not None
            row |= of_fusion(claim, study) | {"one_model": "over test rows alone"}
        elif "study" in claim:
            names = claim["study"] if isinstance(claim["study"], list) else [claim["study"]] * 2
            first, second = map(study_of, names)
            found = of_studies(claim, (first, second)) if first and second else None
            row |= found or {"needs": f"runs of {' and '.join(dict.fromkeys(names))}"}
        rows.append(row)
    by_name = {row["claim"]: row for row in rows}
    for row in rows:
        if "mean_of" in row:
            row |= mean_of([by_name[name] for name in row["mean_of"]], row["beyond"])
    add_verdicts(rows)
    return rows


def add_verdicts(rows: list[Claim]) -> None:
    """Adds a verdict to every measured row."""
    rows = [*rows, *(row["gain"] for row in rows if "gain" in row)]
    measured = [row for row in rows if "mean" in row and "verdict" not in row]
    tested = [row for row in measured if row["seeds"] >= SEEDS and "error" in row and "one_model" not in row]
    for name in dict.fromkeys([None, *(row.get("family") for row in tested)]):
        family = [row for row in tested if row.get("family") == name]
        for row in family:
            row["p"] = p_value(row)
        procedure, level = holm if name else benjamini_hochberg, PRIMARY_LEVEL if name == "primary" else LEVEL
        for row, decided in zip(family, procedure([row["p"] for row in family], level), strict=True):
            row["verdict"] = verdict(row, decided, level / len(family))
    for row in measured:
        if "one_model" in row:
            clear, small = row["low"] > 0 or row["high"] < 0, row["low"] > -POINT and row["high"] < POINT
            row["verdict"] = WITHIN if small else (AGREES if row["mean"] > 0 else DISAGREES) if clear else OPEN
        row.setdefault("verdict", OPEN)


def holm(values: Sequence[float], level: float) -> list[bool]:
    """Which hypotheses are rejected with a probability below `level` that any of them is true."""
    rejected = [False] * len(values)
    for done, place in enumerate(np.argsort(values, kind="stable")):
        if values[place] > level / (len(values) - done):
            break
        rejected[place] = True
    return rejected


def benjamini_hochberg(values: Sequence[float], level: float) -> list[bool]:
    """Which hypotheses are rejected with an expected share of true ones below `level`."""
    return (false_discovery_control(values) <= level).tolist() if len(values) else []


def p_within(found: Difference, margin: float) -> float:
    """Probability of a difference as small as this one, if the true one is `margin` or more (two one-sided)."""
    return 1.0 if abs(found.mean) >= margin else max(two_sided(found, margin), two_sided(found, -margin)) / 2


def difference_of(row: Claim) -> Difference:
    return Difference(row["mean"], row["error"], row["freedom"])


def p_value(row: Claim) -> float:
    """Two-sided p-value of no difference, or of a difference of a point where less is claimed or more measured.

    With ten seeds, twice the smaller of those of Student's t and of the sign test, which one seed that collapses cannot
    make uncertain.
    """
    found = difference_of(row)
    if row["expected"] == "equal" and abs(found.mean) < POINT:
        return p_within(found, POINT)
    if row.get("divided"):
        return 1.0
    bounds = (0.0,) if row["expected"] == "above" else (-POINT, POINT)
    p = max(two_sided(found, bound) for bound in bounds)
    if len(row.get("gaps", ())) < SIGN_SEEDS:
        return p
    row["p_of_sign"] = max(p_of_sign(row["gaps"], bound) for bound in bounds)
    return min(1.0, 2 * p, 2 * row["p_of_sign"])


def p_of_sign(gaps: Sequence[float], bound: float) -> float:
    """Two-sided p-value of as many seeds on one side of the bound, if both sides were as likely."""
    return float(binomtest(sum(gap > bound for gap in gaps), len(gaps)).pvalue)


def verdict(row: Claim, decided: bool, level: float) -> str:
    """The verdict in words; an undecided difference may still be shown to be small, at the `level` of a single test."""
    found = difference_of(row)
    points = row.get("quantity") != "epochs_to_90" and not row.keys() & {"share", "times", "beyond"}
    if points and row["expected"] == "above" and p_within(found, POINT) <= level:
        return WITHIN
    if decided:
        claimed = found.mean > 0 if row["expected"] == "above" else abs(found.mean) < POINT
        return AGREES if claimed else DISAGREES
    return OPEN


def main() -> None:
    rows = claims_of(read_claims(), RESULTS)
    text = json.dumps({"kind": "claims", "rows": rows}, ensure_ascii=False, indent=1)
    write_atomically(RESULTS / "claims.json", text + "\n")
    write_csv(rows, RESULTS.parent / "claims.csv")


if __name__ == "__main__":
    with messages_for_users():
        main()
