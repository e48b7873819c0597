"""Metrics against scipy, scikit-learn, brute force and small cases derived on paper."""

import json
import math
import re
import warnings

import evaluate
import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sklearn_metrics

import cosent.evaluation.metrics
from cosent.evaluation.metrics import (
    FEWEST,
    SimilarityMetrics,
    auc,
    average_precision,
    correlations,
    find_threshold,
    spearman_at_most,
    threshold_metrics,
    too_few,
)
from cosent.evaluation.similarity import pair_cosines
from cosent.models.decision import DecisionRule


def random_rows(rows: int, seed: int, ties: bool = True) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    scores = rng.random(rows)
    labels = (rng.random(rows) < scores).astype(np.float64)
    return (scores.round(1) if ties else scores), labels


@pytest.mark.parametrize("ties", [True, False])
def test_metrics_equal_scipy_and_sklearn(ties):
    """Fails if the numbers that we report are not those of the field."""
    scores, labels = random_rows(500, seed=0, ties=ties)
    results = SimilarityMetrics().compute(predictions=scores, references=labels, threshold=0.4)
    positive = scores >= 0.4
    assert 0 < positive.sum() < 500
    assert results == pytest.approx(
        {
            "spearman": stats.spearmanr(scores, labels).statistic,
            "pearson": stats.pearsonr(scores, labels).statistic,
            "kendall": stats.kendalltau(scores, labels, variant="b").statistic,
            "average_precision": sklearn_metrics.average_precision_score(labels, scores),
            "auc": sklearn_metrics.roc_auc_score(labels, scores),
            "accuracy": sklearn_metrics.accuracy_score(labels, positive),
            "precision": sklearn_metrics.precision_score(labels, positive),
            "recall": sklearn_metrics.recall_score(labels, positive),
            "f1": sklearn_metrics.f1_score(labels, positive),
        }
    )
    assert json.loads(json.dumps(results)) == results  # plain floats
    graded = SimilarityMetrics().compute(predictions=scores, references=2 * labels)
    assert set(graded) == {"spearman", "pearson", "kendall"}, "grades have no average precision"


@pytest.mark.parametrize(
    "scores, labels, words", [([1, 1, 1], [0, 1, 0], "3 scores are"), ([1, 2, 3], [1, 1, 1], "labels")]
)
def test_constant_input_is_nan_with_one_warning(scores, labels, words):
    """Fails if a collapsed model looks like one of Spearman 0, or floods the log."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = SimilarityMetrics().compute(predictions=scores, references=labels)
    assert [results[name] for name in ("spearman", "pearson", "kendall")] == pytest.approx([math.nan] * 3, nan_ok=True)
    assert [words in str(warning.message) for warning in caught] == [True]


def test_auc_counts_pairs_of_pairs():
    """Fails if AUC is not the share of similar pairs above dissimilar ones: of 6, 4 are above and one is tied."""
    assert auc([0.9, 0.5, 0.5, 0.1, 0.6], [1, 1, 0, 0, 0]) == 4.5 / 6


@pytest.mark.parametrize(
    ("labels", "best", "most"),
    [
        ([0, 0, 1, 1], [1, 2, 3, 4], 4 / math.sqrt(4 * 5)),  # ranks 1.5 1.5 3.5 3.5 against 1 2 3 4
        ([0, 1, 1, 1, 1], [1, 2, 3, 4, 5], 5 / math.sqrt(5 * 10)),  # ranks 1 3.5 3.5 3.5 3.5 against 1 2 3 4 5
        ([0, 0, 1, 1], [1, 1, 3, 4], 4 / math.sqrt(4 * 4.5)),  # the first pair is repeated: 1.5 1.5 3 4
        ([0, 0, 1, 1], [1, 1, 3, 3], 1.0),
        ([3, 1, 2, 5], [3, 1, 2, 5], 1.0),
        ([1, 1], [1, 2], math.nan),
    ],
)
def test_the_most_that_spearman_can_reach(labels, best, most):
    """Fails if a model at the ceiling is said to be improvable, or one passes it on pairs that are repeated."""
    assert spearman_at_most(labels, best) == pytest.approx(most, nan_ok=True)
    assert spearman_at_most(labels, best[::-1]) == pytest.approx(most, nan_ok=True), "the order does not matter"
    if len(set(labels)) > 1:
        assert correlations(best, labels)["spearman"] == pytest.approx(most)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([1] + [0] * 40, "faq test .* 41 pairs, 40 of label 0, 1 of label 1"),
        ([5, 4, 4, 2.5], "4 pairs, 1 of label 2.5, 2 of label 4, 1 of label 5"),
        (range(FEWEST), f"{FEWEST} pairs, {FEWEST} different labels"),
        ([1] * FEWEST + [0] * 40, None),
        (range(FEWEST + 1), None),
        ([1] * 5, None),  # cannot be ranked, which is said elsewhere
    ],
)
def test_a_tiny_split_says_so(labels, words):
    """Fails if an accuracy that hangs on one similar pair is shown without a warning, or a fair split has one."""
    warning = too_few(np.array(labels, dtype=np.float64), "faq test")
    assert (warning is None) == (words is None) and (words is None or re.search(words, warning))


def test_without_positives_nothing_divides_by_zero():
    """Fails if a split or a threshold without positives crashes the evaluation."""
    assert math.isnan(average_precision([0.1, 0.2], [0, 0])) and math.isnan(auc([0.1, 0.2], [1, 1]))
    assert threshold_metrics([0.1, 0.2], [0, 1], 0.5) == {"accuracy": 0.5, "precision": 0, "recall": 0, "f1": 0}
    assert threshold_metrics([0.1, 0.2], [0, 0], 0.5) == {"accuracy": 1, "precision": 0, "recall": 0, "f1": 0}


def test_loads_by_path_and_leaves_no_file(tmp_path, monkeypatch):
    """If this fails, `evaluate.load` of our file needs the Hub, or two evaluations at once read each other's rows."""
    monkeypatch.chdir(tmp_path)
    first, second = (
        evaluate.load(cosent.evaluation.metrics.__file__),
        SimilarityMetrics(cache_dir=str(tmp_path / "cache")),
    )
    rows = random_rows(100, 1), random_rows(100, 2)
    first.add_batch(predictions=rows[0][0], references=rows[0][1])
    second.add_batch(predictions=rows[1][0], references=rows[1][1])
    for metric, (scores, labels) in zip((first, second), rows, strict=True):
        assert metric.compute()["spearman"] == pytest.approx(stats.spearmanr(scores, labels).statistic)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_threshold_equals_brute_force():
    """Fails if the accuracy that we report is not the best one on validation, or not that of its threshold."""
    for seed in range(25):
        scores, labels = random_rows(2 + seed, seed, ties=seed % 2 == 0)
        labels = 1 - labels if seed % 5 == 0 else labels  # also where the best cut is at an end
        threshold, value = find_threshold(scores, labels)
        tried = np.concatenate((scores, [scores.max() + 1]))
        best = max(threshold_metrics(scores, labels, candidate)["accuracy"] for candidate in tried)
        assert value == pytest.approx(best, abs=1e-12)
        assert threshold_metrics(scores, labels, threshold)["accuracy"] == pytest.approx(value, abs=1e-12)


def test_threshold_on_paper():
    """Positives 0.9, 0.8 and negatives 0.2, 0.1 are told apart by anything in (0.2, 0.8]: the middle is 0.5. Scores
    0.9, 0.8, 0.3, 0.25 with labels 1, 0, 1, 0 reach 3/4 in the gaps 0.9-0.8 and 0.3-0.25: the wider one wins; of equal
    gaps the lowest. If this fails, thresholds are not reproducible, or a split of one label crashes."""
    assert find_threshold([0.9, 0.8, 0.2, 0.1], [1, 1, 0, 0]) == (pytest.approx(0.5), 1.0)
    assert find_threshold([0.9, 0.8, 0.3, 0.25], [1, 0, 1, 0]) == (pytest.approx(0.85), 0.75)
    assert find_threshold([4.0, 3.0, 2.0, 1.0], [1, 0, 1, 0]) == (1.5, 0.75)
    assert find_threshold([0.1, 0.2], [1, 1]) == (pytest.approx(-0.9), 1.0)
    assert find_threshold([0.1, 0.2], [0, 0]) == (pytest.approx(1.2), 1.0)
    assert find_threshold([0.1, 0.2, 0.3], [0, 1, 0])[1] == pytest.approx(2 / 3)
    assert find_threshold([1e300], [0])[0] > 1e300
    above = np.nextafter(0.1, 1)
    assert find_threshold([0.1, above], [0, 1]) == (above, 1.0), "no float lies between"


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
def test_equal_vectors_tie_and_other_cosines_are_exact(library):
    """Fails if pairs of equal sentences are ranked by rounding, or a cosine is off by more than float32 rounds."""
    vectors = np.random.default_rng(0).normal(size=(2, 500, 256))
    vectors[1, :100] = vectors[0, :100]
    vectors[1, 100:200] = -vectors[0, 100:200]
    vectors[:, -1] = 0  # a sentence without tokens
    exact = (vectors[0] * vectors[1]).sum(-1)[:-1] / np.linalg.norm(vectors[:, :-1], axis=-1).prod(0)
    lengths = np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    one, other = (vectors / lengths).astype(np.float32)
    assert len(set((one * other).sum(-1)[:100].tolist())) > 1, "a plain product would do"
    cosines = np.asarray(pair_cosines(library(one), library(other)))
    assert cosines.dtype == np.float32 and set(cosines[:100].tolist()) == {1.0} and cosines[-1] == 0
    np.testing.assert_allclose(cosines[:-1], exact, atol=3e-7)
    assert pair_cosines(library(one[:1]), library(np.zeros_like(one[:1]))).tolist() == [0.0]


def test_bad_input_is_refused():
    """Fails if a mistake gives a plausible number."""

    def compute(scores, labels, **options):
        return SimilarityMetrics().compute(predictions=scores, references=labels, **options)

    for call, words in (
        (lambda: correlations([0.1, 0.2], [1]), r"\(2,\) and \(1,\)"),
        (lambda: compute([0.1, math.nan], [1, 0]), "scores, got nan in row 1"),
        (lambda: correlations([0.1, 0.2], [math.inf, 0]), "labels, got inf in row 0"),
        (lambda: threshold_metrics([0.1, 0.2], [3, 0], 0.5), "got 3"),
        (lambda: find_threshold([0.1, 0.2], [0.5, 0]), "got 0.5"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_pearson_of_any_size(size):
    """Fails if scores whose squares are no float64 correlate with nothing, or perfectly."""
    labels = np.array([0.0, 1.0, 0.0, 1.0, 1.0])
    scores = np.array([0.1, 0.9, 0.4, 0.3, 0.8])
    expected = correlations(scores, labels)["pearson"]
    assert 0 < expected < 1 and correlations(size * scores, labels)["pearson"] == pytest.approx(expected)


SCORES, LABELS = np.array([0.9, 0.8, 0.3, 0.1]), np.array([1.0, 1.0, 0.0, 0.0])


def test_validation_of_one_label_has_no_probabilities():
    """Fails if a map is fitted where nothing is dissimilar."""
    rule = DecisionRule.of("faq", SCORES, np.ones(4))
    assert rule.calibration is None and rule.threshold < SCORES.min()
