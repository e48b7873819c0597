"""Metrics of similarity scores: rank correlations, AUC, average precision, and accuracy and F1 at a threshold.

`scores` (`numpy.ndarray` of shape `(pairs,)`) are similarities, any real number, higher = more similar; `labels` (same
shape) are the gold labels. Everything is computed in float64 and returned as a fraction (0.6812, not 68.12).
"""

import warnings

import datasets
import evaluate
import numpy as np
from scipy import stats

from cosent.evaluation.calibration import Calibration, probability_metrics
from cosent.evaluation.significance import spearman

FEWEST = 10  # pairs besides those of the most frequent label; a split with fewer is tiny


class SimilarityMetrics(evaluate.Metric):
    """Spearman, Pearson and Kendall's tau-b of scores against labels; for binary labels also classification metrics.

    `SimilarityMetrics().compute(predictions=scores, references=labels, threshold=None)` returns a dict of floats:
    `spearman`, `pearson`, `kendall` always; `average_precision` and `auc` for labels of 0 and 1; with a `threshold` for
    such labels also `accuracy`, `precision`, `recall`, `f1`. Also `evaluate.load("path/to/metrics.py")`, offline; this
    file imports one module per line, and none relative to it, as evaluate's parser demands. Rows stay in memory:
    processes never share a file.

    Raises:
        ValueError: lengths that differ, no row, NaN or infinite values, a threshold for labels other than 0 and 1.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs | {"keep_in_memory": True})  # evaluate.load passes False

    def _info(self):
        return evaluate.MetricInfo(
            description="Rank correlations and threshold metrics of similarity scores.",
            citation="",
            inputs_description="predictions: similarity scores; references: labels; threshold: least positive score.",
            features=datasets.Features({name: datasets.Value("float64") for name in ("predictions", "references")}),
        )

    def add_batch(self, *, predictions=None, references=None, **kwargs):
        """Adds rows for `compute`."""  # evaluate appends to this docstring, so it must exist
        scores, labels = _check(predictions, references)
        super().add_batch(predictions=scores, references=labels, **kwargs)

    def _compute(self, predictions, references, threshold: float | None = None) -> dict[str, float]:
        scores, labels = _check(predictions, references)
        results = correlations(scores, labels)
        if np.isin(labels, (0, 1)).all():
            results |= {"average_precision": average_precision(scores, labels), "auc": auc(scores, labels)}
        if threshold is not None:
            results |= threshold_metrics(scores, labels, threshold)
        return results


def evaluate_scores(
    scores: np.ndarray, labels: np.ndarray, threshold: float | None = None, calibration: Calibration | None = None
) -> dict[str, float]:
    """`SimilarityMetrics` of scores `(pairs,)`, and `probability_metrics` of their probabilities by a map."""
    metrics = SimilarityMetrics().compute(predictions=scores, references=labels, threshold=threshold)
    if calibration is None:
        return metrics
    return metrics | probability_metrics(calibration.probabilities(scores), labels)


def correlations(scores, labels) -> dict[str, float]:
    """Correlations of scores with labels: `spearman`, `pearson` and `kendall` (tau-b: ties count neither way).

    Constant scores or labels (a single row too) have no correlation: all three are NaN, with one warning.
    O(n log n): 20,000 rows take tens of milliseconds.
    """
    scores, labels = _check(scores, labels)
    constant = [name for name, values in (("scores", scores), ("labels", labels)) if np.ptp(values) == 0]
    if constant:
        warnings.warn(
            f"All {len(scores)} {' and '.join(constant)} are equal: spearman, pearson and kendall are NaN. Equal "
            "scores mean that the model has collapsed.",
            stacklevel=2,
        )
        return dict.fromkeys(("spearman", "pearson", "kendall"), float("nan"))
    return {
        "spearman": spearman(scores, labels),
        "pearson": float(np.corrcoef(*(values / np.abs(values).max() for values in (scores, labels)))[0, 1]),
        "kendall": float(stats.kendalltau(scores, labels).statistic),
    }


def average_precision(scores, labels) -> float:
    """Average precision: `sum over distinct scores, descending, of (recall - recall before) * precision`.

    Labels are 0 or 1. Equal scores enter together, so the order of rows does not matter. NaN without a positive label.
    Source: scikit-learn's `average_precision_score` (no interpolation).
    """
    _, hits, predicted = _cuts(*_check(scores, labels))
    positives = hits[-1]
    if positives == 0:
        return float("nan")
    return float(np.sum(np.diff(hits) / positives * (hits[1:] / predicted[1:])))


def auc(scores, labels) -> float:
    """Area under the ROC curve: `P(score of a similar pair > score of a dissimilar one)`; an equal score counts half.

    Labels are 0 or 1. NaN if all are equal. Unlike Spearman, it can be 1 however many labels are tied.
    Source: Mann and Whitney 1947, from the sum of the ranks of similar pairs.
    """
    scores, labels = _check(scores, labels, binary=True)
    similar = int(labels.sum())
    if not 0 < similar < len(labels):
        return float("nan")
    below = stats.rankdata(scores)[labels == 1].sum() - similar * (similar + 1) / 2
    return float(below / (similar * (len(labels) - similar)))


def spearman_at_most(labels, scores) -> float:
    """Spearman of the best order of these scores, whose ties stay: the deviation of the ranks of labels by theirs.

    `sqrt((n³ - n - sum(t³ - t)) / (n³ - n - sum(u³ - u)))`, t equal labels and u equal scores of n pairs; at most 1.
    Repeated pairs, also swapped ones, tie in both, which raises it. For labels of 0 and 1 and scores that all differ
    about `sqrt(3 * p * (1 - p))`, p the share of similar pairs. NaN if all labels or all scores are equal.
    Source: Kendall 1945, The Treatment of Ties in Ranking Problems.
    """
    of_labels, of_scores = stats.rankdata(labels).std(), stats.rankdata(scores).std()
    return float(min(1.0, of_labels / of_scores)) if of_labels and of_scores else float("nan")


def threshold_metrics(scores, labels, threshold: float) -> dict[str, float]:
    """`accuracy`, `precision`, `recall`, `f1` of `scores >= threshold` against labels of 0 and 1.

    Without a predicted positive, precision is 0; without a positive label, recall is 0; f1 is then 0.
    """
    scores, labels = _check(scores, labels, binary=True)
    hits, predicted, positives = np.sum(labels[scores >= threshold]), np.sum(scores >= threshold), np.sum(labels)
    return {
        "accuracy": float(_accuracy(hits, predicted, positives, len(labels))),
        "precision": float(hits / max(predicted, 1)),
        "recall": float(hits / max(positives, 1)),
        "f1": float(2 * hits / max(predicted + positives, 1)),
    }


def find_threshold(scores, labels) -> tuple[float, float]:
    """The threshold of the highest accuracy of `scores >= threshold`, and that accuracy. O(n log n).

    Every distinct way to cut the sorted scores is tried, all-positive and all-negative too. Among equally good cuts the
    one in the widest gap between neighbouring scores wins, as other data will shift scores a little; then the lowest.
    The threshold is the middle of the gap. An end cut has no gap: it wins only where it is strictly better, and lies 1
    beyond the scores.
    """
    scores, labels = _check(scores, labels, binary=True)
    distinct, hits, predicted = _cuts(scores, labels)  # descending; cut k calls the k highest distinct scores positive
    values = _accuracy(hits, predicted, hits[-1], len(labels))
    gaps = np.concatenate(([0.0], distinct[:-1] - distinct[1:], [0.0]))  # one gap per cut 0..len(distinct)
    best = max(np.flatnonzero(values == values.max()), key=lambda cut: (gaps[cut], cut))
    if best == 0:
        threshold = max(distinct[0] + 1, np.nextafter(distinct[0], np.inf))
    elif best == len(distinct):
        threshold = min(distinct[-1] - 1, np.nextafter(distinct[-1], -np.inf))
    else:
        above, below = distinct[best - 1], distinct[best]
        middle = below + (above - below) / 2
        threshold = middle if middle > below else above  # no float lies between two adjacent ones
    return float(threshold), float(values[best])


def _accuracy(hits, predicted, positives, rows):
    return (hits + (rows - positives) - (predicted - hits)) / rows


def _cuts(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct scores, descending (cuts,); positives and rows among the k highest, k = 0..cuts (cuts + 1,)."""
    distinct, where, counts = np.unique(scores, return_inverse=True, return_counts=True)
    hits = np.bincount(where, weights=labels)[::-1]
    return distinct[::-1], np.concatenate(([0], hits.cumsum())), np.concatenate(([0], counts[::-1].cumsum()))


def _check(scores, labels, binary: bool = False) -> tuple[np.ndarray, np.ndarray]:
    scores, labels = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if scores.ndim != 1 or scores.shape != labels.shape or not len(scores):
        raise ValueError(f"Expected scores and labels of one shape (pairs,), got {scores.shape} and {labels.shape}.")
    for name, values in (("scores", scores), ("labels", labels)):
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            raise ValueError(f"Expected finite {name}, got {values[bad[0]]} in row {bad[0]}.")
    if binary and not np.isin(labels, (0, 1)).all():
        raise ValueError(f"Expected labels of 0 and 1, got {labels[~np.isin(labels, (0, 1))][0]:g}. Use spearman.")
    return scores, labels


def too_few(labels: np.ndarray, where: str) -> str | None:
    """A warning that a split can be ranked, but has fewer than `FEWEST` pairs besides those of its most frequent label.

    Its metrics are a matter of a few pairs, and many resamples of a bootstrap have none of them.
    """
    values, counts = np.unique(labels, return_counts=True)
    if len(values) < 2 or len(labels) - counts.max() >= FEWEST:
        return None
    each = [f"{count} of label {value:g}" for value, count in zip(values, counts, strict=True)]
    shown = each if len(each) <= FEWEST // 2 else [f"{len(each)} different labels"]
    return f"{where} is too small to judge a model by: {', '.join([f'{len(labels)} pairs', *shown])}."


def can_rank(labels: np.ndarray) -> bool:
    """Whether Spearman and thresholds are defined: there are two different labels."""
    return len(np.unique(labels)) > 1
