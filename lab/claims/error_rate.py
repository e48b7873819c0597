"""False positive rate of the verdicts on claims: results/error_rate.json, shown on claims.md.

python -m lab.claims.error_rate        after python -m lab.claims

For every claim, the differences of its seeds and the estimates of their variances are drawn anew from the variance
components that were measured: normal effects of rows, seeds and both, around 0 for claims that a difference is positive
and around a point for those that it is smaller; estimates over rows vary as chi-squared over the independent groups.
Claims are drawn independently. Claims of the primary family without variances over rows have the components of other
claims about CoSENT. With `residuals` the effects of seeds are drawn from their own differences from the mean, which
have heavier tails: one seed of some methods collapses.
"""

import json
from typing import Any

import numpy as np

from cosent.atomic import write_atomically
from cosent.errors import messages_for_users
from cosent.evaluation.significance import Components, Difference
from lab import RESULTS
from lab.claims.__main__ import AGREES, DISAGREES, POINT, add_verdicts

FILE = RESULTS / "error_rate.json"
REPETITIONS = 2000
SEEDS = (3, 10)
FAMILY = 16  # claims of the primary family


def main() -> None:
    rows = json.loads((RESULTS / "claims.json").read_text(encoding="utf-8"))["rows"]
    tested = [row for row in rows if row.get("seeds", 0) >= 3 and "components" in row and "one_model" not in row]
    primary = [row for row in tested if row.get("family") == "primary"]
    others = [row for row in tested if row not in primary]
    stand_ins = [row for row in others if row["compared"][0].split()[-1].startswith(("cosent", "bi_encoder"))]
    family = (primary + stand_ins)[:FAMILY]
    cases = [(family, seeds, False, f"with {seeds} seeds") for seeds in SEEDS]
    cases += [(primary, None, False, "with the seeds at hand"), (primary, None, True, "with residuals of these seeds")]
    rates = {name: float(np.mean(np.array(wrong(rows, seeds, "primary", own)) > 0)) for rows, seeds, own, name in cases}
    of_others = np.array(wrong(others, None, None, False))
    result = {
        "kind": "error_rate",
        "repetitions": REPETITIONS,
        "measured_in_primary": len(primary),
        "primary": rates,
        "others": len(others),
        "others_wrong": float(of_others.mean()),
        "any_of_others": float((of_others > 0).mean()),
    }
    write_atomically(FILE, json.dumps(result, indent=1) + "\n")
    print(result)


def wrong(rows: list[dict[str, Any]], seeds: int | None, family: str | None, residuals: bool) -> list[int]:
    """Number of wrong verdicts of each repetition.

    Args:
        seeds: how many each claim has; None: as many as it has.
        family: of the claims, which decides the procedure.
        residuals: draw the effects of seeds from their own.
    """
    rng, counts = np.random.default_rng(0), []
    for _ in range(REPETITIONS):
        drawn = [draw(row, seeds or row["seeds"], rng, residuals) | {"family": family} for row in rows]
        add_verdicts(drawn)
        wrong = [(AGREES,) if row["expected"] == "equal" else (AGREES, DISAGREES) for row in drawn]
        counts.append(sum(row["verdict"] in verdicts for row, verdicts in zip(drawn, wrong, strict=True)))
    return counts


def draw(row: dict[str, Any], seeds: int, rng: np.random.Generator, residuals: bool) -> dict[str, Any]:
    """A claim as other rows and runs of the same variances would have it, if nothing differed."""
    parts = Components(**row["components"])
    of_rows = max(0.0, parts.of_mean - parts.both / parts.seeds)
    of_seeds = max(parts.both, parts.of_seeds)
    truth = POINT / 100 if row["expected"] == "equal" else 0.0
    effects = rng.normal(size=seeds) * of_seeds**0.5
    if residuals:
        own = np.array(row["gaps"]) / 100
        effects = rng.choice(own - own.mean(), seeds) * (len(own) / (len(own) - 1)) ** 0.5
    gaps = truth + rng.normal() * of_rows**0.5 + effects
    groups = max(1.0, parts.groups - 1)
    both = parts.both * rng.chisquare(groups) / groups
    of_mean = of_rows * rng.chisquare(groups) / groups + both / seeds
    found = Components(seeds, of_mean, both, float(np.var(gaps, ddof=1)), parts.groups).difference(float(gaps.mean()))
    shown = Difference(100 * found.mean, 100 * found.error, found.freedom)
    plain = {"mean": shown.mean, "error": shown.error, "freedom": shown.freedom}
    about = {key: row[key] for key in ("expected", "quantity", "share", "times", "beyond") if key in row}
    return plain | about | {"seeds": seeds, "gaps": (100 * gaps).tolist()}


if __name__ == "__main__":
    with messages_for_users():
        main()
