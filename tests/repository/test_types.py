"""The types that `py.typed` promises to users' own checkers."""

import subprocess
import sys

import pytest

USER = """
import numpy as np
from datasets import Dataset  # type: ignore[import-untyped]

from cosent import CrossEncoder, Labels, PairTrainer, PairTrainingArguments, SentenceEncoder, load_model

rows = Dataset.from_list([{"sentence1": "怎么还款", "sentence2": "如何还款", "label": 1.0}])
trainer = PairTrainer(
    SentenceEncoder.from_pretrained("mini"),
    PairTrainingArguments(output_dir="runs/faq"),
    loss={"faq": "cosent"},
    train_dataset={"faq": rows},
    labels={"faq": Labels("faq", "binary", 0.0, 1.0)},
)
trainer.train()
trainer.save_model()
print(trainer.evaluate(rows)["eval_spearman"], trainer.predict(rows))
vectors = SentenceEncoder.from_pretrained("mini").encode(["怎么还款"], normalize_embeddings=True)
scores = CrossEncoder.from_pretrained("mini").predict([("怎么还款", "如何还款")])
print(np.asarray(vectors).shape, scores, load_model("mini").similarity("怎么还款", "如何还款"))
PairTrainer("mini", train_dataset=rows, loss=3)
"""


@pytest.mark.matrix
def test_a_users_program_is_checked(tmp_path):
    """Fails if a strict checker calls a correct use of the public names wrong, or misses a wrong one."""
    (tmp_path / "user.py").write_text(USER, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "user.py"]
    lines = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout.splitlines()
    errors = [line for line in lines if ": error: " in line]
    assert len(errors) == 1 and '"loss" to "PairTrainer"' in errors[0], "\n".join(lines)
