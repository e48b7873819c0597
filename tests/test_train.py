"""The main job end to end on a tiny model, and what a user is told when something is wrong with the input."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cosent.cli import parse
from cosent.data.corpus import load_corpus
from cosent.data.pairs import NO_PREFIXES, PairDataset
from cosent.errors import InputError
from cosent.evaluation.significance import spearman
from cosent.losses import LOSSES
from cosent.models.bi_encoder import SentenceEncoder
from cosent.run import read_record, read_scores
from cosent.train import main
from cosent.training.arguments import TRAIN_ARGUMENTS, DataArguments
from cosent.training.load import training_set


@pytest.fixture
def corpus(make_corpus, pairs):
    return make_corpus({"train": pairs, "validation": pairs[:32], "test": pairs[32:]})


def test_training_ends_with_a_model_that_others_load(train, corpus):
    """Fails if the one command does not leave a better model, its record, and a folder that serving tools read."""
    folder = train(corpus, "--pooling", "mean", "--num_train_epochs", "8")
    record = json.loads((folder / "run.json").read_text())
    before, after = record["before"]["made_up"], record["after"]["made_up"]
    assert after["validation"]["spearman"] > before["validation"]["spearman"] + 0.2
    assert 0.5 <= after["test"]["accuracy"] <= 1 and record["thresholds"]["made_up"] is not None
    assert record["recipe"]["loss"] == "cosent" and record["recipe"]["learning_rate"] == 1e-3
    assert record["train_pairs"] == 64
    epochs = [entry["eval_spearman"] for entry in record["history"] if "eval_spearman" in entry]
    assert max(epochs) == pytest.approx(after["validation"]["spearman"]), "the best epoch was not kept"
    assert SentenceTransformer(str(folder), device="cpu").encode(["我喜欢北京"]).shape == (1, 32)


def test_others_may_read_the_folder(train, corpus):
    """Fails if weights are for their owner alone, so that a server of another user cannot load them."""
    umask = os.umask(0o027)
    try:
        folder = train(corpus, "--num_train_epochs", "1", "--use_peft", "true")
    finally:
        os.umask(umask)
    modes = {str(file.relative_to(folder)): oct(file.stat().st_mode & 0o777) for file in folder.rglob("*.*")}
    assert {"model.safetensors", "run.json"} < set(modes) and any("adapter" in name for name in modes)
    assert {name: mode for name, mode in modes.items() if mode not in ("0o640", "0o750")} == {}


@pytest.mark.parametrize(("flags", "rate"), [((), 5e-4), (("--use_peft", "true"), 2e-3)])
def test_the_default_learning_rate_is_that_of_the_encoder(tiny_model, corpus, tmp_path, caplog, flags, rate):
    """Fails if a small encoder is trained at the rate of BERT-base where no recipe names one."""
    caplog.set_level("INFO")
    place = ("--model_name_or_path", str(tiny_model), "--corpus", str(corpus), "--output_dir", str(tmp_path / "run"))
    main(*parse([*place, *flags, "--use_cpu", "true", "--max_steps", "1"], *TRAIN_ARGUMENTS))
    assert read_record(tmp_path / "run").recipe["learning_rate"] == rate
    assert f"--learning_rate {rate:g}" in caplog.text


def test_what_a_report_needs_is_kept(train, corpus, pairs):
    """Fails if the scores beside a model are those of other pairs, of another moment, or rank differently."""
    folder = train(corpus, "--pooling", "mean")
    record, scores = json.loads((folder / "run.json").read_text()), read_scores(folder / "scores.npz")["made_up"]
    assert scores["test"]["labels"].tolist() == [label for _, _, label in pairs[32:]]
    for split in ("validation", "test"):
        for moment in ("before", "after"):
            expected = record[moment]["made_up"][split]["spearman"]
            assert spearman(scores[split][moment], scores[split]["labels"]) == pytest.approx(expected, abs=1e-9)
    same = [a == b for a, b, _ in pairs[32:]]
    assert (scores["test"]["distances"] < 1e-4).tolist() == same, "equal sentences lie at distance 0, others do not"
    folder = train(corpus, "--tower", "cross_encoder", output="cross")
    scores = read_scores(folder / "scores.npz")["made_up"]
    assert scores["test"].keys() == {"labels", "before", "after"}, "a cross-encoder has no vectors"


def test_settings_are_chosen_on_a_part_of_validation_alone(train, corpus):
    """Fails if a run that only chooses settings reads the test split, or all of a large validation split."""
    folder = train(corpus, "--limit_validation", "20", "--skip_test", "true")
    record, scores = json.loads((folder / "run.json").read_text()), read_scores(folder / "scores.npz")["made_up"]
    assert record["before"]["made_up"].keys() == record["after"]["made_up"].keys() == {"validation"}
    assert scores.keys() == {"validation"} and len(scores["validation"]["labels"]) == 20


def test_random_negatives_reach_the_training_pairs(corpus, tiny_model):
    """Fails if the flag is accepted and trains on the same pairs, or draws anew what is no negative."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    own, easy = (
        training_set(
            [load_corpus(str(corpus))],
            PairDataset,
            encoder,
            NO_PREFIXES,
            "cosent",
            DataArguments(corpus=[str(corpus)], random_negatives=flag),
        )
        for flag in (False, True)
    )
    kept, moved = set(), set()
    for (first, second, label), (same, drawn, _) in zip(own, easy, strict=True):
        assert first.tolist() == same.tolist()
        (kept if second.tolist() == drawn.tolist() else moved).add(label)
    assert moved == {0.0} and 1.0 in kept


@pytest.mark.parametrize(
    "tower, loss",
    [
        (tower, name)
        for name, loss in sorted(LOSSES.items())
        for tower in loss.towers
        if (tower, name) not in (("bi_encoder", "cosent"), ("bi_encoder", "sbert_joint"), ("cross_encoder", "ce3"))
    ],
)
def test_every_kind_of_loss_trains(train, corpus, tower, loss):
    """Fails if losses that read logits, scores or embeddings do not reach the weights."""
    folder = train(corpus, "--loss", loss, "--tower", tower)
    record = json.loads((folder / "run.json").read_text())
    assert any(entry.get("grad_norm", 0) > 0 for entry in record["history"])
    before, after = (next(iter(record[moment].values()))["validation"]["spearman"] for moment in ("before", "after"))
    assert before != after


def test_gradient_checkpointing_changes_no_weight(train, corpus):
    """Fails if the flag for small GPUs stops with an error, or trains something else."""
    plain = train(corpus, output="plain") / "model.safetensors"
    checkpointed = train(corpus, "--gradient_checkpointing", "true", output="checkpointed") / "model.safetensors"
    assert plain.read_bytes() == checkpointed.read_bytes()


@pytest.mark.parametrize(
    "chosen",
    [("--tower", "bi_encoder"), ("--tower", "cross_encoder"), ("--loss", "cosent_in_batch"), ("--loss", "infonce")],
)
def test_cached_batches_train_as_large_ones_do(train, corpus, chosen):
    """Fails if --cached_batch_size compares within its parts, counts rows twice, or scales the gradient.

    Or if strangers in other parts are overlooked, or groups meet the sentences of others.
    """
    flags = ("--optim", "sgd", "--dropout", "0", "--learning_rate", "3e-3", "--max_grad_norm", "0", *chosen)
    curves = []
    for name, batch in {"large": ("24",), "cached": ("8", "--cached_batch_size", "24")}.items():  # 64 = 24 + 24 + 16
        folder = train(corpus, *flags, "--per_device_train_batch_size", *batch, output=name)
        history = json.loads((folder / "run.json").read_text())["history"]
        curves.append([(entry["loss"], entry["grad_norm"]) for entry in history if "loss" in entry])
    assert len(curves[0]) == 6
    np.testing.assert_allclose(curves[1], curves[0], rtol=2e-4)


def test_a_cached_batch_is_made_of_parts(train, corpus):
    """Fails if a size that devices and parts cannot share out is rounded in silence."""
    with pytest.raises(InputError, match="a multiple of 16"):
        train(corpus, "--cached_batch_size", "40")


def test_balanced_batches_leave_no_batch_of_one_label(train, make_corpus, pairs, caplog):
    """Fails if the flag does not reach the sampler: the same rows in plain order waste batches."""
    rows = make_corpus({"train": [(a, b, float(number % 8 == 0)) for number, (a, b, _) in enumerate(pairs)]})
    with caplog.at_level(logging.WARNING):
        train(rows, "--per_device_train_batch_size", "8", "--balanced_batches", "true", output="balanced")
        assert "batches held pairs of one label only" not in caplog.text
        train(rows, "--per_device_train_batch_size", "8", output="plain")
    assert "batches held pairs of one label only" in caplog.text


def test_same_seed_same_weights(train, corpus):
    """Fails if a run cannot be repeated; another seed guards against comparing constants."""
    first, again, other = (
        (train(corpus, "--seed", seed, output=name) / "model.safetensors").read_bytes()
        for seed, name in (("1", "a"), ("1", "b"), ("2", "c"))
    )
    assert first == again != other


def test_resuming_continues_where_it_stopped(train, corpus):
    """Fails if a resumed run, head included, ends elsewhere than one that was never interrupted."""
    whole = train(corpus, "--loss", "sbert", output="whole")
    resumed = train(
        corpus, "--loss", "sbert", "--resume_from_checkpoint", str(whole / "checkpoint-4"), output="resumed"
    )
    assert (whole / "checkpoint-8/model.safetensors").read_bytes() == (
        resumed / "checkpoint-8/model.safetensors"
    ).read_bytes()
    assert (whole / "checkpoint-8/head.safetensors").read_bytes() == (
        resumed / "checkpoint-8/head.safetensors"
    ).read_bytes()
    with pytest.raises(InputError, match="is not a checkpoint"):
        train(corpus, "--resume_from_checkpoint", str(whole / "checkpoint-5"), output="other")


def test_a_finished_model_is_not_overwritten(train, corpus):
    """Fails if a second run destroys the first one's model without being told to."""
    folder = train(corpus)
    with pytest.raises(InputError, match="already holds a model"):
        train(corpus)
    before = (folder / "run.json").read_text()
    with pytest.raises(InputError, match="no prepared corpus"):  # a typing error takes nothing with it
        train("nowhere", "--overwrite_output_dir", "true")
    assert (folder / "run.json").read_text() == before and (folder / "checkpoint-8").is_dir()
    train(corpus, "--overwrite_output_dir", "true", "--seed", "3")
    assert (folder / "run.json").read_text() != before


def test_overwriting_leaves_nothing_of_the_other_model(train, corpus):
    """Fails if a second run with another pool and loss leaves files behind that make its own model unreadable."""
    train(corpus, "--pooling", "linear_cls", "--loss", "sbert")
    folder = train(corpus, "--pooling", "mean", "--overwrite_output_dir", "true", "--num_train_epochs", "1")
    assert SentenceEncoder.from_pretrained(str(folder)).pooling.mode == "mean"
    assert not list(folder.rglob("head.safetensors")) and not list(folder.rglob("2_Dense/*.safetensors"))
    assert SentenceTransformer(str(folder), device="cpu").encode(["好"]).shape == (1, 32)


def test_auto_takes_the_newest_whole_checkpoint(train, corpus):
    """Fails if a torn checkpoint stops a resumed run, or `auto` replaces a finished model that has no checkpoint."""
    whole = train(corpus, output="whole")
    (whole / "checkpoint-9").mkdir()
    before = (whole / "model.safetensors").read_bytes()
    (whole / "run.json").unlink()
    train(corpus, "--resume_from_checkpoint", "auto", output="whole")
    assert (whole / "model.safetensors").read_bytes() == before
    (whole / "run.json").unlink()
    for checkpoint in whole.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    with pytest.raises(InputError, match="already holds a model"):
        train(corpus, "--resume_from_checkpoint", "auto", output="whole")


def test_a_checkpoint_of_another_recipe_is_refused(train, corpus):
    """Fails if resuming with another head or pool ends in a state-dict error, or trains something mixed."""
    checkpoint = str(train(corpus, output="first") / "checkpoint-4")
    with pytest.raises(InputError, match="started with other settings: loss cosent, not sbert"):
        train(corpus, "--resume_from_checkpoint", checkpoint, "--loss", "sbert", output="second")


def test_a_diverged_run_stops(train, make_corpus, pairs):
    """Fails if weights of NaN are saved as a finished model."""
    with pytest.raises(InputError, match="The training loss is nan"):
        train(
            make_corpus({"train": pairs}), "--learning_rate", "1e30", "--max_grad_norm", "0", "--num_train_epochs", "4"
        )


def test_a_validation_split_of_one_label_selects_nothing(train, make_corpus, pairs, caplog):
    """Fails if epochs are selected by a Spearman of NaN, or a threshold that calls everything similar is stored."""
    rows = {"train": pairs, "validation": [(a, b, 1.0) for a, b, _ in pairs[:8]]}
    with caplog.at_level(logging.WARNING):
        record = json.loads((train(make_corpus(rows)) / "run.json").read_text())
    assert "no validation split with two different labels" in caplog.text
    assert record["thresholds"] == {}


@pytest.mark.parametrize(
    "flags, words",
    [
        (("--limit_train", "-70"), "--limit_train must be at least 1"),
        (("--limit_validation", "0"), "--limit_validation must be at least 1"),
        (("--loss", "sbert", "--features", "u", "w"), "--features u w"),
        (("--features", "u"), "--features are those of a Sentence-BERT head"),
        (("--eval_strategy", "no", "--early_stopping_patience", "1"), "--early_stopping_patience needs"),
        (("--bf16_full_eval", "true"), "--bf16_full_eval would convert"),
        (("--lora_r", "4"), "--lora_r does nothing here. Add --use_peft true"),
        (("--rollback_factor", "0.1"), "--rollback_factor does nothing here. Add --on_collapse"),
        (("--max_length", "0"), "max_length must be 3 to"),
        (("--scale", "-20"), "--scale must be above 0"),
    ],
)
def test_flags_that_make_no_sense(train, corpus, flags, words):
    """Fails if a wrong value is ignored, or ends in a stack trace."""
    with pytest.raises(InputError, match=words):
        train(corpus, *flags)


def test_without_evaluation(train, corpus):
    """Fails if --eval_strategy no asks the user to switch off a default of ours."""
    assert (train(corpus, "--eval_strategy", "no") / "run.json").is_file()


def test_one_corpus_named_twice(train, corpus):
    """Fails if the results of one corpus overwrite those of another of the same name."""
    with pytest.raises(InputError, match="made_up more than once"):
        train((corpus, corpus))


def test_a_single_label_teaches_nothing(train, make_corpus, pairs):
    """Fails if a corpus of positives only trains for hours towards nothing."""
    with pytest.raises(InputError, match="have the label 1"):
        train(make_corpus({"train": [(a, b, 1.0) for a, b, _ in pairs]}))


def test_batches_without_order_are_reported(train, make_corpus, pairs, caplog):
    """Fails if steps that teach nothing pass in silence: here every batch holds one pair."""
    with caplog.at_level(logging.WARNING):
        train(make_corpus({"train": pairs[:6]}), "--per_device_train_batch_size", "1", "--num_train_epochs", "1")
    assert "epoch 1: 6 of 6 batches held pairs of one label only" in caplog.text


def test_without_validation_the_last_epoch_is_kept(train, make_corpus, pairs, caplog):
    """Fails if a user with one split cannot train, or is not told that nothing was selected."""
    with caplog.at_level(logging.WARNING):
        folder = train(make_corpus({"train": pairs}))
    assert "no validation split" in caplog.text
    assert (folder / "model.safetensors").is_file()


def test_a_corpus_without_training_pairs(train, make_corpus, pairs):
    """Fails if PAWSX without its train split ends in a KeyError."""
    with pytest.raises(InputError, match="has no train split, only test"):
        train(make_corpus({"test": pairs}))


def test_parameters_of_another_loss_are_refused(train, corpus):
    """Fails if --scale is accepted for a loss that has none: the table would show a setting that did nothing."""
    with pytest.raises(InputError, match="--scale does nothing for --loss cosine_squared"):
        train(corpus, "--loss", "cosine_squared", "--scale", "5")


def test_two_corpora_train_one_head(train, make_corpus, pairs):
    """Fails if the joint model of 8541 mixes the classes of similarity and NLI rows, or selects on one corpus alone."""
    rows = {"train": pairs, "validation": pairs[:32]}
    similar = make_corpus(rows, name="similar")
    nli = make_corpus(
        {split: [(a, b, 2 * y) for a, b, y in part] for split, part in rows.items()}, "nli", 2.0, name="nli"
    )
    folder = train((similar, nli), "--loss", "sbert_joint")
    record = json.loads((folder / "run.json").read_text())
    assert set(record["after"]) == {"similar", "nli"} and set(record["thresholds"]) == {"similar"}
    epoch = next(entry for entry in record["history"] if "eval_nli_spearman" in entry)
    mean = next(entry for entry in record["history"] if "eval_spearman" in entry)
    other = next(entry for entry in record["history"] if "eval_similar_spearman" in entry)
    expected = (epoch["eval_nli_spearman"] + other["eval_similar_spearman"]) / 2
    assert mean["eval_spearman"] == pytest.approx(expected)
    with pytest.raises(InputError, match="got binary labels only"):
        train(similar, "--loss", "sbert_joint", output="other")
    with pytest.raises(InputError, match="labels of several corpora mean different things"):
        train((similar, nli), "--loss", "sbert", output="other")


def test_fractional_labels_are_no_classes(train, make_corpus, pairs):
    """Fails if grades such as 2.5 are rounded into classes."""
    rows = [(a, b, 2.5 * y) for a, b, y in pairs]
    with pytest.raises(InputError, match="fractional labels"):
        train(make_corpus({"train": rows}, "graded", 5.0), "--loss", "sbert")


def test_truncation_is_reported(train, make_corpus, pairs, caplog):
    """Fails if the end of sentences is dropped without a word."""
    with caplog.at_level(logging.WARNING):
        train(make_corpus({"train": [*pairs, ("好" * 60, "坏", 0.0)]}))
    assert "made_up train: 1 of 130 sentences are longer than 32 tokens" in caplog.text


def test_early_stopping(train, corpus):
    """Fails if --early_stopping_patience is ignored: at a learning rate of 0 no epoch after the first is better."""
    folder = train(corpus, "--num_train_epochs", "9", "--early_stopping_patience", "2", "--learning_rate", "0.0")
    history = json.loads((folder / "run.json").read_text())["history"]
    assert len([entry for entry in history if "eval_spearman" in entry]) == 3


def test_two_corpora_select_by_their_mean(train, make_corpus, pairs):
    """Fails if early stopping or another measure does not know the mean, or it is not the mean."""
    first = make_corpus({"train": pairs, "validation": pairs[:32]}, name="first")
    second = make_corpus({"train": pairs, "validation": pairs[20:60]}, name="second")
    flags = ("--num_train_epochs", "9", "--early_stopping_patience", "2", "--learning_rate", "0.0")
    folder = train((first, second), *flags, "--metric_for_best_model", "pearson")
    history = json.loads((folder / "run.json").read_text())["history"]
    means = [entry["eval_pearson"] for entry in history if "eval_pearson" in entry]
    apart = [[entry[key] for entry in history if key in entry] for key in ("eval_first_pearson", "eval_second_pearson")]
    assert len(means) == 3 and apart[0] != apart[1]
    assert means == pytest.approx(np.mean(apart, axis=0).tolist())


@pytest.mark.parametrize("tower", ["bi_encoder", "cross_encoder"])
def test_every_held_out_pair_is_scored(train, make_corpus, pairs, tower):
    """Fails if a flag for training batches leaves pairs out of a metric: 60 and 10 in batches of 24."""
    corpus = make_corpus({"train": pairs, "validation": pairs[:60], "test": pairs[50:60]})
    flags = ("--dataloader_drop_last", "true", "--per_device_eval_batch_size", "24", "--tower", tower)
    scores = read_scores(train(corpus, *flags) / "scores.npz")["made_up"]
    assert {split: len(of["after"]) for split, of in scores.items()} == {"validation": 60, "test": 10}


def test_the_seed_of_the_order_is_used_by_every_sampler(train, corpus):
    """Fails if --data_seed is ignored beside --balanced_batches."""
    flags = ("--balanced_batches", "true", "--eval_strategy", "no", "--dropout", "0")
    one, two = (train(corpus, *flags, "--data_seed", seed, output=seed) for seed in ("1", "2"))
    losses = [
        [e["loss"] for e in json.loads((f / "run.json").read_text())["history"] if "loss" in e] for f in (one, two)
    ]
    assert losses[0] != losses[1]


@pytest.mark.slow
def test_the_command_line_as_a_user_types_it(tiny_model, corpus, tmp_path):
    """Fails if `accelerate launch` of the job, or evaluating and comparing afterwards, does not work from a shell."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def shell(*command, status=0):
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert result.returncode == status, result.stderr
        return result

    launcher = (sys.executable, "-m", "accelerate.commands.launch", "--config_file", "recipes/accelerate/cpu.yaml")
    flags = ("--config", "recipes/bi_encoder/cosent_mini.yaml", "--model_name_or_path", str(tiny_model))
    folder = str(tmp_path / "run")
    train = (*launcher, "-m", "cosent.train", *flags, "--corpus", str(corpus), "--output_dir", folder)
    assert f"model in {folder}" in shell(*train).stdout
    refused = shell(*train, status=1)  # accelerate turns our status 2 into 1
    assert "error: " in refused.stderr and "already holds a model" in refused.stderr

    predictions = tmp_path / "out.tsv"
    evaluate = (sys.executable, "-m", "cosent.evaluate", "--model", folder, "--corpus", str(corpus))
    result = shell(*evaluate, "--predictions", str(predictions))
    metrics = json.loads(result.stdout)
    trained = json.loads((tmp_path / "run/run.json").read_text())["after"]["made_up"]["test"]
    # (a, b) and (b, a) tie but for rounding; a tie that breaks changes Spearman by one part in 11 000 for 32 pairs
    assert metrics["spearman"] == pytest.approx(trained["spearman"], rel=2e-3, abs=1e-6)
    assert metrics["accuracy"] == pytest.approx(trained["accuracy"], abs=1e-6)
    lines = predictions.read_text().splitlines()
    assert lines[0] == "id\tsentence1\tsentence2\tlabel\tprediction\tscore" and len(lines) == 33
    scores = np.array([float(line.split("\t")[-1]) for line in lines[1:]])
    assert scores.std() > 1e-4

    compared = shell(sys.executable, "-m", "cosent.similarity", "--model", folder, "好", "好", "红", "绿").stdout
    assert re.match(r" 1.0000  0\.\d{4}  (not )?similar +好", compared) and len(compared.splitlines()) == 2
    assert (
        "an even number"
        in shell(*(sys.executable, "-m", "cosent.similarity"), "--model", folder, "好", status=2).stderr
    )


def test_compiled_models_are_padded(train, make_corpus, pairs):
    """Fails if torch.compile meets a new shape at every step, and a run of minutes takes hours."""
    corpus = make_corpus({"train": pairs[:32], "validation": pairs[32:]})
    with pytest.raises(InputError, match="--torch_compile compiles a model for each shape .* Add --packing false"):
        train(corpus, "--torch_compile", "true")
