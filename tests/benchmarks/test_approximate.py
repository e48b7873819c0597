"""What `docs/search.md` says about faiss is what was measured."""

import json

import numpy as np
import pytest

from benchmarks import approximate


def test_every_kind_of_index_is_measured_next_to_the_exact_search(tmp_path):
    """Fails if an index of the page is missing, or its recall is another one's."""
    pytest.importorskip("faiss")
    rows = np.random.default_rng(0).standard_normal((3000, 16), dtype=np.float32)
    np.save(tmp_path / "rows.npy", rows / np.linalg.norm(rows, axis=1, keepdims=True))
    words = ["--vectors", tmp_path / "rows.npy", "--what", "noise", "--queries", "10", "--rounds", "1"]
    words += ["--output", tmp_path / "out.json"]
    approximate.main(approximate.parser().parse_args(list(map(str, words))))
    result = json.loads((tmp_path / "out.json").read_text())
    assert set(result["seconds"]) == {"exact", "hnsw", "ivf"}
    assert result["built"]["hnsw"]["recall"] > 0.9 > result["built"]["ivf"]["recall"] > 0.05


def test_ratios_are_to_the_exact_search():
    """Fails if a slower index is called faster, or the exact search is shown as built."""
    result = {"seconds": {"exact": [3.0, 2.0, 1.0], "ivf": [0.5]}, "built": {"ivf": {"recall": 0.875, "seconds": 12.4}}}
    result |= {"rows": 10, "width": 4, "queries": 1000, "what": "x", "device": "CPU", "when": "today"}
    text = approximate.approximate_table(result | {"faiss": "1", "commit": None})
    assert "| ivf | 0.875 | 12 | 0.50 | 4.0 |" in text
    assert "| exact | 1.000 |  | 2.00 | 1.0 |" in text
