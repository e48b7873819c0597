"""Kill jobs at a moment or when a file appears, run the same command again, and compare with an undisturbed run.

python -m lab.benchmarks.kills --work /tmp/kills --trials 12 --output lab/results/kills.json

A trial kills a job once to thrice, by SIGKILL, SIGTERM or SIGINT, drawn by its number; in between, a model's folder has
to be refused or to answer like a whole one. Jobs run in forks of this process, those of several processes as commands.
The campaign continues where it was stopped; a job's undisturbed run is made again each time.
"""

import argparse
import atexit
import hashlib
import json
import os
import random
import re
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from transformers import AutoConfig, AutoModel

from cosent import cli
from cosent.comparing.document import markdown_table
from cosent.encoders import resolve
from cosent.errors import InputError, messages_for_users
from cosent.record import shortened
from cosent.training.job import commit
from lab.benchmarks.common import save
from lab.benchmarks.forked import TRAINING, make, set_up

ROOM = Path("room")  # of a trial: the working directory of its job, with its caches and temporary files
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
OUTCOMES = ("equal", "refused", "different", "failed")
STEPS = ["--save_strategy", "steps", "--save_steps", "4", "--eval_strategy", "steps", "--eval_steps", "4"]
AGAIN = ["--resume_from_checkpoint", "auto", "--output_dir", "out"]
COMPARED = ["--model", "out", "--device", "cpu", "怎么还款", "如何还款"]
# What two runs need not share: times, memory, what a resumed pretraining cannot know (`moved`), pickles, cards, logs.
VOLATILE = re.compile(r"second|runtime|minutes|mib|step_times|^moved$")
SKIPPED = re.compile(r"training_args\.bin$|log\.txt$|README\.md$|\.lock$|^(cache|tmp)/")
PARTIAL = re.compile(r"partial|incomplete|\.tmp|^tmp/.")


@dataclass(frozen=True)
class Job:
    """A command that writes to `out` in its working directory."""

    words: list[str]
    before: str | None = None  # a folder that is `out` before
    command: bool = False  # whether it starts as one, since its processes would not be forks
    model: bool = False  # whether `out` is a model


def jobs() -> dict[str, Job]:
    """All jobs, on the files of `set_up` and tables made here."""
    from cosent.data.corpus import load_corpus

    rows = load_corpus("data/pairs").split("train")[:1000]
    lines = [f"{a}\t{b}\t{label:g}" for a, b, label in zip(*rows.values(), strict=True)]
    for name, half in (("old.tsv", lines[:300]), ("pairs.tsv", lines)):
        Path(name).write_text("\n".join(["sentence1\tsentence2\tlabel", *half]) + "\n", encoding="utf-8")
    shares = ["--label_kind", "binary", "--validation_share", "0.2", "--test_share", "0.2"]
    make(Path("old/MANIFEST.json"), "prepare", "out", "--source", "old.tsv", *shares, "--output", "old")
    here = os.getcwd()
    Path("few.txt").write_text("\n".join(rows["sentence1"][:20]) + "\n", encoding="utf-8")
    if not Path("tiny-ro/config.json").is_file():
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        config = AutoConfig.from_pretrained(resolve("mini-roformer"))
        config.update(sizes | {"embedding_size": 32})
        AutoModel.from_config(config).save_pretrained("tiny-ro")
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(Path(resolve("mini-roformer"), file), "tiny-ro")
    training = [word.replace("data/", f"{here}/data/").replace("tiny", f"{here}/tiny") for word in TRAINING]
    bi = ["--config", "bi_encoder/cosent_mini", *training, *STEPS]
    flags = {"recipes": ["bi_encoder/cosent_mini"], "corpora": [f"{here}/data/pairs"], "seeds": [1, 2]}
    flags["flags"] = {"model_name_or_path": f"{here}/tiny", "use_cpu": True, "num_train_epochs": 1, "limit_train": 96}
    Path("study.yaml").write_text(json.dumps(flags), encoding="utf-8")
    model, corpus, text = ["--model", f"{here}/bi", "--device", "cpu"], f"{here}/data/pairs", f"{here}/texts.txt"
    student = [word.replace("/tiny", "/tiny-ro") for word in training]
    own = ["prepare", "out", "--source", f"{here}/pairs.tsv", *shares, "--output", "out"]
    mined = ["--teacher", f"{here}/cross", "--random", "300", "--validation_pairs", "50", "--range_max", "20"]
    pretraining = ["--init", f"{here}/tiny", "--text", text, "--batch_tokens", "1024", "--max_steps", "12", "--use_cpu"]
    return {
        "train": Job(["train", *bi, *AGAIN], model=True),
        "train over a model": Job(["train", *bi, "--output_dir", "out", "--overwrite_output_dir"], "bi2", model=True),
        "train a cross-encoder": Job(
            ["train", "--config", "cross_encoder/cosent_mini", *training, *STEPS, *AGAIN], model=True
        ),
        "train with LoRA": Job(["train", *bi, "--use_peft", "true", "--lora_r", "4", *AGAIN], model=True),
        "train in cached batches": Job(["train", *bi, "--cached_batch_size", "32", *AGAIN], model=True),
        "train in two processes": Job(["train", "--launch", "ddp", "--processes", "2", *bi, *AGAIN], command=True),
        "distill": Job(
            ["distill", "--config", "student/distill", *student, *STEPS, "--teacher", f"{here}/bi", *AGAIN], model=True
        ),
        "pretrain": Job(["lab.pretrain", *pretraining, *STEPS[:4], *AGAIN]),
        "prepare": Job(own),
        "prepare --overwrite": Job([*own, "--overwrite"], "old"),
        "merge": Job(
            ["merge", "--models", f"{here}/bi", f"{here}/bi2", "--corpus", corpus, "--device", "cpu", "--output", "out"]
        ),
        "mine": Job(["mine", *model, "--corpus", corpus, *mined, "--output", "out"]),
        "export": Job(["export", *model[:2], "--corpus", corpus, "--output", "out"]),
        "encode": Job(["encode", *model, "--text", text, "--output", "out.npy"]),
        "study": Job(["study", f"{here}/study.yaml", "--results", "out"], command=True),
        "evaluate --predictions": Job(["evaluate", *model, "--corpus", corpus, "--predictions", "out.tsv"]),
        "dedup": Job(["dedup", *model, "--text", text, "--threshold", "0.9", "--output", "out.txt"]),
        "generate": Job(
            ["generate", "--device", "cpu", "--num", "3", "--text", f"{here}/few.txt", "--output", "out.tsv"]
        ),
    }


def start(words: list[str], command: bool = False) -> psutil.Process:
    """Starts a job in `ROOM`, in a session of its own, with its output in `log.txt` next to it."""
    sys.stdout.flush()
    if child := os.fork():
        return psutil.Process(child)
    code = 1
    try:
        os.setsid()
        output = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.chdir(ROOM)
        os.environ |= {"XDG_CACHE_HOME": os.path.abspath("cache"), "TMPDIR": os.path.abspath("tmp")}
        os.environ |= {"OMP_NUM_THREADS": "1"}
        tempfile.tempdir = None
        if command:
            os.execv(sys.executable, [sys.executable, "-m", "cosent", *words])
        sys.stdout, sys.stderr = (os.fdopen(stream, "w", 1, encoding="utf-8", closefd=False) for stream in (1, 2))
        sys.argv = ["cosent", *words]
        if words[0] in cli.JOBS:
            cli.main()
        else:
            del sys.argv[0]
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        os._exit(code)


def ended(process: psutil.Process, seconds: float) -> int | None:
    """Exit status of a job, negative for a signal; None if it still runs after so many seconds."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(process.pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.002)


def run(words: list[str], command: bool = False) -> tuple[int | str, str]:
    """Runs a job to the end; returns exit status and output."""
    process = start(words, command)
    status = ended(process, 400)
    if status is None:
        end([process, *process.children(recursive=True)])
    said = Path("log.txt").read_text(encoding="utf-8", errors="replace")
    return "hang" if status is None else status, said


def end(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(processes, 10)


def paths() -> set[str]:
    return {os.path.relpath(os.path.join(top, name), ROOM) for top, *names in os.walk(ROOM) for name in sum(names, [])}


def killed(job: Job, draw: random.Random, seconds: float, files: int) -> dict | None:
    """Runs a job and kills it; None if it ended first."""
    number = draw.choice(SIGNALS)
    moment = draw.uniform(0.02, 1) * seconds if draw.random() < 0.4 else None
    files, pause = draw.randint(1, files), draw.choice([0, 0, 0.001, 0.005, 0.02, 0.1])
    before, began, last = paths(), time.monotonic(), None
    process = start(job.words, job.command)
    while ended(process, 0) is None:
        if moment is None and len(new := paths() - before) >= files:
            time.sleep(pause)
            last = max(new, key=lambda name: os.lstat(ROOM / name).st_mtime if os.path.lexists(ROOM / name) else 0)
            break
        if moment is not None and time.monotonic() - began > moment:
            break
        time.sleep(0.002)
    else:
        return None
    started = process.children(recursive=True)
    process.send_signal(number)
    status = ended(process, 60)
    _, left = psutil.wait_procs(started, 15)
    end([*left, *([process] if status is None else [])])
    kill = {"signal": number.name, "after": last or f"{moment:.2f} s", "status": status, "orphans": len(left)}
    if number is not signal.SIGKILL:
        said = Path("log.txt").read_text(encoding="utf-8", errors="replace")
        kill["traceback"] = "Traceback" in said
    return kill


def content(path: Path) -> Any:
    """Content of a file without times and other values that differ between equal runs."""

    def stable(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: stable(each) for key, each in value.items() if not VOLATILE.search(key)}
        return [stable(each) for each in value] if isinstance(value, list) else value

    if path.name == "whole.json":  # sizes and hashes of files that hold times
        return sorted(json.loads(path.read_text(encoding="utf-8")))
    if path.suffix == ".json":
        return stable(json.loads(path.read_text(encoding="utf-8")))
    if path.suffix == ".jsonl":
        return [stable(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: hashlib.sha256(arrays[name].tobytes()).hexdigest() for name in arrays.files}
    return hashlib.sha256(path.read_bytes()).hexdigest()


def written() -> dict[str, Any]:
    """Content of the files that a job has left in `ROOM`, by path."""
    files = [name for name in paths() if (ROOM / name).is_file() and not (SKIPPED.search(name) or PARTIAL.search(name))]
    return {name: content(ROOM / name) for name in sorted(files)}


def fresh(job: Job) -> None:
    shutil.rmtree(ROOM, ignore_errors=True)
    for name in ("cache", "tmp"):
        (ROOM / name).mkdir(parents=True)
    if job.before:
        shutil.copytree(job.before, ROOM / "out")


def answer(job: Job) -> str | None:
    """Last line of `cosent similarity` with the model in `out`, "refused", or the traceback."""
    if not (job.model and (ROOM / "out").exists()):
        return None
    status, said = run(["similarity", *COMPARED])
    return "refused" if status == 2 and "Traceback" not in said else said if status else said.splitlines()[-1]


def undisturbed(name: str, job: Job) -> dict[str, Any]:
    """Reference run without a kill: files, seconds, and the answers of the model before and after."""
    fresh(job)
    answers = {None, "refused", answer(job)}
    before, began = paths(), time.monotonic()
    status, said = run(job.words, job.command)
    if status != 0:
        raise InputError(f"{name}: {said[-2000:]}")
    seconds, new = time.monotonic() - began, paths() - before
    return {"written": written(), "paths": paths(), "answers": answers | {answer(job)}, "seconds": seconds, "new": new}


def trial(name: str, job: Job, number: int, whole: dict[str, Any]) -> dict:
    draw = random.Random(f"{name} {number}")
    fresh(job)
    found: dict[str, Any] = {"job": name, "number": number, "commit": commit(), "kills": [], "odd": []}
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        kill = killed(job, draw, whole["seconds"], max(1, len(whole["new"])))
        if kill is None:
            break
        found["kills"].append(kill)
        if (said := answer(job)) not in whole["answers"]:
            found["odd"].append(said[-300:])
    status, said = run(job.words, job.command)
    now = written()
    found["differ"] = sorted(
        key for key in now.keys() | whole["written"].keys() if now.get(key) != whole["written"].get(key)
    )
    found["left"] = sorted(
        name for name in paths() - whole["paths"] if PARTIAL.search(name) or not name.startswith("cache/")
    )
    failed = status not in (0, 2) or "Traceback (most recent" in said
    found["outcome"] = "failed" if failed else "refused" if status else "different" if found["differ"] else "equal"
    return found | ({} if status == 0 else {"said": said[-600:]})


def summary(trials: list[dict], name: str) -> dict[str, Any]:
    """Counts over the trials of a job."""
    rows = [one for one in trials if one["job"] == name]
    kills = [kill for one in rows for kill in one["kills"]]
    counts = Counter(one["outcome"] for one in rows)
    found = {"job": name, "trials": len(rows), "kills": len(kills)} | {outcome: counts[outcome] for outcome in OUTCOMES}
    found |= {"odd": sum(len(one["odd"]) for one in rows), "orphans": sum(kill["orphans"] for kill in kills)}
    return found | {"left": sum(bool(one["left"]) for one in rows)}


def kills_table(result: dict) -> str:
    """Trials, kills and outcomes by job."""
    names = ("trials", "kills", "equal", "refused", "different", "failed")
    rows = [[row["job"], *(row[name] for name in names)] for row in [*result["rows"], {"job": "all"} | result["total"]]]
    header = ["job", "runs", "kills", "equal", "refused in words", "other files", "failed"]
    total = result["total"]
    return (
        f"{markdown_table(header, rows)}\n\nSIGKILL, SIGTERM or SIGINT, at a moment or when a new file appeared, up to "
        f"three times; then the same command again, and all files compared with an undisturbed run. {total['orphans']} "
        f"processes outlived their job, {total['left']} runs left something behind, and in between {total['odd']} "
        f"models gave another answer than the old or the new one. Tiny models; {result['device']}, commit "
        f"{', '.join(dict.fromkeys(shortened(one['commit']) for one in result['trials']))}."
    )


def main(args: argparse.Namespace) -> None:
    output = args.output.absolute()
    set_up(args.work)
    every, file = jobs(), Path("trials.jsonl")
    done = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    whole: dict[str, dict] = {}
    for number in range(args.trials):
        for name in args.jobs or every:
            if (name, number) in {(one["job"], one["number"]) for one in done}:
                continue
            if name not in whole:
                whole[name] = undisturbed(name, every[name])
            done.append(trial(name, every[name], number, whole[name]))
            with open(file, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(done[-1], ensure_ascii=False) + "\n")
            if done[-1]["outcome"] != "equal" or done[-1]["odd"] or done[-1]["left"]:
                print(json.dumps(done[-1], ensure_ascii=False), flush=True)
    rows = [summary(done, name) for name in every if any(one["job"] == name for one in done)]
    total = {key: sum(row[key] for row in rows) for key in rows[0] if key != "job"}
    print(kills_table(save(str(output), "kills", rows, total=total, trials=done)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for models, rooms and finished trials")
    parser.add_argument("--trials", type=int, default=12, help="of each job")
    parser.add_argument("--jobs", nargs="+", help="of these jobs only")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
