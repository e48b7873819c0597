"""Every program of `examples/` does what it says."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cosent.models.bi_encoder import SentenceEncoder

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.matrix
def test_encode_with_ray(tiny_model, tmp_path, monkeypatch):
    """Fails if two workers lose a row, or a row gets the vector of another one."""
    ray = pytest.importorskip("ray", reason="pip install 'ray[data]'")
    texts = [f"第{number}个问题怎么还款" for number in range(10)]
    (tmp_path / "questions").mkdir()
    for part in (0, 1):
        rows = pa.table({"question": texts[part::2], "id": list(range(10))[part::2]})
        pq.write_table(rows, tmp_path / f"questions/part-{part}.parquet")
    words = [str(tmp_path / "questions"), "question", str(tmp_path / "vectors"), "--model", str(tiny_model)]
    monkeypatch.setattr(sys, "argv", ["encode_with_ray.py", *words, "--workers", "2", "--rows", "2"])
    ray.init(num_cpus=4)  # two for the workers, and some to read and write
    try:
        runpy.run_path(str(EXAMPLES / "encode_with_ray.py"), run_name="__main__")
    finally:
        ray.shutdown()
    made = pq.read_table(tmp_path / "vectors").sort_by("id")
    assert made["question"].to_pylist() == texts
    vectors = np.array([np.ravel(vector) for vector in made["vector"].to_pylist()])
    expected = SentenceEncoder.from_pretrained(str(tiny_model)).encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
