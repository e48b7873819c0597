"""What `docs/choosing.md` says about latency and memory is what was measured."""

import json

import numpy as np
import pytest

from benchmarks import choosing, choosing_quality, choosing_tables
from cosent.evaluation.retrieval import Relevance
from cosent.models.cross_encoder import CrossEncoder

FIXED = {"corpus": "lcqmc", "top": 20, "queries": 5, "width": 256}
FIXED |= {"load": [1.0, 2.0], "device": "CPU", "threads": 1, "when": "today", "commit": "abc"}


def test_ratios_are_to_the_bi_encoder_and_a_million_readings_are_extrapolated():
    """Fails if a ratio is to another case, or the page takes an extrapolated time for a measured one."""
    vectors, cross = {"pair": 4.0, "few": 2.0, "many": 50.0}, {"pair": 6.0, "few": 800.0}
    milliseconds = {f"{name} {form}": dict(vectors) for name in ("bi", "student") for form in ("float32", "int8")}
    milliseconds |= {f"cross {form}": dict(cross) for form in ("float32", "int8")}
    milliseconds |= {f"both {form}": {"few": 20.0, "many": 75.0} for form in ("float32", "int8")}
    milliseconds["bi int8"]["pair"] = 1.0
    mib = {f"{name} {form}": 300.0 for name in ("bi", "student", "cross") for form in ("float32", "int8")}
    result = FIXED | {"milliseconds": milliseconds, "mib": mib, "peak_mib": dict.fromkeys(mib, 900.0)}
    text = choosing_tables.choosing_table(result)
    assert "| bi-encoder | int8 | 1 | 0.25 | 2 | 1 | 50 | 1 | 300 | 900 |" in text
    assert "| cross-encoder | float32 | 6 | 1.5 | 800 | 400 | ~ 800,000 | ~ 16,000 | 300 | 900 |" in text
    assert "| bi-encoder, then cross-encoder | int8 |  |  | 20 | 10 | 75 | 1.5 |  |  |" in text
    assert "977 MiB more" in text  # 1e6 * 256 * 4 / 2**20


def test_the_benchmark_measures_every_case(tmp_path, monkeypatch, tiny_model, make_corpus, pairs):
    """Fails if a case of the page is missing, or the benchmark stops on its way after an hour."""
    monkeypatch.setattr(choosing, "MANY", 2000)
    monkeypatch.setattr(choosing, "FEW", 4)
    monkeypatch.setattr(choosing, "peak_mib", lambda *_: 900.0)  # below: six processes take their time
    corpus = make_corpus({"train": pairs, "validation": pairs, "test": pairs})
    CrossEncoder.from_pretrained(str(tiny_model), num_labels=1).save_pretrained(tmp_path / "cross")
    output = tmp_path / "choosing.json"
    words = ["--bi", tiny_model, "--cross", tmp_path / "cross", "--student", tiny_model, "--corpus", corpus]
    words += ["--output", output, "--queries", "2", "--top", "2", "--width", "32"]
    choosing.main(choosing.parser().parse_args(list(map(str, words))))
    result = json.loads(output.read_text())
    for form in choosing.FORMS:
        assert set(result["milliseconds"][f"bi {form}"]) == {"pair", "few", "many"}
        assert set(result["milliseconds"][f"cross {form}"]) == {"pair", "few"}
        assert set(result["milliseconds"][f"both {form}"]) == {"few", "many"}
        assert min(result["milliseconds"][f"student {form}"].values()) > 0
    assert 0 < result["mib"]["bi int8"] < result["mib"]["bi float32"]
    assert result["peak_mib"].keys() == result["mib"].keys()
    assert "~" in choosing_tables.choosing_table(result)


def test_memory_is_that_of_a_process_which_loads_one_model(tiny_model):
    """Fails if memory counts other models and candidates, which the process of the benchmark has loaded too."""
    ballast = np.ones(2**27)  # 1 GiB
    assert 100 < choosing.peak_mib(str(tiny_model), "int8", [("我", "你")], ["甲", "乙"]) < ballast.nbytes / 2**20


def test_reranking_orders_only_what_was_found():
    """Fails if the cross-encoder's order reaches behind the sentences that it has read, or joins another query's."""

    class Longest:
        def similarity(self, queries, sentences):
            assert queries == ["甲"] * 3 + ["乙乙"] * 3
            return np.array([float(len(sentence)) for sentence in sentences])

    pool = ["甲", "乙乙", "丙丙丙", "丁丁丁丁", "戊" * 9]
    one = np.array([0, 1, 2]), np.ones(2)
    relevance = Relevance(np.array([0, 1]), one[0], np.array([1, 2]), one[1])
    rows = np.array([[1, 2, 3, 4], [0, 3, 2, 4]])
    after = choosing_quality.reranked(rows, relevance, pool, Longest(), top=3)
    assert after.tolist() == [[3, 2, 1, 4], [3, 2, 0, 4]]


def test_quality_is_measured_for_every_row_of_the_page(tmp_path, tiny_model, make_corpus, pairs):
    """Fails if a model or number type is missing, or the page shows a gain that is not the difference of two rows."""
    corpus = make_corpus({"train": pairs, "validation": pairs, "test": pairs})
    CrossEncoder.from_pretrained(str(tiny_model), num_labels=1).save_pretrained(tmp_path / "cross")
    words = ["--bi", tiny_model, "--cross", tmp_path / "cross", "--student", tiny_model, "--corpus", corpus]
    words += ["--output", tmp_path / "out.json", "--top", "2", "--trained_on", "nothing"]
    choosing_quality.main(choosing_quality.parser().parse_args(list(map(str, words))))
    result = json.loads((tmp_path / "out.json").read_text())
    rows = {(row["model"], row["form"]): row for row in result["rows"]}
    assert set(rows) == {(name, form) for name in choosing_tables.NAMES for form in choosing.FORMS}
    both, bi = rows["both", "float32"], rows["bi", "float32"]
    assert bi["spearman"] == pytest.approx(rows["student", "float32"]["spearman"])  # the same folder
    text = choosing_tables.quality_table(result)
    assert f"Recall@1 {100 * (both['recall_at_1'] - bi['recall_at_1']):+.2f} [" in text
    assert text.count("| int8 |") == 4
