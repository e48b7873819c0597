"""The main job end to end with both towers on a tiny model, and what a user is told when the input is wrong."""

import hashlib
import json
import logging
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import sentence_transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from cosent import decision_rules
from cosent.data.corpus import load_corpus
from cosent.errors import InputError
from cosent.evaluation.significance import spearman
from cosent.losses import LOSSES
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.record import read_record, read_scores
from cosent.training.arguments import ModelArguments, PairTrainingArguments
from cosent.training.corpora import RunCorpora
from cosent.training.evaluation import Evaluation, check_saved
from cosent.training.job import build_encoder, source_sha256
from cosent.training.objective import number_of_logits
from cosent.training.trainer import PairTrainer
from tests.support.launching import WITHIN_EPOCHS, history


def test_training_ends_with_a_model_that_others_load(bi_run, pairs):
    """Fails if the one command does not leave a better model, its record, and a folder that serving tools read."""
    record = bi_run.record
    before, after = record.before["made_up"], record.after["made_up"]
    assert after["validation"]["spearman"] > before["validation"]["spearman"] + 0.2
    assert 0.5 <= after["test"]["accuracy"] <= 1 and "made_up" in decision_rules(bi_run.folder)
    assert record.recipe["loss"] == "cosent" and record.recipe["learning_rate"] == 1e-3
    assert record.train_pairs == 64 and not record.warnings, "the verdict cries wolf"
    start = Path(record.recipe["model_name_or_path"], "model.safetensors")
    assert record.start_sha256 == {"model.safetensors": hashlib.sha256(start.read_bytes()).hexdigest()}
    assert record.environment.source_sha256 == source_sha256()
    best = max(history(bi_run.folder, "eval_spearman"))
    assert best == pytest.approx(after["validation"]["spearman"]), "the best epoch was not kept"
    assert SentenceTransformer(str(bi_run.folder), device="cpu").encode(["我喜欢北京"]).shape == (1, 32)
    *command, first, second = shlex.split(bi_run.printed.splitlines()[-1])
    assert command == ["next:", "cosent", "similarity", "--model", str(bi_run.folder)]
    assert (first, second) in {(a, b) for a, b, _ in pairs[32:]}, "no pair of the test split"
    (ending,) = [line for line in bi_run.printed.splitlines() if f"model in {bi_run.folder}" in line]
    step = next(one["step"] for one in record.history if one.get("eval_spearman") == best)
    assert f"epoch {step / 4:.2f}, step {step}, the best" in ending and "--loss=cosent)" in ending


def test_others_may_read_the_folder(lora_run):
    """Fails if weights are for their owner alone, so that a server of another user cannot load them."""
    folder = lora_run.folder
    modes = {str(file.relative_to(folder)): file.stat().st_mode & 0o777 for file in folder.rglob("*.*")}
    assert {"model.safetensors", "run.json"} < set(modes) and any("adapter" in name for name in modes)
    assert {name: oct(mode) for name, mode in modes.items() if mode not in (0o640, 0o750)} == {}


def test_what_a_report_needs_is_kept(bi_run, cross_run, pairs):
    """Fails if the scores beside a model are those of other pairs, of another moment, or rank differently."""
    for run in (bi_run, cross_run):
        record, scores = run.record, read_scores(run.folder / "scores.npz")["made_up"]
        assert scores["test"]["labels"].tolist() == [label for _, _, label in pairs[32:]]
        for split in ("validation", "test"):
            for moment in ("before", "after"):
                expected = getattr(record, moment)["made_up"][split]["spearman"]
                assert spearman(scores[split][moment], scores[split]["labels"]) == pytest.approx(expected, abs=1e-9)
    assert scores["test"].keys() == {"labels", "groups", "before", "after"}, "a cross-encoder has no vectors"


def test_evaluation_draws_no_random_number_of_training(train, made_up):
    """Fails if what else a run measures changes its dropout, and with it the model; or if a run that only chooses
    settings reads the test split, or all of a large validation split."""
    part = train(made_up, "--limit_validation", "20", "--skip_test", "true", "--retrieval", "false", output="part")
    flags = "--eval_strategy steps --eval_steps 1 --save_strategy no"
    whole = train(made_up, *flags.split(), output="whole")
    record, scores = read_record(part), read_scores(part / "scores.npz")["made_up"]
    assert record.before["made_up"].keys() == record.after["made_up"].keys() == {"validation"}
    assert scores.keys() == {"validation"} and len(scores["validation"]["labels"]) == 20
    losses = history(part, "loss")
    assert len(losses) == 8 and losses == history(whole, "loss")
    assert losses != history(train(made_up, "--dropout", "0.0", "--skip_test", "true", output="other"), "loss")


@pytest.mark.slow
def test_few_labels_are_few_for_selection_too(train, made_up):
    """Fails if a run of 16 labels selects with 32, or all seeds train on the same 16."""
    seen = []
    for flags in (("--seed", "1"), ("--seed", "2"), ("--seed", "2", "--limit_seed", "1")):
        folder = train(made_up, "--limit_train", "16", "--max_steps", "1", *flags, output="-".join(flags))
        assert read_record(folder).train_pairs == 16
        seen.append(read_scores(folder / "scores.npz")["made_up"]["validation"]["before"].tolist())
        assert len(seen[-1]) == 16
    assert seen[0] == seen[2] != seen[1]


@pytest.mark.parametrize(
    "tower, loss",
    [
        (tower, name)
        for name, loss in sorted(LOSSES.items())
        for tower in loss.towers
        if (tower, name) not in (("bi_encoder", "cosent"), ("bi_encoder", "sbert_joint"), ("cross_encoder", "ce3"))
    ],
)
def test_every_loss_reaches_the_weights(made_up, tiny_model, tmp_path, tower, loss):
    """Fails if a loss that reads logits, scores or embeddings is not fed by its tower, or gives the encoder nothing."""
    corpus = load_corpus(str(made_up))
    arguments = ModelArguments(model_name_or_path=str(tiny_model), tower=tower)
    encoder = build_encoder(arguments, number_of_logits(LOSSES[loss], [corpus.manifest], tower), 32, seed=1)
    args = PairTrainingArguments(output_dir=str(tmp_path), use_cpu=True, eval_strategy="no", report_to="none")
    trainer = PairTrainer(encoder, args, loss=loss, train_dataset=corpus.split("train"), labels=corpus.manifest)
    trainer.compute_loss(trainer.model, next(iter(trainer.get_train_dataloader()))).backward()
    assert encoder.backbone.get_input_embeddings().weight.grad.norm() > 0


@pytest.mark.parametrize(
    "chosen",
    [
        ("--tower", "cross_encoder"),
        *(pytest.param(("--loss", name), marks=pytest.mark.slow) for name in ("angle", "infonce")),
    ],
)
def test_cached_batches_train_as_large_ones_do(train, made_up, chosen):
    """Fails if --cached_batch_size compares within its parts, counts rows twice, or scales the gradient.

    Or if negatives in other parts are overlooked, or groups meet the sentences of others.
    """
    flags = ("--optim", "sgd", "--dropout", "0", "--learning_rate", "3e-3", "--max_grad_norm", "0", *chosen)
    curves = []
    for name, batch in {"large": ("24",), "cached": ("8", "--cached_batch_size", "24")}.items():  # 64 = 24 + 24 + 16
        folder = train(made_up, *flags, "--per_device_train_batch_size", *batch, output=name)
        curves.append([history(folder, "loss"), history(folder, "grad_norm")])
    assert len(curves[0][0]) == 6
    np.testing.assert_allclose(curves[1], curves[0], rtol=2e-4)


def test_resuming_continues_where_it_stopped(train, made_up):
    """Fails if a run resumed within an epoch, head included, ends elsewhere than one that was never interrupted, or
    mixes recipes."""
    flags = ("--loss", "sbert", *WITHIN_EPOCHS)
    whole = train(made_up, *flags, output="whole")
    resume = ("--resume_from_checkpoint", str(whole / "checkpoint-6"))
    resumed = train(made_up, *flags, *resume, output="resumed")
    weights = sorted(path.relative_to(whole) for path in (whole / "checkpoint-8").rglob("*.safetensors"))
    assert len(weights) == 2
    assert all((whole / name).read_bytes() == (resumed / name).read_bytes() for name in weights)
    with pytest.raises(InputError, match="loss sbert, not cosent"):
        train(made_up, *resume, output="other")


def test_a_finished_model_is_not_overwritten(train, made_up):
    """Fails if a second run destroys the first one's model unasked, or leaves files that make its own unreadable."""
    folder = train(made_up, "--pooling", "linear_cls", "--loss", "sbert")
    with pytest.raises(InputError, match="already holds a model"):
        train(made_up)
    before = (folder / "run.json").read_text()
    with pytest.raises(InputError, match="no prepared corpus"):  # a typing error takes nothing with it
        train("nowhere", "--overwrite_output_dir", "true")
    assert (folder / "run.json").read_text() == before and (folder / "checkpoint-8").is_dir()
    train(made_up, "--pooling", "mean", "--overwrite_output_dir", "true", "--num_train_epochs", "1")
    assert SentenceEncoder.from_pretrained(str(folder)).pooling.mode == "mean"
    assert not list(folder.rglob("head.safetensors")) and not list(folder.rglob("2_Dense/*.safetensors"))
    assert SentenceTransformer(str(folder), device="cpu").encode(["好"]).shape == (1, 32)


def test_a_diverged_run_stops(train, make_corpus, pairs):
    """Fails if weights of NaN are saved as a finished model."""
    flags = ("--learning_rate", "1e30", "--max_grad_norm", "0", "--num_train_epochs", "4")
    with pytest.raises(InputError, match="loss is nan at step 2, in a batch of made_up: .*--learning_rate"):
        train(make_corpus({"train": pairs}), *flags)


def test_validation_that_selects_nothing(train, make_corpus, pairs, caplog):
    """Fails if a user with one split, or one label in validation, cannot train or is not told what was not selected."""
    one_label = [(a, b, 1.0) for a, b, _ in pairs[:8]]
    for number, rows in enumerate(({"train": pairs}, {"train": pairs, "validation": one_label})):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            folder = train(make_corpus(rows, name=f"c{number}"), output=f"run{number}")
        assert "no validation split with two different labels" in caplog.text
        assert decision_rules(folder) == {} and (folder / "model.safetensors").is_file()
    graded = make_corpus({"test": [(a, b, 2 * y) for a, b, y in pairs[:8]]}, "graded", 5.0, name="tested")
    folder = train(make_corpus({"train": pairs}), "--eval_corpora", str(graded), output="tested")
    assert "accuracy" not in read_record(folder).after["tested"]["test"]


def test_truncation_and_unknown_characters_are_reported(train, make_corpus, pairs, caplog):
    """Fails if cut sentences or unknown characters pass in silence."""
    with caplog.at_level(logging.INFO):
        rows = [*pairs[:11], ("好" * 60, "玙", 0.0)]
        train(make_corpus({"train": rows}), "--max_steps", "1")
    assert "made_up train: 1 of 24 sentences are longer than 32 tokens" in caplog.text
    assert "% of characters are unknown to the model: 玙 1." in caplog.text


def test_two_corpora_train_one_head(train, make_corpus, pairs):
    """Fails if the joint model of 8541 mixes the classes of similarity and NLI rows, or selects on one corpus alone."""
    rows = {"train": pairs, "validation": pairs[:32]}
    similar = make_corpus(rows, name="similar")
    nli = make_corpus(
        {split: [(a, b, 2 * y) for a, b, y in part] for split, part in rows.items()}, "nli", 2.0, name="nli"
    )
    folder = train((similar, nli), "--loss", "sbert_joint")
    record = read_record(folder)
    assert set(record.after) == {"similar", "nli"} and set(decision_rules(folder)) == {"similar"}
    with pytest.raises(InputError, match="sbert_joint .*binary"):
        train(similar, "--loss", "sbert_joint", output="other")
    with pytest.raises(InputError, match="--loss sbert .*sbert_joint"):
        train((similar, nli), "--loss", "sbert", output="other")


def test_every_held_out_pair_is_scored(train, make_corpus, pairs):
    """Fails if a flag for training batches leaves pairs out of a metric: 60 and 10 in batches of 24."""
    corpus = make_corpus({"train": pairs, "validation": pairs[:60], "test": pairs[50:60]})
    flags = ("--dataloader_drop_last", "true", "--per_device_eval_batch_size", "24")
    scores = read_scores(train(corpus, *flags, "--num_train_epochs", "1") / "scores.npz")["made_up"]
    assert {split: len(of["after"]) for split, of in scores.items()} == {"validation": 60, "test": 10}


CROSS_ENCODER = ("--tower", "cross_encoder", "--num_train_epochs", "1")


@pytest.fixture
def similar(make_corpus, pairs):
    return make_corpus({"train": pairs, "validation": pairs[:32], "test": pairs[32:]}, name="similar")


@pytest.fixture
def nli(make_corpus, pairs):
    """Labels 0, 1, 2: how many of the two sentences have five characters; the validation split has them all."""
    rows = [(a, b, float((len(a) == 5) + (len(b) == 5))) for a, b, _ in pairs]
    return make_corpus({"train": rows, "validation": rows[16:48], "test": rows[32:]}, "nli", 2.0, name="nli")


def test_training_ends_with_a_classifier_that_others_load(cross_run, pairs):
    """Fails if the other tower does not learn, or is served otherwise."""
    record = cross_run.record
    before, after = record.before["made_up"], record.after["made_up"]
    assert after["validation"]["spearman"] > before["validation"]["spearman"] + 0.2
    assert record.recipe["tower"] == "cross_encoder"
    first, second, labels = map(list, zip(*pairs[32:], strict=True))
    scores = CrossEncoder.from_pretrained(str(cross_run.folder)).similarity(first, second)
    served = sentence_transformers.CrossEncoder(str(cross_run.folder), device="cpu")
    np.testing.assert_allclose(served.predict(list(zip(first, second, strict=True))), scores, atol=1e-5)
    threshold = decision_rules(cross_run.folder)["made_up"].threshold
    assert after["test"]["accuracy"] == pytest.approx(np.mean((scores >= threshold) == np.array(labels)))


def test_nli_is_scored_in_its_order(train, nli):
    """Fails if a three-class model has no score, or one that does not rise from contradiction to entailment."""
    folder = train(nli, *CROSS_ENCODER, "--loss", "ce3", "--num_train_epochs", "8")
    assert read_record(folder).after["nli"]["validation"]["spearman"] > 0.3
    config = CrossEncoder.from_pretrained(str(folder)).model.config
    assert config.num_labels == 3 and config.label2id["entailment"] == 2


def test_transfer_selects_on_other_corpora(train, nli, similar, make_corpus, pairs):
    """Fails if the best epoch of an NLI run is chosen on NLI, or one of the tested corpora is left out."""
    graded = make_corpus({"validation": pairs[:32], "test": [(a, b, 5 * y) for a, b, y in pairs]}, "graded", 5.0, "g")
    folder = train(nli, "--eval_corpora", str(similar), str(graded), "--num_train_epochs", "1")
    record = read_record(folder)
    assert set(record.after) == {"nli", "similar", "g"} and set(decision_rules(folder)) == {"similar"}
    evaluated = {key for entry in record.history for key in entry if key.endswith("_spearman")}
    assert evaluated == {"eval_similar_spearman", "eval_g_spearman", "eval_spearman"}


def test_corpora_with_weights(train, nli, similar):
    """Fails if --corpus_weights is ignored: with 3, 1 and 4 batches of each, an epoch has 4 x 3 + 3 of the first."""
    folder = train((nli, similar), *CROSS_ENCODER, "--corpus_weights", "3", "1")
    assert len(history(folder, "loss")) == 15
    for weights, words in ((["1"], r"\[1.0\] for 2"), (["1", "0"], r"\[1.0, 0.0\]"), (["1", "x"], "'x'")):
        with pytest.raises(InputError, match=f"--corpus_weights.*{words}"):
            train((nli, similar), "--corpus_weights", *weights, output="other")
    with pytest.raises(InputError, match="sbert_joint .*--corpus_weights"):
        train((nli, similar), "--loss", "sbert_joint", "--corpus_weights", "1", "2", output="other")


@pytest.mark.parametrize("fault", ["the length", "precision"])
def test_a_folder_that_is_not_the_trained_model_is_refused(bi_run, tmp_path, fault):
    """Fails if a saved folder that lost something counts as the trained model."""
    record, folder = bi_run.record, tmp_path / "copy"
    corpora = RunCorpora([load_corpus(record.corpora["made_up"].folder)], [])
    trained = Evaluation(
        scores={"made_up": {"test": {"scores": read_scores(bi_run.folder / "scores.npz")["made_up"]["test"]["after"]}}}
    )
    check_saved(bi_run.folder, corpora, trained, record.prompts)
    shutil.copytree(bi_run.folder, folder)
    (folder / "whole.json").unlink()
    weights = load_file(folder / "model.safetensors")
    if fault == "precision":
        weights = {name: weight.bfloat16().float() for name, weight in weights.items()}
    else:
        for name, key in {
            "tokenizer_config.json": "model_max_length",
            "sentence_bert_config.json": "max_seq_length",
        }.items():
            settings = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps(settings | {key: 4}))
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(InputError, match="does not match"):
        check_saved(folder, corpora, trained, record.prompts)


def test_a_run_with_such_a_folder_is_not_finished(train, made_up, monkeypatch, tmp_path):
    """Fails if a run ends well with a folder that is not the model that was trained."""
    original = CrossEncoder.save_pretrained

    def save(model, folder, state_dict=None):
        original(model, folder, {name: 2 * weight for name, weight in (state_dict or model.state_dict()).items()})

    monkeypatch.setattr(CrossEncoder, "save_pretrained", save)
    flags = ("--use_peft", "true", "--load_best_model_at_end", "false", "--max_steps", "1")
    with pytest.raises(InputError, match="does not match"):
        train(made_up, "--tower", "cross_encoder", *flags)
    assert not (tmp_path / "run" / "run.json").exists(), "it counts as finished"
    assert (tmp_path / "run" / "UNFINISHED").exists()
