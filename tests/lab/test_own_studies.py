"""The studies of the lab can be run, and the results of this repository are theirs."""

import json
import re
import subprocess

import pytest

from cosent.comparing.results import STUDY_NAME
from cosent.comparing.runs import choose
from cosent.errors import InputError
from cosent.flags import as_words, parse
from cosent.losses import LOSSES
from cosent.training.arguments import TRAIN_ARGUMENTS
from lab import RESULTS, ROOT
from lab.claims.measures import study_of
from lab.study import entries, refuse_unrepeatable, study_named
from tests.support.studies import runs_of

ENDED = ("easy_negatives", "options")  # studies of options that ended, see lab/LOG.md
KEPT = sorted(file.parent for file in RESULTS.glob(f"*/{STUDY_NAME}"))


def test_an_entry_takes_the_defaults_and_its_own_flags_on_top():
    """Fails if a study of the lab runs with other flags than its entry and the defaults say."""
    study = study_named("primary_cross_stsb")
    assert study["seeds"] == [*range(1, 11)] and study["recipes"][0]["recipe"] == "cross_encoder/cosent"
    flags = study["flags"]
    assert (flags["bf16"], flags["warmup_steps"], flags["limit_train"]) == (True, 0.1, 20000)
    assert flags["segment_ids"] == "tokenizer" and "pooling" not in flags, "null takes a default away"
    assert study_named("across")["seeds"] == [1, 2, 3]
    with pytest.raises(InputError, match="no recipe at gapp"):
        study_named("gapp")


def test_only_a_commit_on_main_is_measured(tmp_path):
    """Fails if results of the lab come from code that no clone has: changed files, or a commit outside main."""

    def git(*words: str) -> None:
        author = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *author, *words], check=True, capture_output=True)

    refuse_unrepeatable(tmp_path)  # no clone
    (tmp_path / "lab/results").mkdir(parents=True)
    for name in ("code.py", "lab/results/study.jsonl"):
        (tmp_path / name).write_text("1")
    git("init", "-b", "main")
    git("add", "."), git("commit", "-m", "first")
    git("checkout", "-b", "other")
    (tmp_path / "lab/results/study.jsonl").write_text("results of an earlier run")
    refuse_unrepeatable(tmp_path)
    (tmp_path / "code.py").write_text("2")
    with pytest.raises(InputError, match=r"code\.py"):
        refuse_unrepeatable(tmp_path)
    git("commit", "-am", "second")
    with pytest.raises(InputError, match="not on main"):
        refuse_unrepeatable(tmp_path)


@pytest.mark.slow
def test_studies_of_the_lab_are_whole(tmp_path):
    """Fails if a study of the lab names a recipe or flag that is not there, or one that is shipped too."""
    names = entries().keys() - {"defaults"}
    assert len(names) >= 25
    for name in names:
        assert not (ROOT / f"recipes/studies/{name}.yaml").exists()
        runs = runs_of(name)
        assert len({run.name for run in runs}) == len(runs) > 0
        for run in {(run.recipe, *sorted(run.flags)): run for run in runs}.values():
            words = ["--config", run.recipe, "--corpus", *run.corpora, "--output_dir", str(tmp_path)]
            parse([*words, *as_words({"use_cpu": True} | run.flags)], *TRAIN_ARGUMENTS)


@pytest.mark.slow
def test_shipped_results_are_those_of_the_shipped_studies():
    """Fails if a result of this repository is not read any more, or running its study would move it aside."""
    assert len(KEPT) >= 25
    wrong, recognised = [], 0
    for folder in KEPT:
        kept = study_of(folder.name)
        if folder.name.startswith("teach_") or folder.name in ENDED:  # of cosent teach, or of an earlier commit
            continue
        runs, tune = runs_of(folder.name), study_named(folder.name).get("tune", {})
        chosen, waiting = choose(runs, tune, kept.trials) if tune else (runs, [])
        asked = {(run.method, run.corpus): run.settings for run in chosen}
        for result in kept.results:
            if result.settings["loss"] not in LOSSES or "features" in result.settings:  # which ended
                continue
            settings = asked.get((result.method, result.corpus))
            wrong += [f"{folder.name}/{result.name}"] if result.settings != settings else []
        wrong += [f"{folder.name}/{run.name}: grid" for run in waiting]
        recognised += len(kept.results)
    assert wrong == [] and recognised >= 200


def test_results_stay_small():
    """Fails if the repository grows by results again: 135 files and 33 MiB, two files a study."""
    files = [file for file in RESULTS.rglob("*") if file.is_file() and "report" not in str(file)]
    assert len(files) <= 135
    assert sum(file.stat().st_size for file in files) < 33 * 2**20  # half: the primary family and thresholds
    assert all(json.loads(line) for folder in KEPT for line in (folder / STUDY_NAME).read_text().splitlines())


def test_every_result_is_of_a_commit_that_is_here():
    """Fails if a result names a commit that no clone has, and the page of those does not list it."""
    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("no clone with its history")
    named = set()
    for file in RESULTS.rglob("*.json*"):
        named |= set(re.findall(r'"commit": ?"([0-9a-f]{40})', file.read_text(encoding="utf-8")))
    gone = {commit[:10] for commit in named - set(git("rev-list", "HEAD").split())}
    page = (ROOT / "lab/measurements.md").read_text(encoding="utf-8").partition("## Commits that are gone")[2]
    assert len(named) > 40 and gone == set(re.findall(r"^\| ([0-9a-f]{10}) \|", page, re.MULTILINE))


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False).stdout.strip()
