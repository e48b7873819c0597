"""The pretraining job end to end: what it learns, leaves out, saves and resumes."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from cosent.cli import arguments_of
from cosent.flags import parse
from cosent.models.bi_encoder import SentenceEncoder
from cosent.record import read_record
from lab.pretrain import main
from tests.support.launching import later_wins

LINES = ["我喜欢北京", "我很喜欢北京", "今天天气很好", "天气好", "怎么还款", "如何还款"] * 20


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("\n".join(LINES), encoding="utf-8")
    return file


@pytest.fixture
def pretrain(text, tmp_path):
    def run(*flags, output="encoder"):
        arguments = [
            *("--text", str(text), "--output_dir", str(tmp_path / output), "--layers", "1", "--width", "64"),
            *("--vocabulary_size", "60", "--batch_tokens", "200", "--logging_steps", "1"),
            *("--learning_rate", "1e-3", "--disable_tqdm", "true", *flags),
        ]
        main(*parse(later_wins(arguments), *arguments_of(main)))
        return tmp_path / output

    return run


@pytest.mark.parametrize("architecture", ["bert", pytest.param("roformer", marks=pytest.mark.matrix)])
def test_a_pretrained_encoder_is_loaded_by_others(pretrain, architecture):
    """Fails if the job learns nothing, keeps no record, or leaves a folder that gives other vectors elsewhere."""
    folder = pretrain("--architecture", architecture, "--max_steps", "30")
    record = read_record(folder)
    first = next(entry for entry in record.history if "mlm" in entry)
    rates = [entry["learning_rate"] for entry in record.history if "mlm" in entry]
    assert rates[:10] == pytest.approx([0, *(1e-3 * (30 - step) / 29.1 for step in range(1, 10))], abs=1e-6)
    assert record.pretraining["mlm_loss"] < first["mlm"] - 0.1 and record.pretraining["tokens"] >= 30 * 200
    assert len(record.pretraining["text_sha256"]) == 1 and record.pretraining["minutes"] > 0
    encoder = SentenceEncoder.from_pretrained(str(folder))
    assert encoder.pooling.mode == "mean" and encoder.backbone.config.hidden_dropout_prob == 0.1
    served = SentenceTransformer(str(folder), device="cpu")
    assert {weight.dtype for weight in served.parameters()} == {torch.float32}, "it would be trained in half precision"
    theirs = served.encode(LINES[:6])
    assert np.abs(encoder.encode(LINES[:6]) - theirs).max() < 1e-5
    again = pretrain("--init", str(folder), "--max_steps", "2", output="again")
    assert read_record(again).pretraining["mlm_loss"] < first["mlm"] - 0.2, "continued from other weights"
    assert (again / "tokenizer.json").read_text() == (folder / "tokenizer.json").read_text()


@pytest.mark.matrix
@pytest.mark.parametrize("joined", [(), ("--compare_weight", "1", "--matching_head", "true")])
def test_an_interrupted_run_ends_as_an_undisturbed_one(pretrain, tmp_path, joined):
    """Fails if resuming repeats or skips text, initialises a head again, or loses the optimizer or count of tokens."""
    flags = ("--max_steps", "8", "--save_steps", "4", "--save_total_limit", "5", "--width", "128", *joined)
    flags += ("--logging_steps", "3")  # the checkpoint is newer than the last line
    whole, cut = pretrain(*flags, output="whole"), pretrain(*flags, output="cut")
    for name in ("run.json", "config.json"):
        (cut / name).unlink()
    (cut / "checkpoint-8").rename(tmp_path / "away")
    resumed = pretrain(*flags, "--resume_from_checkpoint", "auto", output="cut")
    weights = [load_file(folder / "checkpoint-8/model.safetensors") for folder in (whole, resumed)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    records = [read_record(folder) for folder in (whole, resumed)]
    lines, resumed_lines = ([line["tokens"] for line in record.history if "tokens" in line] for record in records)
    assert lines == resumed_lines and len(lines) == 3


def test_held_out_sentences_are_left_out(pretrain, make_corpus):
    """Fails if a held-out sentence is learnt from, in whatever punctuation. LINES hold each sentence 20 times."""
    rows = [("怎么还款？", "天气 好！", 1.0), ("别的", "另外", 0.0)]
    corpus = make_corpus({"train": [("我喜欢北京", "好", 1.0)], "validation": rows[:1], "test": rows[1:]})
    record = read_record(pretrain("--exclude", str(corpus), "--max_steps", "20"))
    assert record.pretraining["excluded_lines_per_pass"] == 40 and record.pretraining["excluded_sentences"] == 4
