"""Learning curves, distributions, distances and costs of the runs of a study: the other sections of a report."""

import numpy as np

from cosent.evaluation.significance import spearman
from cosent.evaluation.similarity import split_by
from cosent.reporting import figures
from cosent.reporting.document import Figures, Section, Table
from cosent.reporting.numbers import Cell, Number, mean_of, times_100
from cosent.reporting.published_rows import published_rows
from cosent.studies.method import Method
from cosent.studies.results import Result, Study


def learning(study: Study) -> Section:
    """Section on learning: validation curves by corpus, quality after one epoch, and epochs to 90% of the best."""
    plots: list[str] = []
    rows: list[list[Cell]] = []
    published: list[list[Cell]] = []
    corpora = list(dict.fromkeys(result.trained_on for result in study.results if result.validation_curve))
    for corpus in corpora:
        series = []
        for method in dict.fromkeys(result.method for result in study.results):
            runs = [r for r in study.results if r.method == method and r.trained_on == corpus and r.validation_curve]
            if runs:
                series.append(_series(method, runs))
                to_90 = mean_of((run.epochs_to_90 for run in runs), ".1f")
                first = times_100(run.first_epoch for run in runs)
                best = times_100(run.best_validation for run in runs)
                rows.append([f"{method.name}, {corpus}", first, best, to_90])
                lines = published_learning(study, method, corpus)
                published += [line for line in lines if line not in published]
        plots.append(figures.curves(f"{corpus}: validation", series, "epoch", "Spearman x100"))
    if not plots:
        return Section("Learning curves", [])
    caption = "Validation Spearman x100, mean ± standard deviation; epochs until 90% of a run's best was first reached."
    table = Table(caption, ["method, trained on", "after epoch 1", "best", "epochs to 90% of best"], rows + published)
    return Section(
        "Learning curves", [Figures("The mean of the runs of a method; the band spans all of them.", plots), table]
    )


def _series(method: Method, runs: list[Result]) -> tuple[str, list[float], list[list[float]]]:
    """Label, epochs, and values x100 of all runs by epoch, up to the last epoch that all of them reached."""
    epochs = [epoch for epoch, _ in min((run.validation_curve for run in runs), key=len)]
    return method.name, epochs, [[100 * run.validation_curve[i][1] for run in runs] for i in range(len(epochs))]


def published_learning(study: Study, method: Method, corpus: str) -> list[list[Cell]]:
    """Published rows in the columns of the table of learning curves."""
    first = published_rows(study, "first_epoch", method, [corpus])
    to_90 = published_rows(study, "epochs_to_90", method, ["all"], ".1f")
    rows: list[list[Cell]] = [[f"{name}, {corpus}", number, None, None] for name, [number] in first]
    rows += [[name, None, None, number] for name, [number] in to_90]
    return rows


def distributions(study: Study) -> Section:
    """Section of score histograms of similar and dissimilar test pairs, before and after training."""
    plots = []
    for row in study.rows:
        for corpus in study.corpora:
            kept = [r.scores[corpus]["test"] for r in study.cell(row, corpus) if corpus in r.scores]
            if kept:
                labels = np.concatenate([split["labels"] for split in kept])
                moments = {m: np.concatenate([split[m] for split in kept]) for m in ("before", "after")}
                for moment, values in moments.items():
                    title = f"{row}, {corpus}: {moment} training"
                    plots.append(figures.histograms(title, split_by(labels, values), "score"))
    legend = (
        "Scores of dissimilar pairs (orange) and similar ones (blue, dashed), as shares of each group; a triangle "
        "marks the median. Graded labels are split at the middle of their range. Mind the axes: before "
        "training, scores of an encoder often lie close together."
    )
    return Section("Score distributions", [Figures(legend, plots)] if plots else [])


def distances(study: Study) -> Section:
    """Section on |u - v| of the test pairs before training, by label: kexue.fm 8847's explanation of Sentence-BERT."""
    plots: list[str] = []
    rows: list[list[Cell]] = []
    seen: list[tuple[str, np.ndarray]] = []
    for result in study.results:
        for corpus, splits in result.scores.items():
            values, labels = splits["test"].get("distances"), splits["test"]["labels"]
            if values is None or any(corpus == c and np.array_equal(values, other) for c, other in seen):
                continue
            seen.append((corpus, values))
            recipe = result.recipe
            name = f"{corpus}, {recipe['model_name_or_path']}, {recipe.get('pooling') or 'its own'} pooling"
            if [c for c, _ in seen].count(corpus) > 1:
                name += f", {study.row_of(result)}"
            plots.append(figures.histograms(name, split_by(labels, values), "|u - v|"))
            groups = [Number(float(g.mean()), float(g.std()), ".3f") for _, g in split_by(labels, values)]
            rows.append([name, *groups, Number(-100 * spearman(values, labels))])
    text = (
        "kexue.fm 8847 explains why Sentence-BERT works although its head is dropped: before any training, dissimilar "
        "pairs already lie farther apart, so that a head on |u - v| starts in the right direction. The last column is "
        "the Spearman correlation of -|u - v| with the labels."
    )
    header = ["corpus, encoder", "dissimilar", "similar", "Spearman x100"]
    table = Table("Mean ± standard deviation of |u - v| over test pairs, before training", header, rows)
    legend = "Distances of dissimilar pairs (orange) and similar ones (blue, dashed) before training."
    return Section("Distances before training", [text, Figures(legend, plots), table] if plots else [])


def speed(study: Study) -> Section:
    """Section on time and memory of training, time of scoring, and quality: on average and by run."""
    rows: list[list[Cell]] = []
    runs: list[list[Cell]] = []
    for row, results in study.rows.items():
        for corpus in dict.fromkeys(result.trained_on for result in results):
            same = [result for result in results if result.trained_on == corpus]
            name = row if study.crosses else f"{row}, {corpus}"
            rows.append([name, *_costs(same), times_100(run.test(c) for run in same for c in run.tested_on)])
            runs += [_run_row(f"{row}, {corpus}, seed {run.seed}", run) for run in same]
    header = ["training minutes", "pairs/s trained", "pairs/s scored", "ms per pair scored"]
    header += ["weights trained", "optimizer MiB", "peak MiB", "test Spearman x100"]
    text = (
        "Pairs per second of training exclude the evaluations between epochs. Pairs are scored in batches, both "
        "sentences anew; a bi-encoder that stores its vectors would need only a dot product per pair. Parallel runs "
        "share the machine: compare figures only within a study."
    )
    means = Table("Means over seeds", ["method, trained on", *header], rows)
    each = Table("Every run", ["run", *header, "threads", "commit"], runs, folded=True)
    return Section("Time", [text, means, each])


def _run_row(name: str, run: Result) -> list[Cell]:
    first = times_100(run.test(corpus) for corpus in run.tested_on[:1])
    return [name, *_costs([run]), first, run.environment.threads, run.environment.short_commit]


def _costs(runs: list[Result]) -> list[Cell]:
    """Means of the columns of time and memory; empty where older runs did not record a number."""
    minutes = mean_of((run.train_seconds / 60 for run in runs), ".1f")
    trained = mean_of((run.speed.train_pairs_per_second for run in runs), ".0f")
    scored = mean_of((run.speed.score_pairs_per_second for run in runs), ".0f")
    milliseconds = Number(1000 / scored.value) if scored else None
    footprints = [run.footprint for run in runs if run.footprint is not None]
    optimizer = mean_of((footprint.optimizer_mib for footprint in footprints), ".1f")
    peak = mean_of((footprint.peak_mib for footprint in footprints), ".0f")
    share = Number(footprints[-1].trained_share, form=".1%") if footprints else None
    return [minutes, trained, scored, milliseconds, share, optimizer, peak]
