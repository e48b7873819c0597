"""Losses and their options on their way from flags to the weights."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cosent.data.corpus import load_corpus
from cosent.models.bi_encoder import SentenceEncoder
from cosent.record import read_record
from cosent.seal import sha256_of_file
from cosent.training.arguments import PairTrainingArguments
from cosent.training.trainer import PairTrainer
from tests.support.launching import ROOT, apart, history

SGD = ("--dropout", "0", "--optim", "sgd", "--learning_rate", "0.01", "--max_grad_norm", "1000")
OWN = f"{ROOT}/examples/own_loss.py:correlation_loss"
MINE = """
from cosent.losses.cosent import cosent_loss

def on_logits(logits, labels, progress, weight=1.0):
    seen.append(progress)
    return weight * logits[:, 1].sub(labels).square().mean()

seen = []
"""


def test_a_loss_of_ones_own_trains_as_ours_do(train, made_up, tiny_model):
    """Fails if a function from a file does not see the whole of a cached batch, its parameter is lost, or the record
    does not say which code has run."""
    flags = ("--loss", OWN, *SGD, "--num_train_epochs", "1")
    whole = train(made_up, *flags, "--per_device_train_batch_size", "16", output="whole")
    flags += ("--per_device_train_batch_size", "4", "--cached_batch_size", "16")
    cached = train(made_up, *flags, "--loss_args", "weight=0.5", "--learning_rate", "0.02", output="cached")
    assert apart(whole, cached, tiny_model) < 1e-4
    assert history(cached, "loss")[0] == pytest.approx(history(whole, "loss")[0] / 2, rel=1e-3)
    record, file = read_record(cached), OWN.rpartition(":")[0]
    assert (record.recipe["loss"], record.recipe["loss_args"]) == (OWN, ["weight=0.5"])
    assert record.files == {file: sha256_of_file(file)}


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
    texts = corpora[0].split("train")["sentence1"][:8]
    served = SentenceTransformer(str(tmp_path / "python"), device="cpu")
    np.testing.assert_allclose(served.encode(texts), trainer.encoder.encode(texts), atol=1e-5)
    assert read_record(folder).recipe["loss"] == words
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "with the losses `cosine_floor` and `infonce`" in card and "- loss:infonce\n" in card
