"""Small real things for every test: a tiny encoder, a prepared corpus; nothing from the network."""

import gc
import json
import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel, RoFormerConfig, RoFormerForMaskedLM

from cosent.atomic import sha256_of_file
from cosent.comparing.results import Result, read_results, save_results
from cosent.data.corpus import Manifest
from cosent.evaluation.calibration import Calibration
from cosent.evaluation.significance import spearman
from cosent.models.decision import DecisionRule, write_rules
from cosent.models.modules import IDENTITY, Dense, Pooling
from cosent.record import CorpusRecord, Environment, RunRecord
from tests.support.launching import later_wins

VOCABULARY = Path(__file__).parent / "support" / "vocabulary"
SENTENCES = [
    "我喜欢北京",
    "我不喜欢北京",
    "今天天气很好",
    "今天天气不好",
    "红色的苹果",
    "推荐一辆红车",
    "怎么还款",
    "如何还款",
]


def pytest_collection_modifyitems(items):
    """Files with launches and slow tests come first, so that no worker ends long after the others."""
    long = {item.path for item in items if item.get_closest_marker("distributed") or item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish():
    """Takes what the imports have left out of later garbage collections: one ends every training, 0.4 s of its 0.8."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def tokenizer():
    """The one of `mini` in November 2026, for one test: a model cuts its tokenizer to its own length."""
    return AutoTokenizer.from_pretrained(VOCABULARY)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A folder with a BERT of 2 layers, 32 wide, over this vocabulary."""
    folder = tmp_path_factory.mktemp("tiny")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    tokenizer = AutoTokenizer.from_pretrained(VOCABULARY)
    config = BertConfig(vocab_size=len(tokenizer), **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


CALIBRATION = Calibration(method="platt", pairs=98, slope=9.0, intercept=-8.0)


def save_record(folder: Path, thresholds: dict[str, float], **changes) -> None:
    """Leaves the record of a run, and the rules that found these thresholds, with `CALIBRATION`."""
    fields = {"recipe": {}, "environment": Environment({}, None, "CPU", 1), "train_seconds": 1.0, "seconds": 2.0}
    fields |= {"history": []}
    prompts = changes.get("prompts", ("", ""))
    write_rules(folder, {name: DecisionRule(name, value, CALIBRATION, prompts) for name, value in thresholds.items()})
    RunRecord(**fields | changes).save(folder)


@pytest.fixture(scope="session")
def tiny_bi(tiny_model, tmp_path_factory) -> Path:
    """A folder with a bi-encoder of mean pooling."""
    from cosent.models.bi_encoder import SentenceEncoder

    folder = tmp_path_factory.mktemp("saved") / "bi"
    SentenceEncoder.from_pretrained(str(tiny_model), pooling="mean").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_cross(tiny_model, tmp_path_factory) -> Path:
    """A folder with a cross-encoder of one logit."""
    from cosent.models.cross_encoder import CrossEncoder

    folder = tmp_path_factory.mktemp("saved") / "cross"
    CrossEncoder.from_pretrained(str(tiny_model), num_labels=1).save_pretrained(folder)
    return folder


@pytest.fixture
def job(capsys):
    """Returns a function that runs a job as a user types it, and gives back what it writes to stdout and stderr."""

    def run(name: str, *words) -> tuple[str, str]:
        from cosent.cli import arguments_of
        from cosent.flags import parse

        main = import_module(name).main
        capsys.readouterr()
        main(*parse(list(map(str, words)), *arguments_of(main)))
        return capsys.readouterr()

    return run


@pytest.fixture
def evaluate(tiny_model, job):
    """Returns a function that runs `cosent evaluate` and gives back the JSON of stdout, and the table on stderr."""

    def run(*flags, model=tiny_model) -> tuple[dict, str]:
        printed, table = job("cosent.jobs.evaluate", "--model", model, *flags)
        return json.loads(printed), table

    return run


def prepare(folder: Path, splits: dict[str, list[tuple[str, str, float]]], label_kind: str, label_max: float) -> Path:
    """Prepares a corpus folder out of `{split: [(sentence1, sentence2, label)]}`."""
    folder.mkdir(parents=True, exist_ok=True)
    described = {}
    for split, rows in splits.items():
        columns = {name: [row[i] for row in rows] for i, name in enumerate(("sentence1", "sentence2", "label"))}
        features = datasets.Features(
            sentence1=datasets.Value("string"), sentence2=datasets.Value("string"), label=datasets.Value("float32")
        )
        file = folder / f"{split}.parquet"
        datasets.Dataset.from_dict(columns, features=features).to_parquet(str(file))
        described[split] = {"rows": len(rows), "sha256": sha256_of_file(file)}
    lengths = {"bi_encoder": 32, "cross_encoder": 64}
    Manifest(folder.name, label_kind, 0.0, label_max, lengths, described).save(folder)
    return folder


@pytest.fixture
def recipe(make_recipe):
    """Returns a function that writes a recipe of this text, and gives back its path."""
    return partial(make_recipe, "recipe")


@pytest.fixture
def make_corpus(tmp_path):
    """Returns a function that prepares a corpus folder out of `{split: [(sentence1, sentence2, label)]}`."""

    def make(splits, label_kind: str = "binary", label_max: float = 1.0, name: str = "made_up") -> Path:
        return prepare(tmp_path / "corpora" / name, splits, label_kind, label_max)

    return make


@pytest.fixture(scope="session")
def pairs() -> list[tuple[str, str, float]]:
    """All ordered pairs of `SENTENCES`; those at an even distance are called similar."""
    return [(a, b, float((i - j) % 2 == 0)) for i, a in enumerate(SENTENCES) for j, b in enumerate(SENTENCES)]


@pytest.fixture(scope="session")
def uneven_corpus(pairs, tmp_path_factory) -> Path:
    """70 = 4 * 16 + 6 training pairs: of the last batch of 2 x 8, the second process has no pair of its own."""
    rows = [(a, b, y + (number % 3)) for number, (a, b, y) in enumerate(pairs + pairs[:6])]
    splits = {"train": rows, "validation": rows[:21], "test": rows[:53]}
    return prepare(tmp_path_factory.mktemp("corpora") / "made_up", splits, "graded", 3.0)


def run_train(model: Path, corpora, folder: Path, *flags: str) -> Path:
    """Trains a model on prepared folders and gives back the output folder."""
    from cosent.flags import parse  # not every test trains
    from cosent.jobs.train import main
    from cosent.training.arguments import TRAIN_ARGUMENTS

    corpora = map(str, corpora if isinstance(corpora, tuple) else (corpora,))
    arguments = [
        *("--model_name_or_path", str(model), "--corpus", *corpora, "--output_dir", str(folder)),
        *("--use_cpu", "true", "--disable_tqdm", "true", "--per_device_train_batch_size", "16"),
        *("--learning_rate", "1e-3", "--num_train_epochs", "2", "--logging_steps", "1", *flags),
    ]
    main(*parse(later_wins(arguments), *TRAIN_ARGUMENTS))
    return folder


@pytest.fixture
def train(tiny_model, tmp_path):
    """Returns a function that trains the tiny model on a prepared folder and gives back the output folder."""
    return lambda corpora, *flags, output="run": run_train(tiny_model, corpora, tmp_path / output, *flags)


@pytest.fixture(scope="session")
def made_up(pairs, tmp_path_factory) -> Path:
    """A corpus of 64 training pairs, of which 32 are those of validation and 32 those of test."""
    splits = {"train": pairs, "validation": pairs[:32], "test": pairs[32:]}
    return prepare(tmp_path_factory.mktemp("corpora") / "made_up", splits, "binary", 1.0)


class FinishedRun:
    """A finished training that tests only read: its folder, its record and what it printed."""

    def __init__(self, model: Path, corpus: Path, folder: Path, *flags: str):
        from cosent.record import read_record

        with redirect_stdout(StringIO()) as stdout:
            self.folder = run_train(model, corpus, folder, *flags)
        self.record, self.printed = read_record(folder), stdout.getvalue()


@pytest.fixture(scope="session")
def bi_run(tiny_model, made_up, tmp_path_factory) -> FinishedRun:
    """A bi-encoder after 8 epochs of 4 steps."""
    flags = ("--pooling", "mean", "--num_train_epochs", "8")
    return FinishedRun(tiny_model, made_up, tmp_path_factory.mktemp("bi") / "run", *flags)


@pytest.fixture(scope="session")
def cross_run(tiny_model, made_up, tmp_path_factory) -> FinishedRun:
    """A cross-encoder after 16 epochs, without segment ids."""
    flags = ("--tower", "cross_encoder", "--num_train_epochs", "16", "--segment_ids", "zero", "--learning_rate", "3e-3")
    return FinishedRun(tiny_model, made_up, tmp_path_factory.mktemp("cross") / "run", *flags)


@pytest.fixture(scope="session")
def lora_run(tiny_model, made_up, tmp_path_factory) -> FinishedRun:
    """A bi-encoder with an adapter, written while others of the group may read."""
    flags = ("--use_peft", "true", "--lora_target_modules", "query", "value", "--learning_rate", "3e-2")
    umask = os.umask(0o027)
    try:
        return FinishedRun(tiny_model, made_up, tmp_path_factory.mktemp("lora") / "run", *flags)
    finally:
        os.umask(umask)


@pytest.fixture(scope="session")
def tiny_student(tmp_path_factory) -> Path:
    """A folder with a student: a RoFormer of 2 layers, 32 wide, its head and a `linear_cls` pool, all random.

    Drawn with a deviation of 0.3: with the usual 0.02 every token is as likely as any other, and no test sees a leak.
    """
    from cosent.models.student import Student

    folder = tmp_path_factory.mktemp("student")
    tokenizer = AutoTokenizer.from_pretrained(VOCABULARY)
    sizes = {"hidden_size": 32, "embedding_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 64, "max_position_embeddings": 128}
    config = RoFormerConfig(vocab_size=len(tokenizer), initializer_range=0.3, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        dense = Dense(32, 32, activation_function=IDENTITY)
        Student(RoFormerForMaskedLM(config), tokenizer, Pooling("cls", 32), [dense]).save_pretrained(folder)
    return folder


@pytest.fixture
def make_recipe(tmp_path):
    """Returns a function that writes a recipe and gives back its path."""

    def make(name: str, text: str = "loss: cosent\n") -> str:
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return make


@pytest.fixture
def make_study(tmp_path):
    """Returns a function that leaves the results of a study, as `cosent.jobs.study` does, and gives back its folder."""

    def make(noise: dict[str, float], corpora=("lcqmc",), seeds=(1, 2), name="made_up", keep_scores=True, **changes):
        def result(corpus: str, method: str, seed: int) -> Result:
            labels = np.random.default_rng(len(corpus)).integers(0, 2, 300).astype(float)
            after = labels + noise[method] * np.random.default_rng([seed, len(method)]).normal(size=300)
            arrays = {"labels": labels, "before": np.random.default_rng(0).random(300), "after": after}
            test = {"spearman": spearman(after, labels), "accuracy": 0.8 + 0.01 * seed, "oracle_accuracy": 0.9}
            recipe = {"seed": seed, "model_name_or_path": "mini", "pooling": "mean", "loss": method}
            recipe |= {"learning_rate": 5e-4, "num_train_epochs": 6.0, "per_device_train_batch_size": 32}
            fields = {"recipe": recipe, "environment": Environment({}, "c" * 40, "CPU", 1), "train_seconds": 90.0}
            fields |= {"after": {corpus: {"test": test}}, "before": {corpus: {"test": {"spearman": 0.5}}}}
            fields |= {"corpora": {corpus: CorpusRecord(corpus, "a" * 64)}}
            fields |= {"scores": {corpus: arrays}} if keep_scores else {}
            fields["validation_curve"] = [(1.0, 0.5), (2.0, 0.58), (3.0, 0.6)]
            return Result(**fields | changes, method=method, corpus=corpus, seed=seed)

        asked = {"methods": list(noise), "corpora": list(corpora), "seeds": list(seeds)}
        results = [result(corpus, method, seed) for corpus in corpora for method in noise for seed in seeds]
        save_results(tmp_path / name, asked, results)
        return tmp_path / name

    return make


@pytest.fixture
def change_study():
    """Returns a function that changes every result of a folder and writes them again."""

    def change(folder: Path, edit, **definition) -> None:
        study = read_results(folder)
        edited = [edit(result) for result in (*study.results, *study.trials)]
        save_results(folder, study.definition | definition, [result for result in edited if result is not None])

    return change
