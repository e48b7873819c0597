"""Threshold and probabilities of a merged model, from the validation split of a corpus."""

from dataclasses import dataclass, field

import numpy as np

from cosent.data.corpus import Corpus
from cosent.evaluation.calibration import Calibration
from cosent.evaluation.calibration_fit import fit_calibration
from cosent.evaluation.metrics import SimilarityMetrics, find_threshold
from cosent.modeling.text_model import TextModel
from cosent.run_record import Metrics


@dataclass
class Decision:
    """What was found, by corpus; empty without one, since the thresholds of members mean nothing for their mean."""

    metrics: Metrics = field(default_factory=dict)
    thresholds: dict[str, float] = field(default_factory=dict)
    calibrations: dict[str, Calibration] = field(default_factory=dict)


def decide(model: TextModel, corpus: Corpus | None) -> Decision:
    """Scores the validation split; for labels of 0 and 1 also finds threshold and map."""
    found = Decision()
    if corpus is None:
        return found
    name, rows, labels = corpus.manifest.name, corpus.split("validation"), corpus.labels("validation")
    scores = model.similarity(rows["sentence1"][:], rows["sentence2"][:], show_progress_bar=True)
    if corpus.manifest.label_kind == "binary" and len(np.unique(labels)) > 1:
        found.thresholds[name] = find_threshold(scores, labels)[0]
        found.calibrations[name] = fit_calibration(scores, labels)
    metrics = SimilarityMetrics().compute(predictions=scores, references=labels, threshold=found.thresholds.get(name))
    found.metrics[name] = {"validation": metrics}
    return found
