"""Comparing pairs, or a threshold that is not fixed? Table and picture of the study `thresholds`, beside `primary`."""

import numpy as np

from cosent.comparing.comparison import Runs, by_seed, compare
from cosent.comparing.document import Cell, markdown_table
from cosent.comparing.figures import COLORS, FAINT, canvas, rows_of, saved, styled
from cosent.comparing.results import Study
from lab.claims.measures import study_of
from lab.tables.studies import gap_of, protocol, tested

CORPORA = {"stsb": "STS-B", "atec": "ATEC", "bq": "BQ", "lcqmc": "LCQMC"}
OF_PRIMARY = "sbert_regression"
COMPARING = ("ranknet", "cosent")
LOSSES = {
    "sbert_regression": "squared error of the cosine",
    "regression_line": "squared error of a line, learnt",
    "logistic": "logistic, threshold fixed",
    "logistic_threshold": "logistic, threshold learnt",
    "logistic_line": "logistic, threshold and scale learnt",
    "ranknet": "RankNet: compares pairs",
    "cosent": "CoSENT: compares pairs",
}


def runs_of(study: Study, corpus: str) -> Runs:
    """Runs by loss and seed, of the seeds that the study and `primary` share."""
    primary = study_of("primary")
    assert primary is not None
    found = by_seed(study, corpus) | {OF_PRIMARY: by_seed(primary, corpus)[OF_PRIMARY]}
    shared = set.intersection(*(set(seeds) for seeds in found.values()))
    return {loss: {seed: found[loss][seed] for seed in sorted(shared)} for loss in LOSSES}


def thresholds_table(study: Study) -> str:
    """A row for each loss: test Spearman x100 by corpus, and its difference from CoSENT with its interval."""
    rows: list[list[Cell]] = [[name] for name in LOSSES.values()]
    shares: list[Cell] = ["of the way from the first row to CoSENT, the learnt threshold goes"]
    counts = set()
    for corpus in CORPORA:
        runs = runs_of(study, corpus)
        counts |= {len(seeds) for seeds in runs.values()}
        found = compare(runs, corpus)
        for row, (loss, seeds) in zip(rows, runs.items(), strict=True):
            row += [tested(corpus)(list(seeds.values())), gap_of(found, (loss, "cosent"), 1)]
        lead = found[OF_PRIMARY, "cosent"][0].mean
        shares += [f"{1 - found['logistic_threshold', 'cosent'][0].mean / lead:.0%}", None]
    header = ["test Spearman x100"]
    for name in CORPORA.values():
        header += [name, "minus CoSENT [95%]"]
    note = f"Means ± standard deviations over {' or '.join(map(str, sorted(counts)))} seeds."
    return f"{markdown_table(header, [*rows, shares])}\n\n{note} {protocol(study.results, study.tune)}"


@styled
def thresholds_picture() -> str:
    """A panel for each corpus and a row for each loss: a dot per seed, a bar at their mean."""
    study = study_of("thresholds")
    assert study is not None
    first = canvas("STS-B", "", 2.2)
    figure = first.figure
    figure.set_size_inches(8, 2.2)
    for place, (corpus, title) in enumerate(CORPORA.items()):
        axes = first if place == 0 else figure.add_axes((0, 0, 1, 1))
        axes.set_position((0.25 * place, 0, 0.2, 1))
        axes.set_title(title)
        axes.locator_params(axis="x", nbins=4)
        axes.set_xlabel("test Spearman x100", color=FAINT)
        rows_of(axes, [name if place == 0 else "" for name in LOSSES.values()])
        for row, (loss, seeds) in enumerate(runs_of(study, corpus).items()):
            values = [100 * (run.test(corpus) or 0.0) for run in seeds.values()]
            color = COLORS[1] if loss in COMPARING else COLORS[0]
            axes.plot(values, [row] * len(values), "o", color=color, alpha=0.55, markersize=4)
            axes.plot([np.mean(values)], [row], "|", color=color, markersize=14, markeredgewidth=2.5)
    return saved(first)
