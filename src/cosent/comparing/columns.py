"""Tables of a study: a row for each group of runs, and columns that are functions of the runs of a row."""

from collections.abc import Callable, Collection, Iterable

from cosent.comparing.document import Cell, mean_of, times_100
from cosent.comparing.results import Result, grouped

# Settings that decide what a model scores before it is trained.
STARTS = ("model_name_or_path", "tower", "pooling")

Column = Callable[[list[Result]], Cell]


def rows_of(groups: dict[str, list[Result]], columns: Collection[Column]) -> list[list[Cell]]:
    """A row for each group of runs: its name and the cells of its columns."""
    return [[name, *(column(runs) for column in columns)] for name, runs in groups.items()]


def mean(value: Callable[[Result], float | None], form: str) -> Column:
    return lambda runs: mean_of(map(value, runs), form)


def score(corpus: str, metric: str = "spearman", moment: str = "after") -> Column:
    """Mean and standard deviation of a test metric, x100."""
    return lambda runs: times_100(run.test(corpus, metric, moment) for run in runs)


def most_runs(corpora: Iterable[str]) -> Column:
    """Highest number of runs that were tested on one of the corpora."""
    return lambda runs: max(sum(corpus in run.tested_on for run in runs) for corpus in corpora)


def trained_share(runs: list[Result]) -> Cell:
    shares = [run.footprint.trained_share for run in runs if run.footprint is not None]
    return f"{shares[-1]:.1%}" if shares else None


minutes = mean(lambda run: run.train_seconds / 60, ".1f")
peak_mib = mean(lambda run: run.footprint.peak_mib if run.footprint else None, ".0f")


def start_of(run: Result) -> str:
    """The encoder, tower and pooling that a run started from."""
    return ", ".join(str(value) for key in STARTS if (value := run.recipe.get(key)) is not None)


def start_rows(runs: list[Result], corpus: str, metrics: Iterable[str]) -> list[list[Cell]]:
    """Test metrics before training: a row for each start, of its first run, whose scores are those of all but for
    rounding."""
    starts = grouped(runs, lambda run: f"before training: {start_of(run)}")
    first = {name if len(starts) > 1 else "before training": runs[:1] for name, runs in starts.items()}
    return rows_of(first, [*(score(corpus, metric, "before") for metric in metrics), lambda _: None])
