"""Options of losses on their way from flags and corpora to the loss: groups of pairs, schedules, a second output."""

import numpy as np
import pytest

from cosent.data.corpus import load_corpus
from cosent.data.pairs import NO_PREFIXES
from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.run import read_record
from cosent.study import read_study
from cosent.training.arguments import DataArguments
from cosent.training.setup import TOWERS, training_set
from cosent.training.trainer import PairTrainer
from tests.launching import apart, history

WITHIN = ("--compare_within", "query")
SGD = ("--dropout", "0", "--optim", "sgd", "--learning_rate", "0.01")
SGD += ("--max_grad_norm", "1000", "--num_train_epochs", "1")


@pytest.fixture
def queries(make_corpus, pairs):
    """64 pairs of 8 first sentences with two labels each, and 3 of queries with a single label."""
    alone = [("一条狗", "一只猫", 1.0), ("下雨了", "晴天", 0.0), ("下雨了", "多云", 0.0)]
    return make_corpus({"train": [*pairs[:40], *alone, *pairs[40:]], "validation": pairs[:32]})


def weights(folder, step: int):
    return (folder / f"checkpoint-{step}" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("tower", TOWERS)
def test_groups_are_those_of_first_sentences(queries, tiny_model, tower):
    """Fails if a pair is compared with those of another query, or a query without a comparison costs time."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))
    kinds, corpora = TOWERS[tower], [load_corpus(str(queries))]
    rest = (DataArguments(corpus=[str(queries)]), 2, "query")
    data = training_set(corpora, kinds.dataset, encoder, NO_PREFIXES, "cosent", *rest)
    assert len(data) == 64 and data.compares_within
    batch = kinds.collator.from_tokenizer(encoder.tokenizer)([data[row] for row in range(64)])
    first = np.arange(64) // 8
    groups = batch["groups"].numpy()
    assert groups.dtype == np.int64 and ((groups[:, None] == groups) == (first[:, None] == first)).all()
    assert batch["labels"].shape == (64,)


def test_pairs_that_share_a_sentence_are_compared(make_corpus, tiny_model):
    """Fails if `sentence` is `query`: a-b and c-b share b, a-d shares a, x-y none, e-f and f-g have one label."""
    rows = [("a", "b", 1.0), ("x", "y", 0.0), ("c", "b", 0.0), ("a", "d", 0.0), ("e", "f", 1.0), ("f", "g", 1.0)]
    corpus = make_corpus({"train": rows})
    encoder = SentenceEncoder.from_pretrained(str(tiny_model))

    def labels(within):
        rest = (DataArguments(corpus=[str(corpus)]), 2, within)
        kinds = TOWERS["bi_encoder"]
        return training_set([load_corpus(str(corpus))], kinds.dataset, encoder, NO_PREFIXES, "cosent", *rest).labels

    assert labels("query").tolist() == [1, 0] and labels("sentence").tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("tower", "loss"), [("bi_encoder", "cosent"), pytest.param("cross_encoder", "lambda_rank", marks=pytest.mark.slow)]
)
def test_caching_changes_nothing_within_groups(train, queries, tiny_model, tower, loss):
    """Fails if parts of a batch forget which query their pairs belong to."""
    rate = {"bi_encoder": "0.01", "cross_encoder": "20"}[tower]  # a fresh head has small gradients
    flags = ("--tower", tower, "--loss", loss, "--scale", "20", *SGD, "--learning_rate", rate)
    plain = train(queries, *flags, *WITHIN, "--per_device_train_batch_size", "64", output="plain")
    parts = ("--per_device_train_batch_size", "8", "--cached_batch_size", "64")
    cached = train(queries, *flags, *WITHIN, *parts, output="cached")
    assert apart(plain, cached, tiny_model) < (5e-3 if tower == "cross_encoder" else 1e-4)
    assert history(cached, "loss") == pytest.approx(history(plain, "loss"), rel=1e-4)
    assert read_record(plain).train_pairs == 64 and len(history(plain, "loss")) == 1


def test_batches_hold_whole_groups(train, queries, monkeypatch):
    """Fails if the pairs of a query are spread over batches, where nothing compares them."""
    seen = []
    original = PairTrainer.batch_loss

    def batch_loss(self, read, targets):
        seen.append(targets["groups"].tolist())
        return original(self, read, targets)

    monkeypatch.setattr(PairTrainer, "batch_loss", batch_loss)
    train(queries, *WITHIN, "--per_device_train_batch_size", "16", "--num_train_epochs", "3")
    assert len(seen) == 12 and all(sorted(groups.count(one) for one in set(groups)) == [8, 8] for groups in seen)
    assert len({tuple(sorted(set(groups))) for groups in seen}) > 4, "each epoch puts other groups together"


@pytest.mark.parametrize(
    "option", [("--scale_end", "40"), pytest.param(("--curriculum", "0.3"), marks=pytest.mark.slow)]
)
def test_schedules_continue_where_they_stopped(train, queries, monkeypatch, option):
    """Fails if a resumed run starts its schedule anew, or the schedule does not reach the loss."""
    whole = train(queries, *option, output="whole")
    resumed = train(queries, *option, "--resume_from_checkpoint", str(whole / "checkpoint-5"), output="resumed")
    assert weights(whole, 10) == weights(resumed, 10)
    plain = train(queries, output="plain")
    assert weights(whole, 10) != weights(plain, 10)
    if option[0] == "--scale_end":  # the first step has the scale of the start, and the last not yet that of the end
        assert history(whole, "loss")[0] == history(plain, "loss")[0]


def test_values_of_a_schedule():
    """Scale 10 to 30 over the training; a curriculum of 0.4 admits 0.7 after a quarter, all after half."""
    from cosent.data.manifest import Manifest
    from cosent.training.objective import build_objective

    manifests = [Manifest("made_up", "binary", 0.0, 1.0, {}, {})]
    objective = build_objective("cosent", {"scale": 10.0, "scale_end": 30.0, "curriculum": 0.4}, manifests)
    assert objective.scheduled(0.0) == pytest.approx({"scale": 10, "curriculum": 0.4})
    assert objective.scheduled(0.25) == pytest.approx({"scale": 15, "curriculum": 0.7})
    assert objective.scheduled(0.75) == pytest.approx({"scale": 25, "curriculum": 1})
    logits = build_objective("cosent", {"scale_end": 3.0}, manifests, "cross_encoder")
    assert logits.scheduled(0.5) == {"scale": 2} and build_objective("cosent", {}, manifests).scheduled(0.5) == {}


@pytest.mark.slow
def test_sentence_bert_reads_cosines_too(train, queries, tiny_model):
    """Fails if the term of CoSENT has no gradient, or parts of a cached batch lose it."""
    sbert, term = ("--loss", "sbert", *SGD), ("--loss", "sbert_cosent", "--cosent_weight", "0.5", *SGD)
    plain, both = train(queries, *sbert, output="plain"), train(queries, *term, output="both")
    cached = ("--per_device_train_batch_size", "4", "--cached_batch_size", "16")
    parts = train(queries, *term, *cached, output="parts")
    assert apart(plain, both, tiny_model) > 0.1 and apart(both, parts, tiny_model) < 1e-4


@pytest.mark.parametrize(
    ("tower", "loss"), [("bi_encoder", "sbert"), pytest.param("cross_encoder", "ce", marks=pytest.mark.slow)]
)
def test_labels_are_smoothed(train, queries, tower, loss):
    """Fails if the flag of transformers is read and does nothing, or its own smoother meets a model without config."""
    flags = ("--tower", tower, "--loss", loss, "--max_steps", "2")
    plain = train(queries, *flags, output="plain")
    smooth = train(queries, *flags, "--label_smoothing_factor", "0.3", output="smooth")
    assert history(plain, "loss") != history(smooth, "loss")
    assert read_record(smooth).recipe["label_smoothing_factor"] == 0.3


def test_a_corpus_without_comparisons_within_a_query(train, make_corpus):
    """Fails if a run trains on pairs none of which is compared with another."""
    lonely = make_corpus({"train": [("a", "b", 1.0), ("c", "b", 0.0)]}, name="lonely")
    with pytest.raises(InputError, match="--compare_within query: .*lonely"):
        train(lonely, *WITHIN)


@pytest.mark.slow
def test_a_guide_a_mask_and_widths_reach_the_loss(train, queries, tiny_model, monkeypatch):
    """Fails if a flag of in-batch losses trains as if it were absent, alone or in parts of a cached batch."""
    flags = ("--loss", "cosent_in_batch", "--negative_weight", "5", *SGD)
    options = {"plain": (), "mask": ("--mask_margin", "0"), "widths": ("--matryoshka_dims", "4", "8")}
    options["guide"] = ("--guide", "mini")
    runs = {name: train(queries, *flags, *option, output=name) for name, option in options.items()}
    assert len({(run / "model.safetensors").read_bytes() for run in runs.values()}) == len(runs)
    cached = ("--per_device_train_batch_size", "4", "--cached_batch_size", "16")
    for name in ("widths", "guide"):
        parts = train(queries, *flags, *options[name], *cached, output=f"{name} in parts")
        assert apart(runs[name], parts, tiny_model) < 1e-4


@pytest.mark.slow
def test_every_variant_of_the_studies_trains(train, queries):
    """Fails if a variant of a study cannot be trained and evaluated, or trains what plain CoSENT does."""
    names = ("options", "groups", "options_lcqmc")
    every = [flags for name in names for flags in read_study(f"recipes/studies/{name}.yaml")["variants"].values()]
    variants = {str(flags): flags for flags in every if "limit_train" not in flags}
    runs = {}
    for name, flags in variants.items():
        flags = flags | {"max_steps": 3} | ({"matryoshka_dims": [4, 8]} if "matryoshka_dims" in flags else {})
        argv = [text for key, value in flags.items() for text in (f"--{key}", *map(str, np.atleast_1d(value)))]
        runs[name] = train(queries, *argv, "--retrieval", "false", output=f"run_{len(runs)}")
        values = [*history(runs[name], "loss"), read_record(runs[name]).after["made_up"]["validation"]["spearman"]]
        assert len(values) == 4 and np.isfinite(values).all(), name
    trained = {name: (run / "model.safetensors").read_bytes() for name, run in runs.items()}
    assert [name for name in trained if name != "{}" and trained[name] == trained["{}"]] == []
    assert len(variants) > 20
