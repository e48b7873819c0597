"""The report of a study: both files, from the results of its runs."""

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from cosent import report
from cosent.errors import InputError
from cosent.evaluation.calibration import Platt, calibration_metrics
from cosent.evaluation.retrieval import METRICS
from cosent.reporting import comparison, diagnostics
from cosent.reporting.document import Section, to_markdown
from cosent.results import read_results, save_results
from cosent.run import QueryMetrics


class Page(HTMLParser):
    """Tags that are open at the end, all tags, ids, and what is linked or loaded."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.ids, self.links, self.images = [], [], [], [], []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)
        if tag == "img":
            self.images.append(given)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if "href" in given else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def markdown(*sections: Section) -> str:
    return to_markdown("t", list(sections), "report.html")


def test_the_page_is_whole_and_alone(make_study):
    """Fails if the page loads anything, runs a script, repeats an id, or a figure says nothing to a screen reader."""
    text = report.write(make_study({"cosent": 0.8, "sbert": 2.0}, corpora=("lcqmc", "atec")))[1].read_text()
    page = Page()
    page.feed(text)
    assert not page.open and len(page.ids) == len(set(page.ids))
    assert "script" not in page.tags and page.links and {link.lstrip("#") for link in page.links} <= set(page.ids)
    assert not re.search(r"url\((?!#)|@import|https?://", text)
    # Dots, intervals and curves; of scores, two after training, and one before and one of distances, which are equal.
    assert len(page.images) == 2 * 3 + 2 * 2 + 2
    for image in page.images:
        assert image["src"].startswith("data:image/svg+xml;base64,") and len(image["alt"]) > 40
        assert "nan" not in image["alt"]


def test_a_users_text_stays_text(make_study):
    """Fails if the name of a method, a corpus or a device can run code in the page, or break a Markdown table."""
    folder = make_study({"<script>alert(1)</script>": 1.0, "a|b *c*": 1.0}, name="study", corpora=("<b>x",))
    text, html = (file.read_text() for file in report.write(folder))
    assert "<script>" not in html and "<b>" not in html and "&lt;script&gt;alert(1)" in html
    assert "<script>" not in text and "<b>" not in text and r"a\|b \*c\*" in text


def test_the_same_results_give_the_same_files(make_study):
    """Fails if two reports of one study cannot be compared by their bytes."""
    folder = make_study({"cosent": 0.8, "sbert": 2.0})
    first = [file.read_bytes() for file in report.write(folder)]
    assert [file.read_bytes() for file in report.write(folder)] == first


@pytest.mark.parametrize("library", ["jinja2", "matplotlib"])
def test_a_missing_library_is_named_before_work_begins(make_study, monkeypatch, library):
    """Fails if a user without the extra gets a traceback, or half a report after minutes of resampling."""
    folder = make_study({"cosent": 1.0})
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=rf"{library}.*\[report\]"):
        report.write(folder)
    assert not list(folder.glob("report.*"))


def test_tables_say_what_was_measured(make_study):
    """Fails if the numbers are not those of the runs. Accuracies of 0.81 and 0.82 give 81.50 ± 0.71."""
    study = read_results(make_study({"cosent": 0.8, "sbert": 2.0}))
    text = markdown(comparison.quality(study), comparison.accuracy(study))
    values = [100 * r.test("lcqmc") for r in study.rows["cosent"]]
    assert f"| cosent | **{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}** |  | 2 |" in text
    assert "| before training: mini, mean | 50.00 ± 0.00 |" in text
    assert "81.50 ± 0.71" in text and "90.00 ± 0.00" in text and "oracle threshold" in text


def test_the_best_are_those_with_the_highest_printed_mean(make_study):
    """Fails if the bold number is not the highest of its column, or of two that look equal only one is bold."""
    study = read_results(make_study({"good": 0.5, "bad": 3.0}, seeds=(1,)))
    [table, _] = comparison.quality(study).blocks
    assert table.strong == {(0, 1)} and table.rows[0][0] == "good"
    [accuracy, _] = comparison.accuracy(study).blocks
    assert accuracy.strong == {(0, 1), (1, 1)}, "both have 0.81"
    alone = read_results(make_study({"good": 0.5}, name="alone"))
    assert not comparison.quality(alone).blocks[0].strong, "the only one is not the best one"


def test_a_cross_of_corpora_keeps_them_apart(make_study):
    """Fails if runs that were trained on different corpora and tested on the same one are averaged."""
    after = {corpus: {"test": {"spearman": 0.1}} for corpus in ("atec", "stsb")}
    study = read_results(make_study({"cosent": 1.0}, corpora=("atec", "stsb"), seeds=(1,), after=after))
    assert list(study.rows) == ["cosent, trained on atec", "cosent, trained on stsb"] and len(study.corpora) == 2
    [table, _] = comparison.quality(study).blocks
    assert [row[0] for row in table.rows[:2]] == list(study.rows)


def test_each_tower_has_its_own_score_before_training(make_study, change_study):
    """Fails if the untrained scores of a bi-encoder and of a cross-encoder's fresh head are averaged."""
    folder = make_study({"bi": 1.0, "cross": 1.0}, seeds=(1,))
    cross = {"tower": "cross_encoder"}, {"lcqmc": {"test": {"spearman": 0.0}}}

    def change(run):
        return run if run.method == "bi" else replace(run, recipe=run.recipe | cross[0], before=cross[1])

    change_study(folder, change)
    text = markdown(comparison.quality(read_results(folder)))
    assert re.search(r"before training: mini.* mean \| 50.00 \|", text)
    assert re.search(r"before training: mini.*cross_encoder.* \| 0.00 \|", text)


def test_what_is_missing_or_other_data_is_named(make_study, change_study):
    """Fails if a report of half a study looks like one of a whole study, or methods are compared on two versions of a
    corpus without a word."""
    folder = make_study({"cosent": 1.0, "sbert": 1.0})
    assert "prepared anew" not in markdown(comparison.overview(read_results(folder)))
    other = {"lcqmc": replace(read_results(folder).results[0].corpora["lcqmc"], manifest_sha256="b" * 64)}

    def change(run):
        if run.method == "sbert":
            return None if run.seed == 2 else replace(run, corpora=other)
        return run

    change_study(folder, change)
    text = markdown(comparison.overview(read_results(folder)))
    assert "Not finished, 1 runs: sbert on lcqmc, seed 2." in text
    assert f"{'b' * 10} of sbert-lcqmc-1" in text


def test_the_grid_is_shown(make_study, change_study):
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
    lines = markdown(comparison.tuning(read_results(folder))).splitlines()
    assert "| method, trained on | learning_rate=0.0002 | learning_rate=0.0005 |" in lines
    assert "| good, lcqmc | 60.00 | **70.00** |" in lines and "| bad, lcqmc | 50.00 |  |" in lines
    assert comparison.tuning(read_results(make_study({"good": 0.5}, name="alone"))).blocks == ()


def test_intervals_are_those_of_the_scores(make_study):
    """Fails if a difference is not that of the means, a clear one is missed, or equal methods are told apart."""
    study = read_results(make_study({"good": 0.5, "bad": 3.0, "poor": 3.0}))
    runs = comparison.by_seed(study, "lcqmc", lambda run: True)
    found = comparison.compare(runs, "lcqmc")
    gain, seeds = found["good", "bad"]
    means = {row: np.mean([r.test("lcqmc") for r in runs]) for row, runs in study.rows.items()}
    assert gain.mean == pytest.approx(means["good"] - means["bad"]) and seeds == 2
    assert 0 < gain.low < gain.mean < gain.high
    same, _ = comparison.compare({"a": runs["good"], "b": runs["good"]}, "lcqmc")["a", "b"]
    assert (same.mean, same.low, same.high) == (0, 0, 0)
    del runs["bad"][1]
    assert comparison.compare(runs, "lcqmc")["good", "bad"][1] == 1, "a seed that one method lacks is no pair"
    runs["bad"][2].scores["lcqmc"]["labels"][:2] += 1
    with pytest.raises(InputError, match="bad-lcqmc-2 was tested on other rows of lcqmc"):
        comparison.compare(runs, "lcqmc")


def test_verdicts_follow_intervals(make_study):
    """Fails if a verdict contradicts its interval, of many methods the figure shows every pair, or missing scores go
    unmentioned."""
    study = read_results(make_study({"good": 0.5, "bad": 3.0}))
    [_, _, table] = comparison.differences(study).blocks
    [_, mean, interval, seeds, verdict] = table.rows[0]
    assert verdict == "good better" and 0 < interval.low < mean.value < interval.high and seeds == 2
    many = read_results(make_study(dict.fromkeys("abcde", 1.0), name="many", seeds=(1,)))
    [_, figures, table] = comparison.differences(many).blocks
    assert len(table.rows) == 10 and table.folded and "between a and the other" in figures.caption
    assert {row[-1] for row in table.rows} == {"not significant"}
    without = read_results(make_study({"a": 1.0, "b": 1.0}, name="without", keep_scores=False))
    assert "a, b" in comparison.differences(without).blocks[0]


@pytest.fixture
def found(make_study, change_study):
    """A study of three methods, of which one finds half as much as the others; 200 queries."""
    folder, rates = make_study({"good": 0.5, "bad": 0.6, "same": 0.5}), {"good": 0.8, "bad": 0.4, "same": 0.8}

    def with_queries(run):
        drawn = np.random.default_rng(run.seed).random(200)  # the same for all methods
        values = dict.fromkeys(METRICS, (drawn < rates[run.method]).astype(np.float32))
        values |= {"map": np.linspace(0, 1, 200, dtype=np.float32)}
        test = {name: float(column.mean()) for name, column in values.items()} | {"queries": 200, "pool": 500}
        after = {"lcqmc": {"test": run.after["lcqmc"]["test"] | test}}
        before = {"lcqmc": {"test": {"spearman": 0.5} | dict.fromkeys(METRICS, 0.25)}}
        return replace(run, after=after, before=before, queries={"lcqmc": QueryMetrics("t", {"after": values})})

    change_study(folder, with_queries)
    return folder


def test_retrieval_is_compared_by_queries(found):
    """Fails if a figure is in the column of another metric, a difference is not that of the means, or --metric does not
    reach the differences."""
    study = read_results(found)
    text, table, _, differences = comparison.retrieval(study, "recall_at_1").blocks
    assert "200 queries among 500 sentences" in table.caption and len(table.header) == 2 + len(METRICS) + 1
    [before, good, bad, same] = table.rows
    assert before[0] == "before training" and [cell.value for cell in before[2:-1]] == [25] * len(METRICS)
    recall = np.mean([run.test("lcqmc", "recall_at_1") for run in study.rows["good"]])
    assert good[0] == "good" and good[2].value == pytest.approx(100 * recall)
    assert good[table.header.index("MAP")].value == pytest.approx(50) and bad[2].value < good[2].value == same[2].value
    assert [row[-1] for row in differences.rows] == ["good better", "not significant", "same better"]
    assert "Differences in test MAP x100 on lcqmc" in report.write(found, "map")[0].read_text()
    runs = comparison.by_seed(study, "lcqmc", lambda run: True)
    gain, _ = comparison.compare_queries(runs, "lcqmc", "recall_at_10")["good", "bad"]
    means = {row: np.mean([r.test("lcqmc", "recall_at_10") for r in runs]) for row, runs in study.rows.items()}
    assert gain.mean == pytest.approx(means["good"] - means["bad"], abs=1e-6) and 0.3 < gain.low < gain.high < 0.5
    runs["bad"][1].queries["lcqmc"].task = "another"
    with pytest.raises(InputError, match="bad-lcqmc-1 was tested on other queries"):
        comparison.compare_queries(runs, "lcqmc", "recall_at_10")


def test_probabilities_are_those_of_the_runs(make_study, change_study):
    """Fails if the table shows the errors of other probabilities, swaps before and after, or has rows of grades."""
    folder = make_study({"cosent": 0.8})
    assert diagnostics.probabilities(read_results(folder)).blocks == ()
    calibration = Platt(pairs=998, slope=3.0, intercept=-1.5)

    def calibrated(run):
        scores = run.scores["lcqmc"]
        errors = calibration_metrics(calibration, scores["after"], scores["labels"], "bi_encoder")
        after = {"lcqmc": {"test": run.after["lcqmc"]["test"] | errors}}
        return replace(run, calibrations={"lcqmc": calibration}, after=after)

    change_study(folder, calibrated)
    study = read_results(folder)
    tests = [run.after["lcqmc"]["test"] for run in study.results]
    raw, brier = (np.mean([test[name] for test in tests]) for name in ("uncalibrated_brier", "brier"))
    text = markdown(diagnostics.probabilities(study))
    assert brier < raw and f"| cosent, lcqmc | platt | {raw:.4f} | {brier:.4f} |" in text
    (figure,) = diagnostics.diagrams("cosent", study.results[0])
    assert "as is: 0." in figure.description and "calibrated: 0." in figure.description


@pytest.mark.parametrize(
    ("curve", "row"),
    [
        ([(1.0, 0.5), (2.0, 0.58), (3.0, 0.6)], "| 50.00 ± 0.00 | 60.00 ± 0.00 | 2.0 |"),
        ([(1.0, -0.05), (2.0, -0.02)], "| -5.00 ± 0.00 | -2.00 ± 0.00 |  |"),
        ([(1.0, float("nan")), (2.0, 0.4)], "|  | 40.00 ± 0.00 | 2.0 |"),
        ([(1.0, float("nan"))], "|  |  |  |"),
    ],
)
def test_learning_curves_on_paper(make_study, curve, row):
    """Fails if learning is not that of the runs, or one that never learnt takes the report of the study with it."""
    study = read_results(make_study({"cosent": 0.8}, validation_curve=curve))
    assert f"| cosent, lcqmc {row}" in markdown(diagnostics.learning(study))


def test_costs_on_paper(make_study):
    """Fails if time is not that of the runs: 90 seconds are 1.5 minutes."""
    text = markdown(diagnostics.speed(read_results(make_study({"cosent": 0.8}))))
    assert "| cosent, lcqmc | 1.5 | 200 | 500 |" in text
    assert "| cosent, lcqmc, seed 1 | 1.5 | 200 | 500 |" in text and "cccccccccc" in text


def test_graded_labels_are_split_in_the_middle_of_their_range():
    """Fails if a pair of STS-B with label 3 of 0..5 is drawn among the dissimilar ones."""
    values = np.array([10.0, 20.0, 30.0, 40.0])
    [(low, dissimilar), (high, similar)] = diagnostics.split_by(np.array([0.0, 2.0, 3.0, 5.0]), values)
    assert (low, high) == ("dissimilar", "similar")
    assert dissimilar.tolist() == [10, 20] and similar.tolist() == [30, 40]
