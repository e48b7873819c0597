"""The report of a study: its tables and figures, from the results of its runs, and the page that holds them."""

import re
import sys
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from cosent.comparing import comparison, figures, sections
from cosent.comparing.document import markdown_table, mean_of, plain, section, times_100, to_html
from cosent.comparing.results import read_results, save_results
from cosent.errors import InputError
from cosent.evaluation.calibration import Calibration, calibration_metrics
from cosent.evaluation.retrieval import METRICS
from cosent.jobs import report
from cosent.record import QueryMetrics

NAMES = ["余弦排序", "<script>a & b</script>", "_private $x$", "a\x00b"]
DRAWN = {
    "dots": lambda: figures.dots("数据: t", [(name, [50.0, 60.0, 70.0]) for name in NAMES], "Spearman"),
    "intervals": lambda: figures.intervals("数据: t", [(name, 1.0, 0.5, 1.5) for name in NAMES], "Spearman"),
    "curves": lambda: figures.curves(
        "数据: t", [(name, [1.0, 2.0], [[3.0, 5.0], [6.0, 8.0]]) for name in NAMES], "epoch", "Spearman"
    ),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_shows_its_labels(name, monkeypatch):
    """Fails if Chinese becomes boxes or paths, a name runs code or turns into mathematics, or a user's matplotlibrc
    changes reports."""
    svg = DRAWN[name]()
    texts = [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    shown = {text.strip("\u200b") for text in texts}
    assert {"数据: t", "余弦排序", "<script>a & b</script>", "_private $x$", "ab"} <= shown
    assert "DejaVu" not in svg and "Noto Sans CJK SC" in svg
    monkeypatch.setitem(matplotlib.rcParams, "axes.edgecolor", "red")
    assert DRAWN[name]() == svg


def test_what_is_shown_of_a_number():
    """Fails if a difference that is not significant looks like one that is, or a table shows another mean or deviation
    than that of its runs: 0.6 and 0.7 give 65.00 ± 7.07."""
    assert figures.COLORS[0] not in figures.intervals("t", [("a - b", 0.1, -0.5, 0.7)], "Spearman")
    assert figures.COLORS[0] in figures.intervals("t", [("a - b", 0.1, 0.05, 0.7)], "Spearman")
    assert times_100([0.6, None, 0.7]) == "65.00 ± 7.07" and times_100([0.6]) == "60.00"
    assert times_100([None]) is None and mean_of([], ".1f") is None and mean_of([1.0, 2.0, None], ".1f") == "1.5"


def test_a_report_that_cannot_be_written(make_study, monkeypatch):
    """Fails if the report of a study whose first run is not done, or without its extra, ends in a traceback or half a
    report after minutes of resampling."""
    folder = make_study({"cosent": 0.8})
    save_results(folder, read_results(folder).definition, [])
    with pytest.raises(InputError, match="holds no results"):
        report.write(folder)
    folder = make_study({"cosent": 1.0})
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"matplotlib.*\[report\]"):
        report.write(folder)
    assert not list(folder.glob("report*"))


def test_a_whole_report(make_study):
    """Fails if a figure is not where the report looks for it, a name of the user's runs code or breaks a table, two
    reports of one study differ, or figures of an earlier one stay."""
    folder = make_study({"<script>alert(1)</script>": 0.8, "a|b *c*": 2.0}, corpora=("lcqmc", "<b>x"))
    text = report.write(folder).read_text(encoding="utf-8")
    assert "<script>" not in text and "<b>" not in text and r"a\|b \*c\*" in text
    found = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert len(found) == len(set(found)) == 2 * 3 and all((folder / name).is_file() for name in found)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.suffix in (".md", ".svg")}
    (folder / "report/old.svg").touch()
    report.write(folder)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.suffix in (".md", ".svg")} == before


def test_tables_say_what_was_measured(make_study, tmp_path):
    """Fails if the numbers are not those of the runs, or bold is not the highest printed mean: both have an accuracy of
    0.81 and 0.82, 81.50 ± 0.71."""
    study = read_results(make_study({"cosent": 0.8, "sbert": 2.0}))
    text = sections.quality(study, tmp_path)
    values = [100 * r.test("lcqmc") for r in study.rows["cosent"]]
    assert f"| cosent | **{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}** |  | 2 |" in text
    assert "| before training: mini, mean | 50.00 ± 0.00 |" in text
    accuracy = sections.accuracy(study, tmp_path)
    assert "| cosent | **81.50 ± 0.71** |" in accuracy and "| sbert | **81.50 ± 0.71** |" in accuracy
    alone = read_results(make_study({"good": 0.5}, name="alone"))
    assert "**" not in sections.quality(alone, tmp_path), "the only one is not the best one"
    time = sections.speed(study, tmp_path)  # 90 seconds are 1.5 minutes
    assert "| cosent, lcqmc | 1.5 | 200 | 500 |" in time


def test_runs_are_not_mixed_up(make_study, tmp_path, change_study):
    """Fails if runs trained on different corpora are averaged, or a report of half a study looks like one of a whole
    study, or settings that differ are not shown."""
    after = {corpus: {"test": {"spearman": 0.1}} for corpus in ("atec", "stsb")}
    study = read_results(make_study({"cosent": 1.0}, corpora=("atec", "stsb"), seeds=(1,), after=after))
    assert list(study.rows) == ["cosent, trained on atec", "cosent, trained on stsb"] and len(study.corpora) == 2
    assert all(f"| {row} | " in sections.quality(study, tmp_path) for row in study.rows)
    folder = make_study({"cosent": 1.0, "sbert": 1.0})
    change_study(folder, lambda run: None if (run.method, run.seed) == ("sbert", 2) else run)
    text = sections.overview(read_results(folder), tmp_path)
    assert "Not finished, 1 runs: sbert on lcqmc, seed 2." in text
    assert "| method | loss |" in text and "| sbert | sbert |" in text and "learning\\_rate" not in text


def test_each_tower_has_its_own_score_before_training(make_study, change_study, tmp_path):
    """Fails if the untrained scores of a bi-encoder and of a cross-encoder's fresh head are averaged."""
    folder = make_study({"bi": 1.0, "cross": 1.0}, seeds=(1,))
    cross = {"tower": "cross_encoder"}, {"lcqmc": {"test": {"spearman": 0.0}}}

    def change(run):
        return run if run.method == "bi" else replace(run, recipe=run.recipe | cross[0], before=cross[1])

    change_study(folder, change)
    text = sections.quality(read_results(folder), tmp_path)
    assert re.search(r"before training: mini.* mean \| 50.00 \|", text)
    assert re.search(r"before training: mini.*cross_encoder.* \| 0.00 \|", text)


def test_the_grid_is_shown(make_study, change_study, tmp_path):
    """Fails if a reader cannot see what was tried, or that a method has not tried everything: 0.7 beats 0.6."""
    folder = make_study({"good": 0.5, "bad": 3.0})
    reached = {("good", 1): ("0.0002", 0.6), ("good", 2): ("0.0005", 0.7), ("bad", 1): ("0.0002", 0.5)}
    results = read_results(folder).results
    trials = []
    for (method, seed), (rate, value) in reached.items():
        run = next(run for run in results if (run.method, run.seed) == (method, seed))
        trials.append(replace(run, seed=1, point=f"learning_rate={rate}", validation_curve=[(1.0, value), (2.0, 0.1)]))
    definition = {"methods": ["good", "bad"], "tune": {"learning_rate": [2e-4, 5e-4]}}
    save_results(folder, definition, [*results, *trials])
    text = sections.tuning(read_results(folder), tmp_path)
    assert " | learning_rate=0.0002 | learning_rate=0.0005 |" in text
    assert "| good, lcqmc | 60.00 | **70.00** |" in text and "| bad, lcqmc | 50.00 |  |" in text
    assert sections.tuning(read_results(make_study({"good": 0.5}, name="alone")), tmp_path) == ""


def test_intervals_are_those_of_the_scores(make_study, tmp_path):
    """Fails if a difference is not that of the means, a clear one is missed, equal methods are told apart, a verdict
    contradicts its interval, or missing scores go unmentioned."""
    study = read_results(make_study({"good": 0.5, "bad": 3.0, "poor": 3.0}))
    runs = comparison.by_seed(study, "lcqmc")
    found = comparison.compare(runs, "lcqmc")
    gain, seeds = found["good", "bad"]
    means = {row: np.mean([r.test("lcqmc") for r in runs]) for row, runs in study.rows.items()}
    assert gain.mean == pytest.approx(means["good"] - means["bad"]) and seeds == 2
    assert 0 < gain.low < gain.mean < gain.high
    text = sections.differences(study, tmp_path)
    mean, low, high = (f"{100 * value:+.2f}" for value in (gain.mean, gain.low, gain.high))
    assert f"| good - bad | {mean} | {low} to {high} | 2 | good better |" in text
    assert re.search(r"\| bad - poor \| .* \| not significant \|", text)
    same, _ = comparison.compare({"a": runs["good"], "b": runs["good"]}, "lcqmc")["a", "b"]
    assert (same.mean, same.low, same.high) == (0, 0, 0)
    del runs["bad"][1]
    assert comparison.compare(runs, "lcqmc")["good", "bad"][1] == 1, "a seed that one method lacks is no pair"
    runs["bad"][2].scores["lcqmc"]["labels"][:2] += 1
    with pytest.raises(InputError, match="bad-lcqmc-2 was tested on other rows of lcqmc"):
        comparison.compare(runs, "lcqmc")
    without = read_results(make_study({"a": 1.0, "b": 1.0}, name="without", keep_scores=False))
    assert "a, b" in sections.differences(without, tmp_path)


def test_retrieval_is_compared_by_queries(make_study, change_study, tmp_path):
    """Fails if a figure is in the column of another metric, or a difference is not that of the means."""
    folder, rates = make_study({"good": 0.5, "bad": 0.6, "same": 0.5}), {"good": 0.8, "bad": 0.4, "same": 0.8}

    def with_queries(run):
        drawn = np.random.default_rng(run.seed).random(200)  # the same for all methods
        values = {"recall_at_10": (drawn < rates[run.method]).astype(np.float32)}
        recall = float(values["recall_at_10"].mean())
        test = dict.fromkeys(METRICS, 0.1) | {"recall_at_10": recall, "queries": 200, "pool": 500, "map": 0.5}
        after = {"lcqmc": {"test": run.after["lcqmc"]["test"] | test}}
        before = {"lcqmc": {"test": {"spearman": 0.5} | dict.fromkeys(METRICS, 0.25)}}
        return replace(run, after=after, before=before, queries={"lcqmc": QueryMetrics("t", {"after": values})})

    change_study(folder, with_queries)
    study = read_results(folder)
    text = sections.retrieval(study, tmp_path)
    assert "200 queries among 500 sentences" in text
    header, _, before, good, *_ = [line.split(" | ") for line in text.splitlines() if line.startswith("|")]
    assert before[0] == "| before training" and before[2:-1] == ["25.00"] * len(METRICS)
    assert good[header.index("MAP")].startswith("50.00") and good[2].startswith("10.00")
    runs = comparison.by_seed(study, "lcqmc", "queries")
    gain, _ = comparison.compare_queries(runs, "lcqmc", "recall_at_10")["good", "bad"]
    means = {row: np.mean([r.test("lcqmc", "recall_at_10") for r in runs]) for row, runs in study.rows.items()}
    assert gain.mean == pytest.approx(means["good"] - means["bad"], abs=1e-6) and 0.3 < gain.low < gain.high < 0.5
    assert re.search(r"\| good - bad \| .* good better \|", text) and re.search(r"\| bad - same \|.* same better", text)
    runs["bad"][1].queries["lcqmc"].task = "another"
    with pytest.raises(InputError, match="bad-lcqmc-1 was tested on other queries"):
        comparison.compare_queries(runs, "lcqmc", "recall_at_10")


def test_probabilities_are_those_of_the_runs(make_study, change_study, tmp_path):
    """Fails if the table shows the errors of other probabilities, swaps before and after, or has rows of grades."""
    folder = make_study({"cosent": 0.8})
    assert sections.probabilities(read_results(folder), tmp_path) == ""
    calibration = Calibration(method="platt", pairs=998, slope=3.0, intercept=-1.5)

    def calibrated(run):
        scores = run.scores["lcqmc"]
        errors = calibration_metrics(calibration, scores["after"], scores["labels"], "bi_encoder")
        after = {"lcqmc": {"test": run.after["lcqmc"]["test"] | errors}}
        return replace(run, calibrations={"lcqmc": calibration}, after=after)

    change_study(folder, calibrated)
    study = read_results(folder)
    tests = [run.after["lcqmc"]["test"] for run in study.results]
    raw, brier = (np.mean([test[name] for test in tests]) for name in ("uncalibrated_brier", "brier"))
    text = sections.probabilities(study, tmp_path)
    assert brier < raw and f"| cosent, lcqmc | platt | {raw:.4f} | {brier:.4f} |" in text


@pytest.mark.parametrize(
    ("curve", "row"),
    [
        ([(1.0, 0.5), (2.0, 0.58), (3.0, 0.6)], "| 50.00 ± 0.00 | 60.00 ± 0.00 | 2.0 |"),
        ([(1.0, -0.05), (2.0, -0.02)], "| -5.00 ± 0.00 | -2.00 ± 0.00 |  |"),
        ([(1.0, float("nan")), (2.0, 0.4)], "|  | 40.00 ± 0.00 | 2.0 |"),
        ([(1.0, float("nan"))], "|  |  |  |"),
        ([(0.5, 0.1), (1.0, 0.5), (2.0, 0.6)], "| 50.00 ± 0.00 | 60.00 ± 0.00 | 2.0 |"),
    ],
)
def test_learning_curves_on_paper(make_study, curve, row, tmp_path):
    """Fails if learning is not that of the runs, or one that never learnt takes the report of the study with it."""
    study = read_results(make_study({"cosent": 0.8}, validation_curve=curve))
    assert f"| cosent, lcqmc {row}" in sections.learning(study, tmp_path)


NAME = '<script>alert("x")</script> | *b* [a](b) `c`'


def test_a_page_escapes_foreign_text():
    """Fails if a name in a table or a title becomes markup of the page."""
    table = markdown_table(["name", "n"], [[NAME, 2], ["相似", None]], strong=[(1, 0)])
    page = to_html(NAME, section(plain(NAME), table))
    assert "<script>" not in page and page.count("&lt;script&gt;") == 3
    assert page.count("<table>") == page.count("</table></div>") == 1 and "<strong>相似</strong>" in page
    cells = re.findall(r"<td>(.*?)</td>", page)
    assert cells[1::2] == ["2", ""] and "| *b* [a](b) `c`" in cells[0]
    assert "<a " not in page and "<em>" not in page and "http" not in page
