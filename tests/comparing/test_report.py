"""The report of a study: its tables and picture, from the results of its runs."""

import re
import sys
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from cosent.comparing import figures
from cosent.comparing.report import by_seed, compare
from cosent.comparing.report import report as page_of
from cosent.comparing.results import read_results
from cosent.errors import InputError
from cosent.jobs import report
from cosent.record import QueryMetrics


def test_a_figure_shows_its_labels(monkeypatch):
    """Fails if Chinese becomes boxes or paths, a name runs code or turns into mathematics, a user's matplotlibrc
    changes reports, or a difference that is not significant looks like one that is."""

    def draw(low: float = 0.5) -> str:
        names = ["余弦排序", "<script>a & b</script>", "_private $x$"]
        return figures.intervals("数据: t", [(name, 1.0, low, 1.5) for name in names], "Spearman")

    svg = draw()
    texts = {element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}
    assert {"数据: t", "余弦排序", "<script>a & b</script>", "_private $x$"} <= texts
    assert "DejaVu" not in svg and "Noto Sans CJK SC" in svg
    assert figures.COLORS[0] in svg and figures.COLORS[0] not in draw(-0.5)
    monkeypatch.setitem(matplotlib.rcParams, "axes.edgecolor", "red")
    assert draw() == svg


def test_a_report_that_cannot_be_written(make_study, monkeypatch):
    """Fails if a report without its extra ends in a traceback, or half a report after minutes of resampling."""
    folder = make_study({"cosent": 1.0})
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"matplotlib.*\[report\]"):
        report.write(folder)
    assert not list(folder.glob("report*"))


@pytest.fixture
def page(tmp_path):
    """Returns a function that gives the report of a folder of results."""
    return lambda folder: page_of(read_results(folder), tmp_path / "picture/p.svg")


def test_a_whole_report(make_study):
    """Fails if the picture is not where the report looks for it, a name of the user's runs code or breaks a table, or
    two reports of one study differ."""
    folder = make_study({"<script>alert(1)</script>": 0.8, "a|b *c*": 2.0}, corpora=("lcqmc", "<b>x"))
    text = report.write(folder).read_text(encoding="utf-8")
    assert "<script>" not in text and "<b>" not in text and r"a\|b \*c\*" in text
    (picture,) = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    before = {name: (folder / name).read_bytes() for name in ("report.md", picture)}
    report.write(folder)
    assert {name: (folder / name).read_bytes() for name in before} == before


def test_tables_say_what_was_measured(make_study, page):
    """Fails if the numbers are not those of the runs, or runs that learnt nothing are reported without a word."""
    folder = make_study({"cosent": 0.8, "sbert": 2.0})
    values = [100 * run.test("lcqmc") for run in read_results(folder).rows["cosent"]]
    text = page(folder)  # 90 seconds are 1.5 minutes
    assert f"| cosent | {np.mean(values):.2f} ± {np.std(values, ddof=1):.2f} |  | 1.5 | 2 |" in text
    assert "| before training: mini, mean | 50.00 ± 0.00 |" in text and "**" not in text
    changes = {"floors": {"lcqmc": {"test": {"overlap": 0.1, "similar": 0.2}}}, "warnings": ["Spearman fell."]}
    text = page(make_study({"cosent": 0.8}, name="floors", **changes))
    assert "**2 of 2 runs have warnings**, the first is cosent-lcqmc-1: Spearman fell." in text
    assert "| character overlap | 10.00 |" in text and "| the shipped model similar | 20.00 |" in text


def test_runs_are_not_mixed_up(make_study, page, change_study):
    """Fails if runs trained on different corpora are averaged, or a report of half a study looks like one of a whole
    study."""
    after = {corpus: {"test": {"spearman": 0.1}} for corpus in ("atec", "stsb")}
    folder = make_study({"cosent": 1.0}, corpora=("atec", "stsb"), seeds=(1,), keep_scores=False, after=after)
    study = read_results(folder)
    assert list(study.rows) == ["cosent, trained on atec", "cosent, trained on stsb"] and len(study.corpora) == 2
    assert all(f"| {row} | 10.00 | 10.00 | 10.00 |" in page(folder) for row in study.rows)
    folder = make_study({"cosent": 1.0, "sbert": 1.0})
    change_study(folder, lambda run: None if (run.method, run.seed) == ("sbert", 2) else run)
    text = page(folder)
    assert "Not finished, 1 runs: sbert on lcqmc, seed 2." in text


def test_each_tower_has_its_own_score_before_training(make_study, change_study, page):
    """Fails if the untrained scores of a bi-encoder and of a cross-encoder's fresh head are averaged."""
    folder = make_study({"bi": 1.0, "cross": 1.0}, seeds=(1,))
    cross = {"tower": "cross_encoder"}, {"lcqmc": {"test": {"spearman": 0.0}}}

    def change(run):
        return run if run.method == "bi" else replace(run, recipe=run.recipe | cross[0], before=cross[1])

    change_study(folder, change)
    text = page(folder)
    assert re.search(r"before training: mini.* mean \| 50.00 \|", text)
    assert re.search(r"before training: mini.*cross_encoder.* \| 0.00 \|", text)


def test_intervals_are_those_of_the_scores(make_study, page):
    """Fails if a difference is not that of the means, a clear one is missed, equal methods are told apart, a verdict
    contradicts its interval, or missing scores go unmentioned."""
    folder = make_study({"good": 0.5, "bad": 3.0, "poor": 3.0})
    study = read_results(folder)
    runs = by_seed(study, "lcqmc")
    found = compare(runs, "lcqmc")
    gain, seeds = found["good", "bad"]
    means = {row: np.mean([r.test("lcqmc") for r in runs]) for row, runs in study.rows.items()}
    assert gain.mean == pytest.approx(means["good"] - means["bad"]) and seeds == 2
    assert 0 < gain.low < gain.mean < gain.high
    text = page(folder)
    mean, low, high = (f"{100 * value:+.2f}" for value in (gain.mean, gain.low, gain.high))
    assert f"| good - bad | lcqmc Spearman | {mean} | {low} to {high} | 2 | good better |" in text
    assert re.search(r"\| bad - poor \| .* \| not significant \|", text)
    same, _ = compare({"a": runs["good"], "b": runs["good"]}, "lcqmc")["a", "b"]
    assert (same.mean, same.low, same.high) == (0, 0, 0)
    del runs["bad"][1]
    assert compare(runs, "lcqmc")["good", "bad"][1] == 1, "a seed that one method lacks is no pair"
    runs["bad"][2].scores["lcqmc"]["labels"][:2] += 1
    with pytest.raises(InputError, match="bad-lcqmc-2 was tested on other rows of lcqmc"):
        compare(runs, "lcqmc")
    assert "No interval for a, b" in page(make_study({"a": 1.0, "b": 1.0}, name="without", keep_scores=False))


def test_retrieval_is_compared_by_queries(make_study, change_study, page):
    """Fails if a figure is in the column of another metric, or a difference is not that of the means."""
    folder, rates = make_study({"good": 0.5, "bad": 0.6}), {"good": 0.8, "bad": 0.4}

    def with_queries(run):
        drawn = np.random.default_rng(run.seed).random(200)  # the same for all methods
        values = {"recall_at_10": (drawn < rates[run.method]).astype(np.float32)}
        recall = float(values["recall_at_10"].mean())
        test = {"recall_at_10": recall}
        after = {"lcqmc": {"test": run.after["lcqmc"]["test"] | test}}
        before = {"lcqmc": {"test": {"spearman": 0.5, "recall_at_10": 0.25}}}
        return replace(run, after=after, before=before, queries={"lcqmc": QueryMetrics("t", {"after": values})})

    change_study(folder, with_queries)
    study = read_results(folder)
    text = page(folder)
    assert (
        "| method | lcqmc | lcqmc Recall@10 |" in text
        and "| before training: mini, mean | 50.00 ± 0.00 | 25.00" in text
    )
    runs = by_seed(study, "lcqmc", "queries")
    gain, _ = compare(runs, "lcqmc", "recall_at_10")["good", "bad"]
    means = {row: np.mean([r.test("lcqmc", "recall_at_10") for r in runs]) for row, runs in study.rows.items()}
    assert gain.mean == pytest.approx(means["good"] - means["bad"], abs=1e-6) and 0.3 < gain.low < gain.high < 0.5
    assert re.search(r"\| good - bad \| lcqmc Recall@10 \| .* good better \|", text)
    runs["bad"][1].queries["lcqmc"].task = "another"
    with pytest.raises(InputError, match="bad-lcqmc-1 was tested on other queries"):
        compare(runs, "lcqmc", "recall_at_10")
