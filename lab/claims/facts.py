"""Claims about counts, extremes and single models, which no difference of two rows decides: a figure and a verdict."""

import json
import statistics
from math import comb
from typing import Any

import numpy as np
from scipy.stats import binomtest, rankdata, t

from cosent.comparing.results import Result
from cosent.evaluation.significance import LEVEL
from lab import RESULTS
from lab.benchmarks.quickstart import wrong_orders
from lab.claims.measures import study_of
from lab.tables.rows import CORPORA, read_test_rows
from lab.tables.studies import with_interval

Fact = tuple[str, str]  # figure, verdict
NAMES = {"sbert": "Sentence-BERT", "cosent": "CoSENT"}
AGREES, DISAGREES, OPEN, ONE_SEED = "agrees", "disagrees", "unresolved at this size", "one seed"
LABELLED = tuple(name for name in CORPORA if name != "pawsx")  # corpora with a training split


def kept(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def rows_of(name: str) -> dict[str, list[Result]]:
    """Runs of a study by row; none before it has been run."""
    study = study_of(name)
    return study.rows if study else {}


def results_of(name: str) -> list[Result]:
    return [run for runs in rows_of(name).values() for run in runs]


def tests(name: str, row: str, corpus: str, moment: str = "after") -> list[float]:
    """Test Spearman x100 of the runs of a row."""
    values = (run.test(corpus, moment=moment) for run in rows_of(name)[row])
    return [100 * value for value in values if value is not None]


def interval(values: list[float]) -> tuple[float, float]:
    """95% interval of the mean over seeds."""
    half = t.ppf(1 - LEVEL / 2, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return statistics.mean(values) - half, statistics.mean(values) + half


def all_or_open(each: list[bool]) -> str:
    """The verdict where every part of a claim holds, none does, or some do."""
    return AGREES if all(each) else OPEN if any(each) else DISAGREES


def plain_below_untrained() -> Fact:
    study = study_of("losses_stsb")
    assert study is not None
    starts = [
        rows_of("encoders")[f"cosent_mini {name}"][0].before["stsb"]["validation"]["spearman"]
        for name in ("mini", "random")
    ]
    ends = [value for value in study.tried["cosine_linear", "stsb"].values() if value < min(starts)]
    start, random, *low = (f"{100 * value:.1f}" for value in (*starts, *ends))
    text = f"{' and '.join(low)} at the highest rates; untrained {start}, random weights {random} (validation)"
    return text, ONE_SEED


def hard_to_tune() -> Fact:
    """Range of validation scores in the grid of the primary family, by corpus."""
    study = study_of("primary")
    assert study is not None
    spans = {key: 100 * np.ptp(list(values.values())) for key, values in study.tried.items()}
    pairs = {corpus: (spans["sbert", corpus], spans["cosent", corpus]) for corpus in study.corpora}
    text = ", ".join(f"{theirs:.1f} against {ours:.1f} {corpus}" for corpus, (theirs, ours) in pairs.items())
    return f"range over 1e-4 to 1e-3, on 5,000 pairs: {text}; on ATEC it learns nothing from them", ONE_SEED


def settings_needed() -> Fact:
    """Of how many of 18 settings the best is to be expected within a point of the best of all."""
    study, needed = study_of("budget"), {}
    assert study is not None
    for (method, _), tried in study.tried.items():
        expected = best_of_k([100 * value for value in tried.values() if value is not None])
        needed[method] = next(k for k, value in enumerate(expected, 1) if value > expected[-1] - 1)
    return ", ".join(f"{name} {needed[loss]}" for loss, name in NAMES.items()) + " of 18 settings", ONE_SEED


def best_of_k(values: list[float]) -> list[float]:
    """Expected best of k values drawn at random, for every k."""
    ordered, count = sorted(values), len(values)
    return [
        sum(comb(place, k - 1) * value for place, value in enumerate(ordered)) / comb(count, k)
        for k in range(1, count + 1)
    ]


def graded_labels() -> Fact:
    """Whether CoSENT is farther ahead on the graded labels of STS-B than on binary ones."""
    parts, each = [], []
    for loss, name in (("sbert", "the head"), ("sbert_regression", "the regression")):
        means = [
            {corpus: statistics.mean(tests("primary", row, corpus)) for corpus in LABELLED} for row in ("cosent", loss)
        ]
        gaps = {corpus: means[0][corpus] - means[1][corpus] for corpus in LABELLED}
        stsb = gaps.pop("stsb")
        parts.append(
            f"over {name} {stsb:+.1f}, on binary corpora {min(gaps.values()):+.1f} to {max(gaps.values()):+.1f}"
        )
        each.append(stsb > max(gaps.values()))
    return "; ".join(parts), all_or_open(each)


def gain_by_pooling() -> Fact:
    """Gain of Sentence-BERT over its start, by pooling, and whether it is positive."""
    rows = {"mean": ("collapse", "sbert 5e-4"), "[CLS]": ("sbert_settings", "sbert cls")}
    gains = {
        name: statistics.mean(tests(*row, "stsb")) - tests(*row, "stsb", "before")[0] for name, row in rows.items()
    }
    text = ", ".join(f"{gain:+.1f} {name}" for name, gain in gains.items())
    return text, all_or_open([gain > 0 for gain in gains.values()])


def closer_before_training() -> Fact:
    """How often the untrained model has a similar pair closer than a dissimilar one."""
    shares = {}
    for corpus in LABELLED:
        scores, labels = read_test_rows()[f"{corpus}/untrained"], study_labels(corpus)
        similar = labels > (labels.min() + labels.max()) / 2
        above = rankdata(scores)[similar].sum() - similar.sum() * (similar.sum() + 1) / 2
        shares[corpus] = above / (similar.sum() * (~similar).sum())
    text = ", ".join(f"{100 * share:.0f}% {corpus}" for corpus, share in shares.items())
    return text, "agrees" if min(shares.values()) > 0.5 else "disagrees"


def negatives_share_words() -> Fact:
    """Whether dissimilar test pairs have more than half of the character overlap of similar ones."""
    overlaps = {}
    for corpus in LABELLED:
        found, labels = read_test_rows()[f"{corpus}/overlap"] / 10_000, study_labels(corpus)
        similar = labels > (labels.min() + labels.max()) / 2
        overlaps[corpus] = found[~similar].mean(), found[similar].mean()
    text = ", ".join(f"{low:.2f} against {high:.2f} {corpus}" for corpus, (low, high) in overlaps.items())
    return f"character overlap {text}", all_or_open([low > high / 2 for low, high in overlaps.values()])


def study_labels(corpus: str) -> np.ndarray:
    every = [run for name in ("native_mini", "losses_stsb") for run in results_of(name)]
    return next(run.scores[corpus]["labels"] for run in every if corpus in run.scores)


def collapse_share() -> Fact:
    """Share of runs in the study of collapses that end below their start on validation."""
    ends = {
        loss: [ends_below(run) for run in results_of("collapse") if run.method.split()[0] == loss] for loss in NAMES
    }
    count, runs = sum(ends["sbert"]), len(ends["sbert"])
    low, high = binomtest(count, runs).proportion_ci()
    verdict = AGREES if low >= 0.15 and high <= 0.25 else DISAGREES if high < 0.15 or low > 0.25 else OPEN
    others = f"CoSENT {sum(ends['cosent'])} of {len(ends['cosent'])}"
    return f"{count} of {runs} runs: {count / runs:.0%} [{low:.0%}, {high:.0%}]; {others}", verdict


def ends_below(run: Result) -> bool:
    start, end = (when[run.corpus]["validation"]["spearman"] for when in (run.before, run.after))
    return end < start


def keeps_rising() -> Fact:
    rows = {"sbert": "sbert_two", "cosent": "cosent"}
    falls = {
        loss: [int((np.diff([value for _, value in run.validation_curve]) < 0).sum()) for run in rows_of("gap")[row]]
        for loss, row in rows.items()
    }
    text = ", ".join(f"{name} {min(falls[loss])} to {max(falls[loss])}" for loss, name in NAMES.items())
    return f"{text} of 15 half epochs fall", DISAGREES if min(falls["cosent"]) > 3 else AGREES


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


def pairs_of_8541() -> tuple[dict[tuple[str, str], int], np.ndarray]:
    """The places of ten pairs of kexue.fm 8541, and the scores of every run, `(runs, pairs)`."""
    result = kept("quickstart")
    return {tuple(pair): place for place, pair in enumerate(result["pairs"])}, np.array(
        [run["scores"] for run in result["runs"]]
    )


def negation_in_demo() -> Fact:
    """Whether "not" lowers the score of a sentence more than a rewording, in the demo and in the probe."""
    places, scores = pairs_of_8541()
    negated = [place for (_, other), place in places.items() if "不好" in other or "不喜欢" in other]
    right = [
        bool((scores[:, place] < scores[:, place - 1]).all()) for place in negated
    ]  # the rewording is the line before
    probe = next(row for row in kept("phenomena")["rows"] if row["name"] == "negation")["models"]["similar"]["accuracy"]
    return f"{sum(right)} of {len(right)} after the demo corpus; `similar` {probe:.0%} of the probe's", all_or_open(
        [*right, probe > 0.5]
    )


def colours() -> Fact:
    """Whether pairs that differ in a colour are below all that say the same."""
    places, scores = pairs_of_8541()
    other = [place for pair, place in places.items() if "红色" in pair[0] and "红车" not in pair[1]]
    same = [
        place
        for (_, second), place in places.items()
        if place not in other and "不好" not in second and "不喜欢" not in second
    ]
    right = scores[:, other][:, :, None] < scores[:, same][:, None, :]
    means = " and ".join(f"{score:.2f}" for score in scores[:, other].mean(axis=0))
    return f"{means}, and below all others in {right.sum()} of {right.size}", all_or_open([bool(right.all())])


def one_colour() -> Fact:
    """Whether a black car is farther from a red one than two rewordings of it."""
    places, scores = pairs_of_8541()
    black, *red = [place for pair, place in places.items() if "红色的车" in pair[0]]
    right = (scores[:, [black]] < scores[:, red]).all(axis=1)
    return f"in {right.sum()} of {len(right)} seeds", all_or_open(right.tolist())


def opposites_alike() -> Fact:
    start = tests("nli_transfer_mini", "cosent", "negation", "before")[0]
    return f"Spearman {start:.1f} of what says the same or the opposite, by `mini` untrained", all_or_open([start < 0])


def negation_by_nli() -> Fact:
    """Whether CoSENT on NLI ranks what says the same above the opposite: to end above its start is not enough."""
    ends = tests("nli_transfer_mini", "cosent", "negation")
    low, high = interval(ends)
    text = f"{statistics.mean(ends):.1f} [{low:.1f}, {high:.1f}], chance is 0"
    return text, AGREES if low > 0 else DISAGREES if high < 0 else OPEN


def mean_cosines() -> dict[str, list[float]]:
    """Mean cosine of all test sentences of STS-B, by loss."""
    return {row["name"].split()[-1]: row["values"] for row in kept("spread")["rows"]}


def mean_cosine() -> Fact:
    """Whether the mean cosine of CoSENT is below that of Sentence-BERT, as in the source."""
    values = mean_cosines()
    (low, high), theirs = interval(values["cosent"]), statistics.mean(values["sbert"])
    text = f"CoSENT {statistics.mean(values['cosent']):.3f} [{low:.3f}, {high:.3f}], Sentence-BERT {theirs:.3f}"
    return text, DISAGREES if low > 0.15 else AGREES if high < 0.15 and theirs > 0.15 else OPEN


def start_above_zero() -> Fact:
    (start,) = mean_cosines()["untrained"]
    return f"{start:.3f}", all_or_open([start > 0.5])


def random_pairs_to_zero() -> Fact:
    (start,), ends = mean_cosines()["untrained"], mean_cosines()["cosent"]
    return f"from {start:.3f} to {statistics.mean(ends):.3f}", DISAGREES if interval(ends)[0] > start else AGREES


def gaps_of_8541(first: str, second: str) -> tuple[str, list[int]]:
    """Differences of two models of the pipeline of kexue.fm 8541, and by corpus 1 where the first is clearly ahead, -1
    where the second is, 0 elsewhere."""
    values = {row["name"]: row["values"] for row in kept("roformer_sim")["rows"]}
    parts, ahead = [], []
    for corpus in CORPORA:
        one, other = values[f"{first} {corpus}"], values[f"{second} {corpus}"]
        gaps = [100 * (a - b) for a, b in zip(one, other * (len(one) // len(other)), strict=True)]
        low, high = interval(gaps)
        parts.append(f"{with_interval(statistics.mean(gaps), low, high)} {corpus}")
        ahead.append(int(low > 0) - int(high < 0))
    return ", ".join(parts), ahead


def ahead_everywhere(each: list[int]) -> str:
    return AGREES if min(each) == 1 else DISAGREES if min(each) == -1 and max(each) < 1 else OPEN


def student_over_start() -> Fact:
    found = {name: gaps_of_8541(f"student_{loss}", "stage1") for loss, name in NAMES.items()}
    text = "; ".join(f"student of {name} {figures}" for name, (figures, _) in found.items())
    return text, ahead_everywhere([ahead for _, each in found.values() for ahead in each])


def student_over_teacher() -> Fact:
    text, ahead = gaps_of_8541("student_sbert", "teacher_sbert")
    return text, ahead_everywhere(ahead)


def student_over_labels() -> Fact:
    text, ahead = gaps_of_8541("student_sbert", "direct_sbert")
    return text, ahead_everywhere(ahead)


def ten_pairs_in_order() -> Fact:
    """The ten pairs as the students score them: comparisons in the wrong order, of 25."""
    result = kept("roformer_sim")
    wrong = {
        loss: [wrong_orders(m["ten"], result["published"]) for m in result["models"] if m["kind"] == f"student_{loss}"]
        for loss in NAMES
    }
    text = ", ".join(f"{name} {' '.join(map(str, wrong[loss]))}" for loss, name in NAMES.items())
    return f"of 25 comparisons wrong, by seed: student of {text}", all_or_open([max(n) == 0 for n in wrong.values()])


def still_writes() -> Fact:
    """Whether students of every seed write as many distinct paraphrases as stage 1, to a tenth."""
    models = kept("roformer_sim")["models"]
    before = next(model["distinct"] for model in models if model["kind"] == "stage1")
    after = [model["distinct"] for model in models if model["kind"].startswith("student")]
    text = f"distinct paraphrases {before:.0%} before, {min(after):.0%} to {max(after):.0%} after"
    return text, all_or_open([share > 0.9 * before for share in after])


def accumulated() -> Fact:
    """Difference of loss and gradient between accumulated parts and the whole batch."""
    found = kept("exactness")["differences"]["4 x 8 accumulated"]["bi_encoder"]
    text = f"loss differs by {found['loss']:.0%}, gradient by {found['gradient']:.0%}"
    return f"{text}; what that costs is not resolved", all_or_open([found["loss"] < 0.01])


FACTS = {
    fact.__name__: fact
    for fact in (
        plain_below_untrained,
        hard_to_tune,
        settings_needed,
        graded_labels,
        gain_by_pooling,
        closer_before_training,
        negatives_share_words,
        collapse_share,
        keeps_rising,
        spread_over_seeds,
        negation_in_demo,
        colours,
        one_colour,
        opposites_alike,
        negation_by_nli,
        mean_cosine,
        student_over_start,
        student_over_teacher,
        student_over_labels,
        ten_pairs_in_order,
        still_writes,
        accumulated,
        start_above_zero,
        random_pairs_to_zero,
    )
}
