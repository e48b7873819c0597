"""Section and table on retrieval: what the methods of a study find, next to how they rank."""

from cosent.evaluation.retrieval import METRICS, NAMES
from cosent.evaluation.significance import Difference
from cosent.reporting.comparison import by_start
from cosent.reporting.differences import compare, compare_queries, difference_blocks
from cosent.reporting.document import Block, Section, Table, markdown_table
from cosent.reporting.numbers import Cell, times_100
from cosent.reporting.readme_tables import protocol
from cosent.studies.results import Result, Study

ALL = ("spearman", *METRICS)
TEXT = (
    "Every sentence with similar ones is a query for them among all others. Intervals of differences are paired, as "
    "those of Spearman, with queries drawn in the place of pairs."
)
SHOWN = ("spearman", "recall_at_1", "recall_at_10")  # in the tables of README and docs


def retrieval(study: Study, metric: str) -> Section:
    """Section of all retrieval metrics on test, and of the differences of every two methods in one of them."""
    blocks: list[Block] = []
    for corpus in measured(study):
        header = ["method", "Spearman", *NAMES.values(), "n"]
        rows = [*start_rows(study, corpus, ALL), *(test_row(study, row, corpus, ALL) for row in study.rows)]
        sizes = {(run.test(corpus, "queries"), run.test(corpus, "pool")) for run in with_queries(study, corpus)}
        among = " or ".join(f"{queries:.0f} queries among {pool:.0f} sentences" for queries, pool in sorted(sizes))
        blocks.append(Table(f"Test x100 on {corpus}, {among}; mean ± standard deviation over n seeds.", header, rows))
        found = compare_queries(scored(study, corpus), corpus, metric)
        if found:
            blocks += difference_blocks(found, corpus, NAMES[metric])
    if blocks:
        blocks.insert(0, TEXT)
    return Section("Retrieval", blocks)


def retrieval_table(study: Study) -> str:
    """Markdown table: Spearman, Recall@1 and Recall@10 of each method, and both less those of the first method."""
    parts = []
    for corpus in measured(study):
        runs = scored(study, corpus)
        first = next(iter(runs))
        compared = (compare(runs, corpus), compare_queries(runs, corpus, "recall_at_10"))
        rows = [[*row, None, None] for row in start_rows(study, corpus, SHOWN)]
        for row in runs:
            differences = [against(each, first, row) for each in compared]
            rows.append([*test_row(study, row, corpus, SHOWN), *differences])
        header = [corpus, "Spearman", "Recall@1", "Recall@10", "seeds"]
        header += [f"Spearman less that of {first}", f"Recall@10 less that of {first}"]
        parts.append(markdown_table(header, rows))
    note = "Test x100, mean ± std; differences with 95% intervals over rows and seeds."
    parts.append(f"{note} {protocol(study.results, study.tune)}")
    return "\n\n".join(parts)


def against(found: dict[tuple[str, str], tuple[Difference, int]], first: str, row: str) -> str | None:
    """The difference of a method from the first one, with its interval."""
    if (first, row) not in found:
        return None
    each, _ = found[first, row]
    mean, low, high = (0.0 - 100 * value for value in (each.mean, each.high, each.low))  # -100 * 0 would print -0.00
    return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def measured(study: Study) -> list[str]:
    """Corpora on which some run measured retrieval."""
    return [corpus for corpus in study.corpora if with_queries(study, corpus)]


def with_queries(study: Study, corpus: str) -> list[Result]:
    return [run for run in study.results if corpus in run.queries]


def scored(study: Study, corpus: str) -> dict[str, dict[int, Result]]:
    """Runs that measured retrieval on a corpus, by row and seed."""
    runs = {row: {r.seed: r for r in study.cell(row, corpus) if corpus in r.queries} for row in study.rows}
    return {row: by_seed for row, by_seed in runs.items() if by_seed}


def test_row(study: Study, row: str, corpus: str, metrics: tuple[str, ...]) -> list[Cell]:
    runs = study.cell(row, corpus)
    return [row, *(times_100(run.test(corpus, metric) for run in runs) for metric in metrics), len(runs)]


def start_rows(study: Study, corpus: str, metrics: tuple[str, ...]) -> list[list[Cell]]:
    """The same before training, a row for each encoder and pooling that runs started from."""
    starts = by_start(with_queries(study, corpus))
    rows: list[list[Cell]] = []
    for start, (run, *_) in starts.items():  # but for rounding, all runs of a start have the same
        values = [times_100([run.test(corpus, metric, "before")]) for metric in metrics]
        rows.append([f"before training: {start}" if len(starts) > 1 else "before training", *values, None])
    return rows
