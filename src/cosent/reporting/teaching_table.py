"""Table of towers that taught each other, next to the same towers without a teacher."""

from cosent.reporting.differences import compare
from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Number, Range, times_100
from cosent.studies.results import Study

ALONE = "round_0"  # of either tower: trained on labels alone
TOWERS = ("bi_encoder", "cross_encoder")


def teaching_table(study: Study) -> str:
    """Spearman x100 of every model, mean and standard deviation over seeds, and what teaching adds on test.

    Differences are those of the means on seeds that both have, with the interval of a paired bootstrap; empty without
    a model of that tower that learnt from labels alone.
    """
    header = ["Spearman x100", "validation", "test", *(f"test, minus {tower} {ALONE}" for tower in TOWERS)]
    tables = []
    for corpus in dict.fromkeys(name for run in study.results for name, splits in run.after.items() if splits):
        rows: list[list[Cell]] = []
        for row, every in study.rows.items():
            runs = [run for run in every if corpus in run.after]
            splits = [times_100(run.after[corpus].get(split, {}).get("spearman") for run in runs)
                      for split in ("validation", "test")]  # fmt: skip
            gains = [gain(study, corpus, row, f"{tower} {ALONE}") for tower in TOWERS]
            rows.append([row, *splits, *gains, len({run.seed for run in runs})])
        tables.append(markdown_table([f"{corpus}, {header[0]}", *header[1:], "seeds"], rows))
    run = study.results[0]
    commits = ", ".join(dict.fromkeys(result.environment.short_commit for result in study.results))
    tables.append(f"{run.environment.device}, commit {commits}.")
    return "\n\n".join(tables)


def gain(study: Study, corpus: str, row: str, alone: str) -> str | None:
    """Difference between the runs of two rows on the test split, and its 95% interval; None if it has none."""
    if row == alone or alone not in study.rows:
        return None
    scored = {
        name: {run.seed: run for run in study.cell(name, corpus) if corpus in run.scores} for name in (row, alone)
    }
    if not all(scored.values()):
        return None
    found = compare(scored, corpus).get((row, alone))
    if found is None:
        return None
    difference, _ = found
    return f"{Number(100 * difference.mean, form='+.2f')} ({Range(100 * difference.low, 100 * difference.high)})"
