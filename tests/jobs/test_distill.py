"""Distillation end to end on tiny models."""

import logging
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertModel, BertTokenizer

from cosent import decision_rules
from cosent.cli import arguments_of
from cosent.errors import InputError
from cosent.flags import parse
from cosent.jobs.distill import main
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.layout import save_modules
from cosent.models.modules import Dense, Normalize, Pooling
from cosent.models.student import Student
from cosent.record import read_record, read_scores
from cosent.training.verdict import final_table
from tests.conftest import prepare
from tests.support.launching import WITHIN_EPOCHS, WORKER, history, later_wins

SENTENCES = [
    "怎么还款",
    "如何还款",
    "还款怎么还",
    "天气很好",
    "今天天气好",
    "天气真好",
    "推荐红车",
    "买辆红车",
    "红色的车",
]
# What is learnt shows without noise, and in the last epoch: the labels, which select another, are not the teacher's.
TO_THE_END = ("--load_best_model_at_end", "false", "--dropout", "0.0", "--corruption_share", "0.0")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Nine sentences of three meanings, all pairs: synonyms share a meaning."""
    rows = [(a, b, float(i // 3 == j // 3)) for i, a in enumerate(SENTENCES) for j, b in enumerate(SENTENCES) if i != j]
    splits = {"train": rows, "validation": rows, "test": rows[:30]}
    return prepare(tmp_path_factory.mktemp("corpora") / "made_up", splits, "binary", 1.0)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    """A teacher of another architecture, vocabulary, width and pooling."""
    folder = tmp_path_factory.mktemp("teacher")
    characters = sorted(set("".join(SENTENCES)))
    vocabulary = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters])}
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        config = BertConfig(vocab_size=len(vocabulary), initializer_range=0.5, **sizes)
        BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    BertTokenizer(vocab=vocabulary, model_max_length=64).save_pretrained(folder)
    save_modules(folder, Pooling("mean", 24))
    return folder


def run_distill(model: Path, corpus: Path | None, folder: Path, *flags: str) -> Path:
    arguments = [
        *("--model_name_or_path", str(model), "--output_dir", str(folder)),
        *([] if corpus is None else ["--corpus", str(corpus)]),
        *("--use_cpu", "true", "--disable_tqdm", "true", "--per_device_train_batch_size", "6"),
        *("--learning_rate", "3e-3", "--num_train_epochs", "1", "--logging_steps", "1"),
        *flags,
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(folder.parent / "cache"))
        main(*parse(later_wins(arguments), *arguments_of(main)))
    return folder


@pytest.fixture
def distill(tiny_student, tmp_path):
    """Returns a function that trains a tiny student and gives back the output folder."""
    return lambda corpus, *flags, model=tiny_student, output="run": run_distill(
        model, corpus, tmp_path / output, *flags
    )


def test_a_teacher_and_lines_are_enough(distill, teacher, tiny_student, tmp_path, capsys):
    """Fails if a teacher of one's own needs labels or synonyms to teach its cosines, or if they are not learnt."""
    text = tmp_path / "lines.txt"
    text.write_text("\n".join(SENTENCES + SENTENCES[::-1] + SENTENCES[::3]), encoding="utf-8")
    flags = ("--config", "student/taught_by_public", "--dropout", "0.0", "--num_train_epochs", "20")
    folder = distill(None, *flags, "--teacher", str(teacher), "--text", str(text))
    assert "not measured" in capsys.readouterr().out
    vectors = [
        SentenceEncoder.from_pretrained(str(model)).encode(SENTENCES, normalize_embeddings=True)
        for model in (teacher, tiny_student, folder)
    ]
    theirs, before, after = (each @ each.T for each in vectors)
    assert np.square(after - theirs).mean() < np.square(before - theirs).mean() / 2
    with pytest.raises(InputError, match="--generation false"):
        distill(None, "--teacher", str(teacher), "--text", str(text), output="writes")


@pytest.mark.slow
@pytest.mark.parametrize("alone", [(), ("--generation", "false", "--student_layers", "1")])
def test_a_student_keeps_its_modules(distill, corpus, teacher, tiny_student, tmp_path, alone):
    """Fails if a student, or a retrieval model alone, loses a module of its start, or gives other vectors elsewhere."""
    start = Student.from_pretrained(str(tiny_student))
    start.after_pooling.extend([Dense(32, 12), Normalize()])
    start.save_pretrained(tmp_path / "start")
    folder = distill(corpus, "--teacher", str(teacher), *alone, model=tmp_path / "start")
    trained = SentenceEncoder.from_pretrained(str(folder))
    assert trained.modules_after_backbone == start.modules_after_backbone and trained.embedding_dimension == 12
    states = (one.after_pooling.state_dict().values() for one in (start, trained))
    assert all((before - after).abs().max() > 1e-4 for before, after in zip(*states, strict=True))
    assert trained.backbone.config.num_hidden_layers == 2 - bool(alone)
    assert bool(alone) != ("perplexity" in read_record(folder).after["made_up"]["validation"])
    assert bool(alone) != bool(history(folder, "generation_loss"))
    vectors = trained.encode(SENTENCES)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    served = SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(served.encode(SENTENCES), vectors, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_stage_1(distill, corpus):
    """Fails if synonyms alone do not teach both to find and to write, or non-synonyms are written."""
    folder = distill(corpus, "--num_train_epochs", "12", "--lr_scheduler_type", "constant", *TO_THE_END)
    record = read_record(folder)
    assert record.train_pairs == record.synonyms == 18  # 72 pairs, 3 meanings of 3 sentences
    assert len(history(folder, "similarity_loss")) == 36
    before, after = (moment["made_up"]["validation"]["spearman"] for moment in (record.before, record.after))
    assert after > before + 0.1
    before, after = (moment["made_up"]["validation"]["perplexity"] for moment in (record.before, record.after))
    assert after < before / 2
    assert "made_up" in decision_rules(folder), "its scores cannot be decided on"
    assert set(record.after["made_up"]) == {"validation", "test"}
    assert len(read_scores(folder / "scores.npz")["made_up"]["test"]["after"]) == 30
    assert record.footprint.parameters == sum(p.numel() for p in Student.from_pretrained(str(folder)).parameters())
    assert SentenceTransformer(str(folder), device="cpu").encode(["好"]).shape == (1, 32)
    assert Student.from_pretrained(str(folder)).similar_sentences(["怎么还款"], num_samples=4) is not None


def test_few_synonyms(distill, make_corpus, caplog):
    """Fails if a corpus of synonyms alone selects an epoch, or a batch larger than it ends in a stack trace."""
    only = make_corpus({"train": [("怎么还款", "如何还款", 1.0)] * 12}, name="only")
    with caplog.at_level(logging.WARNING):
        folder = distill(only, "--limit_train", "9", "--skip_test", "true", output="only")
    assert "the last epoch is kept" in caplog.text and read_record(folder).train_pairs == 9
    with pytest.raises(InputError, match="12 pairs .* 16"):
        distill(only, "--per_device_train_batch_size", "16", output="large")


def test_stage_2_learns_the_teachers_cosines(distill, teacher, corpus):
    """Fails if a teacher with other tokens, width and pooling is not matched, generation is forgotten on the way, or
    the table does not say what the teacher reaches."""
    taught = distill(corpus, "--teacher", str(teacher), "--num_train_epochs", "6", *TO_THE_END)
    record = read_record(taught)
    assert record.train_pairs == 72 and record.synonyms == 18
    matrices = []
    for path in (taught, record.recipe["model_name_or_path"]):
        vectors = Student.from_pretrained(str(path)).encode(SENTENCES, normalize_embeddings=True)
        matrices.append(vectors @ vectors.T)
    vectors = SentenceEncoder.from_pretrained(str(teacher)).encode(SENTENCES, normalize_embeddings=True)
    after, before = (np.square(matrix - vectors @ vectors.T).mean() for matrix in matrices)
    assert after < before / 3
    assert history(taught, "similarity_loss")[0] == pytest.approx(100 * before, rel=0.6)  # of one batch, with noise
    after, before = (moment["made_up"]["validation"]["perplexity"] for moment in (record.after, record.before))
    assert after < before
    cached = list((taught.parent / "cache/cosent/model_outputs").glob("*.npy"))
    assert len(cached) == 2, "of the teacher, and of `similar`"
    rows = datasets.Dataset.from_parquet(f"{corpus}/validation.parquet")
    scores = SentenceEncoder.from_pretrained(str(teacher)).similarity(rows["sentence1"][:], rows["sentence2"][:])
    reached = record.floors["made_up"]["validation"]["teacher"]
    assert reached == pytest.approx(spearmanr(scores, rows["label"][:]).statistic, abs=1e-6)
    head, line = final_table(record, {})[:2]
    assert head.split()[5:7] == ["teacher", "at"] and f"{reached:.4f}" in line


@pytest.mark.slow
def test_a_cross_encoder_teaches_through_its_scores(distill, corpus, tiny_model, tmp_path):
    """Fails if scores, which are no cosines, are not learnt by their order, or stand beside the wrong pair."""
    teacher = CrossEncoder.from_pretrained(str(tiny_model), num_labels=1)
    with torch.no_grad():
        teacher.model.classifier.weight.mul_(50)
    teacher.save_pretrained(tmp_path / "cross")
    first, second = [a for a in SENTENCES for _ in SENTENCES], SENTENCES * len(SENTENCES)
    scores = CrossEncoder.from_pretrained(str(tmp_path / "cross")).similarity(first, second)
    folder = distill(corpus, "--teacher", str(tmp_path / "cross"), "--num_train_epochs", "6", *TO_THE_END)
    start = read_record(folder).recipe["model_name_or_path"]
    before, after = (
        spearmanr(Student.from_pretrained(str(path)).similarity(first, second), scores).statistic
        for path in (start, folder)
    )
    assert after > before + 0.2


def test_a_student_of_synonyms_resumes_within_an_epoch(distill, corpus):
    """Fails if the noise on its sources follows what a worker has read ahead, not the pair and the epoch."""
    flags = ("--num_train_epochs", "2", "--per_device_train_batch_size", "4", *WITHIN_EPOCHS, *WORKER)
    flags += ("--eval_strategy", "no", "--load_best_model_at_end", "false", "--skip_test", "true")
    whole = distill(corpus, *flags, output="whole")
    resumed = distill(corpus, *flags, "--resume_from_checkpoint", str(whole / "checkpoint-6"), output="resumed")
    ends = [(folder / "checkpoint-8/model.safetensors").read_bytes() for folder in (whole, resumed)]
    assert ends[0] == ends[1] != (whole / "checkpoint-6/model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "kind", ["teacher", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("synonyms", "retrieval"))]
)
def test_cached_batches_teach_as_large_ones_do(distill, corpus, teacher, kind):
    """Fails if parts of a cached batch are compared apart, or lose what is generated or what the teacher says."""
    flags = {"teacher": ("--teacher", str(teacher)), "synonyms": (), "retrieval": ("--generation", "false")}[kind]
    flags += ("--optim", "sgd", "--learning_rate", "1e-3", "--max_grad_norm", "0")
    curves = []
    for name, batch in {"large": ("18",), "cached": ("6", "--cached_batch_size", "18")}.items():
        folder = distill(corpus, *TO_THE_END, *flags, "--per_device_train_batch_size", *batch, output=name)
        curves.append([history(folder, "loss"), history(folder, "grad_norm")])
    assert len(curves[0][0]) >= 1 and min(curves[0][1]) > 1e-3
    np.testing.assert_allclose(curves[1], curves[0], rtol=2e-4)
