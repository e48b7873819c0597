"""Tables of losses next to CoSENT, with intervals of their differences, and the picture of the study `thresholds`."""

import statistics

import numpy as np

from cosent.comparing.comparison import by_seed
from cosent.comparing.document import Cell, markdown_table, times_100
from cosent.comparing.figures import COLORS, FAINT, canvas, saved, styled
from cosent.comparing.figures import rows_of as place_rows
from cosent.comparing.results import Result, Study
from lab.claims.measures import of_row, study_of
from lab.tables.columns import most_runs, rows_of, score, start_rows
from lab.tables.differences import difference
from lab.tables.studies import SHOWN, median, overlap_cell, protocol, tested, with_interval

CORPORA = {"stsb": "STS-B", "atec": "ATEC", "bq": "BQ", "lcqmc": "LCQMC"}
COMPARING = ("ranknet", "cosent")
LOSSES = {  # by row of `thresholds`, or of the study that is named
    "sbert_regression": "squared error of the cosine",
    "regression_line": "squared error of a line, learnt",
    "logistic": "logistic, threshold fixed at 0.5",
    "fixed_0.5": "the same at the rate of a learnt one",
    "fixed_0.7": "fixed at 0.7",
    "fixed_0.8": "fixed at 0.8",
    "fixed_0.9": "fixed at 0.9",
    "fixed_mean": "fixed at the mean cosine of the first batch",
    "logistic_threshold": "logistic, threshold learnt",
    "logistic_line": "logistic, threshold and scale learnt",
    "ranknet": "RankNet: compares pairs",
    "cosent": "CoSENT: compares pairs",
}
LEARNT = 1.0  # points of Spearman above the untrained model, below which a baseline has learnt nothing yet


def corpora_table(study: Study) -> str:
    """Test Spearman x100 of Sentence-BERT and CoSENT, a row per corpus, and how far CoSENT is ahead of each method."""
    rows: list[list[Cell]] = []
    for corpus in study.corpora:
        runs = by_seed(study, corpus)
        start = 100 * (next(iter(runs["cosent"].values())).test(corpus, moment="before") or 0.0)
        means, gaps = [], []
        for name in ("sbert", "sbert_regression", "cosent"):
            values = [100 * (run.test(corpus) or 0.0) for run in runs[name].values()]
            nothing = ", has learnt nothing yet" if statistics.mean(values) < start + LEARNT else ""
            means.append(f"{tested(corpus)(list(runs[name].values()))}{nothing}")
        for name in ("sbert", "sbert_regression"):
            found = difference(study.name, ("cosent", name), corpus)
            gaps.append(f"{interval_of(found)}{median(found['gaps'])}")
        rows.append([corpus, overlap_cell(corpus), f"{start:.2f}", *means, *gaps])
    header = ["test Spearman x100", "overlap", "untrained", "Sentence-BERT's head", "its regression", "CoSENT"]
    table = markdown_table([*header, "CoSENT minus head [95%]", "CoSENT minus regression [95%]"], rows)
    return f"{table}\n\n{len(study.definition['seeds'])} seeds. {protocol(study.results, study.tune)}"


def retrieval_table(study: Study) -> str:
    """Spearman, Recall@1 and Recall@10 of each method, and both less those of the first method."""
    parts = []
    for corpus in study.corpora:
        runs = by_seed(study, corpus, "queries")
        if not runs:
            continue
        first = next(iter(runs))
        every = [run for seeds in runs.values() for run in seeds.values()]
        rows = [["character overlap, no model", overlap_cell(corpus), *[None] * 5]]
        rows += [[*row, None, None] for row in start_rows(every, corpus, SHOWN)]
        shown = {row: study.rows[row] for row in runs}
        for row in rows_of(shown, [*(score(corpus, name) for name in SHOWN), most_runs([corpus])]):
            name, gaps = str(row[0]), []
            for metric in ("spearman", "recall_at_10"):
                found = difference(study.name, (name, first), corpus, metric) if name != first else None
                gaps.append(found and interval_of(found))
            rows.append([*row, *gaps])
        header = [corpus, "Spearman", "Recall@1", "Recall@10", "seeds"]
        header += [f"Spearman less that of {first}", f"Recall@10 less that of {first}"]
        parts.append(markdown_table(header, rows))
    note = "Test x100, mean ± std; differences with 95% intervals over rows and seeds."
    parts.append(f"{note} {protocol(study.results, study.tune)}")
    return "\n\n".join(parts)


def study_and_runs(loss: str, corpus: str) -> tuple[str, list[Result]]:
    """The study that has a loss on a corpus, and its runs of the seeds of CoSENT's; none before it has been run."""
    name = "primary" if loss == "sbert_regression" else "thresholds"
    if loss.startswith("fixed"):
        name = "fixed_thresholds_atec" if corpus == "atec" else "fixed_thresholds"
    study, thresholds = study_of(name), study_of("thresholds")
    assert thresholds is not None
    seeds = of_row(thresholds, "cosent", corpus)
    return name, [run for seed, run in sorted(of_row(study, loss, corpus).items()) if seed in seeds] if study else []


def thresholds_table(study: Study) -> str:
    """Two tables with a row for each loss: test Spearman by corpus with its difference from CoSENT, and Recall@10."""
    spearman: list[list[Cell]] = []
    recall: list[list[Cell]] = []
    for loss, label in LOSSES.items():
        ranks, finds, seeds = [], [], 0
        for corpus in CORPORA:
            name, runs = study_and_runs(loss, corpus)
            if not runs:
                ranks, finds = [*ranks, None, None], [*finds, None]
                continue
            names = name if name == study.name else f"{name} + {study.name}"
            found = [run.test(corpus, "recall_at_10") for run in runs]
            seeds, cell = len(runs), None if None in found else times_100([statistics.mean(map(float, found))])
            gaps: list[Cell] = [None, None]
            for place, metric in enumerate(("spearman", "recall_at_10")):
                if loss != "cosent" and (place == 0 or all(corpus in run.queries for run in runs)):
                    gaps[place] = interval_of(difference(names, (loss, "cosent"), corpus, metric))
            ranks += [tested(corpus)(runs), gaps[0]]
            finds.append(cell if gaps[1] is None else f"{cell}, {gaps[1]}")
        if seeds:  # it has been run
            few = f" ({seeds} seeds)" if seeds != len({run.seed for run in study.results}) else ""
            spearman.append([f"{label}{few}", *ranks])
            recall.append([f"{label}{few}", *finds])
    header = ["test Spearman x100"]
    for name in CORPORA.values():
        header += [name, "minus CoSENT [95%]"]
    tables = [markdown_table(header, spearman), markdown_table(["Recall@10, minus CoSENT", *CORPORA.values()], recall)]
    seeds = len({run.seed for run in study.results})
    note = f"Means ± standard deviations over {seeds} seeds, differences with 95% intervals."
    return "\n\n".join([*tables, f"{note} {protocol(study.results, study.tune)}"])


def interval_of(found: dict) -> str:
    return with_interval(found["mean"], found["low"], found["high"])


@styled
def thresholds_picture() -> str:
    """A panel for each corpus and a row for each loss: a dot per seed, a bar at their mean."""
    losses = {loss: label for loss, label in LOSSES.items() if study_and_runs(loss, "stsb")[1]}
    first = canvas("STS-B", "", 2.2)
    figure = first.figure
    figure.set_size_inches(8, 2.2)
    for place, (corpus, title) in enumerate(CORPORA.items()):
        axes = first if place == 0 else figure.add_axes((0, 0, 1, 1))
        axes.set_position((0.25 * place, 0, 0.2, 1))
        axes.set_title(title)
        axes.locator_params(axis="x", nbins=4)
        axes.set_xlabel("test Spearman x100", color=FAINT)
        place_rows(axes, [name if place == 0 else "" for name in losses.values()])
        for row, loss in enumerate(losses):
            values = [100 * (run.test(corpus) or 0.0) for run in study_and_runs(loss, corpus)[1]]
            color = COLORS[1] if loss in COMPARING else COLORS[0]
            axes.plot(values, [row] * len(values), "o", color=color, alpha=0.55, markersize=4)
            if values:
                axes.plot([np.mean(values)], [row], "|", color=color, markersize=14, markeredgewidth=2.5)
    return saved(first)
