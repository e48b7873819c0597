"""Verdicts on the claims of the sources: results/claims.json from recipes/studies/claims.yaml and results of studies.

python -m benchmarks.claims        then python -m benchmarks.tables writes docs/claims.md

A claim is a statement about the difference of two rows of a study: it is positive (`above`), or smaller than a point
(`equal`). Its interval is that of the reports, a paired bootstrap over test rows and seeds. With the standard error of
that interval, the p-value is twice the smaller normal probability of the claim and of its opposite; Holm's procedure
keeps the chance of any wrong verdict among the tested claims below 5%. Fewer than three seeds decide nothing.
"""

import json
import statistics
from pathlib import Path
from typing import Any

import yaml

from cosent.errors import InputError, messages_for_users
from cosent.files import write_atomically
from cosent.reporting.differences import compare
from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Number, Range
from cosent.studies.results import Result, Study, read_results

ROOT = Path(__file__).parents[1]
CLAIMS = ROOT / "recipes/studies/claims.yaml"
KEYS = ({"claim", "source", "study", "compared", "corpus", "expected"}, {"claim", "source", "unmeasured"})
LEVEL, SEEDS = 0.05, 3
POINT = 1.0  # of Spearman x100, below which a difference counts as none
HOLDS, FAILS, OPEN = "holds", "does not hold", "not decided at this size"


def read_claims(file: Path = CLAIMS) -> list[dict[str, Any]]:
    """Reads the claims.

    Raises:
        InputError: an entry that is neither a difference of two rows nor says why it is not measured.
    """
    claims = yaml.safe_load(file.read_text(encoding="utf-8"))
    for claim in claims:
        if claim.keys() - {"note"} not in KEYS or claim.get("expected", "equal") not in ("above", "equal"):
            raise InputError(
                f"{file}: {claim} has neither {', '.join(sorted(KEYS[0]))} (above or equal) nor `unmeasured`. Its row "
                "of the table would say nothing. Complete it."
            )
    return claims


def measure(claim: dict[str, Any], study: Study) -> dict[str, Any]:
    """Difference x100 of the two rows of a claim, its 95% interval, seeds, and the setting of their runs."""
    sides = [of_row(study, name, claim["corpus"]) for name in claim["compared"]]
    found = compare(dict(zip(claim["compared"], sides, strict=True)), claim["corpus"])
    (each, seeds) = found[tuple(claim["compared"])]
    values = {key: 100 * getattr(each, key) for key in ("mean", "low", "high")}
    return values | {"seeds": seeds, "setting": setting([run for side in sides for run in side.values()])}


def of_row(study: Study, name: str, corpus: str) -> dict[int, Result]:
    if name not in study.rows:
        return {}
    return {run.seed: run for run in study.cell(name, corpus) if corpus in run.scores}


def setting(runs: list[Result]) -> str:
    def values(key: str) -> str:
        return " or ".join(dict.fromkeys(f"{run.recipe[key]:g}" for run in runs if run.recipe.get(key)))

    epochs = values("num_train_epochs")
    encoders = " or ".join(dict.fromkeys(str(run.recipe["model_name_or_path"]) for run in runs))
    pairs = f", {values('limit_train')} pairs" if values("limit_train") else ""
    return (
        f"{encoders}{pairs}, {epochs} {'epoch' if epochs == '1' else 'epochs'}, learning rate {values('learning_rate')}"
    )


def p_value(expected: str, found: dict[str, Any]) -> tuple[float, bool]:
    """Twice the smaller probability of a claim and its opposite, and whether the claim is the more probable one."""
    spread = (found["high"] - found["low"]) / (2 * statistics.NormalDist().inv_cdf(0.975))
    normal = statistics.NormalDist(found["mean"], spread)
    claimed = 1 - normal.cdf(0) if expected == "above" else normal.cdf(POINT) - normal.cdf(-POINT)
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
    studies = {name: read_results(results / name) for name in names if any((results / name).glob("*.json"))}
    for claim in claims:
        row = dict(claim)
        if "study" in claim:
            study = studies.get(claim["study"])
            sides = [of_row(study, name, claim["corpus"]) if study else {} for name in claim["compared"]]
            if study and sides[0].keys() & sides[1].keys():
                row |= measure(claim, study)
            else:
                lacking = "has no result for one of the two" if study else "has not been run"
                row["unmeasured"] = f"study {claim['study']} {lacking}"
        rows.append(row)
    judge(rows)
    return rows


def claims_table(result: dict[str, Any]) -> str:
    """How often each verdict was given; the measured claims with their differences, and the others with the reason."""
    measured: list[list[Cell]] = []
    others: list[list[Cell]] = []
    for row in result["rows"]:
        about = [row["claim"], row["source"], row.get("study")]
        if "mean" in row:
            note = f"; {row['note']}" if "note" in row else ""
            numbers = [Number(row["mean"], form="+.2f"), Range(row["low"], row["high"]), row["seeds"]]
            setting = f"{row['corpus']}; {row['setting']}{note}"
            measured.append([*about, " - ".join(row["compared"]), setting, *numbers, row["verdict"]])
        else:
            others.append([*about, row["verdict"].removeprefix("not measured: ")])
    verdicts = [row["verdict"] for row in result["rows"]]
    counts = {name: sum(verdict.startswith(name) for verdict in verdicts) for name in (HOLDS, FAILS, OPEN)}
    header = ["claim", "source", "study", "difference", "setting", "mean", "95% interval", "seeds", "verdict"]
    tables = [markdown_table(header, measured), markdown_table(["claim", "source", "study", "because"], others)]
    for study in {row["study"] for row in result["rows"] if "study" in row}:
        for place, target in enumerate((f"../results/{study}", f"../recipes/studies/{study}.yaml")):
            tables[place] = tables[place].replace(f"| {study} |", f"| [{study}]({target}) |")
    found = ", ".join(f"{name} {count}" for name, count in counts.items())
    summary = f"Of {len(verdicts)} claims, {len(measured)} are measured ({found})."
    return f"{summary}\n\n{tables[0]}\n\nNot measured:\n\n{tables[1]}"


def main() -> None:
    rows = claims_of(read_claims(), ROOT / "results")
    text = json.dumps({"kind": "claims", "rows": rows}, ensure_ascii=False, indent=1)
    write_atomically(ROOT / "results/claims.json", text + "\n")


if __name__ == "__main__":
    with messages_for_users():
        main()
