"""Sections of a report on learning, scores, probabilities and time."""

import numpy as np

from cosent.evaluation.calibration import BINS, reliability, uncalibrated
from cosent.evaluation.similarity import split_by
from cosent.reporting import figures
from cosent.reporting.document import Cell, Figure, Figures, Number, Section, Table, mean_of, measured, times_100
from cosent.results import Result, Study

ERRORS = {"brier": "Brier", "log_loss": "log loss", "calibration_error": "calibration error"}
ERROR_HEADER = ["method, corpus", "map",
                *(f"{name}, {how}" for name in ERRORS.values() for how in ("as is", "calibrated"))]  # fmt: skip


def learning(study: Study) -> Section:
    """Section on learning: validation curves by corpus, quality after one epoch, and epochs to 90% of the best."""
    plots: list[Figure] = []
    rows: list[list[Cell]] = []
    for corpus in dict.fromkeys(result.corpus for result in study.results):
        series = []
        for method in dict.fromkeys(result.method for result in study.results):
            runs = [r for r in study.results if r.method == method and r.corpus == corpus and r.validation_curve]
            if runs:
                series += [line for line in [curve(method, runs)] if line[1]]
                to_90 = mean_of((run.epochs_to_90 for run in runs), ".1f")
                first, best = (times_100(values) for values in (
                    (run.first_epoch for run in runs), (run.best_validation for run in runs)))  # fmt: skip
                rows.append([f"{method}, {corpus}", first, best, to_90])
        if series:
            plots.append(figures.curves(f"{corpus}: validation", series, "epoch", "Spearman x100"))
    if not rows:
        return Section("Learning curves")
    caption = "Validation Spearman x100, mean ± standard deviation; epochs until 90% of a run's best was first reached."
    table = Table(caption, ["method, trained on", "after epoch 1", "best", "epochs to 90% of best"], rows)
    legend = "The mean of the runs of a method; the band spans all of them."
    return Section("Learning curves", [Figures(legend, plots), table])


def curve(method: str, runs: list[Result]) -> tuple[str, list[float], list[list[float]]]:
    """Label, epochs, and values x100 of all runs by epoch, up to the last epoch that all of them reached.

    Evaluations whose Spearman is undefined in a run, whose scores were all equal, are left out.
    """
    together = zip(*(run.validation_curve for run in runs), strict=False)
    kept = [each for each in together if np.isfinite([value for _, value in each]).all()]
    return method, [each[0][0] for each in kept], [[100 * value for _, value in each] for each in kept]


def distributions(study: Study) -> Section:
    """Section of histograms of similar and dissimilar test pairs: scores before and after training, and |u - v| before.

    kexue.fm 8847 explains by the latter why Sentence-BERT works although its head is dropped.
    """
    names = {"before": "before training", "after": "after training", "distances": "|u - v| before training"}
    plots = []
    drawn: set[bytes] = set()
    for row in study.rows:
        for corpus in study.corpora:
            kept = [run.scores[corpus] for run in study.cell(row, corpus) if corpus in run.scores]
            for name, words in names.items():
                having = [scores for scores in kept if name in scores]
                if having and (name == "after" or having[0][name].tobytes() not in drawn):
                    labels, values = (np.concatenate([scores[key] for scores in having]) for key in ("labels", name))
                    axis = "|u - v|" if name == "distances" else "score"
                    plots.append(figures.histograms(f"{row}, {corpus}: {words}", split_by(labels, values), axis))
                    drawn.add(having[0][name].tobytes())
    legend = (
        "Dissimilar pairs (orange) and similar ones (blue, dashed), as shares of each group; a triangle marks the "
        "median. Graded labels are split at the middle of their range; what is equal before training is drawn once. "
        "Mind the axes: before training, scores of an encoder often lie close together."
    )
    return Section("Score distributions", [Figures(legend, plots)] if plots else [])


def probabilities(study: Study) -> Section:
    """Section of errors on test and reliability diagrams, for corpora with labels of 0 and 1."""
    rows = error_rows(study)
    if not rows:
        return Section("Probabilities")
    plots = [plot for row in study.rows for run in study.rows[row][:1] for plot in diagrams(row, run)]
    caption = "Errors of scores taken as probabilities, and of the probabilities of the map from validation, on test."
    legend = (
        f"Share of similar test pairs by probability, in {BINS} bins, first run of a method: on the diagonal a "
        "probability is what it says. Scores as they are (orange): cosines cut to 0..1, or the sigmoid of logits."
    )
    return Section("Probabilities", [Table(caption, ERROR_HEADER, rows), Figures(legend, plots)])


def error_rows(study: Study) -> list[list[Cell]]:
    """A row per method and corpus that has a map; means over its runs."""
    rows: list[list[Cell]] = []
    for row in study.rows:
        for corpus in study.corpora:
            runs = [run for run in study.cell(row, corpus) if corpus in run.calibrations]
            if runs:
                maps = dict.fromkeys(run.calibrations[corpus].method for run in runs)
                errors = [mean_of((run.test(corpus, prefix + metric) for run in runs), ".4f")
                          for metric in ERRORS for prefix in ("uncalibrated_", "")]  # fmt: skip
                rows.append([f"{row}, {corpus}", " or ".join(maps), *errors])
    return rows


def diagrams(row: str, run: Result) -> list[Figure]:
    """A reliability diagram for each corpus with a map whose test scores were kept."""
    plots = []
    for corpus, calibration in run.calibrations.items():
        if corpus in run.scores:
            scores, labels = (run.scores[corpus][name] for name in ("after", "labels"))
            raw = uncalibrated(scores, run.tower)
            lines = [(label, *reliability(p, labels)[1:])
                     for label, p in (("as is", raw), ("calibrated", calibration.probabilities(scores)))]  # fmt: skip
            plots.append(figures.diagonal(f"{row}, {corpus}", lines, "probability", "share of similar pairs"))
    return plots


def speed(study: Study) -> Section:
    """Section on time and memory of training, time of scoring, and quality: on average and by run."""
    rows: list[list[Cell]] = []
    runs: list[list[Cell]] = []
    for row, results in study.rows.items():
        for corpus in dict.fromkeys(result.corpus for result in results):
            same = [result for result in results if result.corpus == corpus]
            name = row if study.crosses else f"{row}, {corpus}"
            rows.append([name, *costs(same), times_100(run.test(c) for run in same for c in run.tested_on)])
            for run in same:
                first = times_100(run.test(corpus) for corpus in run.tested_on[:1])
                place = run.environment
                name = f"{row}, {corpus}, seed {run.seed}"
                runs.append([name, *costs([run]), first, place.threads, place.short_commit])
    header = ["training minutes", "pairs/s trained", "pairs/s scored", "weights trained", "optimizer MiB", "peak MiB"]
    header.append("test Spearman x100")
    text = (
        "Pairs per second of training exclude the evaluations between epochs. Pairs are scored in batches, both "
        "sentences anew; a bi-encoder that stores its vectors would need only a dot product per pair. Parallel runs "
        "share the machine: compare figures only within a study."
    )
    means = Table("Means over seeds", ["method, trained on", *header], rows)
    each = Table("Every run", ["run", *header, "threads", "commit"], runs, folded=True)
    return Section("Time", [text, means, each])


def costs(runs: list[Result]) -> list[Cell]:
    """Means of the columns of time and memory; empty where a number was not measured."""
    footprints = [run.footprint for run in runs if run.footprint is not None]
    return [
        mean_of((run.train_seconds / 60 for run in runs), ".1f"),
        mean_of((run.train_pairs_per_second for run in runs), ".0f"),
        mean_of((run.score_pairs_per_second for run in runs), ".0f"),
        Number(footprints[-1].trained_share, form=".1%") if footprints else None,
        mean_of(measured(footprint.optimizer_mib for footprint in footprints), ".1f"),
        mean_of(measured(footprint.peak_mib for footprint in footprints), ".0f"),
    ]
