"""What a run leaves is read back as it was written, and scores rank the pairs exactly as they did."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.evaluation.calibration import Isotonic, Platt
from cosent.run import (
    KNOTS,
    RECORD_NAME,
    UNFINISHED,
    CorpusRecord,
    Environment,
    Footprint,
    PretrainingRecord,
    Proof,
    QueryMetrics,
    RunRecord,
    Shortfall,
    choose_rule,
    decision_rules,
    pack,
    read_queries,
    read_record,
    read_scores,
    save_queries,
    save_scores,
)


def test_a_record_reads_back_as_it_was(tmp_path):
    """Fails if a field of a record is lost, or comes back as another type than it went."""
    record = RunRecord(
        recipe={"loss": "cosent", "lora_target_modules": ["query"], "pooling": None},
        environment=Environment({"cosent": "0.1.0"}, None, "CPU", 2),
        train_seconds=12.0,
        processes=2,
        footprint=Footprint(100, 10, 0.5, 300.0),
        corpora={"stsb": CorpusRecord("data/stsb", "a" * 64)},
        train_pairs=50,
        before={"stsb": {"test": {"spearman": 0.25}}},
        after={"stsb": {"test": {"spearman": 0.5}}},
        thresholds={"stsb": 0.5},
        calibrations={"stsb": Platt(pairs=9, slope=1.5, intercept=-1.0)}
        | {"lcqmc": Isotonic(pairs=9, log_loss={"platt": 0.5}, scores=[0.1, 0.2], fitted=[0.25, 0.5])},
        prompts=("query: ", ""),
        intervals={"stsb": {"test": {"map": (0.25, 0.5)}}},
        seconds=20.0,
        history=[{"loss": 1.0, "step": 1}],
        synonyms=7,
        pretraining=PretrainingRecord({"a.txt": "b" * 64}, 1, 2, 3, 4.0, compare_loss=0.5),
        proof=Proof(0.0, 0.5, 64, "vectors"),
        shortfalls=[Shortfall("stsb", "test", "spearman", 0.5, "before training", 0.6)],
    )
    (tmp_path / UNFINISHED).touch()
    record.save(tmp_path)
    assert read_record(tmp_path) == record
    assert [file.name for file in tmp_path.iterdir()] == [RECORD_NAME], "the run still counts as unfinished"


def test_a_folder_of_others_has_no_record(tmp_path):
    """Fails if a model from the Hub cannot be evaluated for lack of a record."""
    assert read_record(tmp_path) is None


def test_the_records_of_the_shipped_encoders():
    """Fails if a record of pretraining is not read."""
    for name in ("mini", "mini-roformer"):
        record = read_record(name)
        assert record.pretraining.tokens > 1e6 and record.footprint.parameters > 4e6 and record.history


def test_the_shipped_model_answers_with_a_probability():
    """Fails if `cosent similarity` without --model gives no verdict, or its card shows others than its record."""
    rule = choose_rule(decision_rules("similar"), None, "similar")
    low, high = rule.probabilities([0.3, 0.99])
    assert rule.corpus == "all" and 0 < low < 0.1 < 0.9 < high < 1
    after, card = read_record("similar").after, Path(resolve("similar"), "README.md").read_text(encoding="utf-8")
    row = next(line for line in card.splitlines() if line.startswith("| **similar**"))
    spearmans = [after[corpus]["test"]["spearman"] for corpus in ("atec", "bq", "lcqmc", "pawsx", "stsb")]
    assert [f"{100 * value:.1f}" for value in spearmans] == re.findall(r"\*\*(\d+\.\d)\*\*", row)[:5]


@pytest.mark.parametrize("text", ["", "[]", '{"recipe": {}}', '{"after": 3}', "\ufeff"])
def test_what_cannot_be_read_says_so(tmp_path, text):
    """Fails if another version's record ends in a traceback, or in a model without its thresholds."""
    (tmp_path / RECORD_NAME).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=RECORD_NAME):
        read_record(tmp_path)


def test_records_and_reports_are_read_without_torch():
    """Fails if a report first waits for torch, or `report --help` for matplotlib."""
    code = (
        "import sys, cosent.report, cosent.results, cosent.reporting.comparison, cosent.reporting.diagnostics\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'matplotlib', 'jinja2')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.normal(size=5000),
        lambda rng: 0.999 + 0.001 * rng.random(5000),  # an untrained encoder: float16 would leave three values
        lambda rng: 1 / (1 + np.exp(-8 * rng.normal(size=5000))),  # saturated
        lambda rng: rng.integers(0, 6, 5000) / 5,  # ties
    ],
    ids=["normal", "narrow", "saturated", "ties"],
)
def test_the_ranking_is_exact(draw, tmp_path):
    """Fails if keeping scores in two bytes changes a Spearman, merges two scores or splits a tie."""
    rng = np.random.default_rng(0)
    scores = draw(rng).astype(np.float32)
    labels = (scores + rng.normal(size=5000) * scores.std() > scores.mean()).astype(np.float32)
    save_scores(tmp_path / "s.npz", {"lcqmc": {"test": {"labels": labels, "after": scores}}})
    kept = read_scores(tmp_path / "s.npz")["lcqmc"]["test"]
    assert np.array_equal(stats.rankdata(kept["after"]), stats.rankdata(scores))
    assert np.array_equal(kept["labels"], labels)
    # Each interpolated value lies between the quantiles around it.
    distinct = np.unique(scores.astype(np.float64))
    places = np.searchsorted(distinct, scores)
    step = len(distinct) // (KNOTS - 1) + 2
    low, high = distinct[np.maximum(places - step, 0)], distinct[np.minimum(places + step, len(distinct) - 1)]
    assert np.all((low <= kept["after"]) & (kept["after"] <= high))


def test_labels_come_back_as_they_are():
    """Fails if the labels of a report are not those of the corpus: 65 values and fewer are kept themselves."""
    ranks, knots = pack(np.array([0.2, 5.0, 0.2, 1.25]))
    assert ranks.tolist() == [0, 2, 0, 1] and ranks.dtype == np.uint8 and knots.tolist() == [0.2, 1.25, 5.0]


def test_two_bytes_per_score(tmp_path):
    """Fails if the results of a study outgrow its repository: 20,000 scores of a test set and binary labels."""
    rng = np.random.default_rng(0)
    arrays = {"labels": rng.integers(0, 2, 20_000), "before": rng.random(20_000), "after": rng.random(20_000)}
    save_scores(tmp_path / "s.npz", {"atec": {"test": arrays}})
    assert (tmp_path / "s.npz").stat().st_size < 100_000


def test_what_cannot_be_ranked_is_refused(tmp_path):
    """Fails if NaN is ranked as the best score, or scores are kept beside labels of other pairs."""
    with pytest.raises(ValueError, match="not finite"):
        pack(np.array([0.1, np.nan]))
    with pytest.raises(ValueError, match="lcqmc test"):
        save_scores(tmp_path / "s.npz", {"lcqmc": {"test": {"labels": np.zeros(3), "after": np.zeros(2)}}})


def test_queries_are_read_back(tmp_path):
    """Fails if a metric of a query ends up under another name or moment; a run without queries has none."""
    values = {"map": np.array([0.25, 1.0]), "recall_at_1": np.array([0.0, 0.5])}
    save_queries(tmp_path / "q.npz", {"bq": {"test": QueryMetrics("task", {"after": values})}})
    kept = read_queries(tmp_path / "q.npz")["bq"]["test"]
    assert kept.task == "task" and {name: kept.moments["after"][name].tolist() for name in values} == {
        name: column.tolist() for name, column in values.items()
    }
    assert read_queries(tmp_path / "none.npz") == {}
