"""Publishing, against a stand-in of the Hub on this machine."""

import os
import subprocess
import sys

import pytest

from tests.publishing.hub_stand_in import TOKEN, hub_stand_in


def cosent(job: str, *flags: str, hub: str, token: str = TOKEN) -> subprocess.CompletedProcess:
    environment = os.environ | {
        **{"HF_ENDPOINT": hub, "HF_TOKEN": token, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"},
        **{"OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
    }
    words = [sys.executable, "-m", f"cosent.{job}", *flags]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def run_folder(train, make_corpus, pairs):
    return train(make_corpus({"train": pairs, "validation": pairs[:32]}), "--pooling", "mean")


def test_a_folder_is_published_whole(run_folder, tmp_path):
    """Fails if a file is missing or damaged, a checkpoint is sent, or strangers can see what nobody called public."""
    with hub_stand_in() as (address, hub):
        done = cosent("publish", "--model", str(run_folder), "--repository", "me/faq", "--license", "mit", hub=address)
        assert done.returncode == 0, done.stderr
        assert all(name in done.stderr for name in ("run.json", "scores.npz")), "what goes along is told"
        published = hub.repositories["me/faq"]
        own = {str(path.relative_to(run_folder)): path.read_bytes() for path in run_folder.rglob("*") if path.is_file()}
        assert any(name.startswith("checkpoint-") for name in own), "nothing to leave out"
        wanted = {name: content for name, content in own.items() if not name.startswith("checkpoint-")}
        assert published["files"] == wanted and published["private"] is True
        assert b"license: mit" in published["files"]["README.md"]
        again = cosent("publish", "--model", str(run_folder), "--repository", "me/faq", "--public", "true", hub=address)
        assert again.returncode == 0 and published["private"] is True, "a repository keeps its visibility"


def test_what_is_not_published(run_folder, tmp_path):
    """Fails if a refusal of the Hub is a trace, or half a run is published."""
    with hub_stand_in() as (address, hub):
        flags = ("--model", str(run_folder), "--repository", "me/faq")
        refused = cosent("publish", *flags, hub=address, token="hf_wrong")
        assert refused.returncode == 2 and "hf auth login" in refused.stderr and "Traceback" not in refused.stderr
        shown = cosent("publish", *flags, "--dry_run", "true", hub=address)
        assert shown.returncode == 0 and "model.safetensors" in shown.stdout and "checkpoint-" not in shown.stdout
        misnamed = cosent("publish", *flags[:3], "faq", "--dry_run", "true", hub=address)
        assert misnamed.returncode == 2 and "--repository faq " in misnamed.stderr
        unlicensed = cosent("publish", *flags, "--license", "apache", "--dry_run", "true", hub=address)
        assert unlicensed.returncode == 2 and "--license apache " in unlicensed.stderr
        assert "'apache-2.0'" in unlicensed.stderr
        (run_folder / "UNFINISHED").touch()
        unfinished = cosent("publish", *flags, hub=address)
        assert unfinished.returncode == 2 and "UNFINISHED" in unfinished.stderr or "unfinished" in unfinished.stderr
        bare = cosent("publish", "--model", str(tmp_path), "--repository", "me/faq", hub=address)
        assert bare.returncode == 2 and "README.md" in bare.stderr
        assert not hub.repositories


@pytest.mark.slow
def test_training_publishes_at_its_end(tiny_model, make_corpus, pairs, tmp_path):
    """Fails if --push_to_hub shows a run to everyone, sends a checkpoint, or sends what is not the finished folder."""
    corpus = make_corpus({"train": pairs, "validation": pairs[:32]})
    with hub_stand_in() as (address, hub):
        flags = ["--model_name_or_path", str(tiny_model), "--corpus", str(corpus)]
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
