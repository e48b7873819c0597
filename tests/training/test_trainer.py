"""`PairTrainer` and `StudentTrainer` as users of transformers hold them: from Python, on a `datasets.Dataset`."""

from datetime import date

import datasets
import numpy as np
import pytest
import torch
from datasets import ClassLabel
from huggingface_hub import HfApi
from peft import LoraConfig
from transformers import EarlyStoppingCallback, TrainerCallback

from cosent import (
    CrossEncoder,
    Labels,
    PairTrainer,
    PairTrainingArguments,
    SentenceEncoder,
    Student,
    StudentTrainer,
    StudentTrainingArguments,
)
from cosent.losses.cosent import cosent_loss
from cosent.losses.in_batch import infonce_loss
from tests.support import published
from tests.support.locks import locked_elsewhere

QUIET = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "logging_steps": 1}
SHORT = QUIET | {"per_device_train_batch_size": 16, "num_train_epochs": 1, "learning_rate": 1e-3}


@pytest.fixture(scope="module")
def rows(made_up):
    """The splits of the corpus `made_up` as a user loads them."""
    return datasets.load_dataset("parquet", data_files={s: f"{made_up}/{s}.parquet" for s in ("train", "validation")})


@pytest.fixture
def encoder(tiny_model):
    return SentenceEncoder.from_pretrained(str(tiny_model), max_length=32)


def arguments(folder, **changes) -> PairTrainingArguments:
    return PairTrainingArguments(output_dir=str(folder), **SHORT | changes)


# Layout of a public encoder: function, pooling, prompt of its folder.
PUBLIC = {
    "bge-small-zh": (published.bge_zh, "cls", ""),
    "e5-small": (published.e5_small, "mean", "query: "),
    "MiniLM-L12": (published.minilm, "mean", ""),
    "gte": (published.gte, "cls", ""),
    "plain BERT": (published.bert, "mean", ""),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_encoder_is_trained_as_its_folder_says(name, rows, tmp_path, caplog):
    """Fails if an encoder that the user brings is trained at the rate of ours, pooled or prompted otherwise than it
    was, or if another pooling replaces its own without a word."""
    caplog.set_level("INFO")
    make, pooling, prompt = PUBLIC[name]
    folder = make(tmp_path / "published")
    for adapter, rate in ((None, 5e-5), (LoraConfig(r=2, target_modules=["query"]), 2e-4)):
        trainer = PairTrainer(
            folder, arguments(tmp_path, learning_rate=None), train_dataset=rows["train"], peft_config=adapter
        )
        assert trainer.args.learning_rate == rate
    assert (trainer.encoder.pooling.mode, trainer.prefixes) == (pooling, (prompt, prompt))
    SentenceEncoder.from_pretrained(folder, pooling=pooling)
    assert "replaces the pooling" not in caplog.text
    SentenceEncoder.from_pretrained(folder, pooling="lasttoken")
    assert (f"--pooling lasttoken replaces the pooling of {folder}" in caplog.text) == (name != "plain BERT")


def test_a_loss_for_each_dataset(rows, encoder, tmp_path):
    """Fails if a batch of one dataset gets the loss of another, pairs of two are compared, a callable is no loss of
    `PairTrainer`, or its parameters cannot be set."""
    seen = []

    def graded(scores, labels, weight: float = 1.0):
        seen.append(("graded", len(labels), weight))
        return weight * cosent_loss(scores, labels)

    def faq(embeddings, labels, groups):
        seen.append(("faq", len(labels), 1.0))
        return infonce_loss(embeddings, labels, groups)

    trainer = PairTrainer(
        encoder,
        arguments(tmp_path),
        loss={"graded": graded, "faq": faq},
        loss_args={"weight": 3},
        train_dataset={"graded": rows["train"], "faq": rows["train"].filter(lambda row: row["label"] == 1)},
        corpus_weights={"graded": 2, "faq": 1},
    )
    trainer.train()
    assert len(seen) == trainer.state.global_step
    assert seen.count(("graded", 16, 3.0)) == 2 * seen.count(("faq", 16, 1.0)) > 0


def test_bad_input_is_named(rows, encoder, tiny_cross, tmp_path):
    """Fails if a user of Python learns late, or from a trace of transformers, what is wrong with the data."""
    columns = {"sentence1": ["甲", "乙"], "sentence2": ["丙", "丁"], "label": [0.0, 1.0]}

    def table(**changes):
        return datasets.Dataset.from_dict(columns | changes)

    two, binary = {"a": table(), "b": table()}, Labels("x", "binary", 0, 1)
    cases = [
        ({"train_dataset": table().rename_column("sentence2", "sentence_2")}, "no column sentence2.*rename_column"),
        ({"train_dataset": table(label=["0", "1"])}, "label is '0'.*cast_column"),
        ({"train_dataset": table(label=[0.0, float("nan")])}, "label is missing or not finite in row 1"),
        ({"train_dataset": table(sentence1=["甲", None])}, "sentence1 is missing .*in row 1"),
        ({"train_dataset": table(label=[1.0, 1.0])}, "have the label 1"),
        ({"train_dataset": table(label=[3.0, 3.0])}, "Labels"),
        ({"train_dataset": rows["train"].to_iterable_dataset()}, "IterableDataset.*streaming"),
        ({"train_dataset": two, "corpus_weights": {"a": 1, "c": 1}}, "corpus_weights names a, c"),
        ({"train_dataset": table(), "labels": {"c": Labels("c", "binary", 0, 1)}}, "labels names c"),
        ({"train_dataset": table(), "peft_config": LoraConfig(r=2, use_dora=True)}, "use_dora"),
        ({"train_dataset": table(), "model_init": lambda: encoder}, "model_init"),
        ({"train_dataset": datasets.DatasetDict(train=table(), test=table())}, "train, test.*pairs"),
        ({"train_dataset": table(label=[0.0, 5.0]), "labels": binary}, "binary from 0 to 1"),
        ({"train_dataset": table(), "labels": Labels("x", "graded", 1, 0)}, "lowest first"),
        (
            {"train_dataset": table(), "eval_dataset": table(label=[0.0, 5.0]), "labels": binary},
            "pairs validation have other labels",
        ),
        ({"train_dataset": table().with_transform(lambda batch: batch)}, "transform.*map"),
        ({"train_dataset": table(label=[0, 2**24 + 1])}, "16777217 in row 1"),
        ({"train_dataset": table(label=[[0], [1]])}, r"label is \[0\] in row 0"),
        ({"train_dataset": table(label=[date(2026, 1, 1)] * 2)}, "datetime.date.*in row 0"),
        (
            {"train_dataset": table(label=[0, -1]).cast_column("label", ClassLabel(names=["no", "yes"]))},
            "missing .*in row 1",
        ),
    ]
    for case, message in cases:
        with pytest.raises(ValueError, match=message):
            PairTrainer(**{"model": encoder, "args": arguments(tmp_path)} | case)
    cross = CrossEncoder.from_pretrained(str(tiny_cross))
    named = CrossEncoder.from_pretrained(str(tiny_cross), num_labels=2)
    named.model.config.id2label = {0: "duplicate", 1: "not_duplicate"}  # as trained, similar would be dissimilar
    for judge in (cross, named):
        with pytest.raises(ValueError, match="num_labels=2"):
            PairTrainer(judge, arguments(tmp_path), loss="ce", train_dataset=rows["train"])
    with pytest.raises(ValueError, match="metric_for_best_model loss"):
        arguments(tmp_path, metric_for_best_model="eval_loss")


@pytest.mark.parametrize(
    ("names", "targets"),
    [
        (["entailment", "neutral", "contradiction"], [2, 1, 0]),
        (["contradiction", "neutral", "entailment"], [0, 1, 2]),
        (["neutral", "矛盾", "蕴含"], [1, 0, 2]),
        (["similar", "dissimilar"], [1, 0]),
        (["2", "0", "1"], [2, 0, 1]),
        (["first", "second"], [0, 1]),
    ],
)
def test_classes_rise_with_similarity_by_their_names(names, targets, encoder, tmp_path, caplog):
    """Fails if NLI pairs of the Hub, where entailment is 0, train towards the opposite without a word."""
    columns = {"sentence1": list("甲乙丙"), "sentence2": list("丁戊己"), "label": [0, 1, 2]}
    rows = datasets.Dataset.from_dict(columns).select(range(len(names)))
    rows = rows.cast_column("label", ClassLabel(names=names))
    trainer = PairTrainer(encoder, arguments(tmp_path), train_dataset=rows)
    np.testing.assert_allclose(trainer.train_dataset.targets["labels"], np.array(targets) / max(targets), atol=1e-6)
    assert ("labels are" in caplog.text) == (targets != sorted(targets) or names[0] == "first")


def test_validation_is_read_by_its_own_labels(rows, encoder, tmp_path):
    """Fails if grades 0..5 are judged as labels of 0 and 1, of which 1 is similar already, or the same rows have two
    Recall@10, by whether they were given at the start."""
    graded = rows["validation"].map(lambda row, place: {"label": float(place % 6)}, with_indices=True)
    options = {"train_dataset": rows["train"], "eval_dataset": graded}
    trainer = PairTrainer(encoder, arguments(tmp_path), **options)
    similar = [row for row in graded if row["label"] >= 4 and row["sentence1"] != row["sentence2"]]
    queries = {sentence for row in similar for sentence in (row["sentence1"], row["sentence2"])}
    assert trainer.held_out["pairs"].task.size["queries"] == len(queries)
    own, given = trainer.evaluate(), trainer.evaluate(graded)
    shared = [name for name in own if name.startswith("eval_") and "_per_second" not in name and "runtime" not in name]
    assert "eval_recall_at_10" in shared and {name: own[name] for name in shared} == {n: given[n] for n in shared}


def test_prompts_belong_to_their_training(rows, tiny_model, tmp_path):
    """Fails if a second trainer of one model changes the prompt that the first one saves."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_model), max_length=32)
    options = {"train_dataset": rows["train"]}
    first = PairTrainer(encoder, arguments(tmp_path / "first", max_steps=1), **options)
    second = PairTrainer(encoder, arguments(tmp_path / "second"), **options, prompt="问：")
    assert encoder.prompts.text() == "", "before it has trained"
    first.train()
    first.save_model()
    second.save_model()
    saved = [SentenceEncoder.from_pretrained(str(tmp_path / name)).prompts.text() for name in ("first", "second")]
    assert saved == ["", "问："]


def test_what_ones_own_functions_return_is_checked(rows, encoder, tmp_path):
    """Fails if a loss without a value trains on and saves a model of NaN, or a user's function ends in a trace."""
    fixed = datasets.Dataset.from_dict({name: rows["train"][name][:] for name in ("sentence1", "sentence2")})
    fixed = fixed.add_column("label", [1.0, 0.0] + [1.0] * 62)
    cases = [
        ({"loss": lambda scores, labels: (scores * float("nan")).mean()}, "nan at step 1, in a batch of pairs: .*root"),
        ({"loss": lambda scores, labels: (scores / labels.std()).mean(), "train_dataset": fixed}, "labels are equal"),
        ({"loss": lambda scores, labels: (scores.detach() - labels).square().mean()}, "without a gradient"),
    ]
    for case, message in cases:
        args = arguments(tmp_path, train_sampling_strategy="sequential")
        trainer = PairTrainer(encoder, args, **{"train_dataset": rows["train"]} | case)
        with pytest.raises(ValueError, match=message):
            trainer.train()
    assert all(weight.isfinite().all() for weight in encoder.parameters())
    for returned, message in ((None, "returned None"), ({"spearman": 1.0}, "returns spearman")):
        own = {"compute_metrics": lambda prediction, value=returned: value, "eval_dataset": rows["validation"]}
        with pytest.raises(ValueError, match=message):
            PairTrainer(encoder, arguments(tmp_path), train_dataset=rows["train"], **own).evaluate()
    with pytest.raises(ValueError, match="max_steps 0"):
        arguments(tmp_path, max_steps=0)
    steep = {"loss": lambda scores, labels: (scores - scores.detach()).square().sum().sqrt()}  # 0, its gradient NaN
    trainer = PairTrainer(encoder, arguments(tmp_path, max_steps=1), train_dataset=rows["train"], **steep)
    with pytest.raises(ValueError, match="after step 1, .* holds NaN"):
        trainer.train()
        trainer.save_model()
    assert not list(tmp_path.glob("*.safetensors"))


class Seen(TrainerCallback):
    steps = 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1


def test_a_compiled_model_is_not_packed(rows, encoder, tmp_path):
    """Fails if --torch_compile compiles anew for nearly every batch."""
    PairTrainer(encoder, arguments(tmp_path, torch_compile=True), train_dataset=rows["train"])
    assert not encoder.packing


def test_several_sets_stop_a_training_early(rows, encoder, tmp_path):
    """Fails if callbacks never see the mean of several sets, or one trainer changes the arguments of the next."""
    args = arguments(tmp_path, num_train_epochs=9, learning_rate=None, lr_scheduler_type="constant")
    PairTrainer(encoder, args, train_dataset=rows["train"])
    assert args.learning_rate is None and args.eval_strategy == "epoch"
    sets = {"a": rows["validation"], "b": rows["train"]}
    stopping = {"callbacks": [EarlyStoppingCallback(1)], "loss": lambda scores, labels: 0.0 * scores.sum()}
    trainer = PairTrainer(encoder, args, train_dataset={"a": rows["train"]}, eval_dataset=sets, **stopping)
    trainer.train()
    assert trainer.state.epoch == 2


def test_numbers_that_a_loss_learns_do_not_resume(rows, encoder, tmp_path):
    """Fails if a resumed training starts such numbers anew in silence."""
    args = arguments(tmp_path, save_strategy="steps", save_steps=2, eval_strategy="no")
    options = {"loss": "lab/losses.py:logistic", "train_dataset": rows["train"]}
    PairTrainer(encoder, args, **options).train()
    with pytest.raises(ValueError, match="learns numbers of its own"):
        PairTrainer(encoder, args, **options).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_what_users_do_with_a_trainer(rows, tiny_model, tmp_path, monkeypatch):
    """Fails if callbacks, own metrics, a cross-encoder, other datasets, resuming or the Hub do not work."""
    cross = CrossEncoder.from_pretrained(str(tiny_model), num_labels=2, max_length=64)
    args = arguments(tmp_path / "run", save_strategy="steps", save_steps=2, eval_strategy="steps", eval_steps=2)
    options = {"loss": "ce", "train_dataset": rows["train"], "eval_dataset": rows["validation"]}
    own = {"compute_metrics": lambda found: {"pairs": len(found.predictions)}, "callbacks": [Seen()]}
    trainer = PairTrainer(cross, args, **options, **own)
    trainer.train()
    assert own["callbacks"][0].steps == 4
    curve = [entry for entry in trainer.state.log_history if "eval_spearman" in entry]
    assert len(curve) == 2 and all(entry["eval_pairs"] == 32 for entry in curve)
    metrics = trainer.evaluate(rows["train"])
    assert metrics["eval_pairs"] == 64 and -1 <= metrics["eval_spearman"] <= 1
    predicted = trainer.predict(rows["validation"]).predictions["scores"]
    expected = cross.similarity(rows["validation"]["sentence1"][:], rows["validation"]["sentence2"][:])
    np.testing.assert_allclose(predicted, expected, atol=1e-5)
    weights = {name: weight.clone() for name, weight in cross.state_dict().items()}
    again = PairTrainer(CrossEncoder.from_pretrained(str(tiny_model), num_labels=2, max_length=64), args, **options)
    again.train(resume_from_checkpoint=str(tmp_path / "run/checkpoint-2"))
    assert all(torch.equal(weight, weights[name]) for name, weight in again.model.state_dict().items())
    args.per_device_train_batch_size = 8
    with pytest.raises(ValueError, match="batches of 16 pairs per device, not 8"):
        PairTrainer(cross, args, **options).train(resume_from_checkpoint=str(tmp_path / "run/checkpoint-2"))
    (tmp_path / "run/README.md").write_text("ours")
    again.hub_model_id, again.push_in_progress, uploads = "me/pairs", None, []
    monkeypatch.setattr(HfApi, "upload_folder", lambda api, **upload: uploads.append(upload))
    again.push_to_hub("first")
    assert uploads[0]["repo_id"] == "me/pairs" and uploads[0]["folder_path"] == str(tmp_path / "run")
    assert (tmp_path / "run/README.md").read_text() == "ours", "a draft of transformers is published"


def test_an_adapter_is_saved_and_merged(rows, encoder, tmp_path):
    """Fails if the saved model lacks what the adapter learnt, two runs write one folder, or a model that still has an
    adapter is saved or trained as a plain one."""
    args = arguments(tmp_path, learning_rate=1e-2)
    before = encoder.encode(["怎么还款"])
    trainer = PairTrainer(
        encoder, args, train_dataset=rows["train"], peft_config=LoraConfig(r=2, target_modules=["query"])
    )
    with locked_elsewhere(tmp_path):
        for write in (trainer.train, trainer.save_model):
            with pytest.raises(ValueError, match="in use"):
                write()
    trainer.train()
    trainer.save_model()
    saved = SentenceEncoder.from_pretrained(str(tmp_path)).encode(["怎么还款"])
    np.testing.assert_allclose(saved, encoder.encode(["怎么还款"]), atol=1e-5)
    assert np.abs(saved - before).max() > 1e-4 and (tmp_path / "adapter").is_dir()
    for wrong in (
        lambda: encoder.save_pretrained(tmp_path / "broken"),
        lambda: PairTrainer(encoder, args, train_dataset=rows["train"]),
    ):
        with pytest.raises(ValueError, match="LoRA adapter"):  # else 24 weights start at random where it is loaded
            wrong()


def test_a_student_learns_from_a_teacher_in_memory(rows, tiny_student, tiny_bi, tmp_path):
    """Fails if a student from Python has another loss than `cosent distill`, or cannot be saved."""
    student = Student.from_pretrained(str(tiny_student))
    args = StudentTrainingArguments(output_dir=str(tmp_path), eval_strategy="no", **SHORT)
    teacher = SentenceEncoder.from_pretrained(str(tiny_bi))
    trainer = StudentTrainer(student, args, teacher=teacher, train_dataset=rows["train"])
    trainer.train()
    trainer.save_model()
    entry = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert entry["loss"] == pytest.approx(entry["similarity_loss"] + entry["generation_loss"], rel=1e-3)
    np.testing.assert_allclose(
        Student.from_pretrained(str(tmp_path)).encode(["怎么还款"]), student.encode(["怎么还款"]), atol=1e-5
    )
    with pytest.raises(ValueError, match="generation=False"):
        StudentTrainer(teacher, args, generation=True, train_dataset=rows["train"])
    long = datasets.Dataset.from_list([{"sentence1": "款" * 80, "sentence2": "还" * 80, "label": 1.0}] * 16)
    with pytest.raises(ValueError, match="Lower max_length to 64"):
        StudentTrainer(student, args, train_dataset=long)


def test_a_trial_keeps_the_cached_batch(rows, tiny_model, tmp_path):
    """Fails if a search trains with other batches than the same arguments without it, or takes the worse trial."""
    args = arguments(tmp_path, cached_batch_size=32, per_device_train_batch_size=8, eval_strategy="epoch")
    trainer = PairTrainer(
        model_init=lambda: SentenceEncoder.from_pretrained(str(tiny_model)), args=args,
        train_dataset=rows["train"], eval_dataset=rows["validation"],
    )  # fmt: skip
    rates = [1e-9, 1e-2]
    best = trainer.hyperparameter_search(
        lambda trial: {"learning_rate": trial.suggest_categorical("learning_rate", rates)},
        lambda metrics: metrics["eval_spearman"], n_trials=2, direction="maximize", backend="optuna",
    )  # fmt: skip
    assert trainer.state.max_steps == 2
    spearman = [entry["eval_spearman"] for entry in trainer.state.log_history if "eval_spearman" in entry]
    assert best.objective >= spearman[-1]
