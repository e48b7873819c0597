"""Verdicts on a training: floors, paired changes, warnings, the final table."""

import re

import numpy as np
import pytest

from cosent import load_model
from cosent.comparing.report import plain
from cosent.evaluation.significance import resampled_spearman, spearman
from cosent.evaluation.similarity import overlap_spearman
from cosent.record import Environment, RunRecord, read_record
from cosent.training.evaluation import Evaluation
from cosent.training.verdict import Floor, final_table, in_vain, paired_changes, warnings_of

NAN = float("nan")


def warnings_about(before: dict, after: dict, floor: dict, changes: dict | None = None) -> list[str]:
    """Warnings about the test split of a corpus, from its metrics by name, and the floors."""
    run = RunRecord(recipe={}, environment=Environment({}, None, "CPU", 1), train_seconds=1)
    run.before, run.after, run.changes, run.floors = (
        {"made_up": {"test": metrics}} if metrics else {} for metrics in (before, after, changes, floor)
    )
    return warnings_of(run)


@pytest.mark.parametrize(
    ("before", "after", "floor", "than"),
    [
        (0.3, 0.5, 0.4, []),
        (0.5, 0.5, 0.4, ["before training"]),
        (0.5, 0.3, 0.4, ["before training", "character overlap"]),
        (0.5, NAN, 0.4, ["before training", "character overlap"]),  # equal scores are no better
        (NAN, 0.5, 0.4, []),
        (NAN, NAN, NAN, []),  # a single label cannot rank
    ],
)
def test_what_counts_as_no_better(before, after, floor, than):
    """Fails if a run that helped is called vain, or one that did not is praised."""
    for name, reference in ("overlap", "character overlap"), ("similar", "the shipped model"):
        lines = warnings_about({"spearman": before}, {"spearman": after}, {name: floor})
        expected = [words.replace("character overlap", reference) for words in than]
        assert len(lines) == len(expected)
        assert all(words in line and "not clearly above" in line for words, line in zip(expected, lines, strict=True))
        assert all("too few pairs" in line for line in lines), "no interval"
    perfect = {"spearman": 0.866, "spearman_at_most": 0.866}
    assert not warnings_about({"spearman": before}, perfect, {"overlap": 0.89}), "no untied scores reach tied ones"


@pytest.mark.parametrize(
    ("metric", "before", "after", "interval", "words"),
    [
        ("recall_at_10", 0.586, 0.19, (-0.43, -0.36), r"Recall@10 is below .* 0.5860 -> 0.1900 \(-39.6 \[-43.0, -36"),
        ("recall_at_10", 0.586, 0.58, (-0.02, 0.01), r"not clearly above .* 0.5800 \(-0.6 \[-2.0, \+1.0\]"),
        ("spearman", 0.69, 0.70, (-0.01, 0.03), r"not clearly above .* 0.6900 -> 0.7000 \(\+1.0 \[-1.0, \+3.0\]"),
        ("spearman", 0.69, 0.60, (-0.11, -0.07), "Spearman is below .* 0.6900 -> 0.6000"),
        ("spearman", 0.60, 0.69, (0.07, 0.11), None),
        ("overlap", 0.48, 0.5, (0.01, 0.03), None),
        ("overlap", 0.48, 0.5, (-0.01, 0.05), "not clearly above char.*0.48.* 0.50"),
        ("overlap", 0.48, 0.5, (-0.2, -0.1), "is below char"),
    ],
)
def test_harm_is_told_from_noise(metric, before, after, interval, words):
    """Fails if a recall that collapses goes unnoticed, or a change within the noise is called a gain or a loss, also
    over counting characters."""
    moments = ({"spearman": value} | {metric: number} for value, number in ((0.1, before), (0.5, after)))
    changes = {"spearman": (0.4, 0.3, 0.5), metric: (after - before, *interval)}
    lines = warnings_about(*moments, {metric: before} if metric == "overlap" else {}, changes)
    assert len(lines) == (words is not None) and (words is None or re.search(words, lines[0]))


@pytest.mark.parametrize(
    ("before", "after", "vain"),
    [
        ({"faq": {"validation": 0.5, "test": 0.5}}, {"faq": {"validation": 0.4, "test": 0.6}}, False),
        ({"faq": {"validation": 0.5, "test": 0.5}}, {"faq": {"validation": 0.6, "test": 0.5}}, True),
        ({"faq": {"test": 0.5}, "bq": {"test": 0.5}}, {"faq": {"test": 0.4}, "bq": {"test": 0.6}}, False),
        ({"faq": {}}, {"faq": {}}, False),  # nothing was held out
    ],
)
def test_a_training_in_vain(before, after, vain):
    """Fails if the last line of a training recommends a model that is no better than what its user had."""
    run = RunRecord(recipe={}, environment=Environment({}, None, "CPU", 1), train_seconds=1)
    run.before, run.after = (
        {
            name: {split: {"spearman": value, "recall_at_10": -value} for split, value in splits.items()}
            for name, splits in metrics.items()
        }
        for metrics in (before, after)
    )
    assert in_vain(run) == vain


def test_a_change_that_is_not_known_says_why():
    """Fails if the cell of the change is empty without a reason."""
    run = RunRecord(recipe={}, environment=Environment({}, None, "CPU", 1), train_seconds=1)
    for name, value in {"a": 0.5, "b": NAN}.items():
        run.before[name], run.after[name] = {"test": {"spearman": 0.4}}, {"test": {"spearman": value}}
    _, tiny, equal = final_table(run, {})
    assert tiny.endswith("too few separate pairs") and equal.endswith("nan")


def test_a_small_gain_on_the_same_pairs_is_a_gain():
    """Fails if a gain that nearly every pair shares is called unclear, since one value lies in the other's interval."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0.0, 1.0], 150)
    before = labels + rng.normal(size=300)
    after = before + 0.2 * labels
    moments = [Evaluation(scores={"made_up": {"test": {"labels": labels, "scores": s}}}) for s in (before, after)]
    for moment, value in zip(moments, (0.0, 1.0), strict=True):
        moment.queries = {"made_up": {"test": ("task", {"recall_at_10": np.r_[[value] * 20, [1.0] * 80]})}}
    scores = {"overlap": before, "similar": after}
    changes = paired_changes(*moments, Floor(labels, np.arange(300), scores), "made_up", "test")
    values = [spearman(scores, labels) for scores in (before, after)]
    gain, low, high = changes["spearman"]
    assert gain == pytest.approx(values[1] - values[0]) and 0 < low < gain < high
    assert changes["overlap"] == changes["spearman"] and changes["similar"] == (0, 0, 0), "each against its own scores"
    assert values[1] - gain > np.percentile(resampled_spearman(after, labels), 2.5), "the unpaired interval would do"
    error = np.std(np.r_[[1.0] * 20, [0.0] * 80]) / 10  # of the mean of 100 differences
    assert changes["recall_at_10"] == pytest.approx((0.2, 0.2 - 1.98 * error, 0.2 + 1.98 * error), abs=0.01)
    grouped = Floor(labels, np.zeros(300, int), scores)
    assert set(paired_changes(*moments, grouped, "made_up", "test")) == {"recall_at_10"}, "one group has no interval"


def test_a_run_that_did_not_help_says_so(train, make_corpus, capsys, caplog):
    """Fails if training that made everything worse ends like any other, in the terminal, in run.json or on the card, or
    says so only at its end."""
    topics = [first + second for first in "还款天气苹果红车北京喜欢推荐" for second in "今怎如我不很色"]
    opposed = [(f"{topic}的事", f"{topic}的事啊", 1.0) for topic in topics[:49]]
    opposed += [(f"{topic}的事", f"{other}啊", 0.0) for topic, other in zip(topics[49::2], topics[50::2], strict=False)]
    reverse = [(first, second, 1 - label) for first, second, label in opposed]
    folder = train(make_corpus({"train": reverse, "validation": opposed}), "--pooling", "mean")
    printed, record = capsys.readouterr().out, read_record(folder)
    (fall,) = [text for text in caplog.messages if "below the start" in text]
    assert fall.startswith("step 5: made_up validation") and "Recall@10 -" in fall
    faults = {line.partition(" is ")[0] for line in record.warnings}
    assert faults == {"made_up validation: Spearman", "made_up validation: Recall@10"}
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert all(f"warning: {line}" in printed and plain(line) in card for line in record.warnings)
    header, line = printed.splitlines()[:2]
    assert header.split()[:6] == ["Spearman", "before", "after", "overlap", "similar", "at"]
    labels = np.array([label for *_, label in opposed])
    first, second = (list(column) for column in list(zip(*opposed, strict=True))[:2])
    values = [record.before["made_up"]["validation"]["spearman"], record.after["made_up"]["validation"]["spearman"]]
    values.append(overlap_spearman(first, second, labels))
    values.append(spearman(load_model("similar").similarity(first, second), labels))
    assert [float(word) for word in line.split()[2:6]] == pytest.approx(values, abs=1e-3)
    assert list(record.floors["made_up"]["validation"].values()) == pytest.approx(values[2:], abs=1e-3)
    assert header in card and line in card
