"""Verdicts on the claims of the sources: results/claims.json from recipes/studies/claims.yaml and results of studies.

python -m benchmarks.claims        then python -m benchmarks.tables writes docs/claims.md

A claim is a statement about the difference of two rows of a study, or of one and a share of the other: it is positive
(`above`), or smaller than a point (`equal`). The interval of a test metric is that of the reports, a paired bootstrap
over test rows and seeds; what has no test rows (the first epoch, epochs to 90%, students) has one of Student's t over
seeds. With the standard error of the interval, the p-value is twice the smaller probability of the claim and of its
opposite; Holm's procedure keeps the chance of any wrong verdict among the tested claims below 5%. Fewer than three
seeds decide nothing.
"""

import json
import math
from pathlib import Path
from typing import Any

import yaml

from benchmarks.claim_measures import QUANTITIES, mean_of, of_result, of_study
from benchmarks.claims_table import FAILS, HOLDS, OPEN
from cosent.errors import InputError, messages_for_users, write_atomically
from cosent.results import read_results

ROOT = Path(__file__).parents[1]
CLAIMS = ROOT / "recipes/studies/claims.yaml"
COMPARED = {"claim", "source", "compared", "corpus", "expected"}
SOURCES = ({"study"}, {"result"}, {"mean_of", "beyond"})  # of its difference, one of which a claim names
KEYS = (*(COMPARED | keys for keys in SOURCES), {"claim", "source", "unmeasured"})
LEVEL, SEEDS = 0.05, 3
POINT = 1.0  # of Spearman x100, below which a difference counts as none


def read_claims(file: Path = CLAIMS) -> list[dict[str, Any]]:
    """Reads the claims.

    Raises:
        InputError: an entry that is neither a difference of two rows nor says why it is not measured.
    """
    claims = yaml.safe_load(file.read_text(encoding="utf-8"))
    names = {claim["claim"] for claim in claims}
    for claim in claims:
        unknown = set(claim.get("mean_of", ())) - names
        if unknown:
            raise InputError(
                f"{file}: {claim['claim']} is a mean of {sorted(unknown)}, which is no claim. Correct the name."
            )
        known = claim.get("expected", "equal") in ("above", "equal")
        known = known and claim.get("quantity", "spearman") in QUANTITIES
        if claim.keys() - {"note", "quantity", "share", "published_corpus"} not in KEYS or not known:
            raise InputError(
                f"{file}: {claim} has neither {', '.join(sorted(COMPARED))} (above or equal) with a study, a result or "
                f"mean_of, and a quantity of {', '.join(QUANTITIES)}, nor `unmeasured`. Its row of the table would say "
                "nothing. Complete it."
            )
    return claims


def p_value(expected: str, found: dict[str, Any]) -> tuple[float, bool]:
    """Twice the smaller probability of a claim and its opposite, and whether the claim is the more probable one."""
    from scipy.stats import norm, t

    shape = t(found["freedom"]) if "freedom" in found else norm()
    spread = max((found["high"] - found["low"]) / (2 * shape.ppf(0.975)), math.ulp(1.0))

    def below(value: float) -> float:
        return float(shape.cdf((value - found["mean"]) / spread))

    claimed = 1 - below(0) if expected == "above" else below(POINT) - below(-POINT)
    return 2 * min(claimed, 1 - claimed), claimed > 0.5


def holm(values: list[float], level: float = LEVEL) -> list[bool]:
    """Which hypotheses Holm's procedure rejects at a level for all of them together.

    Source: Holm 1979, A Simple Sequentially Rejective Multiple Test Procedure.
    """
    rejected = [False] * len(values)
    for done, place in enumerate(sorted(range(len(values)), key=lambda place: values[place])):
        if values[place] > level / (len(values) - done):
            break
        rejected[place] = True
    return rejected


def judge(rows: list[dict[str, Any]]) -> None:
    """Adds a verdict to every row; only differences of enough seeds are tested."""
    tested = [row for row in rows if row.get("seeds", 0) >= SEEDS]
    found = [p_value(row["expected"], row) for row in tested]
    for row, (p, likely), decided in zip(tested, found, holm([p for p, _ in found]), strict=True):
        row["p"] = p
        row["verdict"] = (HOLDS if likely else FAILS) if decided else OPEN
    for row in rows:
        few = f"{OPEN}: {row.get('seeds')} of {SEEDS} seeds"
        row.setdefault("verdict", f"not measured: {row['unmeasured']}" if "unmeasured" in row else few)


def claims_of(claims: list[dict[str, Any]], results: Path) -> list[dict[str, Any]]:
    """Claims with difference, interval, setting and verdict."""
    rows = []
    names = {claim["study"] for claim in claims if "study" in claim}
    studies = {name: read_results(results / name) for name in names if (results / name).is_dir()}
    for claim in claims:
        row = dict(claim)
        if "result" in claim:
            row |= of_result(claim, results / f"{claim['result']}.json")
        elif "study" in claim:
            study = studies.get(claim["study"])
            lacking = "has no result for one of the two" if study else "has not been run"
            row |= (study and of_study(claim, study)) or {"unmeasured": f"study {claim['study']} {lacking}"}
        rows.append(row)
    by_name = {row["claim"]: row for row in rows}
    for row in rows:
        if "mean_of" in row:
            row |= mean_of([by_name[name] for name in row["mean_of"]], row["beyond"])
    judge(rows)
    return rows


def main() -> None:
    rows = claims_of(read_claims(), ROOT / "results")
    text = json.dumps({"kind": "claims", "rows": rows}, ensure_ascii=False, indent=1)
    write_atomically(ROOT / "results/claims.json", text + "\n")


if __name__ == "__main__":
    with messages_for_users():
        main()
