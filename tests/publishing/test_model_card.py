"""The card of a run: what the Hub reads, what it says of results, and code blocks that run."""

import contextlib
import io
import json
import os
import re
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard

from cosent.data.corpus import leaks, load_corpus
from cosent.encoders import resolve
from cosent.reporting.card import CARD_NAME, CardSource, card_text
from cosent.run import read_record


@pytest.fixture
def corpus(make_corpus, pairs):
    return make_corpus({"train": pairs, "validation": pairs[:32], "test": pairs[32:]})


def run_blocks(folder, text: str) -> list[str]:
    """Runs the Python blocks of a card beside its folder, and returns what each prints."""
    printed, here = [], os.getcwd()
    os.chdir(folder.parent)
    try:
        for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(block, {})
            printed.append(out.getvalue())
    finally:
        os.chdir(here)
    return printed


def numbers(printed: str) -> torch.Tensor:
    return torch.tensor([float(number) for number in re.findall(r"-?\d+\.\d*", printed)])


@pytest.mark.parametrize("tower", ["bi_encoder", "cross_encoder"])
def test_the_card_of_a_run(train, corpus, tower):
    """Fails if the Hub cannot read the card, a figure is not that of the run, or a code block does not run."""
    options = ["--pooling", "mean"] if tower == "bi_encoder" else []
    folder = train(corpus, "--tower", tower, *options)
    card, record = ModelCard.load(folder / CARD_NAME), json.loads((folder / "run.json").read_text())
    expected = record["after"]["made_up"]["test"]
    indexed = {one.metric_type: one.metric_value for one in card.data.eval_results}
    names = {"spearman": "spearmanr", "accuracy": "accuracy", "f1": "f1", "recall_at_10": "recall_at_10"}
    assert indexed == {name: expected[metric] for metric, name in names.items() if metric in expected}
    assert {"spearmanr", "accuracy"} <= indexed.keys()
    assert card.data.pipeline_tag == {"bi_encoder": "sentence-similarity", "cross_encoder": "text-ranking"}[tower]
    assert card.data.base_model is None, "a folder of this machine is no model of the Hub"
    row = next(line for line in card.text.splitlines() if line.startswith("| made_up test"))
    value, low, high = map(float, re.search(r"(-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\]", row).groups())
    assert value == pytest.approx(100 * expected["spearman"], abs=0.006) and low <= value <= high
    assert f"{record['thresholds']['made_up']:.4f}" in card.text
    there = leaks([load_corpus(str(corpus))], [load_corpus(str(corpus))])
    assert there and record["leaks"] == there, "the held-out pairs of this corpus are training pairs"
    assert f"{there['made_up test']:,} pairs of made_up test" in card.text
    first, second = run_blocks(folder, card.text)
    torch.testing.assert_close(numbers(first), numbers(second), atol=2e-4, rtol=0)


def test_no_code_block_leaves_modules_out(train, corpus):
    """Fails if the block for transformers forgets a Dense or a pooling that is not one line."""
    text = (train(corpus, "--pooling", "linear_cls") / CARD_NAME).read_text()
    assert "SentenceTransformer" in text and "AutoModel" not in text


def test_the_card_of_a_pretrained_encoder():
    """Fails if a run without pairs has no card."""
    folder = Path(resolve("mini"))
    text = card_text(CardSource(folder, read_record(folder)))
    assert ModelCard(text).data.pipeline_tag == "fill-mask" and "## Results" not in text and "## Use" in text
