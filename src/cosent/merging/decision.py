"""Threshold and probabilities of a merged model, from the validation split of a corpus."""

from cosent.data.corpus import Corpus
from cosent.evaluation.calibration_fit import fit_calibration
from cosent.evaluation.metrics import SimilarityMetrics, can_rank, find_threshold
from cosent.modeling.text_model import TextModel
from cosent.training.held_out import Evaluation


def decide(model: TextModel, corpus: Corpus | None) -> Evaluation:
    """Scores the validation split; for labels of 0 and 1 also finds threshold and map.

    Nothing is found without a corpus, since the thresholds of members mean nothing for their mean.
    """
    found = Evaluation()
    if corpus is None:
        return found
    name, rows, labels = corpus.manifest.name, corpus.split("validation"), corpus.labels("validation")
    scores = model.similarity(rows["sentence1"][:], rows["sentence2"][:], show_progress_bar=True)
    if corpus.manifest.label_kind == "binary" and can_rank(labels):
        found.thresholds[name] = find_threshold(scores, labels)[0]
        found.calibrations[name] = fit_calibration(scores, labels)
    metrics = SimilarityMetrics().compute(predictions=scores, references=labels, threshold=found.thresholds.get(name))
    found.metrics[name] = {"validation": metrics}
    return found
