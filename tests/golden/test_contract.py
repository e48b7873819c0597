"""What must stay as it is whatever is rebuilt: numbers recorded once.

Everything goes through the command line and the public names, and every model is built here, so that no change of the
package's inside is a reason to edit this file. `golden.json` was recorded with torch 2.13.0 on a CPU with AVX-512.
"""

import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel, RoFormerConfig, RoFormerForMaskedLM, set_seed

import cosent
from cosent import SentenceEncoder, Student, cli

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOLDEN = json.loads((HERE / "golden.json").read_text(encoding="utf-8"))
SENTENCES = ["怎么还款", "如何还款", "我不喜欢北京", "今天天气很好，适合出门。", "红", "推荐一辆红色的车" * 6]
PAIRS = [(a, b, int((i - j) % 2 == 0)) for i, a in enumerate(SENTENCES) for j, b in enumerate(SENTENCES)] * 2
ENCODERS = Path(cosent.__file__).parent / "encoders"
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def command(*words: str) -> str:
    """Runs a job as a user types it, in this process, and returns what it prints."""
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(StringIO()) as printed:
        patched.setattr(sys, "argv", ["cosent", *words])
        cli.main()
    return printed.getvalue()


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Sums are added in the same order on every machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tokenizer(**settings):
    return AutoTokenizer.from_pretrained(ROOT / "tests/support/vocabulary", **settings)


def write(folder: Path, name: str, value) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(value), encoding="utf-8")


def module(number: int, name: str, path: str = "") -> dict:
    return {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}


def bge(folder: Path) -> Path:
    """A BERT with [CLS] pooling and normalised vectors, as published."""
    set_seed(0)
    BertModel(BertConfig(vocab_size=len(tokenizer()), **TINY), add_pooling_layer=False).save_pretrained(folder)
    tokenizer(model_max_length=64).save_pretrained(folder)
    modules = [module(0, "Transformer"), module(1, "Pooling", "1_Pooling"), module(2, "Normalize", "2_Normalize")]
    write(folder, "modules.json", modules)
    write(folder, "1_Pooling/config.json", {"word_embedding_dimension": 32, "pooling_mode_cls_token": True})
    write(folder, "sentence_bert_config.json", {"max_seq_length": 48, "do_lower_case": False})
    (folder / "2_Normalize").mkdir()
    return folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """72 training pairs, prepared by the command."""
    folder = tmp_path_factory.mktemp("golden_data")
    lines = ["\t".join(map(str, pair)) for pair in PAIRS]
    for split, rows in (("train", lines), ("valid", lines[:36]), ("test", lines[9:45])):
        (folder / f"made_up.{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    words = ["prepare", "made_up", "--source", str(folder), "--output", str(folder / "made_up")]
    command(*words, "--label_kind", "binary", "--no_header")
    return folder / "made_up"


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Path:
    return bge(tmp_path_factory.mktemp("golden_start"))


@pytest.fixture(scope="module")
def trained(start, prepared, tmp_path_factory) -> Path:
    """A training of 8 steps."""
    output = tmp_path_factory.mktemp("golden_training") / "run"
    words = ["--model_name_or_path", str(start), "--corpus", str(prepared), "--output_dir", str(output)]
    words += ["--loss", "cosent", "--warmup_steps", "0", "--learning_rate", "1e-3", "--dropout", "0"]
    words += ["--max_steps", "8", "--logging_steps", "1", "--use_cpu", "true", "--per_device_train_batch_size", "16"]
    words += ["--eval_strategy", "steps", "--eval_steps", "4", "--save_strategy", "steps", "--save_steps", "4"]
    command("train", *words)
    return output


@pytest.mark.parametrize("name", ["mini", "mini-roformer"])
def test_vectors_of_shipped_encoders(name):
    """Fails if a shipped encoder gives other vectors than it was published with."""
    vectors = SentenceEncoder.from_pretrained(str(ENCODERS / name)).encode(SENTENCES)
    expected = GOLDEN["vectors"][name]
    assert vectors.dtype == np.float32 and vectors.shape == (len(SENTENCES), expected["width"])
    np.testing.assert_allclose(vectors[:, :8], expected["first"], atol=2e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), expected["norms"], rtol=1e-5)


def test_demo_corpus(tmp_path):
    """Fails if the demo corpus changes: every figure of the quickstart depends on it."""
    import datasets

    command("prepare", "demo", "--output", str(tmp_path / "demo"))
    rows = datasets.Dataset.from_parquet(str(tmp_path / "demo/train.parquet"), cache_dir=str(tmp_path))
    expected = GOLDEN["demo"]
    assert len(rows) == expected["rows"]
    for number, row in expected["some"].items():
        assert [rows[int(number)][name] for name in ("sentence1", "sentence2", "label")] == row


@pytest.mark.slow
def test_losses_of_a_training(trained):
    """Fails if a training takes another way than the recorded one."""
    history = json.loads((trained / "run.json").read_text(encoding="utf-8"))["history"]
    np.testing.assert_allclose([entry["loss"] for entry in history if "loss" in entry], GOLDEN["losses"], rtol=2e-4)


@pytest.mark.slow
def test_figures_of_a_training(trained, prepared):
    """Fails if scores, thresholds or retrieval of a trained model are computed differently."""
    record = json.loads((trained / "run.json").read_text(encoding="utf-8"))
    for moment in ("before", "after"):
        test = record[moment]["made_up"]["test"]
        for name, value in GOLDEN["figures"][moment].items():
            assert test[name] == pytest.approx(value, abs=2e-4), (moment, name)
    out = json.loads(command("evaluate", "--model", str(trained), "--corpus", str(prepared)))
    assert out["spearman"] == pytest.approx(GOLDEN["figures"]["after"]["spearman"], abs=2e-4)


@pytest.mark.slow
def test_stsb_to_four_decimals(tmp_path):
    """Fails if the published recipe learns anything else from 1,000 pairs of STS-B."""
    if "COSENT_RAW_DATA" not in os.environ:
        pytest.skip("the environment variable COSENT_RAW_DATA names no folder of real corpora")
    source = Path(os.environ["COSENT_RAW_DATA"], "senteval_cn")
    corpus = tmp_path / "stsb"
    command("prepare", "stsb", "--source", str(source), "--output", str(corpus))
    words = ["--config", str(ROOT / "recipes/bi_encoder/cosent_mini.yaml"), "--corpus", str(corpus), "--seed", "1"]
    words += ["--num_train_epochs", "1", "--limit_train", "1000", "--use_cpu", "true", "--retrieval", "false"]
    command("train", *words, "--output_dir", str(tmp_path / "run"))
    record = json.loads((tmp_path / "run/run.json").read_text(encoding="utf-8"))
    spearmans = [record[moment]["stsb"]["test"]["spearman"] for moment in ("before", "after")]
    assert spearmans == pytest.approx(GOLDEN["stsb"], abs=1e-4)


def student(folder: Path) -> Path:
    """A random student that ends about every fifth sentence at each step."""
    set_seed(4)
    tokens = tokenizer(model_max_length=64)
    config = RoFormerConfig(
        vocab_size=len(tokens), embedding_size=32, max_position_embeddings=128, initializer_range=0.3, **TINY
    )
    model = RoFormerForMaskedLM(config)
    with torch.no_grad():
        model.cls.predictions.transform.LayerNorm.weight.mul_(0.3)
        model.cls.predictions.bias[tokens.sep_token_id] += 5
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    write(folder, "modules.json", [module(0, "Transformer"), module(1, "Pooling", "1_Pooling")])
    write(folder, "1_Pooling/config.json", {"word_embedding_dimension": 32, "pooling_mode_cls_token": True})
    return folder


def test_samples_of_a_student(tmp_path):
    """Fails if decoding draws other sentences from the same seed, or ranks them by another cosine."""
    writer = Student.from_pretrained(str(student(tmp_path / "student")))
    written = writer.similar_sentences(SENTENCES[:3], num_samples=20, max_length=8, top_k=8, seed=5, keep=4)
    assert [[sentence for sentence, _ in group] for group in written] == GOLDEN["student"]["sentences"]
    cosines = [score for group in written for _, score in group]
    np.testing.assert_allclose(cosines, GOLDEN["student"]["cosines"], atol=2e-5)


def test_command_of_two_sentences():
    """Fails if the first command that a reader types prints another score."""
    words = [sys.executable, "-m", "cosent", "similarity", "--model", "mini", "怎么还款", "如何还款"]
    settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}"}
    out = subprocess.run(words, env=os.environ | settings, capture_output=True, text=True, check=True).stdout
    assert float(out.splitlines()[1].split()[0]) == pytest.approx(GOLDEN["similarity"], abs=1e-4)
