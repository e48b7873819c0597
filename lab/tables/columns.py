"""Tables of a study: a row for each group of runs, and columns that are functions of the runs of a row."""

from collections.abc import Callable, Collection, Iterable

from cosent.comparing import report
from cosent.comparing.report import Cell, mean_of
from cosent.comparing.results import Result, Study, grouped

Column = Callable[[list[Result]], Cell]
ERRORS = {"brier": "Brier", "log_loss": "log loss", "calibration_error": "calibration error"}
ERROR_HEADER = [
    "method, corpus",
    "map",
    *(f"{name}, {how}" for name in ERRORS.values() for how in ("as is", "calibrated")),
]


def rows_of(groups: dict[str, list[Result]], columns: Collection[Column]) -> list[list[Cell]]:
    """A row for each group of runs: its name and the cells of its columns."""
    return [[name, *(column(runs) for column in columns)] for name, runs in groups.items()]


def score(corpus: str, metric: str = "spearman", moment: str = "after") -> Column:
    """Mean and standard deviation of a test metric, x100."""
    return lambda runs: report.score(runs, corpus, metric, moment)


def most_runs(corpora: Iterable[str]) -> Column:
    """Highest number of runs that were tested on one of the corpora."""
    return lambda runs: max(sum(corpus in run.tested_on for run in runs) for corpus in corpora)


def trained_share(runs: list[Result]) -> Cell:
    """Share of the weights that were trained."""
    shares = [run.footprint.trained_share for run in runs if run.footprint is not None]
    return f"{shares[-1]:.1%}" if shares else None


def minutes(runs: list[Result]) -> Cell:
    """Mean minutes of training."""
    return mean_of((run.train_seconds / 60 for run in runs), ".1f")


def peak_mib(runs: list[Result]) -> Cell:
    """Mean of the peak memory."""
    return mean_of((run.footprint.peak_mib if run.footprint else None for run in runs), ".0f")


def start_rows(runs: list[Result], corpus: str, metrics: Iterable[str]) -> list[list[Cell]]:
    """Test metrics before training: a row for each start, of its first run, whose scores are those of all but for
    rounding."""
    starts = grouped(runs, lambda run: f"before training: {report.start_of(run)}")
    first = {name if len(starts) > 1 else "before training": runs[:1] for name, runs in starts.items()}
    return rows_of(first, [*(score(corpus, metric, "before") for metric in metrics), lambda _: None])


def error_rows(study: Study) -> list[list[Cell]]:
    """Errors of probabilities: a row per method and corpus that has a map; means over its runs."""
    rows: list[list[Cell]] = []
    for row in study.rows:
        for corpus in study.corpora:
            runs = [run for run in study.cell(row, corpus) if corpus in run.calibrations]
            if runs:
                maps = dict.fromkeys(run.calibrations[corpus].method for run in runs)
                errors = [
                    mean_of((run.test(corpus, prefix + metric) for run in runs), ".4f")
                    for metric in ERRORS
                    for prefix in ("uncalibrated_", "")
                ]
                rows.append([f"{row}, {corpus}", " or ".join(maps), *errors])
    return rows
