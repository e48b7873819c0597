"""Prompts through the jobs: what a model is trained with is what it is measured and served with."""

import json
from functools import partial

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from cosent import decision_rules
from cosent.cli import arguments_of
from cosent.flags import parse
from cosent.jobs import distill
from cosent.models.bi_encoder import SentenceEncoder
from cosent.record import read_record, read_scores
from tests.conftest import run_train

PROMPT = "为这个句子生成表示："


@pytest.fixture(scope="module")
def prompted(tiny_model, made_up, tmp_path_factory):
    """The folder of a bi-encoder that was trained with `PROMPT`."""
    return run_train(tiny_model, made_up, tmp_path_factory.mktemp("prompted") / "run", "--prompt", PROMPT)


def test_one_folder_for_all_jobs(bi_run, prompted, evaluate, job, made_up, pairs, tmp_path):
    """Fails if train, evaluate, encode, similarity and sentence-transformers disagree on a folder with a prompt."""
    folder, bare = prompted, bi_run.folder
    served = SentenceTransformer(str(folder), device="cpu")
    assert (served.prompts["default"], served.default_prompt_name) == (PROMPT, "default")
    assert served.max_seq_length == 32 + len(PROMPT), "the prompt takes the place of the sentences"

    first, second, _ = map(list, zip(*pairs[32:], strict=True))
    vectors = served.encode([*first, *second], normalize_embeddings=True)
    cosines = (vectors[: len(first)] * vectors[len(first) :]).sum(axis=1)
    trained = read_scores(folder / "scores.npz")["made_up"]["test"]["after"]
    np.testing.assert_allclose(trained, cosines, atol=1e-5)
    assert np.abs(trained - read_scores(bare / "scores.npz")["made_up"]["test"]["after"]).max() > 1e-3

    result, _ = evaluate("--corpus", made_up, model=folder)
    assert result["spearman"] == pytest.approx(read_record(folder).after["made_up"]["test"]["spearman"], abs=1e-6)
    assert result["prompts"] == [PROMPT, PROMPT]
    assert result["threshold"] == decision_rules(folder)["made_up"].threshold
    (tmp_path / "sentences.txt").write_text("\n".join(first), encoding="utf-8")
    files = ["--text", tmp_path / "sentences.txt", "--output", tmp_path / "v.npy"]
    job("cosent.jobs.encode", "--model", folder, *files)
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors[: len(first)], atol=1e-6)
    assert f"{cosines[0]:.4f}" in job("cosent.jobs.similarity", "--model", folder, first[0], second[0])[0]


def test_another_prompt_than_that_of_training(prompted, evaluate, job, made_up, tmp_path):
    """Fails if --prompt of a serving job changes nothing, or a threshold is used where scores are others."""
    folder = prompted
    similarity = partial(job, "cosent.jobs.similarity", "--model", folder, "怎么还款", "如何还款")
    ours = SentenceEncoder.from_pretrained(str(folder))
    other = evaluate("--corpus", made_up, "--prompt", "", model=folder)[0]
    assert other["prompts"] == ["", ""] and other["threshold"] is None
    assert f"found with the prompt '{PROMPT}'" in other["threshold_from"]
    for words, options in (
        (["--prompt="], {"prompt": ""}),
        (["--prompt_name=default"], {}),
        (["--prompt", "一", "二"], {"prompt": ["一", "二"]}),
    ):
        printed, _ = similarity(*words)
        expected = ours.similarity("怎么还款", "如何还款", **options)
        assert float(printed.splitlines()[1].split()[0]) == pytest.approx(expected, abs=1.01e-4), words
    (tmp_path / "sentences.txt").write_text("怎么还款\n", encoding="utf-8")
    files = ["--text", tmp_path / "sentences.txt", "--output", tmp_path / "v.npy", "--prompt", "一"]
    assert json.loads(job("cosent.jobs.encode", "--model", folder, *files)[0])["prompt"] == "一"
    np.testing.assert_allclose(
        np.load(tmp_path / "v.npy"), ours.encode(["怎么还款"], normalize_embeddings=True, prompt="一"), atol=1e-6
    )


def test_students_and_teachers(tiny_student, tiny_model, made_up, tmp_path, monkeypatch):
    """Fails if a teacher is asked without its prompt, or a student is served without its own or writes it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def train_student(*flags, output="student"):
        words = ["--model_name_or_path", tiny_student, "--corpus", made_up, "--output_dir", tmp_path / output, *flags]
        words += ["--use_cpu", "true", "--disable_tqdm", "true", "--per_device_train_batch_size", "8"]
        words += ["--num_train_epochs", "1"]
        distill.main(*parse(list(map(str, words)), *arguments_of(distill.main)))
        return tmp_path / output

    teacher = ("--teacher", str(tiny_model), "--teacher_prompt", "一：", "二：")
    folder = train_student(*teacher, "--generation", "false", "--prompt", PROMPT)
    arrays = map(np.load, (tmp_path / "cache/cosent/model_outputs").glob("*.npy"))
    cached = np.concatenate([array for array in arrays if array.shape[1] == 32])  # not those of `similar`
    read = SentenceEncoder.from_pretrained(str(tiny_model)).encode(
        ["我喜欢北京"], normalize_embeddings=True, prompt="二："
    )
    assert np.abs(cached - read).sum(axis=1).min() < 1e-5
    served = SentenceTransformer(str(folder), device="cpu")
    assert served.prompts["default"] == PROMPT
    ours = SentenceEncoder.from_pretrained(str(folder))
    np.testing.assert_allclose(ours.encode(["好"]), served.encode(["好"]), atol=1e-6)
