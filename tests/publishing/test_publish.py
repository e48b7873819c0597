"""The card of a run, and publishing against a stand-in of the Hub on this machine."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from cosent.encoders import resolve
from cosent.models.auto import load_model
from cosent.reporting.card import CARD_NAME, card_text
from cosent.run import read_record
from tests.publishing.hub_stand_in import TOKEN, hub_stand_in


def cosent(job: str, *flags: str, hub: str, token: str = TOKEN) -> subprocess.CompletedProcess:
    environment = os.environ | {
        **{"HF_ENDPOINT": hub, "HF_TOKEN": token, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"},
        **{"OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
    }
    words = [sys.executable, "-m", f"cosent.{job}", *flags]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("kind", ["bi", "cross"])
def test_the_card_of_a_run(kind, request, monkeypatch):
    """Fails if the Hub cannot read the card, a figure is not that of the run, or its code block gives other scores."""
    run = request.getfixturevalue(f"{kind}_run")
    card, record = ModelCard.load(run.folder / CARD_NAME), json.loads((run.folder / "run.json").read_text())
    expected = record["after"]["made_up"]["test"]
    indexed = {one.metric_type: one.metric_value for one in card.data.eval_results}
    names = {"spearman": "spearmanr", "accuracy": "accuracy", "f1": "f1", "recall_at_10": "recall_at_10"}
    assert indexed == {name: expected[metric] for metric, name in names.items() if metric in expected}
    assert {"spearmanr", "accuracy"} <= indexed.keys()
    assert card.data.pipeline_tag == {"bi": "sentence-similarity", "cross": "text-ranking"}[kind]
    assert card.data.base_model is None, "a folder of this machine is no model of the Hub"
    row = next(line for line in card.text.splitlines() if line.startswith("| made_up test"))
    value, low, high = map(float, re.search(r"(-?[\d.]+) \[(-?[\d.]+), (-?[\d.]+)\]", row).groups())
    assert value == pytest.approx(100 * expected["spearman"], abs=0.006) and low <= value <= high
    assert f"{record['thresholds']['made_up']:.4f}" in card.text
    assert f"{record['leaks']['made_up test']:,} pairs of made_up test" in card.text
    monkeypatch.chdir(run.folder.parent)
    (block,) = re.findall(r"```python\n(.*?)```", card.text, flags=re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(block, {})
    printed = [float(number) for number in re.findall(r"-?\d+\.\d+", out.getvalue())]
    ours = load_model(str(run.folder)).similarity("怎么还款", "如何还款")
    assert printed[1 if kind == "bi" else 0] == pytest.approx(ours, abs=2e-4)


def test_the_card_of_a_pretrained_encoder():
    """Fails if a run without pairs has no card."""
    folder = Path(resolve("mini"))
    text = card_text(folder, read_record(folder))
    assert ModelCard(text).data.pipeline_tag == "fill-mask" and "## Results" not in text and "## Use" in text


@pytest.fixture
def run_folder(train, made_up):
    return train(made_up, "--pooling", "mean", "--save_strategy", "epoch")


def test_publishing(run_folder, tmp_path):
    """Fails if a file is missing or damaged, a checkpoint or half a run is sent, a refusal of the Hub is a trace, or
    strangers can see what nobody called public."""
    flags = ("--model", str(run_folder), "--repository", "me/faq")
    with hub_stand_in() as (address, hub):
        refused = cosent("publish", *flags, hub=address, token="hf_wrong")
        assert refused.returncode == 2 and "hf auth login" in refused.stderr and "Traceback" not in refused.stderr
        shown = cosent("publish", *flags, "--dry_run", "true", hub=address)
        assert shown.returncode == 0 and "model.safetensors" in shown.stdout and "checkpoint-" not in shown.stdout
        (run_folder / "UNFINISHED").touch()
        unfinished = cosent("publish", *flags, hub=address)
        assert unfinished.returncode == 2 and "unfinished" in unfinished.stderr
        (run_folder / "UNFINISHED").unlink()
        bare = cosent("publish", "--model", str(tmp_path), "--repository", "me/faq", hub=address)
        assert bare.returncode == 2 and "README.md" in bare.stderr
        assert not hub.repositories
        done = cosent("publish", *flags, "--license", "mit", hub=address)
        assert done.returncode == 0, done.stderr
        assert all(name in done.stderr for name in ("run.json", "scores.npz")), "what goes along is told"
        published = hub.repositories["me/faq"]
        own = {str(path.relative_to(run_folder)): path.read_bytes() for path in run_folder.rglob("*") if path.is_file()}
        assert any(name.startswith("checkpoint-") for name in own), "nothing to leave out"
        wanted = {name: content for name, content in own.items() if not name.startswith("checkpoint-")}
        assert published["files"] == wanted and published["private"] is True
        assert b"license: mit" in published["files"]["README.md"]
        again = cosent("publish", *flags, "--public", "true", hub=address)
        assert again.returncode == 0 and published["private"] is True, "a repository keeps its visibility"


@pytest.mark.slow
def test_training_publishes_at_its_end(tiny_model, made_up, tmp_path):
    """Fails if --push_to_hub shows a run to everyone, sends a checkpoint, or sends what is not the finished folder."""
    with hub_stand_in() as (address, hub):
        flags = ["--model_name_or_path", str(tiny_model), "--corpus", str(made_up)]
        flags += ["--output_dir", str(tmp_path / "run")]
        flags += ["--use_cpu", "true", "--max_steps", "2", "--push_to_hub", "true", "--hub_model_id", "me/run"]
        done = cosent("train", *flags, hub=address)
        assert done.returncode == 0, done.stderr
        published = hub.repositories["me/run"]
        assert published["private"] is True and published["commits"] == ["End of training"]
        assert published["files"]["run.json"] == (tmp_path / "run" / "run.json").read_bytes()
        assert not any("checkpoint" in name for name in published["files"])
        refused = cosent("train", *flags, "--overwrite_output_dir", "true", hub=address, token="hf_wrong")
        assert refused.returncode != 0 and (tmp_path / "run" / "run.json").exists()
