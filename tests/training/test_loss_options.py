"""Losses and their options on their way from flags to the weights."""

import pytest

from cosent.atomic import sha256_of_file
from cosent.data.corpus import load_corpus
from cosent.errors import InputError
from cosent.losses import LOSSES, own_loss
from cosent.models.bi_encoder import SentenceEncoder
from cosent.record import read_record
from cosent.training.arguments import LossArguments, PairTrainingArguments
from cosent.training.objective import checked_parameters
from cosent.training.trainer import PairTrainer
from tests.support.launching import ROOT, history

OWN = f"{ROOT}/examples/own_loss.py:correlation_loss"
MINE = """
from cosent.losses.cosent import cosent_loss

def on_logits(logits, labels, progress, weight=1.0):
    seen.append(progress)
    return weight * logits[:, 1].sub(labels).square().mean()

seen = []
"""


def test_a_loss_of_ones_own_is_recorded(train, made_up):
    """Fails if the record of a run does not say which code of the user's it depends on."""
    record = read_record(train(made_up, "--loss", OWN, "--loss_args", "weight=0.5", "--max_steps", "1"))
    file = OWN.rpartition(":")[0]
    assert (record.recipe["loss"], record.recipe["loss_args"]) == (OWN, ["weight=0.5"])
    assert record.files == {file: sha256_of_file(file)}


def test_the_values_of_parameters():
    """Fails if a fraction is cut to a whole number like its default, or nan trains a model of nan."""
    loss = own_loss(lambda scores, labels, margin=1, weight=2.0: scores.sum(), "mine")
    assert checked_parameters(loss, {"margin": "2", "weight": 3}, "bi_encoder") == {"margin": 2, "weight": 3.0}
    for value in (0.5, "nan", "inf", "five"):
        with pytest.raises(InputError, match=f"margin={value}: expected a number like 1"):
            checked_parameters(loss, {"margin": value}, "bi_encoder")
    with pytest.raises(InputError, match="scale must be above 0, got nan"):
        checked_parameters(LOSSES["cosent"], {"scale": "nan"}, "bi_encoder")
    with pytest.raises(InputError, match="a flag of its own"):
        LossArguments(loss_args=["sbert_classes=3"]).parameters()


@pytest.mark.parametrize("tower", ["bi_encoder", pytest.param("cross_encoder", marks=pytest.mark.slow)])
def test_logits_and_progress_reach_a_loss_of_ones_own(train, made_up, tmp_path, tower):
    """Fails if a model has no head for it, or it does not see how much of the training is over."""
    file = tmp_path / "mine.py"
    file.write_text(
        MINE.replace("seen.append(progress)", f"open({str(tmp_path / 'seen')!r}, 'a').write(f'{{progress}} ')")
    )
    flags = ("--tower", tower, "--loss", f"{file}:on_logits", "--loss_args", "weight=2", "--max_steps", "4")
    losses = history(train(made_up, *flags), "loss")
    assert (tmp_path / "seen").read_text().split() == ["0.0", "0.25", "0.5", "0.75"] and losses[-1] != losses[0] > 0


def test_a_loss_for_each_corpus(train, made_up, make_corpus, pairs, tiny_model, tmp_path):
    """Fails if Python and the command train other weights, a corpus is trained with the loss of another, or card and
    record do not say which it had."""
    corpora = load_corpus(str(made_up)), load_corpus(str(make_corpus({"train": pairs[:32]}, name="faq")))
    words = ["made_up=cosine_floor", "faq=infonce"]
    flags = ("--num_train_epochs", "1", "--skip_test", "true", "--loss_args", "floor=0.5")
    folder = train(tuple(corpus.folder for corpus in corpora), "--loss", *words, *flags)
    quiet = {"use_cpu": True, "disable_tqdm": True, "report_to": "none"}
    trainer = PairTrainer(
        SentenceEncoder.from_pretrained(str(tiny_model)),
        PairTrainingArguments(
            output_dir=str(tmp_path / "python"),
            num_train_epochs=1,
            learning_rate=1e-3,
            per_device_train_batch_size=16,
            **quiet,
        ),
        loss=dict(word.split("=") for word in words),
        loss_args={"floor": 0.5},
        train_dataset={corpus.manifest.name: corpus.split("train") for corpus in corpora},
        eval_dataset=corpora[0].split("validation"),
    )
    trainer.train()
    trainer.save_model()
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "python/model.safetensors").read_bytes()
    assert read_record(folder).recipe["loss"] == words
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "with the losses `cosine_floor` and `infonce`" in card and "- loss:infonce\n" in card
