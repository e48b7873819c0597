"""Claims that no difference of two rows decides: counts, extremes and single models. Each is a figure and a verdict."""

import json
from collections.abc import Iterator

import numpy as np
from scipy.stats import binomtest, fisher_exact

from cosent.comparing.results import Result
from cosent.evaluation.significance import LEVEL, ranks
from lab import RESULTS
from lab.claims.measures import study_of
from lab.tables.rows import CORPORA, read_test_rows

Fact = tuple[str, str]  # figure, verdict
NAMES = {"sbert": "Sentence-BERT", "cosent": "CoSENT"}
OPEN = "unresolved at this size"
HEAD = ["u", "v", "|u-v|"]


def plain_below_untrained() -> Fact:
    grid = rates()
    row = next(row for row in grid["rows"] if row["loss"] == "cosine_linear")
    ends = " and ".join(f"{value:.1f}" for value in row["test"] if value < grid["untrained"][1])
    return f"{ends} at the two highest rates, untrained {grid['untrained'][1]:.1f}", "agrees"


def hard_to_tune() -> Fact:
    spans = {row["loss"]: row["test"][:4] for row in rates()["rows"]}  # 1e-4 to 1e-3
    ours, theirs = spans["cosent"], spans["sbert"]
    text = f"1e-4 to 1e-3: {min(theirs):.1f} to {max(theirs):.1f}, CoSENT {min(ours):.1f} to {max(ours):.1f}"
    return text, "agrees" if np.ptp(theirs) > np.ptp(ours) else "disagrees"


def rates() -> dict:
    return json.loads((RESULTS / "learning_rates.json").read_text(encoding="utf-8"))


def closer_before_training() -> Fact:
    """How often the untrained model has a similar pair closer than a dissimilar one."""
    shares = {}
    for corpus in (name for name in CORPORA if name != "pawsx"):
        scores, labels = read_test_rows()[f"{corpus}/untrained"], study_labels(corpus)
        similar = labels > (labels.min() + labels.max()) / 2
        above = ranks(scores)[similar].sum() - similar.sum() * (similar.sum() + 1) / 2
        shares[corpus] = above / (similar.sum() * (~similar).sum())
    text = ", ".join(f"{100 * share:.0f}% {corpus}" for corpus, share in shares.items())
    return text, "agrees" if min(shares.values()) > 0.5 else "disagrees"


def study_labels(corpus: str) -> np.ndarray:
    every = [run for name in ("native_mini", "losses_stsb") for run in results_of(name)]
    return next(run.scores[corpus]["labels"] for run in every if corpus in run.scores)


def results_of(name: str) -> list[Result]:
    study = study_of(name)
    return study.results if study else []


def collapses() -> Fact:
    ends = {loss: [end for _, end, start in endings(loss) if end < start] for loss in ("sbert", "cosent")}
    runs = {loss: len(list(endings(loss))) for loss in ends}
    low, high = len(ends["sbert"]) / runs["sbert"], len(ends["cosent"]) / runs["cosent"]
    text = ", ".join(f"{name} {len(ends[loss])} of {runs[loss]}" for loss, name in NAMES.items())
    text += " runs end below their start"
    return text, "agrees" if low > high else "disagrees"


def endings(loss: str) -> Iterator[tuple[str, float, float]]:
    """Name, validation Spearman at the end and that of the untrained encoder, of all distinct runs of a loss.

    Older runs of a grid have no record of their start, which is that of a run with the same seed and validation rows.
    """
    seen = set()
    folders = [file.parent.name for file in sorted(RESULTS.glob("*/study.jsonl"))]
    studies = [study for name in folders if (study := study_of(name))]
    starts = {key_of(run): start_of(run) for study in studies for run in study.results}
    for study in studies:
        for run in [*study.results, *study.trials]:
            flags = run.recipe or run.settings
            plain = (flags.get("features") or HEAD) == HEAD and flags.get("pooling") == "mean"
            usual = run.tower == "bi_encoder" and plain and float(flags["learning_rate"]) <= 1e-3
            start = start_of(run) or starts.get(key_of(run))
            end = run.after.get(run.corpus, {}).get("validation", {}).get("spearman")
            if end is None and run.point and run.validation_curve and not flags.get("eval_corpora"):
                end = run.validation_curve[-1][1]
            if flags.get("loss", "cosent") != loss or not usual or start is None or end is None:
                continue
            if (run.corpus, end) not in seen:  # studies share runs
                seen.add((run.corpus, end))
                yield f"{study.name}/{run.name} {run.point}", end, start


def key_of(run: Result) -> tuple:
    flags = run.recipe or run.settings
    rows = run.corpus, flags.get("limit_validation"), run.seed
    return *rows, run.tower, flags.get("pooling"), flags["model_name_or_path"]


def start_of(run: Result) -> float | None:
    return run.before.get(run.corpus, {}).get("validation", {}).get("spearman")


def below_start(method: str) -> tuple[int, int]:
    """Of the runs of a method in the study of collapses: those that end below their start on validation, and all."""
    runs = [run for run in results_of("collapse") if run.method.split()[0] == method]
    values = [[when[run.corpus]["validation"]["spearman"] for when in (run.before, run.after)] for run in runs]
    return sum(end < start for start, end in values), len(runs)


def collapse_share() -> Fact:
    count, runs = below_start("sbert")
    low, high = binomtest(count, runs).proportion_ci()
    verdict = "agrees" if low >= 0.15 and high <= 0.25 else "disagrees" if high < 0.15 or low > 0.25 else OPEN
    return f"{count} of {runs} runs: {count / runs:.0%} [{low:.0%}, {high:.0%}]", verdict


def term_prevents() -> Fact:
    with_term, without = below_start("sbert_cosent"), below_start("sbert")
    p = fisher_exact([[count, runs - count] for count, runs in (with_term, without)]).pvalue
    text = f"with the term {with_term[0]} of {with_term[1]}, without {without[0]} of {without[1]} (p {p:.2g})"
    if p > LEVEL:
        return text, OPEN
    return text, "agrees" if with_term[0] / with_term[1] < without[0] / without[1] else "disagrees"


def keeps_rising() -> Fact:
    study = study_of("convergence")
    assert study is not None
    falls = {
        row: [int((np.diff([value for _, value in run.validation_curve]) < 0).sum()) for run in study.rows[row]]
        for row in ("cosent", "sbert")
    }
    text = ", ".join(f"{name} {min(falls[loss])} to {max(falls[loss])}" for loss, name in NAMES.items())
    text += " of 15 steps fall"
    return text, "disagrees" if min(falls["cosent"]) > 3 else "agrees"


def spread_over_seeds() -> Fact:
    found = {}
    for run in results_of("primary"):
        if run.method == "sbert":
            found.setdefault(run.corpus, []).append(100 * (run.test(run.corpus) or 0.0))
    deviations = {corpus: np.std(values, ddof=1) for corpus, values in found.items()}
    text = ", ".join(f"{deviation:.1f} {corpus}" for corpus, deviation in deviations.items())
    every = {deviation >= 5 for deviation in deviations.values()}
    verdict = OPEN if len(every) > 1 else "agrees" if every.pop() else "disagrees"
    return f"{text}, over ten seeds", verdict


def colours() -> Fact:
    result = json.loads((RESULTS / "quickstart.json").read_text(encoding="utf-8"))
    places = [
        place for place, pair in enumerate(result["pairs"]) if "红色" in pair[0] and pair[1][-2:] not in ("红车",)
    ]
    ours = [np.mean([run["scores"][place] for run in result["runs"]]) for place in places]
    text = " and ".join(f"{own:.2f}" for own in ours)
    return f"red and green apple, red and black car: {text}", "disagrees" if min(ours) > 0.9 else "agrees"


def student_against_sbert() -> Fact:
    rows = json.loads((RESULTS / "student_stsb_equal.json").read_text(encoding="utf-8"))["rows"]
    study = study_of("encoders")
    assert study is not None
    direct = np.mean([100 * run.test("stsb") for run in study.rows["sbert mini"]])
    names = ("then stage 2 (distilled from sbert", "then stage 2 (distilled from cosent", "student of")
    student, of_cosent, stage_1 = (
        100 * np.mean(next(row["values"] for row in rows if row["name"].startswith(name))) for name in names
    )
    text = f"student of Sentence-BERT {student:.1f}, Sentence-BERT {direct:.1f}"
    text += f"; student of CoSENT {of_cosent:.1f}, student before distillation {stage_1:.1f}"
    return text, "agrees" if student > direct else "disagrees"


FACTS = {
    "plain_below_untrained": plain_below_untrained,
    "hard_to_tune": hard_to_tune,
    "closer_before_training": closer_before_training,
    "collapses": collapses,
    "collapse_share": collapse_share,
    "term_prevents": term_prevents,
    "keeps_rising": keeps_rising,
    "spread_over_seeds": spread_over_seeds,
    "colours": colours,
    "student_against_sbert": student_against_sbert,
}
