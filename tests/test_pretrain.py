"""The pretraining losses by hand, packed rows against single sentences, and the job end to end."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from cosent.cli import parse
from cosent.compute.packing import pack, plan_rows
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.losses.distillation import synonym_loss
from cosent.modeling.bi_encoder import SentenceEncoder
from cosent.modeling.cross_encoder import CrossEncoder
from cosent.pretrain import main
from cosent.pretraining.arguments import EncoderArguments, PretrainingArguments, TextArguments
from cosent.pretraining.model import Pretraining, first_vectors, fresh_model, initial_model, piece_means
from cosent.pretraining.trainer import rate
from cosent.run import read_record
from tests.families import save_family
from tests.launching import later_wins

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
            *("--vocabulary_size", "60", "--piece_length", "16", "--batch_tokens", "200", "--logging_steps", "1"),
            *("--learning_rate", "1e-3", "--disable_tqdm", "true", *flags),
        ]
        main(*parse(later_wins(arguments), TextArguments, EncoderArguments, PretrainingArguments))
        return tmp_path / output

    return run


def test_piece_means_by_hand():
    """Fails if empty places or another piece enter a mean."""
    segments = torch.tensor([[1, 1, 0], [2, 3, 3]])
    hidden = torch.tensor([[[1.0], [3.0], [99.0]], [[5.0], [7.0], [9.0]]])
    assert piece_means(hidden, segments).tolist() == [[2.0], [5.0], [8.0]]


@pytest.mark.parametrize("architecture", ["bert", "roformer"])
def test_packed_rows_give_the_loss_of_single_sentences(architecture):
    """Fails if a sentence sees its row neighbours, or positions do not start again: each alone is the truth."""
    tokenizer = AutoTokenizer.from_pretrained(resolve("mini"))
    model = fresh_model(architecture, len(tokenizer), layers=2, width=64).eval()
    lengths = np.array([7, 5, 6, 4])
    ids = torch.randint(200, 5000, (4, 7), generator=torch.Generator().manual_seed(0))
    labels = torch.full_like(ids, -100)
    labels[:, 2] = ids[:, 2]
    tensors = {"input_ids": ids, "labels": labels}
    if architecture == "bert":
        tensors["position_ids"] = torch.arange(7).expand(4, -1)
    packed = pack(tensors, plan_rows(lengths, 12), fill={"labels": -100})
    losses = Pretraining(model, tokenizer)(**packed.tensors, segments=packed.segments)
    alone = [
        model(input_ids=ids[i : i + 1, :n], labels=labels[i : i + 1, :n], output_hidden_states=True)
        for i, n in enumerate(lengths)
    ]
    assert losses["mlm"].item() == pytest.approx(sum(output.loss.item() for output in alone) / 4, rel=1e-5)
    vectors = torch.cat([output.hidden_states[-1].mean(dim=1) for output in alone])
    assert losses["neighbour"].item() == pytest.approx(synonym_loss(vectors).item(), rel=1e-4)


def test_a_bert_becomes_a_roformer(tmp_path):
    """Fails if a weight that both have does not arrive."""
    tokenizer = AutoTokenizer.from_pretrained(resolve("mini"))
    bert = fresh_model("bert", len(tokenizer), layers=1, width=64)
    Pretraining(bert, tokenizer).save_pretrained(tmp_path)
    roformer = initial_model(str(tmp_path), "roformer").state_dict()
    shared = {name.replace("bert.", "roformer.", 1): value for name, value in bert.state_dict().items()}
    shared = {name: value for name, value in shared.items() if "position" not in name}
    assert len(shared) > 20 and all(torch.equal(roformer[name], value) for name, value in shared.items())


def test_the_schedule_ends_at_zero():
    """Fails if the learning rate does not rise, peak and end with the budget."""
    assert rate(0) == 0 and rate(0.03) == pytest.approx(1) and rate(1) == 0
    assert rate(0.015) == pytest.approx(0.5) and rate(0.515) == pytest.approx(0.5)


@pytest.mark.parametrize("architecture", ["bert", "roformer"])
def test_a_pretrained_encoder_is_loaded_by_others(pretrain, architecture):
    """Fails if the job learns nothing, keeps no record, or leaves a folder that gives other vectors elsewhere."""
    folder = pretrain("--architecture", architecture, "--max_steps", "30", "--save_dtype", "float16")
    record = read_record(folder)
    first = next(entry for entry in record.history if "mlm" in entry)
    assert record.pretraining.mlm_loss < first["mlm"] - 0.1 and record.pretraining.tokens >= 30 * 200
    assert len(record.pretraining.text_sha256) == 1 and record.pretraining.minutes > 0
    assert 0 < record.proof.reloaded < 2e-3 and record.proof.moved > 1e-4, "float16 rounds"
    encoder = SentenceEncoder.from_pretrained(str(folder))
    assert encoder.pooling.mode == "mean" and encoder.backbone.config.hidden_dropout_prob == 0.1
    served = SentenceTransformer(str(folder), device="cpu")
    assert {weight.dtype for weight in served.parameters()} == {torch.float32}, "it would be trained in half precision"
    theirs = served.encode(LINES[:6])
    assert np.abs(encoder.encode(LINES[:6]) - theirs).max() < 1e-5


def test_going_on_keeps_the_tokenizer_and_starts_better(pretrain, tmp_path):
    """Fails if --init starts from other weights than those of the folder."""
    pretrain("--max_steps", "30")
    first = read_record(tmp_path / "encoder")
    again = pretrain("--init", str(tmp_path / "encoder"), "--max_steps", "2", output="again")
    record = read_record(again)
    assert record.pretraining.mlm_loss < first.history[0]["mlm"] - 0.3
    assert (again / "tokenizer.json").read_text() == (tmp_path / "encoder/tokenizer.json").read_text()


def test_minutes_end_a_run(pretrain):
    """Fails if the budget does not stop the run, or the learning rate has not come down by then."""
    folder = pretrain("--max_minutes", "0.02")
    record = read_record(folder)
    rates = [entry["learning_rate"] for entry in record.history if "learning_rate" in entry]
    assert record.pretraining.minutes >= 0.02 and rates[-1] < 5e-4, "half of the asked rate"


@pytest.mark.parametrize("joined", [(), ("--compare_weight", "1", "--matching_head", "true")])
def test_an_interrupted_run_ends_as_an_undisturbed_one(pretrain, tmp_path, joined):
    """Fails if resuming repeats or skips text, initialises a head again, or loses the optimizer or count of tokens."""
    flags = ("--max_steps", "8", "--save_steps", "4", "--save_total_limit", "5", "--width", "128", *joined)
    whole, cut = pretrain(*flags, output="whole"), pretrain(*flags, output="cut")
    for name in ("run.json", "config.json"):
        (cut / name).unlink()
    (cut / "checkpoint-8").rename(tmp_path / "away")
    resumed = pretrain(*flags, "--resume_from_checkpoint", "auto", output="cut")
    weights = [SentenceEncoder.from_pretrained(str(folder)).state_dict() for folder in (whole, resumed)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    records = [read_record(folder) for folder in (whole, resumed)]
    assert records[0].pretraining.tokens == records[1].pretraining.tokens


def test_held_out_sentences_are_left_out(pretrain, make_corpus):
    """Fails if a held-out sentence is learnt from, in whatever punctuation. LINES hold each sentence 20 times."""
    rows = [("怎么还款？", "天气 好！", 1.0), ("别的", "另外", 0.0)]
    corpus = make_corpus({"train": [("我喜欢北京", "好", 1.0)], "validation": rows[:1], "test": rows[1:]})
    record = read_record(pretrain("--exclude", str(corpus), "--max_steps", "20"))
    assert record.pretraining.excluded_lines_per_pass == 40 and record.pretraining.excluded_sentences == 4


def test_lines_read_together_teach_both_towers(pretrain):
    """Fails if comparing is not learnt, or what has learnt it does not reach a cross-encoder or goes on elsewhere."""
    flags = ("--compare_weight", "1", "--matching_head", "true", "--gradient_accumulation_steps", "2", "--width", "128")
    folder = pretrain(*flags, "--max_steps", "30")
    record = read_record(folder)
    assert {"mlm", "neighbour", "joined_mlm", "compare"} <= record.history[0].keys()
    losses = [entry["compare"] for entry in record.history if "compare" in entry]
    assert np.mean(losses[-5:]) < np.mean(losses[:10]) - 0.4, losses  # 7.5 to 6.5; a mean of five varies by 0.2
    saved = load_file(folder / "model.safetensors")
    backbone = CrossEncoder.from_pretrained(str(folder), num_labels=1).backbone
    assert torch.equal(backbone.pooler.dense.weight, saved["bert.pooler.dense.weight"])
    assert SentenceEncoder.from_pretrained(str(folder)).pooling.mode == "mean"
    on = pretrain("--compare_weight", "1", "--init", str(folder), "--max_steps", "0", output="on")
    again = load_file(on / "model.safetensors")
    assert again.keys() == saved.keys() and all(torch.equal(again[name], saved[name]) for name in saved)


def test_first_vectors_by_hand():
    """Fails if the vector of an input is not that of its own first token, or empty places make an input."""
    segments = torch.tensor([[3, 3, 1, 0], [2, 2, 2, 0]])
    hidden = torch.arange(8.0).reshape(2, 4, 1)
    assert first_vectors(hidden, segments).tolist() == [[2.0], [4.0], [0.0]]


@pytest.mark.parametrize(
    "flags, told",
    [
        ((), "--max_minutes or --max_steps"),
        (("--max_steps", "1", "--compare_weight", "1", "--init", "mini-roformer"), "mini-roformer is a roformer model"),
        (("--max_steps", "1", "--matching_head", "true"), "Set --compare_weight"),
        (("--max_steps", "1", "--compare_weight", "1", "--architecture", "roformer"), "Leave --architecture out"),
    ],
)
def test_what_does_not_go_together_is_said(pretrain, flags, told):
    """Fails if a run without an end starts, or one that learns from what is not there."""
    with pytest.raises(InputError, match=told):
        pretrain(*flags)


def test_a_run_without_text_is_refused(tmp_path):
    """Fails if a run starts that has nothing to read."""
    words = ["--output_dir", str(tmp_path), "--max_steps", "1"]
    with pytest.raises(InputError, match="--text is missing"):
        main(*parse(words, TextArguments, EncoderArguments, PretrainingArguments))


@pytest.mark.parametrize("name", ["electra", "albert", "roberta"])
def test_models_whose_head_is_another_are_refused(name, tmp_path):
    """Fails if --init accepts a model that training then stops at with a traceback."""
    with pytest.raises(InputError, match=f"is a {name} model, and pretraining continues only bert"):
        initial_model(str(save_family(name, tmp_path / name)))
