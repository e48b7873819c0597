"""The report of a study as Markdown: the methods on test, their paired differences, and a picture of these."""

import statistics
from pathlib import Path

from cosent.comparing import figures
from cosent.comparing.comparison import Compared, by_seed, compare
from cosent.comparing.document import Cell, markdown_table, mean_of, measured, plain, times_100
from cosent.comparing.results import Result, Study, grouped
from cosent.evaluation.significance import RESAMPLES
from cosent.record import OVERLAP

STARTS = ("model_name_or_path", "tower", "pooling")  # settings that decide what a model scores before it is trained
FLOORS = {OVERLAP: "character overlap", "similar": "the shipped model similar"}
TABLE = (
    "Test x100, mean ± standard deviation over n seeds; Spearman unless stated otherwise. The epoch that is kept is "
    "chosen on validation; the test split is scored once."
)
INTERVALS = (
    f"Intervals of Student's t over test rows and seeds, with Satterthwaite's degrees of freedom. {RESAMPLES:,} times, "
    "test rows (for Recall@10: queries) are drawn with replacement, the same for both methods and pairs that share a "
    "sentence together. There is no correction for the number of comparisons."
)


def report(study: Study, picture: Path) -> str:
    """Markdown of a study; draws the picture, if there are differences, and refers to it by its folder and name."""
    compared = differences(study)
    blocks = [f"# Study {plain(study.name)}", *warnings(study), *overview(study), TABLE, table_of_methods(study)]
    if compared:
        picture.parent.mkdir(exist_ok=True)
        picture.write_text(picture_of(compared), encoding="utf-8")
        blocks += ["## Differences", INTERVALS, table_of_differences(compared)]
        blocks.append(f"![intervals of all differences]({picture.parent.name}/{picture.name})")
    without = {row for row, runs in study.rows.items() if not any(run.scores for run in runs)}
    if without and len(study.rows) > 1:
        blocks.append(plain(f"No interval for {', '.join(sorted(without))}: the scores of these runs were not kept."))
    return "\n\n".join(blocks) + "\n"


def warnings(study: Study) -> list[str]:
    """A paragraph on the runs that warned of metrics which did not improve, with the warnings of the first one."""
    warned = [run for run in study.results if run.warnings]
    if not warned:
        return []
    first = f"{warned[0].name}: {' '.join(warned[0].warnings)}"
    return [f"**{len(warned)} of {len(study.results)} runs have warnings**, the first is {plain(first)}"]


def overview(study: Study) -> list[str]:
    """Paragraphs on seeds, encoders, devices and commits, and on what is missing."""
    facts = (
        (str(r.recipe["model_name_or_path"]), r.environment.device, r.environment.short_commit) for r in study.results
    )
    encoders, devices, commits = (", ".join(dict.fromkeys(values)) for values in zip(*facts, strict=True))
    seeds = ", ".join(str(seed) for seed in sorted({result.seed for result in study.results}))
    text = [
        f"{len(study.results)} runs of {len(study.rows)} methods, seeds {seeds}, from {encoders}, on {devices}; commit "
        f"{commits}."
    ]
    if study.missing:
        more = f"; and {len(study.missing) - 6} more" if len(study.missing) > 6 else ""
        text.append(f"Not finished, {len(study.missing)} runs: {'; '.join(study.missing[:6])}{more}.")
    return list(map(plain, text))


def score(runs: list[Result], corpus: str, metric: str = "spearman", moment: str = "after") -> str | None:
    """Mean and standard deviation of a test metric, x100."""
    return times_100(run.test(corpus, metric, moment) for run in runs)


def start_of(run: Result) -> str:
    """The encoder, tower and pooling that a run started from."""
    return ", ".join(str(value) for key in STARTS if (value := run.recipe.get(key)) is not None)


def table_of_methods(study: Study) -> str:
    """Test Spearman and Recall@10 by method and corpus, after training and before it, and of the floors.

    Which difference is significant is in the `table_of_differences`.
    """
    corpora = study.corpora
    searched = [c for c in corpora if any(r.test(c, "recall_at_10") is not None for r in study.results)]
    columns = [(corpus, "spearman") for corpus in corpora] + [(corpus, "recall_at_10") for corpus in searched]

    def row_of(name: str, runs: list[Result], moment: str = "after") -> list[Cell]:
        means = [measured(run.test(corpus, moment=moment) for run in runs) for corpus in corpora]
        overall = f"{100 * statistics.mean(map(statistics.mean, means)):.2f}" if len(means) > 1 and all(means) else None
        return [name, *(score(runs, *column, moment) for column in columns), overall]

    rows = []
    for name, runs in study.rows.items():
        seeds = max(sum(corpus in run.tested_on for run in runs) for corpus in corpora)
        minutes = mean_of((run.train_seconds / 60 for run in runs), ".1f")
        rows.append([*row_of(name, runs), minutes, seeds])
    starts = grouped(study.results, lambda run: f"before training: {start_of(run)}")
    rows += [[*row_of(name, runs, "before"), None, None] for name, runs in starts.items()]
    for name, words in FLOORS.items():
        floors = [[run.floors.get(corpus, {}).get("test", {}).get(name) for run in study.results] for corpus in corpora]
        values = [mean_of((100 * value for value in measured(floor)), ".2f") for floor in floors]
        if any(values):
            rows.append([words, *values, *[None] * (len(rows[0]) - 1 - len(corpora))])
    header = ["method", *corpora, *(f"{corpus} Recall@10" for corpus in searched), "mean", "minutes", "n"]
    return markdown_table(header, rows)


def differences(study: Study) -> dict[tuple[str, str], Compared]:
    """Differences of every two methods, by corpus and name of the metric."""
    compared = {}
    for corpus in study.corpora:
        compared[corpus, "Spearman"] = compare(by_seed(study, corpus), corpus)
        compared[corpus, "Recall@10"] = compare(by_seed(study, corpus, "queries"), corpus, "recall_at_10")
    return {key: pairs for key, pairs in compared.items() if pairs}


def table_of_differences(compared: dict[tuple[str, str], Compared]) -> str:
    """Differences with their intervals and verdicts, x100."""
    rows: list[list[Cell]] = []
    for (corpus, metric), pairs in compared.items():
        for (a, b), (change, seeds) in pairs.items():
            mean, low, high = (f"{100 * value:+.2f}" for value in (change.mean, change.low, change.high))
            verdict = f"{a if change.low > 0 else b} better" if change.significant else "not significant"
            verdict += "; one seed" if seeds == 1 else ""
            rows.append([f"{a} - {b}", f"{corpus} {metric}", mean, f"{low} to {high}", seeds, verdict])
    return markdown_table(["difference", "on test x100", "mean", "95% interval", "seeds", "verdict"], rows)


def picture_of(compared: dict[tuple[str, str], Compared]) -> str:
    """SVG of the differences in Spearman; if there are many, only differences from the first method."""
    lines = []
    for (corpus, metric), pairs in compared.items():
        for (a, b), (change, _) in pairs.items():
            if metric == "Spearman" and (len(pairs) <= 6 or a == next(iter(pairs))[0]):
                values = (100 * value for value in (change.mean, change.low, change.high))
                lines.append((f"{corpus}: {a} - {b}", *values))
    return figures.intervals("Differences between methods", lines, "test Spearman x100")
