"""Training with sentences of different pairs: from corpora and lines of text to the batches that the loss gets."""

from pathlib import Path

import numpy as np
import pytest

from cosent.data.corpus import load_corpus
from cosent.data.pairs import NO_PREFIXES, PairCollator
from cosent.errors import InputError
from cosent.flags import parse
from cosent.jobs.train import main
from cosent.losses import LOSSES
from cosent.models.bi_encoder import SentenceEncoder
from cosent.record import read_record
from cosent.training.arguments import TRAIN_ARGUMENTS, DataArguments
from cosent.training.corpora import corpora_of_run
from cosent.training.objective import build_objective
from cosent.training.pairs import training_pairs
from tests.conftest import SENTENCES
from tests.support.launching import history


def pairs_for(loss: str, folder, encoder):
    """The training pairs of a corpus as a loss reads them."""
    corpus = load_corpus(str(folder))
    name, meaning = corpus.manifest.name, corpus.manifest
    objective = build_objective(LOSSES[loss], {}, [meaning])
    return training_pairs({name: corpus.split("train")}, {name: meaning}, {name: objective}, encoder, NO_PREFIXES)


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "lines.txt").write_text("".join(f"{s}{n}\n" for n in range(5) for s in SENTENCES), encoding="utf-8")
    return str(tmp_path / "lines.txt")


def test_the_loss_learns_which_sentences_are_similar(made_up, tiny_model):
    """Fails if the groups of a batch are not those of its sentences."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    data = pairs_for("infonce", made_up, encoder)
    batch = PairCollator.from_tokenizer(encoder.tokenizer)([data[index] for index in range(64)])
    parity = np.array([(row // 8 % 2, row % 2) for row in range(64)])  # sentences at an even distance are similar
    same = batch["groups"].numpy()[:, :, None, None] == batch["groups"].numpy()
    assert (same == (parity[:, :, None, None] == parity)).all(), "groups are not those of the sentences"
    data = pairs_for("cosent", made_up, encoder)
    assert "groups" not in PairCollator.from_tokenizer(encoder.tokenizer)([data[0]]), "nobody would read them"


def test_simcse_reads_each_sentence_twice(made_up, tiny_model):
    """Fails if labels reach a training that is called unsupervised, or a sentence is its own negative."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    data = pairs_for("simcse", made_up, encoder)
    assert len(data) == len(SENTENCES)
    for number, (first, second, targets) in enumerate(data):
        assert first.tolist() == second.tolist() and targets["labels"] == 1
        assert encoder.tokenizer.decode(first, skip_special_tokens=True).replace(" ", "") == SENTENCES[number]
        assert targets["groups"][0] == targets["groups"][1]
    assert len({pair[2]["groups"][0] for pair in data}) == len(SENTENCES)


def test_text_alone_trains(made_up, lines, tiny_model, tmp_path):
    """Fails if SimCSE needs a labelled corpus to train on, or selects and reports nothing without one."""
    flags = ["--model_name_or_path", str(tiny_model), "--output_dir", str(tmp_path / "run"), "--use_cpu", "true"]
    flags += ["--loss", "simcse", "--text", lines, "--eval_corpora", str(made_up), "--disable_tqdm", "true"]
    flags += ["--learning_rate", "1e-3", "--logging_steps", "1", "--num_train_epochs", "4"]
    main(*parse(flags, *TRAIN_ARGUMENTS))
    record = read_record(tmp_path / "run")
    assert record.train_pairs == 40 and set(record.after) == {"made_up"}
    losses = history(tmp_path / "run", "loss")
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    assert "on 40 pairs of lines.txt with the loss `simcse`" in (tmp_path / "run" / "README.md").read_text("utf-8")
    checkpoint = max((tmp_path / "run").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    Path(lines).write_text("别的\n句子\n", encoding="utf-8")
    with pytest.raises(InputError, match="data of lines.txt"):
        main(*parse([*flags, "--resume_from_checkpoint", str(checkpoint), "--overwrite_output_dir"], *TRAIN_ARGUMENTS))


def test_text_fills_batches_of_its_own(train, made_up, lines):
    """Fails if lines without labels are ranked against labelled pairs, or are not read at all."""
    Path(lines).write_text("\n".join(f"第{number}句" for number in range(32)), encoding="utf-8")
    flags = ("--corpus_weights", "2", "1", "--num_train_epochs", "1")
    folder = train(made_up, "--loss", "cosent_infonce", "--text", lines, *flags)
    assert read_record(folder).train_pairs == 64 + 32
    # An epoch is two rounds of labels, labels, text, since four batches of pairs are two of their share.
    assert len(history(folder, "loss")) == 6


def test_what_teaches_nothing_is_refused(train, made_up, tmp_path):
    """Fails if a run without similar sentences to compare trains."""
    cases = [
        ({}, "cosent", "--corpus is missing"),
        ({"text": ["x.txt"]}, "simcse", "--text .*--eval_corpora"),
        ({"text": ["x.txt"], "corpus": ["a"]}, "cosent", "--text .*--loss cosent.*cosent_in_batch"),
    ]
    for arguments, loss, message in cases:
        with pytest.raises(InputError, match=message):
            corpora_of_run(DataArguments(**arguments), loss, 1)
    (tmp_path / "empty.txt").write_text("\n一样\n\n一样\n", encoding="utf-8")
    with pytest.raises(InputError, match="empty.txt has 1 "):
        train(made_up, "--loss", "simcse", "--text", str(tmp_path / "empty.txt"))


def test_labels_the_wrong_way_round_are_asked_about(make_corpus, tiny_model, caplog):
    """Fails if distances train for hours without a word, or sound, few or random labels raise the question."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    pairs = [(f"第{i}个问题", f"第{i}个问题" if i % 2 else "怎么还款") for i in range(40)]
    rng = np.random.default_rng(0)
    cases = {"similarities": [i % 2 for i in range(40)], "random": rng.integers(2, size=40).tolist()}
    for name, labels in (cases | {"few": [1, 0] * 5, "distances": [1 - i % 2 for i in range(40)]}).items():
        caplog.clear()
        rows = [(*pair, float(label)) for pair, label in zip(pairs, labels, strict=False)]
        pairs_for("cosent", make_corpus({"train": rows}, name=name), encoder)
        assert ("distances train: similar pairs share fewer" in caplog.text) == (name == "distances")
        assert bool(caplog.records) == (name == "distances"), name


def chained(count: int) -> list[tuple[str, str, float]]:
    """Pairs of equal size in two groups: the first `count` sentences are connected, as are the others."""
    parts = SENTENCES[:count], SENTENCES[count:]
    return [(a, b, 1.0) for part in parts for a, b in zip(part, part[1:], strict=False)]


def test_a_corpus_without_negatives_is_refused(make_corpus, tiny_model):
    """Fails if a run whose pairs connect all sentences trains for hours on nothing."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))

    def load(pairs, name):
        return pairs_for(loss, make_corpus({"train": pairs}, name=name), encoder)

    for loss in ("cosent", "infonce"):  # neither may send a user to the other one
        with pytest.raises(InputError, match=f"--loss {loss} .*Add (pairs of another label|sentences)[^-]*$"):
            load(chained(len(SENTENCES)), "chain")
    with pytest.raises(InputError, match="connect all of its sentences.*--loss cosent"):
        load([*chained(len(SENTENCES)), (SENTENCES[0], SENTENCES[2], 0.0)], "labels")
    assert len(load(chained(len(SENTENCES) // 2), "halves")) == len(SENTENCES) - 2
