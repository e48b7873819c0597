"""What a loss is given, which loss fits which labels, and the head of Sentence-BERT."""

import datasets
import numpy as np
import pytest
import torch

from cosent.data.corpus import Manifest, sentence_groups
from cosent.data.retrieval import retrieval_task
from cosent.errors import InputError
from cosent.losses import LOSSES
from cosent.losses.in_batch import SIMILAR_LABEL, infonce_loss
from cosent.models.modules import SentenceBertHead
from cosent.training.objective import build_objective, loss_targets


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 1), (0, 5), (1, 5), (0, 10), (1, 6), (0, 3), (0, 100), (-1, 1), (0, 4), (1, 7), (0, 7), (0, 0.3), (-0.3, 0.6)],
)
def test_loss_groups_and_retrieval_agree_on_what_is_similar(low, high):
    """Fails if a pair is no negative, but no positive either, or is not to be found, at labels around any threshold; or
    if a label leaves 0..1 by a rounding error and stops a run in the middle of an epoch."""
    shares = np.arange(0.05, 1.0, 0.05)
    thresholds = [round(low + share * (high - low), 9) for share in shares]
    near = np.float32(thresholds)
    labels = np.concatenate([near, *(np.nextafter(near, np.float32(end)) for end in (low, high)), [low, high]])
    labels = np.unique(labels.astype(np.float32))
    columns = {
        name: [f"{side}{row}" for row in range(len(labels))] for name, side in (("sentence1", "a"), ("sentence2", "b"))
    }
    features = datasets.Features(**dict.fromkeys(columns, datasets.Value("string")), label=datasets.Value("float32"))
    rows = datasets.Dataset.from_dict(columns | {"label": labels}, features=features)
    manifest = Manifest("odd", "graded", float(low), float(high), {}, {})

    def grouped(least):
        return np.equal(*sentence_groups(rows, least).T)

    def retrieved():
        task = retrieval_task(rows, manifest, "test")
        queries = {task.pool[query] for query in task.relevance.queries}
        return np.array([sentence in queries for sentence in rows["sentence1"]])

    for threshold in thresholds:
        assert grouped(threshold).tolist() == (labels >= np.float32(threshold)).tolist()
    targets = torch.from_numpy(loss_targets(LOSSES["infonce"], labels, manifest))
    similar = grouped(manifest.similar_from)
    assert 0 < similar.sum() < len(labels) and targets.dtype == torch.float32
    assert (targets.diff() >= 0).all() and targets.max() == 1 and targets.min() == 0
    assert retrieved().tolist() == similar.tolist() == (targets >= SIMILAR_LABEL).tolist()
    assert (targets.double() >= SIMILAR_LABEL).tolist() == similar.tolist()
    orthogonal = torch.eye(2)[None]  # of the two sentences of a pair, which finds its own less than another
    for label, positive in zip(targets, similar, strict=True):
        batch, numbers = orthogonal.repeat(2, 1, 1), torch.arange(4).reshape(2, 2)
        loss = infonce_loss(batch, torch.stack((label, torch.tensor(0.0))), numbers)
        assert (loss > 0) == positive


def test_classes_of_labels():
    """Fails if grades are split anywhere but where the Sentence-BERT of the source does (label > 2.5), labels 1..5
    become classes 1..5 of a head that has 0..4, or the three labels of NLI become two classes."""

    def classes(kind, labels, number):
        manifest = Manifest("odd", kind, min(labels), max(labels), {"bi_encoder": 32}, {})
        return loss_targets(LOSSES["sbert"], np.array(labels, dtype=np.float32), manifest, number).tolist()

    assert classes("graded", [0.0, 1.0, 2.0, 2.5, 3.0, 4.0, 5.0], 2) == [0, 0, 0, 0, 1, 1, 1]
    assert classes("graded", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 6) == [0, 1, 2, 3, 4, 5]
    assert classes("graded", [1.0, 2.0, 3.0, 4.0, 5.0], 5) == [0, 1, 2, 3, 4]
    assert classes("nli", [0.0, 1.0, 2.0], 3) == [0, 1, 2] and classes("binary", [0.0, 1.0], 2) == [0, 1]
    graded, nli = ([Manifest("odd", kind, 0.0, high, {}, {})] for kind, high in (("graded", 5.0), ("nli", 2.0)))
    assert [build_objective(LOSSES["sbert"], {"sbert_classes": n}, graded).classes for n in (None, 6)] == [2, 6]
    assert build_objective(LOSSES["sbert"], {}, nli).classes == 3
    for name, manifests, number in (("sbert", nli, 2), ("cosent", graded, 2), ("sbert", graded, 1)):
        with pytest.raises(InputError, match="--sbert_classes"):
            build_objective(LOSSES[name], {"sbert_classes": number}, manifests)


def test_every_loss_says_how_many_logits_it_needs():
    """Fails if a head of another size than the loss reads is built (scale is 1 on logits and 20 on cosines), or a
    graded corpus is cut into classes for `ce` without a word."""
    binary = [Manifest("lcqmc", "binary", 0.0, 1.0, {}, {})]
    fitting = {name for name, loss in LOSSES.items() if "cross_encoder" in loss.towers} - {"ce3"}
    classes = {name: build_objective(LOSSES[name], {}, binary, "cross_encoder").classes for name in fitting}
    assert classes == {"cosent": 1, "ce": 2, "bce": 1, "mse": 1}
    assert build_objective(LOSSES["cosent"], {}, binary, "cross_encoder").function.keywords == {"scale": 1.0}
    assert build_objective(LOSSES["cosent"], {}, binary).function.keywords == {}
    assert build_objective(LOSSES["cosent"], {"scale": 5.0}, binary, "cross_encoder").function.keywords == {
        "scale": 5.0
    }
    graded = [Manifest("stsb", "graded", 0.0, 5.0, {}, {})]
    with pytest.raises(InputError, match="--loss ce .*stsb has graded .*--loss cosent, bce or mse"):
        build_objective(LOSSES["ce"], {}, graded, "cross_encoder")
    for loss in ("cosent", "bce", "mse"):
        assert build_objective(LOSSES[loss], {}, graded, "cross_encoder").classes == 1


def test_the_head_reads_both_vectors_and_their_distance():
    """Fails if the Sentence-BERT baseline reads other features than its source."""
    head = SentenceBertHead(2, 3, seed=1)
    u, v = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 5.0])
    row = torch.tensor([1.0, -2.0, 3.0, 5.0, 2.0, 7.0])
    torch.testing.assert_close(head(torch.stack((u, v))[None])[0], head.linear.weight @ row + head.linear.bias)
    assert head.linear.weight.shape == (3, 6) and head.linear.weight.abs().min() > 0


def test_weights_come_from_the_seed_alone_and_stay_float32():
    """Fails if two runs of one seed differ, a head shifts the dropout of the run, or bf16 training
    rounds two close logits to the same number."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    heads = [SentenceBertHead(8, 2, seed=seed) for seed in (3, 3, 4)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(heads[0].linear.weight, heads[1].linear.weight)
    assert not torch.equal(heads[0].linear.weight, heads[2].linear.weight)
    assert SentenceBertHead(8, 5, bias=False).linear.bias is None
    embeddings = torch.randn(4, 2, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(heads[0](embeddings), heads[0](embeddings.float()))
        assert heads[0](embeddings.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("loss", LOSSES)
def test_labels_that_teach_nothing_are_refused_by_the_name_of_the_loss(loss):
    """Positives alone are enough for the losses with in-batch negatives, and for no other."""
    manifest = Manifest("mine", "binary", 0.0, 1.0, {"bi_encoder": 32}, {})
    positives, negatives = np.ones(8, dtype=np.float32), np.zeros(8, dtype=np.float32)
    if LOSSES[loss].compares_sentences:
        assert loss_targets(LOSSES[loss], positives, manifest).tolist() == [1.0] * 8
        with pytest.raises(InputError, match=f"--loss {loss} .*mine .*0.8"):
            loss_targets(LOSSES[loss], negatives, manifest)
        return
    with pytest.raises(InputError, match=f"have the label 1, .*--loss {loss} .*--loss infonce"):
        loss_targets(LOSSES[loss], positives, manifest)
    with pytest.raises(InputError, match="have the label 0, .*another label.$"):
        loss_targets(LOSSES[loss], negatives, manifest)
