"""What a claim compares: two rows of a study, of which quantity, and the interval of their difference."""

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.study_tables import ROOT, limited, run_length
from cosent.evaluation.significance import difference, resampled_means, resampled_spearman, spearman
from cosent.losses import TOWERS
from cosent.reporting.comparison import shared_queries, shared_scores
from cosent.results import Result, Study

UNTRAINED = " before training"  # a row of a study, as its runs found it


def of_study(claim: dict[str, Any], study: Study) -> dict[str, Any] | None:
    """Difference of the two rows of a claim, its 95% interval, seeds, setting and what the source has for it.

    None without a seed of both rows.
    """
    sides = [of_row(study, name, claim["corpus"]) for name in claim["compared"]]
    seeds = [seed for seed in sides[0] if seed in sides[1]]
    if not seeds:
        return None
    first, second = ([side[seed] for seed in seeds] for side in sides)
    quantity = QUANTITIES[claim.get("quantity", "spearman")]
    found = quantity(first, second, claim["corpus"], claim.get("share", 1.0))
    runs = [*first, *second]
    other = elsewhere(runs, claim["corpus"])
    found |= {"seeds": len(seeds), "setting": setting(runs, other)}
    optional = {"trained_on": other, "published": gaps_of_source(claim, study)}
    return found | {key: value for key, value in optional.items() if value}


def gaps_of_source(claim: dict[str, Any], study: Study) -> dict[str, float]:
    """Differences of the two methods of a claim in a published table of its study, by encoder, in its own unit.

    None where the table has the same rows for both, e.g. for two settings of one loss.
    """
    if "share" in claim or any(name.endswith(UNTRAINED) for name in claim["compared"]):
        return {}
    corpus = claim.get("published_corpus", claim["corpus"])
    runs = [study.rows[name][0] for name in claim["compared"]]
    gaps: dict[str, float] = {}
    for table in yaml.safe_load((ROOT / "results/published.yaml").read_text(encoding="utf-8")):
        if study.name in table["studies"] and table["measure"] == claim.get("quantity", "spearman"):
            first, second = (
                {row["encoder"]: row[corpus] for row in published_rows(table, run) if corpus in row} for run in runs
            )
            if first != second:
                gaps |= {encoder: first[encoder] - second[encoder] for encoder in first if encoder in second}
    return gaps


def published_rows(table: dict[str, Any], run: Result) -> list[dict[str, Any]]:
    """Rows of a published table for the method of a run: those of the encoder named by its variant, or of all encoders.

    None of the other tower.
    """
    if run.tower != table.get("tower", "bi_encoder"):
        return []
    recipe, *variant = [part for part in run.method.split() if part not in TOWERS]
    names = (recipe.removesuffix("_mini"), *variant)  # a variant may set another loss
    rows = [row for row in table["rows"] if row["method"] in names]
    return [row for row in rows if row["encoder"] in variant] or rows


def of_row(study: Study, name: str, corpus: str) -> dict[int, Result]:
    """Runs of a row whose test scores of a corpus were kept, by seed; before training, with those from before it."""
    row = name.removesuffix(UNTRAINED)
    runs = {run.seed: run for run in study.rows.get(row, []) if corpus in run.scores}
    if name == row:
        return runs
    return {seed: untrained(run) for seed, run in runs.items()}


def untrained(run: Result) -> Result:
    """The run with the test scores and the retrieval from before its training as those after it."""
    scores = {c: named | {"after": named["before"]} for c, named in run.scores.items() if "before" in named}
    queries = {
        c: replace(metrics, moments={"after": metrics.moments["before"]})
        for c, metrics in run.queries.items() if "before" in metrics.moments
    }  # fmt: skip
    return replace(run, after=run.before, scores=scores, queries=queries)


def by_spearman(first: list[Result], second: list[Result], corpus: str, share: float) -> dict[str, Any]:
    scores, labels = shared_scores([*first, *second], corpus)
    observed = np.array([spearman(row, labels) for row in scores])
    return over_rows(resampled_spearman(scores, labels), observed, len(first), share)


def by_accuracy(first: list[Result], second: list[Result], corpus: str, share: float) -> dict[str, Any]:
    """As by Spearman, of the share of test rows on the right side of the threshold that validation gave."""
    right = np.stack([right_rows(run, corpus) for run in (*first, *second)]).astype(np.float64)
    return over_rows(resampled_means(right), right.mean(axis=1), len(first), share)


def by_recall_at_10(first: list[Result], second: list[Result], corpus: str, share: float) -> dict[str, Any]:
    """As by Spearman, of Recall@10, with test queries drawn in the place of pairs."""
    values = shared_queries([*first, *second], corpus, "recall_at_10")
    return over_rows(resampled_means(values), values.mean(axis=1), len(first), share)


def over_rows(resampled: np.ndarray, observed: np.ndarray, count: int, share: float) -> dict[str, Any]:
    """Mean of the first runs less a share of that of the others, with the paired bootstrap over test rows and seeds.

    Args:
        resampled: a metric of all runs on the same resamples, `(resamples, runs)`.
        observed: the metric on the rows as they are, `(runs,)`.
        count: runs of the first row of the claim.
        share: of the second row's metric.
    """
    gap = float(observed[:count].mean() - share * observed[count:].mean())
    found = difference(resampled[:, :count], share * resampled[:, count:], gap)
    return {key: 100 * getattr(found, key) for key in ("mean", "low", "high")}


def right_rows(run: Result, corpus: str) -> np.ndarray:
    """Whether each test row was classified rightly, `(rows,)`.

    The kept scores have exact ranks and rounded values, so the rows above the threshold are counted, from accuracy and
    recall, and not compared with it.
    """
    test, kept = run.scores[corpus], run.after[corpus]["test"]
    similar = test["labels"] > test["labels"].min()
    above = round(2 * kept["recall"] * similar.sum() + (~similar).sum() - kept["accuracy"] * len(similar))
    lowest = np.sort(test["after"])[-above] if above else np.inf
    return (test["after"] >= lowest) == similar


def by_first_epoch(first: list[Result], second: list[Result], _: str, share: float) -> dict[str, Any]:
    return over_seeds([100 * run.first_epoch for run in first], [share * 100 * run.first_epoch for run in second])


def by_epochs_to_90(first: list[Result], second: list[Result], _: str, share: float) -> dict[str, Any]:
    return over_seeds([run.epochs_to_90 for run in first], [share * run.epochs_to_90 for run in second])


QUANTITIES = {
    "spearman": by_spearman,
    "accuracy": by_accuracy,
    "recall_at_10": by_recall_at_10,
    "first_epoch": by_first_epoch,
    "epochs_to_90": by_epochs_to_90,
}


def over_seeds(first: list[float], second: list[float]) -> dict[str, Any]:
    """Mean difference of runs in pairs, and the 95% interval of Student's t: for what has no test rows to draw."""
    from scipy.stats import t

    gaps = [a - b for a, b in zip(first, second, strict=True)]
    mean, freedom = statistics.mean(gaps), len(gaps) - 1
    if not freedom:
        return {"mean": mean, "low": None, "high": None}
    half = float(t.ppf(0.975, freedom)) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    return {"mean": mean, "low": mean - half, "high": mean + half, "freedom": freedom}


def setting(runs: list[Result], other: str | None) -> str:
    """Encoder, training corpus if it is another than that of the claim, pairs, length and rate of the runs."""
    rates = " or ".join(dict.fromkeys(f"{run.recipe['learning_rate']:g}" for run in runs))
    encoders = " or ".join(dict.fromkeys(str(run.recipe["model_name_or_path"]) for run in runs))
    trained = f", trained on {other}" if other else ""
    pairs = limited(runs)
    taken = f", {pairs} pairs" if pairs else ""
    return f"{encoders}{trained}{taken}, {run_length(runs)}, learning rate {rates}"


def elsewhere(runs: list[Result], corpus: str) -> str | None:
    """The training corpus of all runs, where it is one and another than that of the claim."""
    trained = {run.corpus for run in runs}
    return trained.pop() if len(trained) == 1 and corpus not in trained else None


def mean_of(rows: list[dict[str, Any]], beyond: float) -> dict[str, Any]:
    """Mean of the differences of several claims, less a number; the runs of one say nothing of those of another."""
    missing = [row["claim"] for row in rows if row.get("low") is None]
    if missing:
        return {"unmeasured": f"no interval for {missing[0]}"}
    mean = statistics.mean(row["mean"] for row in rows) - beyond
    half = math.hypot(*((row["high"] - row["low"]) / 2 for row in rows)) / len(rows)
    encoders = [encoder for encoder in rows[0]["published"] if all(encoder in row["published"] for row in rows)]
    return {
        "mean": mean,
        "low": mean - half,
        "high": mean + half,
        "published": {e: statistics.mean(row["published"][e] for row in rows) - beyond for e in encoders},
        "seeds": min(row["seeds"] for row in rows),
        "setting": f"the rows of {', '.join(row['corpus'] for row in rows)}",
    }


def of_result(claim: dict[str, Any], file: Path) -> dict[str, Any]:
    """As `of_study`, of kept measurements on trained models, which have no study.

    A row of the file has either its `difference` from a reference, with the interval, or `values` by run; a single
    value is compared with every run of the other.
    """
    result = json.loads(file.read_text(encoding="utf-8"))
    rows = [next(row for row in result["rows"]
                 if row["name"].startswith(name) and row.get("corpus", claim["corpus"]) == claim["corpus"])
            for name in claim["compared"]]  # fmt: skip
    about = {"setting": rows[0].get("setting") or result["setting"]}
    if "difference" in rows[0]:
        found = dict(zip(("mean", "low", "high"), (100 * value for value in rows[0]["difference"]), strict=True))
        return found | {"seeds": rows[0]["runs"]} | about
    seeds = max(len(row["values"]) for row in rows)
    first, second = ([100 * value for value in (row["values"] * seeds)[:seeds]] for row in rows)
    return over_seeds(first, [claim.get("share", 1.0) * value for value in second]) | {"seeds": seeds} | about
