"""Tables for choosing a tower: latency and memory, and quality in kept results."""

import json
from pathlib import Path

from cosent.errors import InputError
from cosent.evaluation.retrieval import NAMES as NAMES_OF_METRICS
from cosent.reporting.document import markdown_table
from cosent.reporting.numbers import Cell, Number, times_100
from cosent.run_record import shortened
from cosent.studies.results import read_results

NAMES = {"bi": "bi-encoder", "student": "student", "cross": "cross-encoder", "both": "bi-encoder, then cross-encoder"}
CASES = {"pair": "one pair", "few": "1 against 1,000", "many": "1 against 1,000,000"}
FORMS = ("float32", "int8")

# What quality is read from: row, study under results/ and method there; or JSON of `benchmarks.students` and row.
CORPUS = "stsb"
KEPT_RUNS = (
    ("bi-encoder", "towers_stsb", "bi_encoder-cosent_mini"),
    ("cross-encoder", "towers_stsb", "cross_encoder-cosent_mini"),
)
KEPT_STUDENTS = (
    ("student of a bi-encoder with {teacher}", "student_stsb.json", "then stage 2 (distilled from cosent)"),
)


def choosing_table(result: dict) -> str:
    """Milliseconds of an answer, each with its ratio to the bi-encoder in float32, and memory."""
    taken = result["milliseconds"]
    header = ["model", "type"]
    for case in CASES.values():
        header += [f"{case}, ms", "ratio"]
    rows: list[list[Cell]] = []
    for key, name in NAMES.items():
        for form in FORMS:
            own = taken[f"{key} {form}"]
            answers: list[Cell] = []
            for case in CASES:
                answers += latency(own, taken["bi float32"], case)
            mib: list[Cell] = [memory(result[kind], key, form) for kind in ("mib", "peak_mib")]
            rows.append([name, form, *answers, *mib])
    before, after = result["load"]
    return (
        f"{markdown_table([*header, 'weights, MiB', 'process, MiB'], rows)}\n\n"
        f"Milliseconds of one processor core, medians over {result['queries']} queries of {result['corpus']} test, "
        f"which all models answer in turn. Then cross-encoder: it reads the first {result['top']} that the bi-encoder "
        "has found. ~ is 1,000 times the figure of 1,000, not measured. Process: "
        "the peak of one that loads the model and answers the first two cases, most of it Python and torch; 1,000,000 "
        "vectors of "
        f"{result['width']} floats are {1e6 * result['width'] * 4 / 2**20:.0f} MiB more. {result['device']}, load "
        f"{before:.1f} to {after:.1f}, {result['when']}, commit {shortened(result['commit'])}."
    )


def latency(own: dict[str, float], reference: dict[str, float], case: str) -> list[Cell]:
    """Time and ratio of a case; extrapolated for a cross-encoder that would have to read 1,000,000 pairs."""
    if case in own:
        return [
            Number(own[case], form=".3g" if own[case] < 1000 else ",.0f"),
            Number(own[case] / reference[case], form=".3g"),
        ]
    if case == "many":
        ms = 1000 * own["few"]
        return [f"~ {ms:,.0f}", f"~ {ms / reference['many']:,.0f}"]
    return [None, None]  # two models have no score of a pair


def memory(mib: dict[str, float], key: str, form: str) -> Cell:
    return None if key == "both" else Number(mib[f"{key} {form}"], form=".0f")


def quality_table(result: dict) -> str:
    """Spearman of pairs and retrieval metrics of each model and number type, and what reranking adds."""
    metrics = ("recall_at_1", "mrr_at_10", "recall_at_10")
    order = list(NAMES)
    rows: list[list[Cell]] = []
    for row in sorted(result["rows"], key=lambda row: order.index(row["model"])):
        found: list[Cell] = [times_100([row[metric]]) if metric in row else None for metric in metrics]
        pairs = None if row["spearman"] is None else times_100([row["spearman"]])
        rows.append([NAMES[row["model"]], row["form"], pairs, *found])
    both = next(row for row in result["rows"] if row["model"] == "both" and row["form"] == "float32")
    alone = next(row for row in result["rows"] if row["model"] == "bi" and row["form"] == "float32")
    low, high = (100 * bound for bound in both["gain"]["recall_at_1"])
    gain = 100 * (both["recall_at_1"] - alone["recall_at_1"])
    header = ["model", "type", "test Spearman ×100", *(NAMES_OF_METRICS[metric] for metric in metrics)]
    return (
        f"{markdown_table(header, rows)}\n\n"
        f"{result['corpus']} test, from models trained on {result['trained_on']}; sentences are found for "
        f"{result['queries']:,} queries among all of the split. The cross-encoder orders the first {result['top']}: "
        f"Recall@1 {gain:+.2f} [{low:+.2f}, {high:+.2f}] (paired 95% interval over queries). {result['device']}, "
        f"{result['when']}, commit {shortened(result['commit'])}."
    )


def kept_quality(results: Path) -> str:
    """Test Spearman on one corpus of towers and students in the results that studies kept."""
    rows: list[list[Cell]] = []
    for name, study, method in KEPT_RUNS:
        kept = read_results(results / study).results
        runs = [run for run in kept if run.file.name.startswith(f"{method}-{CORPUS}-")]
        if not runs:
            raise InputError(f"{results / study} has no {method} on {CORPUS}, and a page shows it. Run the study.")
        rows.append([name, times_100(run.test(CORPUS) for run in runs), len(runs), f"results/{study}"])
    for name, file, row in KEPT_STUDENTS:
        by_name = {entry["model"]: entry for entry in json.loads((results / file).read_text(encoding="utf-8"))["rows"]}
        teacher = next(entry for model, entry in by_name.items() if model.startswith("teacher"))
        spearman = by_name[row]["spearman"]
        named = name.format(teacher=times_100(teacher["spearman"]))
        rows.append([named, times_100(spearman), len(spearman), f"results/{file}"])
    return markdown_table(["model", f"{CORPUS} test Spearman ×100", "seeds", "from"], rows)
