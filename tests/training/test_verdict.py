"""What a run says that was in vain."""

import json

import numpy as np
import pytest

from cosent.data.corpus import load_corpus
from cosent.evaluation.overlap import overlap_spearman
from cosent.evaluation.significance import spearman
from cosent.run import Environment, Proof, RunRecord, Shortfall, read_record
from cosent.training import verdict

SIMILAR = [("今天天气很好", "今天天气真好", 1.0), ("怎么还款", "如何还款", 1.0), ("红色的苹果", "红苹果", 1.0)]
OTHER = [("今天天气很好", "怎么还款", 0.0), ("红色的苹果", "我喜欢北京", 0.0), ("推荐一辆红车", "今天不好", 0.0)]
UPSIDE_DOWN = [(a, b, 1 - label) for a, b, label in SIMILAR + OTHER]


def record(history=(), **settings) -> RunRecord:
    recipe = {"learning_rate": 2e-5, "num_train_epochs": 3.0} | settings
    return RunRecord(
        recipe=recipe, environment=Environment({}, None, "CPU", 1), train_seconds=1, seconds=1, history=list(history)
    )


def of(value: float) -> dict:
    return {"made_up": {"validation": {"spearman": value}}}


def epochs(*values, losses=(2.0, 1.0, 0.5)):
    return [{"loss": loss, "step": 900} for loss in losses] + [{"eval_spearman": value} for value in values]


def test_the_floor_is_what_an_audit_reports():
    """Fails if the floor is another number than the one of the documentation."""
    from data_scripts.audit import overlap_spearman as audited

    rows = SIMILAR + OTHER + [("好", "好", 0.5), ("好", "坏", 0.5)]
    firsts, seconds, labels = zip(*rows, strict=True)
    floor = overlap_spearman(list(firsts), list(seconds), np.array(labels))
    assert 100 * floor == pytest.approx(audited(rows), abs=0.006) and floor > 0.5


def test_what_counts_as_no_better():
    """Fails if a run that helped is called vain, or one that did not is praised; test rows must not decide."""
    assert verdict.shortfalls(of(0.3), of(0.5), of(0.4)) == []
    assert verdict.shortfalls(of(0.5), of(0.5), of(0.4)) == [
        Shortfall("made_up", "validation", 0.5, "before training", 0.5)
    ]
    both = verdict.shortfalls(of(0.5), of(0.3), of(0.4))
    assert [one.than for one in both] == ["before training", "by character overlap"]
    assert "made_up validation: Spearman 0.3000 is no better than 0.4000 by character overlap." in map(str, both)
    assert len(verdict.shortfalls(of(0.5), of(float("nan")), of(0.4))) == 2, "equal scores are no better"
    assert verdict.shortfalls(of(float("nan")), of(0.5), of(0.4)) == []
    before, after = ({"made_up": {"test": {"spearman": 0.9}} | of(value)["made_up"]} for value in (0.3, 0.5))
    floor = {"made_up": {"test": {"spearman": 0.95}, "validation": {"spearman": 0.1}}}
    assert verdict.shortfalls(before, after, floor) == []
    assert len(verdict.shortfalls(of(0.5), of(0.3), {})) == 0, "a single label cannot rank"


def moved(run: RunRecord, way: float) -> RunRecord:
    run.proof = Proof(0.0, way, 32, "vectors")
    return run


FLAT = (2, 2, 2)
LOWER, HIGHER, LONGER = (
    "lower --learning_rate, e.g. 4e-06",
    "raise --learning_rate, e.g. 1e-04",
    "train longer, e.g. --",
)


@pytest.mark.parametrize(
    ("run", "first", "second"),
    [
        (record(epochs(0.5, 0.4, 0.3)), f"{LOWER} instead of 2e-05 (the first epoch was the best)", HIGHER),
        (record(epochs(0.1, 0.2, 0.3)), f"{LONGER}num_train_epochs 6 (validation was still rising)", LOWER),
        (moved(record(epochs(0.1, 0.3, 0.2, losses=FLAT)), 0.001), HIGHER, LOWER),
        (moved(record(epochs(0.1, 0.3, 0.2, losses=FLAT)), 0.6), LOWER, HIGHER),
        (record(epochs(float("nan"), float("nan"))), f"{LOWER} instead of 2e-05 (all scores became equal)", HIGHER),
        (record(epochs(0.1, 0.3, 0.2), pooling="cls"), "--pooling mean", LOWER),
        (record([{"loss": 1.0, "step": 20}]), LONGER, LOWER),
        (record([]), LONGER, LOWER),
    ],
)
def test_remedies_follow_from_the_run(run, first, second):
    """Fails if the advice is the opposite of what the curves show, or the same twice."""
    found = verdict.remedies(run, [])
    assert found[0].startswith(first) and found[1].startswith(second) and len(found) == 2


def test_labels_that_are_the_other_way_round(make_corpus):
    """Fails if a training split with 1 = different teaches the opposite, and the advice is about learning rates."""
    corpora = [
        load_corpus(str(make_corpus({"train": rows, "validation": SIMILAR + OTHER}, name=name)))
        for name, rows in {"wrong": UPSIDE_DOWN, "right": OTHER + SIMILAR}.items()
    ]
    floor = verdict.floors(corpora)
    assert verdict.inverted(corpora, floor) == ["wrong"]
    assert "(the labels of wrong train are the other way round)" in verdict.remedies(record(epochs(0.1)), ["wrong"])[0]
    assert verdict.inverted(corpora, {}) == [], "hard pairs of both splits alike, as PAWSX's, are no mistake"


def test_a_vain_run_says_so(train, make_corpus, pairs, capsys):
    """Fails if training that made everything worse ends like any other, in the terminal or in run.json."""
    opposed = [(a, b, 1 - label) for a, b, label in pairs]
    folder = train(make_corpus({"train": pairs, "validation": opposed}), "--pooling", "mean")
    printed, kept = capsys.readouterr().out, read_record(folder)
    assert {one.than for one in kept.shortfalls} >= {"before training"} and len(kept.remedies) == 2
    assert str(kept.shortfalls[0]) in printed and f"Likeliest remedies: {kept.remedies[0]}; or " in printed
    header, line = printed.splitlines()[:2]
    assert header.split()[:4] == ["Spearman", "before", "after", "floor"]
    labels = np.array([label for *_, label in opposed])
    floor = overlap_spearman(*(list(column) for column in list(zip(*opposed, strict=True))[:2]), labels)
    shown = [kept.before["made_up"]["validation"]["spearman"], kept.after["made_up"]["validation"]["spearman"], floor]
    assert [float(word) for word in line.split()[2:5]] == pytest.approx(shown, abs=1e-4)

    folder = train(make_corpus({"train": pairs, "validation": pairs[:32]}), "--num_train_epochs", "8", output="good")
    assert read_record(folder).shortfalls == [] and "Likeliest" not in capsys.readouterr().out


def test_records_of_earlier_versions_have_no_verdict(tmp_path):
    """Fails if a finished run of last month can no longer be read."""
    written = record()
    written.proof = Proof(0.0, 0.3, 32, "vectors")
    written.shortfalls, written.remedies = [Shortfall("a", "test", 0.1, "before training", 0.2)], ["x"]
    written.save(tmp_path)
    assert read_record(tmp_path) == written
    raw = json.loads((tmp_path / "run.json").read_text())
    for name in ("proof", "shortfalls", "remedies", "cached_part_size"):
        del raw[name]
    (tmp_path / "run.json").write_text(json.dumps(raw))
    older = read_record(tmp_path)
    assert older.proof is None and older.shortfalls == [] and older.remedies == []
    assert spearman(np.arange(3), np.arange(3)) == 1
