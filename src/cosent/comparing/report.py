"""The report of a study as Markdown: the methods on test, their paired differences, and a picture of these."""

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cosent.comparing import figures
from cosent.comparing.comparison import Compared, by_seed, compare, compare_queries
from cosent.comparing.document import Cell, markdown_table, mean_of, measured, plain, times_100
from cosent.comparing.results import Result, Study, grouped
from cosent.errors import InputError
from cosent.evaluation.significance import RESAMPLES, spearman
from cosent.record import OVERLAP

# Settings that every report shows, next to those in which the methods differ.
SHOWN = (
    "model_name_or_path",
    "pooling",
    "limit_train",
    "per_device_train_batch_size",
    "learning_rate",
    "num_train_epochs",
)
# Settings that differ between runs, but are not a choice.
INCIDENTAL = ("seed", "output_dir", "corpus", "corpora", "data_dir", "resume_from_checkpoint", "logging_steps")
STARTS = ("model_name_or_path", "tower", "pooling")  # settings that decide what a model scores before it is trained
FLOORS = {"spearman": "their start", OVERLAP: "character overlap", "similar": "the shipped model `similar`"}
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
    refuse_edited(study)
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


def refuse_edited(study: Study) -> None:
    """Refuses results whose Spearman is not that of the scores beside them."""
    for run in study.results:
        for corpus, scores in run.scores.items():
            value = run.test(corpus)
            if value is not None and abs(spearman(scores["after"], scores["labels"]) - value) > 1e-4:
                raise InputError(f"{run.name}: the Spearman on {corpus} does not fit the scores. Run it again.")


def warnings(study: Study) -> list[str]:
    """Paragraphs that count the runs which learnt nothing, by the floor that they are not above."""
    lines = []
    for name, words in FLOORS.items():
        corpora = [corpus for corpus in study.corpora if floors_of(study, corpus, name)]
        runs = [run for run in study.results if {*run.tested_on} & {*corpora}]
        below = [run for run in runs if not all(is_above(run, corpus, name, study) for corpus in corpora)]
        if below:
            rest = " The comparison says nothing." if len(below) == len(runs) and name != "similar" else ""
            lines.append(f"**{len(below)} of {len(runs)} runs are not clearly above {words}.**{rest}")
    return lines


def floors_of(study: Study, corpus: str, name: str) -> list[float]:
    """Test Spearman of a floor on a corpus, of all runs that have it: their start, or a model without training."""
    if name == "spearman":
        return measured(run.test(corpus, moment="before") for run in study.results)
    return measured(run.floors.get(corpus, {}).get("test", {}).get(name) for run in study.results)


def is_above(run: Result, corpus: str, name: str, study: Study) -> bool:
    """Whether a run is above a floor by the interval of its paired difference, or at all where there is none."""
    change = run.changes.get(corpus, {}).get("test", {}).get(name)
    if corpus not in run.tested_on or change is not None:
        return change is None or change[1] > 0
    value, start = run.test(corpus), run.test(corpus, moment="before")
    lowest = start if name == "spearman" else statistics.mean(floors_of(study, corpus, name))
    return value is not None and (lowest is None or value > lowest)


def overview(study: Study) -> list[str]:
    """Paragraphs on seeds, encoders, devices and commits, and a table of the settings that differ between methods."""
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
    recipes = {row: [run.recipe for run in runs] for row, runs in study.rows.items()}
    keys = dict.fromkeys([*SHOWN, *(key for runs in recipes.values() for recipe in runs for key in recipe)])
    cells = {key: [settings(key, runs) for runs in recipes.values()] for key in keys if key not in INCIDENTAL}
    differing = {key: column for key, column in cells.items() if len({*column} - {None}) > 1}
    same = [f"{key} {cells[key][0]}" for key in SHOWN if key not in differing and cells[key][0] not in (None, "none")]
    rows = [[row, *(column[place] for column in differing.values())] for place, row in enumerate(recipes)]
    text.append(f"The same for all: {', '.join(same)}. What differs:")
    return [*map(plain, text), markdown_table(["method", *differing], rows)]


def settings(key: str, recipes: Iterable[dict[str, Any]]) -> str | None:
    """The values of a flag in some recipes, e.g. the rates that were chosen for each corpus; None if none has it."""
    values = [setting(recipe[key]) or "none" for recipe in recipes if key in recipe]
    return ", ".join(dict.fromkeys(values)) or None


def setting(value: Any) -> str | None:
    """The value of a flag in a table."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return None if value is None else str(value)


def score(runs: list[Result], corpus: str, metric: str = "spearman", moment: str = "after") -> str | None:
    """Mean and standard deviation of a test metric, x100."""
    return times_100(run.test(corpus, metric, moment) for run in runs)


def start_of(run: Result) -> str:
    """The encoder, tower and pooling that a run started from."""
    return ", ".join(str(value) for key in STARTS if (value := run.recipe.get(key)) is not None)


def table_of_methods(study: Study) -> str:
    """Test Spearman and Recall@10 by method and corpus, after training and before it, and of the floors.

    The highest mean of a corpus is bold, unless it is below character overlap or the start.
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
    best = best_of(rows, columns, study) if len(rows) > 1 else []
    starts = grouped(study.results, lambda run: f"before training: {start_of(run)}")
    rows += [[*row_of(name, runs, "before"), None, None] for name, runs in starts.items()]
    for name in (OVERLAP, "similar"):
        values = [mean_of((100 * value for value in floors_of(study, corpus, name)), ".2f") for corpus in corpora]
        if any(values):
            rows.append([FLOORS[name].replace("`", ""), *values, *[None] * (len(rows[0]) - 1 - len(corpora))])
    header = ["method", *corpora, *(f"{corpus} Recall@10" for corpus in searched), "mean", "minutes", "n"]
    return markdown_table(header, rows, best)


def best_of(rows: list[list[Cell]], columns: list[tuple[str, str]], study: Study) -> list[tuple[int, int]]:
    """Cells with the highest mean of each column as printed; no Spearman below character overlap or the start."""
    best = []
    for number, (corpus, metric) in enumerate(columns, 1):
        printed = {
            place: float(str(row[number]).split()[0]) for place, row in enumerate(rows) if row[number] is not None
        }
        floors = [
            100 * value
            for name in ("spearman", OVERLAP)
            for value in floors_of(study, corpus, name)
            if metric == "spearman"
        ]
        highest = max(printed.values(), default=None)
        if highest is not None and highest > max(floors, default=-100):
            best += [(place, number) for place, mean in printed.items() if mean == highest]
    return best


def differences(study: Study) -> dict[tuple[str, str], Compared]:
    """Differences of every two methods, by corpus and name of the metric."""
    compared = {}
    for corpus in study.corpora:
        compared[corpus, "Spearman"] = compare(by_seed(study, corpus), corpus)
        compared[corpus, "Recall@10"] = compare_queries(by_seed(study, corpus, "queries"), corpus, "recall_at_10")
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
    """SVG of the differences in Spearman; of many, those of the first method."""
    lines = []
    for (corpus, metric), pairs in compared.items():
        for (a, b), (change, _) in pairs.items():
            if metric == "Spearman" and (len(pairs) <= 6 or a == next(iter(pairs))[0]):
                values = (100 * value for value in (change.mean, change.low, change.high))
                lines.append((f"{corpus}: {a} - {b}", *values))
    return figures.intervals("Differences between methods", lines, "test Spearman x100")
