"""Tables of losses next to CoSENT, with intervals of their differences, and the picture of the study `thresholds`."""

import statistics
from itertools import product

import numpy as np

from cosent.comparing.figures import COLORS, FAINT, canvas, saved, styled
from cosent.comparing.figures import rows_of as place_rows
from cosent.comparing.report import Cell, by_seed, markdown_table, times_100
from cosent.comparing.results import Result, Study
from lab.claims.measures import of_row, study_of
from lab.tables.columns import most_runs, rows_of, score, start_rows
from lab.tables.differences import difference
from lab.tables.studies import SHOWN, median, overlap_cell, protocol, tested, with_interval

CORPORA = {"stsb": "STS-B", "atec": "ATEC", "bq": "BQ", "lcqmc": "LCQMC"}
COMPARING = ("ranknet", "cosent")
MINI = ("thresholds", "primary")
FIXED = ("fixed_thresholds", "fixed_thresholds_atec")
PUBLIC = ("public_stsb", "public_bq", "public_others")
CROSS = ("public_cross",)
Rows = dict[str, tuple[str, tuple[str, ...]]]  # by label: row of a study, or rows by "|", and studies; the first counts
LOSSES: dict[str, Rows] = {  # by the study that a page names
    "thresholds": {
        "squared error of the cosine": ("sbert_regression", MINI),
        "squared error of a line, learnt": ("regression_line", MINI),
        "logistic, threshold fixed at 0.5": ("logistic", MINI),
        "logistic, threshold learnt": ("logistic_threshold", MINI),
        "logistic, threshold and scale learnt": ("logistic_line", MINI),
        "RankNet: compares pairs": ("ranknet", MINI),
        "CoSENT: compares pairs": ("cosent", MINI),
    },
    "fixed_thresholds": {
        "logistic, threshold fixed at 0.5": ("fixed_0.5", FIXED),
        "at 0.7": ("fixed_0.7", FIXED),
        "at 0.8": ("fixed_0.8", FIXED),
        "at 0.9": ("fixed_0.9", FIXED),
        "at the mean cosine of the first batch": ("fixed_mean", FIXED),
        "threshold learnt": ("logistic_threshold", MINI),
        "threshold and scale learnt": ("logistic_line", MINI),
        "CoSENT": ("cosent", MINI),
    },
    "public_stsb": {
        "untuned": ("cosent before training", PUBLIC),
        "CoSENT": ("cosent", PUBLIC),
        "Sentence-BERT's head": ("sbert|sbert_faster", PUBLIC),
        "regression of the cosine": ("sbert_regression", PUBLIC),
        "logistic, threshold fixed at the mean cosine of the first batch": ("logistic_mean", PUBLIC),
        "logistic, threshold and scale learnt": ("logistic_line", PUBLIC),
        "CoSENT, all pairs": ("cosent|two_epochs|one_epoch", ("public_all",)),
        "CoSENT on NLI, 50,000 pairs": ("nli", ("public_all",)),
        "CoSENT, LoRA": ("cosent_lora", ("public_lora",)),
        "cross-encoder, CoSENT": ("cosent", CROSS),
        "cross-encoder, cross entropy, on STS-B squared error": ("ce|mse", CROSS),
    },
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


def found_runs(family: str, label: str, corpus: str) -> tuple[str, str, list[Result]]:
    """The study, and its row, of a row of `LOSSES` on a corpus, and its runs of the seeds of CoSENT, if any."""
    rows, names = LOSSES[family][label]
    of_cosent = next(studies for other, studies in LOSSES[family].values() if other == "cosent")
    seeds = next((runs for name in of_cosent if (runs := seeds_of(name, "cosent", corpus))), {})
    for name, row in product(names, rows.split("|")):
        if runs := seeds_of(name, row, corpus):
            return name, row, [run for seed, run in sorted(runs.items()) if seed in seeds]
    return "", "", []


def seeds_of(name: str, row: str, corpus: str) -> dict[int, Result]:
    """Runs of a row by seed; none of a study that has not been run."""
    study = study_of(name)
    return of_row(study, row, corpus) if study else {}


def losses_table(study: Study) -> str:
    """Two tables with a row for each loss: test Spearman by corpus with its difference from CoSENT, and Recall@10."""
    spearman: list[list[Cell]] = []
    recall: list[list[Cell]] = []
    losses = LOSSES[study.name]
    cosent = next(label for label, (row, _) in losses.items() if row == "cosent")
    reference = {corpus: found_runs(study.name, cosent, corpus) for corpus in CORPORA}
    seeds = {corpus: len(runs) for corpus, (*_, runs) in reference.items()}
    for label in losses:
        ranks, finds, fewer = [], [], set()
        for corpus, (first, _, _) in reference.items():
            name, row, runs = found_runs(study.name, label, corpus)
            if not runs:
                ranks, finds = [*ranks, None, None], [*finds, None]
                continue
            names = name if name == first else f"{name} + {first}"
            found = [run.test(corpus, "recall_at_10") for run in runs]
            cell = None if None in found else times_100([statistics.mean(map(float, found))])
            fewer |= {len(runs)} - {seeds[corpus]}
            gaps: list[Cell] = [None, None]
            for place, metric in enumerate(("spearman", "recall_at_10")):
                if label != cosent and (place == 0 or all(corpus in run.queries for run in runs)):
                    gaps[place] = interval_of(difference(names, (row, "cosent"), corpus, metric))
            ranks += [tested(corpus)(runs), gaps[0]]
            finds.append(cell if gaps[1] is None else f"{cell}, {gaps[1]}")
        if any(ranks):  # it has been run
            few = f" ({min(fewer)} seed{'s' * (min(fewer) > 1)})" if fewer else ""
            spearman.append([f"{label}{few}", *ranks])
            recall.append([f"{label}{few}", *finds])
    uneven = len(set(seeds.values())) > 1
    heads = {c: f"{name}, {seeds[c]} seed{'s' * (seeds[c] > 1)}" if uneven else name for c, name in CORPORA.items()}
    header = ["test Spearman x100"]
    for head in heads.values():
        header += [head, "minus CoSENT [95%]"]
    rows = [row for row in recall if any(row[1:])]
    tables = [markdown_table(header, spearman), markdown_table(["Recall@10, minus CoSENT", *heads.values()], rows)]
    most = max(seeds.values())
    means = "One seed, differences with 95% intervals over test rows."
    if most > 1:
        over = "seeds" if uneven else f"{most} seeds"
        means = f"Means ± standard deviations over {over}, differences with 95% intervals."
    studies = [study_of(name) for name in dict.fromkeys(name for name, *_ in reference.values() if name)]
    results = [run for each in studies if each for run in each.results]
    return "\n\n".join([*tables, f"{means} {protocol(results, study.tune)}"])


def interval_of(found: dict) -> str:
    return with_interval(found["mean"], found["low"], found["high"])


@styled
def thresholds_picture() -> str:
    """A panel for each corpus and a row for each loss: a dot per seed, a bar at their mean."""
    losses = [label for label in LOSSES["thresholds"] if found_runs("thresholds", label, "stsb")[2]]
    first = canvas("STS-B", "", 2.2)
    figure = first.figure
    figure.set_size_inches(8, 2.2)
    for place, (corpus, title) in enumerate(CORPORA.items()):
        axes = first if place == 0 else figure.add_axes((0, 0, 1, 1))
        axes.set_position((0.25 * place, 0, 0.2, 1))
        axes.set_title(title)
        axes.locator_params(axis="x", nbins=4)
        axes.set_xlabel("test Spearman x100", color=FAINT)
        place_rows(axes, [label if place == 0 else "" for label in losses])
        for row, label in enumerate(losses):
            values = [100 * (run.test(corpus) or 0.0) for run in found_runs("thresholds", label, corpus)[2]]
            color = COLORS[1] if LOSSES["thresholds"][label][0] in COMPARING else COLORS[0]
            axes.plot(values, [row] * len(values), "o", color=color, alpha=0.55, markersize=4)
            if values:
                axes.plot([np.mean(values)], [row], "|", color=color, markersize=14, markeredgewidth=2.5)
    return saved(first)
