"""Retrieval in reports and in the tables of README and docs."""

import json

import numpy as np
import pytest

from cosent.errors import InputError
from cosent.evaluation.retrieval import METRICS
from cosent.report import write
from cosent.reporting.differences import compare_queries
from cosent.reporting.retrieval import retrieval, retrieval_table
from cosent.run_queries import QUERIES_NAME, QueryMetrics, read_queries, save_queries
from cosent.studies.results import Study, read_results

FOUND = {"good": 0.8, "bad": 0.4, "same": 0.8}


@pytest.fixture
def study(make_study) -> Study:
    """Three methods, of which one finds half as much as the others; 200 queries."""
    folder = make_study({"good": 0.5, "bad": 0.6, "same": 0.5})
    for file in folder.glob("*.json"):
        record = json.loads(file.read_text())
        method, seed = record["study"]["method"], record["study"]["seed"]
        drawn = np.random.default_rng(seed).random(200)  # the same for all methods
        values = dict.fromkeys(METRICS, (drawn < FOUND[method]).astype(float))
        values |= {"map": np.linspace(0, 1, 200)}
        save_queries(file.with_suffix(f".{QUERIES_NAME}"), {"lcqmc": {"test": QueryMetrics("t", {"after": values})}})
        record["after"]["lcqmc"]["test"] |= {name: float(v.mean()) for name, v in values.items()}
        record["after"]["lcqmc"]["test"] |= {"queries": 200, "pool": 500}
        record["before"]["lcqmc"]["test"] |= dict.fromkeys(METRICS, 0.25)
        file.write_text(json.dumps(record))
    return read_results(folder)


def test_differences_are_paired(study):
    """Fails if a difference is not that of the means, or a method that finds the same is told apart."""
    scored = {row: {r.seed: r for r in runs} for row, runs in study.rows.items()}
    found = compare_queries(scored, "lcqmc", "recall_at_10")
    gain, seeds = found["good", "bad"]
    means = {row: np.mean([r.test("lcqmc", "recall_at_10") for r in runs]) for row, runs in study.rows.items()}
    assert gain.mean == pytest.approx(means["good"] - means["bad"], abs=1e-6) and seeds == 2
    assert 0.3 < gain.low < gain.mean < gain.high < 0.5
    same, _ = found["good", "same"]
    assert (same.mean, same.low, same.high) == (0, 0, 0)
    other = study.folder / f"bad-lcqmc-1.{QUERIES_NAME}"
    queries = read_queries(other)
    queries["lcqmc"]["test"].task = "another"
    save_queries(other, queries)
    again = {row: {r.seed: r for r in runs} for row, runs in read_results(study.folder).rows.items()}
    with pytest.raises(InputError, match="bad-lcqmc-1.json had other queries on lcqmc"):
        compare_queries(again, "lcqmc", "recall_at_10")


def test_the_section_shows_every_metric_and_the_chosen_differences(study):
    """Fails if a figure is in the column of another metric, or --metric does not reach the differences."""
    text, table, _, differences = retrieval(study, "recall_at_1").blocks
    assert "200 queries among 500 sentences" in table.caption and len(table.header) == 2 + len(METRICS) + 1
    [before, good, bad, same] = table.rows
    assert before[0] == "before training" and [cell.value for cell in before[2:-1]] == [25] * len(METRICS)
    recall = np.mean([run.test("lcqmc", "recall_at_1") for run in study.rows["good"]])
    assert good[0] == "good" and good[2].value == pytest.approx(100 * recall)
    assert good[table.header.index("MAP")].value == pytest.approx(50) and bad[2].value < good[2].value == same[2].value
    assert "Recall@1" in differences.caption and [row[-1] for row in differences.rows] == [
        "good better",
        "not significant",
        "same better",
    ]
    markdown, _ = write(study.folder, "map")
    assert "Differences in test MAP x100 on lcqmc" in markdown.read_text()


def test_each_start_has_its_own_row(study):
    """Fails if what [CLS] and the mean of an encoder find before training is averaged."""
    for run in study.rows["bad"]:
        run.recipe["pooling"] = "cls"
        run.before["lcqmc"]["test"]["recall_at_1"] = 0.5
    starts = [line for line in retrieval_table(study).splitlines() if line.startswith("| before training: ")]
    assert [line.split(" | ")[2] for line in starts] == ["25.00", "50.00"] and "cls" in starts[1]


def test_the_table_of_the_documentation(study):
    """Fails if a method is compared with itself, or a difference has the wrong sign."""
    header, _, before, good, bad, same = retrieval_table(study).split("\n\n")[0].splitlines()
    assert header.startswith("| lcqmc | Spearman | Recall@1 | Recall@10 | seeds |") and "less that of good" in header
    assert before.startswith("| before training | 50.00 | 25.00 | 25.00 |") and good.endswith("| 2 |  |  |")
    assert bad.count("[-") == 2 and same.endswith(r"+0.00 \[+0.00, +0.00\] |")


def test_a_study_without_retrieval_has_no_section(make_study):
    """Fails if results from before retrieval was measured stop the report."""
    study = read_results(make_study({"cosent": 1.0, "sbert": 1.0}))
    assert not retrieval(study, "recall_at_10").blocks
    assert all(not result.queries for result in study.results)
