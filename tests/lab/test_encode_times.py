"""Processor time from text to vector, by encoder."""

import argparse
import json

import pytest

from lab.benchmarks import encode
from tests.conftest import prepare


def test_a_table_of_a_run(tmp_path, monkeypatch):
    """Fails if an encoder is timed on more sentences than the time is divided by, or the warm-up counts."""
    monkeypatch.chdir(tmp_path)
    prepare(
        tmp_path / "data/lcqmc", {"test": [("怎么还款", "如何还款", 1.0), ("开户", "怎么还款", 0.0)]}, "binary", 1.0
    )
    monkeypatch.setattr(encode, "SENTENCES", {"similar-lookup": 20_000, "similar": 2})
    encode.main(argparse.Namespace(corpus="lcqmc", repeats=3, output=str(tmp_path / "encode.json")))
    result = json.loads((tmp_path / "encode.json").read_text())
    assert [(row["name"], row["sentences"], len(row["turns"])) for row in result["rows"]] == [
        ("similar-lookup", 3, 3),  # as many as there are
        ("similar", 2, 3),
    ]
    assert result["characters"] == pytest.approx(10 / 3)


def test_the_table_on_paper():
    """Fails if a time has another unit, or random weights pass for a trained model."""
    rows = [
        {"name": "similar", "sentences": 100, "milliseconds": 0.5, "turns": [0.4, 0.5, 1.0]},
        {"name": "gte-small-zh", "sentences": 100, "milliseconds": 2.5, "turns": [2.5, 2.5, 2.5]},
    ]
    facts = {"corpus": "lcqmc", "characters": 9.7, "load": 2.0, "device": "CPU", "threads": 1, "commit": "abcdef012345"}
    lines = encode.encode_table({"rows": rows} | facts).splitlines()
    assert lines[2:4] == [
        "| similar | 0.50 | 0.40 to 1.0 | 2,000 |",
        "| gte-small-zh, random weights | 2.5 | 2.5 to 2.5 | 400 |",
    ]
    assert lines[-1].startswith(
        "Distinct test sentences of lcqmc (9.7 characters); medians of 3 turns, float32; CPU, 1 thread"
    )
