"""Measures of claims: a difference of two rows of studies in some quantity, with its error."""

import json
import statistics
from dataclasses import asdict, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from cosent.comparing.report import shared_queries, shared_scores
from cosent.comparing.results import Result, Study
from cosent.evaluation.significance import (
    Difference,
    components,
    difference,
    independent,
    resampled_means,
    resampled_spearman,
    spearman,
)
from cosent.losses import TOWERS
from lab import RESULTS
from lab.tables.rows import read_study, read_test_rows
from lab.tables.studies import audited, limited, published, run_length

CLAIM_RESAMPLES = 1000  # an error of 2% in a standard error
UNTRAINED = " before training"  # a row of a study, as its runs found it
PARTS = ("bq", "pawsx_few")  # corpora of which only a part could be obtained
Claim = dict[str, Any]


def of_studies(claim: Claim, studies: tuple[Study, Study]) -> dict[str, Any] | None:
    """Difference of the two rows of a claim, with error, seeds, setting and the source's figure.

    None without a seed of both rows.
    """
    sides = [of_row(study, name, claim["corpus"]) for study, name in zip(studies, claim["compared"], strict=True)]
    seeds = [seed for seed in sides[0] if seed in sides[1]]
    if not seeds:
        return None
    first, second = ([side[seed] for seed in seeds] for side in sides)
    runs = [*first, *second]
    found = QUANTITIES[claim.get("quantity", "spearman")](first, second, claim)
    other = elsewhere(runs, claim["corpus"])
    found |= {"seeds": len(seeds), "setting": setting(runs, other), "differs": departures(claim, runs)}
    optional = {"trained_on": other, "published": gaps_of_source(claim, studies[0], runs[0], runs[-1])}
    return found | {key: value for key, value in optional.items() if value}


def said(found: Difference, beyond: float = 0.0, unit: float = 100.0) -> dict[str, Any]:
    """A difference minus a number, in points."""
    mean, error = unit * found.mean - beyond, unit * found.error
    shown = Difference(mean, error, found.freedom)
    return asdict(shown) | {"low": shown.low, "high": shown.high}


def by_spearman(first: list[Result], second: list[Result], claim: Claim) -> dict[str, Any]:
    """Difference in test Spearman; over seeds alone where scores were not kept.

    Of a share, of the score, and as `gain` the same in the gains over the untrained model and over character overlap,
    which must both hold, so that it has the difference with the larger p-value.
    """
    corpus, count, share = claim["corpus"], len(first), claim.get("share")
    if any(corpus not in run.scores for run in (*first, *second)):
        return over_seeds(*([100 * run.test(corpus) for run in side] for side in (first, second)))  # type: ignore
    scores, labels, groups = shared_scores([*first, *second], corpus)
    bases = {} if share is None else {name: read_test_rows()[f"{corpus}/{name}"] for name in ("untrained", "overlap")}
    scores = np.concatenate([scores, *(base[None] for base in bases.values())])
    each = np.array([spearman(row, labels) for row in scores])
    drawn = resampled_spearman(scores, labels, CLAIM_RESAMPLES, groups=groups)
    literal = over_rows(drawn, each, count, groups, claim.get("beyond", 0.0), share or claim.get("times", 1.0))
    if share is None or share > 1:
        return literal
    own, other = each[:count].mean(), each[count : 2 * count].mean()
    found, shares = [], {}
    for place, name in enumerate(bases, 2 * count):
        shares[f"the gain over {name}"] = (own - each[place]) / (other - each[place])
        gaps, resampled = (
            np.atleast_2d(values)[:, :count]
            - share * np.atleast_2d(values)[:, count : 2 * count]
            - (1 - share) * np.atleast_2d(values)[:, [place]]
            for values in (each, drawn)
        )
        found.append(difference(gaps[0], resampled, independent(groups)))
    signs = {one.mean > 0 for one in found}
    worst = max(found, key=two_sided) if len(signs) == 1 else min(found, key=lambda one: abs(one.mean))
    gain = said(worst) | {"expected": "above", "seeds": count, "share": share, "divided": len(signs) > 1}
    return literal | {"shares": shares, "gain": gain}


def two_sided(change: Difference, bound: float = 0.0) -> float:
    """Two-sided p-value of a difference, if `bound` is the true one."""
    if change.error == 0:
        return float(change.mean == bound)
    return float(2 * stats.t.sf(abs(change.mean - bound) / change.error, change.freedom))


def by_accuracy(first: list[Result], second: list[Result], claim: Claim) -> dict[str, Any]:
    """As by Spearman, of the share of test rows on the right side of the threshold that validation gave."""
    right = np.stack([right_rows(run, claim["corpus"]) for run in (*first, *second)]).astype(np.float64)
    groups = shared_scores(first, claim["corpus"])[2]
    return over_rows(resampled_means(right, CLAIM_RESAMPLES, groups=groups), right.mean(axis=1), len(first), groups)


def by_recall_at_10(first: list[Result], second: list[Result], claim: Claim) -> dict[str, Any]:
    """As by Spearman, of Recall@10, with test queries drawn in the place of pairs."""
    values = shared_queries([*first, *second], claim["corpus"], "recall_at_10")
    return over_rows(
        resampled_means(values, CLAIM_RESAMPLES), values.mean(axis=1), len(first), np.arange(values.shape[1])
    )


def over_rows(
    drawn: np.ndarray, each: np.ndarray, count: int, groups: np.ndarray, beyond: float = 0.0, times: float = 1.0
) -> dict[str, Any]:
    """Mean of the first runs less that of the others, with the error over test rows and seeds.

    Args:
        drawn: a metric of all runs on the same resamples, `(resamples, runs)`.
        each: the metric on the rows as they are, `(runs,)`.
        count: runs of the first row of the claim.
        groups: group of each row.
        beyond: points that the first must be ahead.
        times: the others count so much.
    """
    gaps = each[:count] - times * each[count : 2 * count]
    parts = components(gaps, drawn[:, :count] - times * drawn[:, count : 2 * count], independent(groups))
    found = said(parts.difference(float(gaps.mean())), beyond)
    found |= {"components": asdict(parts), "gaps": (100 * gaps - beyond).round(2).tolist()}
    return found if times == 1 else found | {"of_score": 100 * float(each[count : 2 * count].mean())}


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


def by_first_epoch(first: list[Result], second: list[Result], claim: Claim) -> dict[str, Any]:
    return over_seeds(*([100 * first_epoch(run) for run in runs] for runs in (first, second)))


def by_epochs_to_90(first: list[Result], second: list[Result], claim: Claim) -> dict[str, Any]:
    return over_seeds(*([epochs_to_90(run) for run in runs] for runs in (first, second)))


def first_epoch(run: Result) -> float:
    """Validation Spearman at the end of the first epoch."""
    return next(value for epoch, value in run.validation_curve if epoch >= 1)


def epochs_to_90(run: Result) -> float:
    """Epochs until 90% of the best validation Spearman was first reached."""
    return next(epoch for epoch, value in run.validation_curve if value >= 0.9 * (run.best_validation or 1))


QUANTITIES = {
    "spearman": by_spearman,
    "accuracy": by_accuracy,
    "recall_at_10": by_recall_at_10,
    "first_epoch": by_first_epoch,
    "epochs_to_90": by_epochs_to_90,
}


def over_seeds(first: list[float], second: list[float]) -> dict[str, Any]:
    """Mean difference of runs in pairs, for what has no test rows to draw; without an error of one pair."""
    gaps = np.subtract(first, second)
    if len(gaps) == 1:
        return {"mean": float(gaps[0])}
    found = said(Difference(gaps.mean(), gaps.std(ddof=1) / len(gaps) ** 0.5, len(gaps) - 1), unit=1.0)
    return found | {"gaps": gaps.round(2).tolist()}


def mean_of(rows: list[dict[str, Any]], beyond: float) -> dict[str, Any]:
    """Mean of the differences of several claims, less a number; divided where the largest of them alone gives its sign.

    The runs of one study say nothing of those of another; a model that several claims of one study test is one run, so
    that their differences are averaged by seed first.
    """
    missing = [row["claim"] for row in rows if "error" not in row]
    if missing:
        return {"needs": f"no interval for: {missing[0]}"}
    seeds, count = min(row["seeds"] for row in rows), len(rows)
    means = [row["mean"] for row in rows]
    largest = max(range(count), key=lambda place: abs(means[place]))
    without = (sum(means) - means[largest]) / (count - 1) - beyond
    if len({str(row["study"]) for row in rows}) == 1:
        found = over_seeds(np.mean([row["gaps"] for row in rows], axis=0), [beyond] * seeds)
    else:
        squares = [row["error"] ** 2 for row in rows]
        terms = sum(square**2 / row["freedom"] for square, row in zip(squares, rows, strict=True))
        error = sum(squares) ** 0.5 / count
        found = said(Difference(statistics.mean(means), error, sum(squares) ** 2 / terms), beyond, unit=1.0)
    encoders = [encoder for encoder in rows[0].get("published", {}) if all(encoder in row["published"] for row in rows)]
    return found | {
        "without": {rows[largest]["corpus"]: without},
        "divided": bool(without * found["mean"] < 0),
        "published": {e: statistics.mean(row["published"][e] for row in rows) - beyond for e in encoders},
        "seeds": seeds,
        "setting": f"the rows of {', '.join(row['corpus'] for row in rows)}",
        "differs": list(dict.fromkeys(part for row in rows for part in row["differs"])),
    }


def of_result(claim: Claim, file: Path) -> dict[str, Any]:
    """As `of_studies`, of kept measurements on trained models, which have no study.

    A row of the file has either its `difference` from a reference, with the interval, or `values` by run; a single
    value is compared with every run of the other.
    """
    result = json.loads(file.read_text(encoding="utf-8"))
    of_corpus = [row for row in result["rows"] if row.get("corpus", claim["corpus"]) == claim["corpus"]]
    rows = [next(row for row in of_corpus if row["name"].startswith(name)) for name in claim["compared"]]
    about = {"setting": rows[0].get("setting") or result["setting"], "differs": ["encoder"]}
    if "difference" in rows[0]:
        mean, low, high = (100 * value for value in rows[0]["difference"])
        return {"mean": mean, "low": low, "high": high, "seeds": rows[0]["runs"]} | about
    seeds = max(len(row["values"]) for row in rows)
    first, second = ([100 * value for value in (row["values"] * seeds)[:seeds]] for row in rows)
    about |= {"seeds": seeds} | ({"of_score": statistics.mean(second)} if "times" in claim else {})
    return over_seeds(first, [claim.get("times", 1.0) * value for value in second]) | about


def of_fusion(claim: Claim, study: Study) -> dict[str, Any]:
    """Mean of the ranks of runs of two rows, less the mean of fusing two seeds of each; over test rows alone."""
    sides = [list(of_row(study, name, claim["corpus"]).values()) for name in claim["compared"]]
    scores, labels, groups = shared_scores([run for side in sides for run in side], claim["corpus"])
    first, second = np.split(scores, 2)
    pairs = list(combinations(range(len(first)), 2))
    crossed = [two for i, j in pairs for two in ((first[i], second[j]), (first[j], second[i]))]
    alike = [side[[i, j]] for side in (first, second) for i, j in pairs]
    mixed, same = ([stats.rankdata(np.stack(two), axis=1).mean(axis=0) for two in each] for each in (crossed, alike))
    fused = np.stack([*mixed, *same])
    drawn = resampled_spearman(fused, labels, CLAIM_RESAMPLES, groups=groups)
    each = np.array([spearman(row, labels) for row in fused])
    gaps, resampled = (v[..., : len(mixed)].mean(-1) - v[..., len(mixed) :].mean(-1) for v in (each, drawn))
    found = said(difference(np.array([gaps]), resampled[:, None], independent(groups)))
    runs = [run for side in sides for run in side]
    return found | {"seeds": len(first), "setting": setting(runs, None), "differs": departures(claim, runs)}


def gaps_of_source(claim: Claim, study: Study, first: Result, second: Result) -> dict[str, float]:
    """Differences of the two methods of a claim in a published table of its study, by encoder, in its own unit.

    None where the table has the same rows for both, e.g. for two settings of one loss.
    """
    if claim.keys() & {"share", "times", "beyond"} or any(name.endswith(UNTRAINED) for name in claim["compared"]):
        return {}
    corpus = claim.get("published_corpus", claim["corpus"])
    gaps: dict[str, float] = {}
    for table in published():
        if study.name in table["studies"] and table["measure"] == claim.get("quantity", "spearman"):
            ours, theirs = (
                {row["encoder"]: row[corpus] for row in published_rows(table, run) if corpus in row}
                for run in (first, second)
            )
            if ours != theirs:
                gaps |= {encoder: ours[encoder] - theirs[encoder] for encoder in ours if encoder in theirs}
    return gaps


def published_rows(table: dict[str, Any], run: Result) -> list[dict[str, Any]]:
    """Rows of a published table for the method of a run: those of the encoder named by its variant, or of all encoders.

    None of the other tower.
    """
    if run.recipe.get("tower", "bi_encoder") != table.get("tower", "bi_encoder"):
        return []
    recipe, *variant = [part for part in run.method.split() if part not in TOWERS]
    names = (recipe.removesuffix("_mini"), *variant)  # a variant may set another loss
    rows = [row for row in table["rows"] if row["method"] in names]
    return [row for row in rows if row["encoder"] in variant] or rows


def of_row(study: Study, name: str, corpus: str) -> dict[int, Result]:
    """Runs of a row that were tested on a corpus, by seed; before training, with the scores from before it."""
    row = name.removesuffix(UNTRAINED)
    runs = {run.seed: run for run in study.rows.get(row, []) if run.test(corpus) is not None}
    if name == row:
        return runs
    return {seed: untrained(run) for seed, run in runs.items()}


def untrained(run: Result) -> Result:
    """The run with the test scores and the retrieval from before its training as those after it."""
    scores = {c: named | {"after": named["before"]} for c, named in run.scores.items() if "before" in named}
    queries = {
        c: replace(metrics, moments={"after": metrics.moments["before"]})
        for c, metrics in run.queries.items()
        if "before" in metrics.moments
    }
    return replace(run, after=run.before, scores=scores, queries=queries)


def setting(runs: list[Result], other: str | None) -> str:
    """Encoder, training corpus if it is another than that of the claim, pairs, length and rate of the runs."""
    rates = " or ".join(dict.fromkeys(f"{run.recipe['learning_rate']:g}" for run in runs))
    encoders = " or ".join(dict.fromkeys(str(run.recipe["model_name_or_path"]) for run in runs))
    trained = f", trained on {other}" if other else ""
    pairs = limited(runs)
    taken = f", {pairs} pairs" if pairs else ""
    return f"{encoders}{trained}{taken}, {run_length(runs)}, learning rate {rates}"


def departures(claim: Claim, runs: list[Result]) -> list[str]:
    """Differences between runs and source, as far as stated: five epochs, for kexue.fm 8847 from [CLS]."""
    own = "review" not in claim["source"]
    of_8847, of_9341 = (own and number in claim["source"] for number in ("8847", "9341"))
    found = ["encoder"]
    limits = [(run.recipe.get("limit_train"), audited(run.corpus, "train", "rows")) for run in runs]
    if any(limit and (whole is None or limit < whole) for limit, whole in limits) or claim["corpus"] in PARTS:
        found.append("pairs")
    if (of_8847 or of_9341) and any(run.recipe.get("num_train_epochs") != 5 for run in runs):
        found.append("epochs")
    if of_8847 and any(run.recipe.get("pooling") == "mean" for run in runs) and "pooling" not in claim["claim"].lower():
        found.append("pooling")
    return found + claim.get("differs", [])


def elsewhere(runs: list[Result], corpus: str) -> str | None:
    """The training corpus of all runs, where it is one and another than that of the claim."""
    trained = {run.corpus for run in runs}
    return trained.pop() if len(trained) == 1 and corpus not in trained else None


@cache
def study_of(name: str) -> Study | None:
    """The committed results of a study; None if it has not been run."""
    folder = RESULTS / name
    return read_study(folder) if folder.is_dir() else None
