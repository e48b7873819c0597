"""What happened inside the runs of a study: the other sections of a report."""

import statistics

import numpy as np

from cosent.evaluation.significance import spearman
from cosent.reporting import figures
from cosent.reporting.document import Figures, Section, Table
from cosent.reporting.numbers import spread
from cosent.studies.results import Result, Study


def learning(study: Study) -> Section:
    """Validation curves by training corpus, the first epoch and the epochs to 90% of the best."""
    plots, rows, published = [], [], []
    corpora = list(dict.fromkeys(result.trained_on for result in study.results if result.curve))
    for corpus in corpora:
        series = []
        for method in dict.fromkeys(result.method for result in study.results):
            runs = [r for r in study.results if r.method == method and r.trained_on == corpus and r.curve]
            if not runs:
                continue
            # Runs that stopped early have fewer points: as far as all of them go.
            epochs = [epoch for epoch, _ in min((run.curve for run in runs), key=len)]
            values = [[100 * run.curve[i][1] for run in runs] for i in range(len(epochs))]
            series.append((method, epochs, values))
            best = [max(value for _, value in run.curve) for run in runs]
            to_90 = statistics.mean(run.epochs_to_90 for run in runs)
            rows.append([f"{method}, {corpus}", spread(r.first_epoch for r in runs), spread(best), f"{to_90:.1f}"])
            for line in study.published_rows("first_epoch", method, [corpus]):
                published.append([f"{line[0]}, {corpus}", line[1], "", ""])
            for line in study.published_rows("epochs_to_90", method, ["all"]):
                published.append([line[0], "", "", f"{float(line[1]):.1f}"])
        plots.append(figures.curves(f"{corpus}: validation", series, "epoch", "Spearman x100"))
    if not plots:
        return Section("Learning curves", [])
    unique = [list(line) for line in dict.fromkeys(map(tuple, published))]
    caption = "Validation Spearman x100, mean ± standard deviation; epochs until 90% of a run's best was first reached."
    table = Table(caption, ["method, trained on", "after epoch 1", "best", "epochs to 90% of best"], rows + unique)
    return Section(
        "Learning curves", [Figures("The mean of the runs of a method; the band spans all of them.", plots), table]
    )


def distributions(study: Study) -> Section:
    """Histograms of test scores of similar and dissimilar pairs, before and after training, all seeds together."""
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
        "Scores of dissimilar pairs (orange) and similar ones (blue, dashed), each as a share of its own; a triangle "
        "marks the median. Graded labels are split at the middle of their range. Mind the axes: before "
        "training, scores of an encoder often lie close together."
    )
    return Section("Score distributions", [Figures(legend, plots)] if plots else [])


def distances(study: Study) -> Section:
    """|u - v| of the test pairs before training, by label: kexue.fm 8847's explanation of Sentence-BERT."""
    plots, rows, seen = [], [], []
    for result in study.results:
        for corpus, splits in result.scores.items():
            values, labels = splits["test"].get("distances"), splits["test"]["labels"]
            if values is None or any(corpus == c and np.array_equal(values, other) for c, other in seen):
                continue
            seen.append((corpus, values))
            recipe = result.record["recipe"]
            name = f"{corpus}, {recipe['model_name_or_path']}, {recipe.get('pooling') or 'its own'} pooling"
            if [c for c, _ in seen].count(corpus) > 1:
                name += f", {study.row_of(result)}"
            plots.append(figures.histograms(name, split_by(labels, values), "|u - v|"))
            groups = [f"{group.mean():.3f} ± {group.std():.3f}" for _, group in split_by(labels, values)]
            rows.append([name, *groups, f"{-100 * spearman(values, labels):.2f}"])
    text = (
        "kexue.fm 8847 explains why Sentence-BERT works although its head is dropped: before any training, dissimilar "
        "pairs already lie farther apart, so that a head on |u - v| starts in the right direction. The last column is "
        "the Spearman correlation of -|u - v| with the labels."
    )
    header = ["corpus, encoder", "dissimilar", "similar", "Spearman x100"]
    table = Table("Mean ± standard deviation of |u - v| over test pairs, before training", header, rows)
    legend = "Distances of dissimilar pairs (orange) and similar ones (blue, dashed) before training."
    return Section("Distances before training", [text, Figures(legend, plots), table] if plots else [])


def split_by(labels: np.ndarray, values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Values of dissimilar and of similar pairs: labels up to the middle of their range, and above it."""
    similar = labels > (labels.min() + labels.max()) / 2
    return [("dissimilar", values[~similar]), ("similar", values[similar])]


def speed(study: Study) -> Section:
    """Time of training and scoring, on average and run by run, beside the quality it buys."""
    rows, runs = [], []
    for row, results in study.rows.items():
        for corpus in dict.fromkeys(result.trained_on for result in results):
            same = [result for result in results if result.trained_on == corpus]
            tests = [r.test(c) for r in same for c in r.tested_on]
            rows.append([f"{row}, {corpus}" if not study.crosses else row, *_times(same), spread(tests)])
            runs += [[f"{row}, {corpus}, seed {r.seed}", *_times([r]), spread([r.test(c) for c in r.tested_on][:1]),
                      str(r.record.get("threads", "")), (r.record.get("commit") or "")[:10]] for r in same]  # fmt: skip
    header = ["training minutes", "pairs/s trained", "pairs/s scored", "ms per pair scored"]
    header += ["weights trained", "optimizer MiB", "peak MiB", "test Spearman x100"]
    text = (
        "Pairs per second of training leave the evaluations between epochs out; pairs are scored in batches, both "
        "sentences anew. A bi-encoder that stores its vectors scores a pair by one dot product instead. Runs side by "
        "side share the machine: compare figures of one study only."
    )
    means = Table("Means over seeds", ["method, trained on", *header], rows)
    each = Table("Every run", ["run", *header, "threads", "commit"], runs, folded=True)
    return Section("Time", [text, means, each])


def _times(results: list[Result]) -> list[str]:
    minutes = statistics.mean(result.record["train_seconds"] for result in results) / 60
    speeds = [result.record.get("speed", {}) for result in results]
    trained, scored = (
        [s[key] for s in speeds if s.get(key)] for key in ("train_pairs_per_second", "score_pairs_per_second")
    )
    each = [f"{statistics.mean(values):.0f}" if values else "" for values in (trained, scored)]
    return [f"{minutes:.1f}", *each, f"{1000 / statistics.mean(scored):.2f}" if scored else "", *_footprint(results)]


def _footprint(results: list[Result]) -> list[str]:
    """Share of the weights that is trained, optimizer and peak memory; empty for runs from before they were kept."""
    prints = [result.record["footprint"] for result in results if result.trained_share]
    if not prints:
        return ["", "", ""]
    optimizer, peak = (statistics.mean(p[key] for p in prints) for key in ("optimizer_mib", "peak_mib"))
    return [f"{results[-1].trained_share:.1%}", f"{optimizer:.1f}", f"{peak:.0f}"]
