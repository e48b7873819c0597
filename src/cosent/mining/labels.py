"""Labels of made pairs: the scores of teachers, and pairs that a model finds similar."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cosent.errors import InputError
from cosent.evaluation.significance import mean_of_ranks
from cosent.mining.candidates import cosines
from cosent.modeling.auto import load_model
from cosent.modeling.embedder import Embedder
from cosent.modeling.teacher import fingerprint, sentence_vectors, teacher_scores
from cosent.run import read_record


@dataclass(frozen=True)
class Judged:
    """Scores of pairs by one model.

    Args:
        scores: cosines or logits, float32 of shape `(pairs,)`.
        is_cosine: which of the two.
        model: what the manifest says of it.
    """

    scores: np.ndarray
    is_cosine: bool
    model: dict[str, str]


@dataclass(frozen=True)
class TeacherLabels:
    """Labels by one or several teachers, and the lowest and highest that there can be.

    Args:
        labels: float32 of shape `(pairs,)`.
        how: what a label is, in words.
        teachers: what the manifest says of each.
    """

    labels: np.ndarray
    low: float
    high: float
    how: str
    teachers: list[dict[str, str]]


def judge(path: str, texts: list[str], first: np.ndarray, second: np.ndarray, device: str, cache: Path) -> Judged:
    """Scores of pairs by a model of either tower, from the cache if it has read them before."""
    model = load_model(path).to(device)
    about = {"model": path, "sha256": fingerprint(model, [])}
    if isinstance(model, Embedder):
        places, rows = np.unique(np.r_[first, second], return_inverse=True)
        if 2 * len(places) > len(texts):  # then it has read all of them, or may soon
            vectors, rows = sentence_vectors(model, texts, cache), np.r_[first, second]
        else:
            vectors = sentence_vectors(model, [texts[place] for place in places], cache)
        return Judged(cosines(vectors, rows[: len(first)], rows[len(first) :]).clip(-1, 1), True, about)
    pairs = ([texts[place] for place in side] for side in (first, second))
    return Judged(np.array(teacher_scores(model, *pairs, cache)), False, about)


def teacher_labels(judgements: list[Judged]) -> TeacherLabels:
    """One label per pair: the score of one teacher, the mean of the cosines of several bi-encoders, or else of ranks.

    Ranks are scaled to 0..1. Those of a cross-encoder next to others count as much as theirs, whatever its scale.
    """
    scores, about = np.stack([one.scores for one in judgements]), [one.model for one in judgements]
    if all(one.is_cosine for one in judgements):
        how = "cosine" if len(scores) == 1 else f"mean of the cosines of {len(scores)} teachers"
        return TeacherLabels(scores.mean(axis=0, dtype=np.float64).astype(np.float32), -1.0, 1.0, how, about)
    if len(scores) == 1:
        return TeacherLabels(scores[0], float(scores.min()), float(scores.max()), "logit", about)
    ranks = (mean_of_ranks(scores) - 1) / max(1, scores.shape[1] - 1)
    how = f"mean of the ranks of {len(scores)} teachers, scaled to 0..1"
    return TeacherLabels(ranks.astype(np.float32), 0.0, 1.0, how, about)


def threshold_of(model: str, corpus: str, given: float | None) -> float:
    """The lowest score of a similar pair: as given, or as training found it for this corpus, or for the only one.

    Raises:
        InputError: the model has none, or one for each of several other corpora.
    """
    if given is not None:
        return given
    record = read_record(model)
    thresholds = {} if record is None else record.thresholds
    if corpus in thresholds:
        return thresholds[corpus]
    if len(thresholds) != 1:
        raise InputError(
            f"--cross {model} has a threshold for {', '.join(thresholds) or 'no corpus'} and none for {corpus}: which "
            "pairs it finds similar is not known. Give --cross_threshold, or a model trained on labels of 0 and 1."
        )
    return next(iter(thresholds.values()))
