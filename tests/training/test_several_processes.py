"""DDP, FSDP2 and DeepSpeed ZeRO-2, the real ones in two processes (gloo, CPU), against one process with all their rows.

Each strategy is launched once and runs all its jobs (`session.py`); the tests read what they left.
"""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from cosent import cli
from cosent.models import load_model
from cosent.record import read_scores
from tests.conftest import prepare as prepare_corpus
from tests.support.launching import ROOT, apart, history, launch, run_here

COMMON = ("--dropout", "0", "--per_device_eval_batch_size", "4", "--num_train_epochs", "2", "--logging_steps", "1")
COMMON += ("--disable_tqdm", "true", "--load_best_model_at_end", "false")
# Linear in the gradient: Adam would make large steps out of rounding errors. 1000 clips nothing, and logs the norm.
COMMON += ("--optim", "sgd", "--learning_rate", "0.003", "--max_grad_norm", "1000")
CROSS = ("--tower", "cross_encoder", "--scale", "20", "--learning_rate", "2")  # a fresh head has small gradients
CASES = {  # name -> flags of two processes; of one process with the same global batch
    "bi_encoder": ((8,), (16,)),
    "cached": (
        (4, "--cached_batch_size", "16", "--gradient_accumulation_steps", "2", "--loss", "sbert"),
        (16, "--gradient_accumulation_steps", "2", "--loss", "sbert"),
    ),
    "cross_encoder": ((8, *CROSS), (16, *CROSS)),
    "lora": ((4, "--cached_batch_size", "16", "--use_peft", "true", *CROSS), (16, "--use_peft", "true", *CROSS)),
}
OWN = f"{ROOT}/examples/own_loss.py:correlation_loss"
DDP_CASES = {
    "cached_infonce": ((4, "--loss", "cosent_infonce", "--cached_batch_size", "16"), (16, "--loss", "cosent_infonce")),
    "own_loss": ((4, "--loss", OWN, "--cached_batch_size", "16"), (16, "--loss", OWN)),
}
STRATEGIES = {"ddp": CASES | DDP_CASES, "fsdp": CASES, "deepspeed_zero2": CASES}
EXACT = ("bi_encoder", "cached")
BEST = ("--load_best_model_at_end", "true", "--num_train_epochs", "3")
STUDENT = ("--corruption_share", "0")
DROPOUT = ("--dropout", "0.1", "--optim", "adamw_torch", "--save_strategy", "steps", "--save_steps", "3")
DROPOUT += ("--eval_strategy", "no", "--save_total_limit", "9")  # 5 steps per epoch

distributed = pytest.mark.distributed
everywhere = pytest.mark.parametrize("two", STRATEGIES, indirect=True)
ddp = pytest.mark.parametrize("two", ["ddp"], indirect=True)
sharded = pytest.mark.parametrize("two", ["fsdp", "deepspeed_zero2"], indirect=True)


def flags(model, corpus, output: Path, batch: int, *further: str) -> list[str]:
    given = {"--model_name_or_path": str(model), "--corpus": str(corpus), "--output_dir": str(output)}
    given |= {"--per_device_train_batch_size": str(batch)}
    given |= dict(zip(COMMON[::2], COMMON[1::2], strict=True)) | dict(zip(further[::2], further[1::2], strict=True))
    return [part for pair in given.items() for part in pair]


@pytest.fixture(scope="module")
def opposed_corpus(pairs, tmp_path_factory) -> Path:
    """What is learnt of the training pairs makes validation worse: the first epoch is the best."""
    opposed = [(first, second, 1 - label) for first, second, label in pairs]
    splits = {"train": pairs, "validation": opposed}
    return prepare_corpus(tmp_path_factory.mktemp("corpora") / "opposed", splits, "binary", 1.0)


@pytest.fixture(scope="module")
def one(tiny_model, tiny_student, uneven_corpus, opposed_corpus, tmp_path_factory) -> Path:
    """Folder of the runs of one process."""
    folder = tmp_path_factory.mktemp("one")
    for name, (_, (batch, *more)) in STRATEGIES["ddp"].items():
        run_here("train", *flags(tiny_model, uneven_corpus, folder / name, batch, *more, "--use_cpu", "true"))
    in_eights = ("--gradient_accumulation_steps", "2", "--use_cpu", "true")
    run_here("train", *flags(tiny_model, uneven_corpus, folder / "in_eights", 8, *in_eights))
    run_here("train", *flags(tiny_model, opposed_corpus, folder / "best", 16, *BEST, "--use_cpu", "true"))
    student = (*STUDENT, "--teacher", str(tiny_model), "--use_cpu", "true")
    script = ROOT / "tests/support/two_losses.py"
    with pytest.MonkeyPatch.context() as patched:
        words = [f"{uneven_corpus}/train.parquet", str(tiny_model), str(folder / "script"), "16"]
        patched.setattr(sys, "argv", [str(script), *words])
        runpy.run_path(str(script), run_name="__main__")
        patched.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        run_here("distill", *flags(tiny_student, uneven_corpus, folder / "student", 16, *student))
    return folder


@pytest.fixture(scope="module")
def launched(tiny_model, tiny_student, uneven_corpus, opposed_corpus, tmp_path_factory):
    """Returns a function that gives the folder of a strategy's jobs, launched once with the settings of its recipe."""
    folders = {}

    def jobs_of(strategy: str) -> Path:
        if strategy not in folders:
            folders[strategy] = None
            folders[strategy] = launch_jobs(strategy)
        assert folders[strategy], f"{strategy}: the launch failed, see the first test that asked for it"
        return folders[strategy]

    def launch_jobs(strategy: str) -> Path:
        if strategy == "deepspeed_zero2":
            pytest.importorskip("deepspeed", reason="pip install deepspeed to run ZeRO-2 on a CPU")
        folder = tmp_path_factory.mktemp(strategy)

        def train(name: str, batch: int, *more: str, model=tiny_model, corpus=uneven_corpus, job="train") -> list[str]:
            return [job, *flags(model, corpus, folder / name, batch, *more)]

        as_launched = []
        exact = [train(name, batch, *more) for name, ((batch, *more), _) in STRATEGIES[strategy].items()]
        student = (*STUDENT, "--teacher", str(tiny_model))
        exact.append(train("student", 8, *student, model=tiny_student, job="distill"))
        exact.append(train("whole", 8, *DROPOUT))
        exact.append(train("resumed", 8, *DROPOUT, "--resume_from_checkpoint", str(folder / "whole/checkpoint-6")))
        if strategy == "ddp":
            exact.append(["two_losses", f"{uneven_corpus}/train.parquet", str(tiny_model), str(folder / "script"), "8"])
            exact.append(["check_gathering", str(folder / "gathered")])
        else:
            exact.append(train("best", 8, *BEST, corpus=opposed_corpus))
            as_launched.append(train("bfloat16", 8, *CROSS))  # the recipe says bf16, and no flag does
        for name, jobs in {"exact": exact, "as_launched": as_launched}.items():
            (folder / f"{name}.json").write_text(json.dumps(jobs))
        program = [str(ROOT / "tests/support/session.py"), *(f"{folder}/{n}.json" for n in ("as_launched", "exact"))]
        on_cpu = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "XDG_CACHE_HOME": str(folder / "cache")}
        on_cpu |= {"ACCELERATE_USE_CPU": "true"} if strategy == "ddp" else {}
        precision = "no" if strategy == "ddp" else "bf16"
        (folder / "stdout").write_text(launch(strategy, program, precision=precision, **on_cpu)[0], encoding="utf-8")
        return folder

    return jobs_of


@pytest.fixture
def two(request, launched) -> Path:
    """Folder of the jobs of two processes."""
    return launched(request.param)


@distributed
@pytest.mark.parametrize(
    ("two", "name"),
    [(strategy, name) for strategy, cases in STRATEGIES.items() for name in cases],
    indirect=["two"],
)
def test_two_processes_train_as_one(one, two, tiny_model, name):
    """Fails if a strategy optimises something else: a pool of its own, a gradient of another size, lost weights.

    The gradients of a cross-encoder's fresh head are differences of nearly equal numbers: steps of a rate of 2 double
    the rounding errors of their first 1e-6.
    """
    steps = len(history(one / name, "loss"))
    assert steps >= 6
    np.testing.assert_allclose(history(two / name, "loss"), history(one / name, "loss"), rtol=1e-5)
    alone, together = (np.array(history(folder / name, "grad_norm")) for folder in (one, two))
    np.testing.assert_allclose(together, alone, rtol=1e-5 if name in EXACT else 1e-4)
    assert together[0] == pytest.approx(alone[0], rel=1e-5)
    expected = history(one / name, "eval_spearman")
    np.testing.assert_allclose(history(two / name, "eval_spearman"), expected, atol=0.06)  # mirror images tie
    assert apart(one / name, two / name, tiny_model) < (5e-3 if name in ("cross_encoder", "lora") else 1e-5)
    records = [json.loads((folder / name / "run.json").read_text(encoding="utf-8")) for folder in (one, two)]
    assert [record["processes"] for record in records] == [1, 2]
    if name in EXACT:  # a model can be evaluated before it is trained, and what its queries find is not lost
        alone, together = (record["before"]["made_up"]["test"] for record in records)
        for metric, difference in {"spearman": 0.06, "ndcg_at_10": 1e-6, "map": 1e-6}.items():
            assert together[metric] == pytest.approx(alone[metric], abs=difference) and abs(alone[metric]) > 0.1
    for split, metrics in records[0]["after"]["made_up"].items():
        assert records[1]["after"]["made_up"][split]["spearman"] == pytest.approx(metrics["spearman"], abs=0.06)


@distributed
def test_comparing_fewer_pairs_is_another_training(one, tiny_model):
    """Fails if the test above would pass without gathering."""
    assert apart(one / "bi_encoder", one / "in_eights", tiny_model) > 0.03


@distributed
@ddp
def test_a_script_of_ones_own_compares_the_pairs_of_all_processes(one, two, tiny_model):
    """Fails if a user's script compares pairs within a process, or loses a step of a head that one loss reads."""
    assert apart(one / "script", two / "script", tiny_model) < 1e-2
    assert not json.loads((two / "script/modules.json").read_text())[0]["path"]


@distributed
@ddp
def test_gradients_come_through_the_gathering(two):
    """Fails if a gathered row's gradient lacks what the other ranks' losses add to it."""
    for rank in (0, 1):
        gathered = json.loads((two / f"gathered.{rank}.json").read_text(encoding="utf-8"))
        pool, gradient, objects, decided, refused = gathered
        assert pool == [[1, 3], [2, 4], [11, 13], [12, 14]]
        assert gradient == (3 * torch.arange(8.0).view(4, 2))[2 * rank :][:2].tolist()
        assert (objects, decided, refused) == ([0, 1], ["main", 0], "no")


@distributed
@sharded
def test_the_best_epoch_is_kept(one, two):
    """Fails if a run does not end with the weights of its best checkpoint."""
    spearman = history(two / "best", "eval_spearman")  # of 4 steps each
    assert int(np.argmax(spearman)) < 2, "the last epoch is the best"
    best = two / f"best/checkpoint-{4 + 4 * int(np.argmax(spearman))}"
    ended, kept = (load_file(folder / "model.safetensors") for folder in (two / "best", best))
    assert all(torch.equal(ended[name], kept[name]) for name in ended)
    for logged in ("loss", "grad_norm", "learning_rate"):
        np.testing.assert_allclose(history(two / "best", logged), history(one / "best", logged), rtol=1e-5)


@distributed
@everywhere
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(two):
    """Fails if weights, optimizer, schedule, order or dropout of a checkpoint are lost, or it starts from others."""
    whole, resumed = (load_file(two / name / "model.safetensors") for name in ("whole", "resumed"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert not (two / "whole/checkpoint-6/pytorch_model_fsdp.bin").exists(), "the weights are kept twice"
    before = [json.loads((two / name / "run.json").read_text())["before"] for name in ("whole", "resumed")]
    assert before[0] == before[1], "measured on the weights of the checkpoint"


@distributed
@everywhere
def test_saved_models_are_whole(one, two, tiny_model):
    """Fails if a folder holds shards, or an adapter that peft cannot load, or every process reports for itself."""
    runs = list(two.glob("*/run.json"))
    for run in runs:
        load_model(str(run.parent))  # each job has compared it with the trained model
    assert (two / "stdout").read_text(encoding="utf-8").count("model in ") == len(runs) > len(CASES)
    base = load_model(str(one / "lora")).model
    model = PeftModel.from_pretrained(base, str(two / "lora/adapter"))
    weights = load_file(two / "lora/adapter/adapter_model.safetensors")
    alone = load_file(one / "lora/adapter/adapter_model.safetensors")
    assert weights.keys() == alone.keys() and len(weights) > 8
    for name, weight in weights.items():
        torch.testing.assert_close(weight, alone[name], atol=1e-5, rtol=1e-3)
    assert any("lora_B" in name and bool(weight.any()) for name, weight in model.named_parameters())


@distributed
@sharded
def test_bfloat16_leaves_weights_and_scores_in_float32(one, two):
    """Fails if scores are rounded until pairs tie, or half of the digits of the weights are lost in a saved model."""
    folders = (one / "cross_encoder", two / "bfloat16")
    alone, rounded = (read_scores(folder / "scores.npz")["made_up"]["test"]["after"] for folder in folders)
    assert len(np.unique(rounded)) >= len(np.unique(alone)) - 1
    weights = load_file(two / "bfloat16/model.safetensors")
    assert {weight.dtype for weight in weights.values() if weight.is_floating_point()} == {torch.float32}
    assert any(not torch.equal(weight, weight.bfloat16().float()) for weight in weights.values())
    assert history(two / "bfloat16", "loss") != history(two / "cross_encoder", "loss"), "computed in float32"
    np.testing.assert_allclose(history(two / "bfloat16", "loss"), history(one / "cross_encoder", "loss"), rtol=0.05)


@distributed
@everywhere
def test_a_student_is_distilled(one, two, tiny_student):
    """Fails if a strategy distils another student, does not gather the shards of its Dense layer, or cannot measure
    what one finds and writes."""
    for logged in ("loss", "similarity_loss", "generation_loss", "grad_norm"):
        np.testing.assert_allclose(history(two / "student", logged), history(one / "student", logged), rtol=1e-4)
    assert apart(one / "student", two / "student", tiny_student) < 1e-3
    folders = (tiny_student, one / "student", two / "student")
    start, alone, together = (load_file(folder / "2_Dense/model.safetensors") for folder in folders)
    for name, began in start.items():
        way = (alone[name] - began).abs().max()
        assert way > 1e-5 and (together[name] - alone[name]).abs().max() < 1e-3 * way
    assert len(list((two / "cache/cosent/model_outputs").iterdir())) == 2, (
        "shares of the vectors of the teacher, or of `similar`, were not joined"
    )
    records = [json.loads((folder / "student/run.json").read_text()) for folder in (one, two)]
    for moment in ("before", "after"):
        alone, together = (record[moment]["made_up"]["test"] for record in records)
        assert together["perplexity"] == pytest.approx(alone["perplexity"], rel=1e-3)
        assert together["spearman"] == pytest.approx(alone["spearman"], abs=0.01)


@pytest.mark.matrix
def test_two_machines_are_two_processes(tiny_model, uneven_corpus, tmp_path):
    """Fails if --num_machines 2 trains two models, or another one than two processes of one machine."""
    words = [*flags(tiny_model, uneven_corpus, tmp_path / "two", 8), "--loss", "cosent", "--warmup_steps", "0"]
    outputs = launch("multi_node", ["-m", "cosent", "train", *words], machines=2, ACCELERATE_USE_CPU="true")
    run_here("train", *flags(tiny_model, uneven_corpus, tmp_path / "one", 16), "--use_cpu", "true")
    assert apart(tmp_path / "one", tmp_path / "two", tiny_model) < 1e-3
    assert sum(output.count("model in ") for output in outputs) == 1


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_jobs_for_one_process_stop_too(monkeypatch, capsys):
    """Fails if a report or a comparison runs twice at once when it is launched like a training job."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(sys, "argv", ["cosent", "report", "x"])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert "2 processes were launched, but this job sees 1" in capsys.readouterr().err
