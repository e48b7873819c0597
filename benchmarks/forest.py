"""Picture for the READMEs: CoSENT minus the losses that it is compared with, by corpus, with paired 95% intervals.

python -m benchmarks.forest        after python -m benchmarks.claims; writes docs/images/cosent_against_others.svg
"""

import json
from pathlib import Path
from typing import Any

from cosent.errors import write_atomically
from cosent.losses import TOWERS
from cosent.reporting import figures

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs/images/cosent_against_others.svg"
TITLE = "CoSENT minus other losses, from mini"
CORPORA = {"stsb": "STS-B", "bq": "BQ part", "lcqmc": "LCQMC", "atec": "ATEC", "pawsx_few": "PAWSX part"}
LOSSES = {
    "sbert": "Sentence-BERT, two classes",
    "sbert_regression": "Sentence-BERT, regression",
    "ce": "cross-encoder, cross entropy",
    "mse": "cross-encoder, squared error",
    "cosine_linear": "plain cosine loss",
}
SEEDS = 3


def rows_of(claims: list[dict[str, Any]]) -> list[tuple[str, float, float, float]]:
    """Label, mean, low and high end of each difference in test Spearman that enough runs from `mini` measured.

    Of models that were tested on the corpus that they were trained on; where several studies measured one, the first,
    which is that of the primary family.
    """
    rows: dict[str, tuple[float, float, float]] = {}
    for claim in claims:
        enough = claim.get("seeds", 0) >= SEEDS
        of_mini = enough and claim["setting"].startswith("mini,") and "trained_on" not in claim
        losses = [loss_of(name) for name in claim.get("compared", ())]
        if of_mini and "study" in claim and "quantity" not in claim and losses[0] == "cosent" and losses[1] in LOSSES:
            label = f"{LOSSES[losses[1]]}: {CORPORA[claim['corpus']]}"
            rows.setdefault(label, (claim["mean"], claim["low"], claim["high"]))
    return [(label, *values) for label, values in rows.items()]


def loss_of(row: str) -> str:
    """The loss of a row of a study, from its name: `[tower] recipe [variant]`."""
    return next(part for part in row.split() if part not in TOWERS).removesuffix("_mini")


def draw(results: Path) -> str:
    claims = json.loads((results / "claims.json").read_text(encoding="utf-8"))["rows"]
    return figures.intervals(TITLE, rows_of(claims), "test Spearman x100").svg


if __name__ == "__main__":
    write_atomically(FILE, draw(ROOT / "results"))
