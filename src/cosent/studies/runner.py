"""Run the trainings of a study one by one or in parallel and keep their results."""

import argparse
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from threading import Event

import yaml

from cosent.errors import InputError
from cosent.flags import as_words
from cosent.run_record import RunSummary, read_record
from cosent.run_scores import SCORES_NAME, read_scores, save_scores
from cosent.studies.definition import Run, has_settings_of, work
from cosent.studies.progress import Progress
from cosent.studies.results import Result, Speed

STOPPED = 130  # exit status after Ctrl-C
EARLIER = "earlier"  # folder beside results


def run_all(study: dict, results: Path, runs: list[Run], args: argparse.Namespace) -> int:
    name = results.name
    set_aside(results, runs)
    todo = [run for run in runs if not (results / f"{run.name}.json").is_file()]
    describe(study, runs, results / "study.yaml")
    print(f"{name}: {len(runs)} runs, {len(runs) - len(todo)} already finished", file=sys.stderr)

    progress, stop = Progress({run: work(run, args.data_dir) for run in todo}), Event()

    def execute(run: Run) -> str | None:
        output = Path(args.runs, name, run.name)
        error = launch(run, output, args, lambda share: progress.advance(run, share), stop)
        if error is None:
            try:
                keep(run, output, results / f"{run.name}.json")
            except (OSError, KeyError, ValueError) as problem:
                error = f"what it left in {output} cannot be kept ({type(problem).__name__}: {problem})"
        progress.advance(run, 1.0, finished=True)
        return error

    failed = {}
    with ThreadPoolExecutor(args.parallel) as pool, progress:
        waiting = {pool.submit(execute, run): run for run in todo}
        try:
            for future in as_completed(waiting):
                if future.result() is not None:
                    failed[waiting[future].name] = future.result()
                    progress.bar.write(f"{waiting[future].name} failed: {future.result()}", file=sys.stderr)
        except KeyboardInterrupt:  # or SIGTERM; the runs would go on otherwise, and meet those of the next call
            stop.set()
            pool.shutdown(cancel_futures=True)
            progress.bar.write("stopped, with the runs under way; the same command goes on", file=sys.stderr)
            return STOPPED
    if failed:
        print(f"failed, and tried again by the same command: {', '.join(sorted(failed))}", file=sys.stderr)
    print(f"figures and intervals: cosent report {results}", file=sys.stderr)
    return 1 if failed else 0


@contextmanager
def alone(results: Path) -> Iterator[None]:
    """Makes sure that no other process runs the same study: both would train in the same folders."""
    with open(results / ".lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # gone with the process, however it ends
        except BlockingIOError as error:
            raise InputError(f"{results}: another process runs this study now. Wait for it, or stop it.") from error
        yield


def set_aside(results: Path, runs: list[Run]) -> None:
    """Moves results that the study would not make any more out of its report: other flags, methods or corpora."""
    current = {(run.method, run.corpus): run for run in runs}
    for file in sorted(results.glob("*.json")):
        result = Result.read(file)
        run = current.get((result.method, result.trained_on))
        if run is None or not has_settings_of(result, run):
            (results / EARLIER).mkdir(exist_ok=True)
            for part in (file, file.with_suffix(".npz")):
                if part.is_file():
                    part.replace(results / EARLIER / part.name)
            print(f"{file.name} was made with other settings: moved to {results / EARLIER}", file=sys.stderr)


def describe(study: dict, runs: list[Run], file: Path) -> None:
    """Leaves beside the results what the study is, with its methods in order, for the report."""
    methods = list(dict.fromkeys(run.method.name for run in runs))
    text = yaml.safe_dump(study | {"methods": methods}, allow_unicode=True, sort_keys=True)
    file.write_text(text, encoding="utf-8")


def launch(
    run: Run, output: Path, args: argparse.Namespace, advance: Callable[[float], None], stop: Event
) -> str | None:
    """Trains in a process of its own until it ends or is to stop; returns the line that tells of a failure.

    It gets an equal share of the cores, unless OMP_NUM_THREADS says otherwise: more threads than cores are free wait
    for one another, and train several times slower.
    """
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", args.accelerate_config]
    command += ["-m", "cosent.train", "--config", run.recipe, "--corpus", *run.corpora, "--data_dir", args.data_dir]
    command += ["--output_dir", str(output), "--overwrite_output_dir", "true", "--seed", str(run.seed)]
    command += ["--disable_tqdm", "true", "--save_total_limit", "1"]
    command += as_words(run.flags)
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // args.parallel))} | os.environ
    output.mkdir(parents=True, exist_ok=True)
    log_file = output / "log.txt"
    epochs = float(run.settings.get("num_train_epochs", 3))
    with open(log_file, "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        while process.poll() is None:
            if stop.is_set():
                os.killpg(process.pid, signal.SIGTERM)  # the launcher and what it launched
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                seen = re.findall(r"^epoch (\S+)  step", log_file.read_text(encoding="utf-8", errors="replace"), re.M)
                advance(min(1.0, float(seen[-1]) / epochs) if seen else 0.0)
    if process.returncode == 0:
        return None
    lines = log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line for line in lines if "rror: " in line]
    return f"{errors[0] if errors else f'exit status {process.returncode}'} (all of it in {log_file})"


def keep(run: Run, output: Path, result_file: Path) -> None:
    """Keeps what a report needs of a run, with the validation curve and the test scores.

    The model stays in the output folder, its checkpoints do not.
    """
    record = read_record(output)
    if record is None:
        raise InputError("it ended without a record")
    scores = {corpus: {"test": splits["test"]} for corpus, splits in read_scores(output / SCORES_NAME).items()
              if "test" in splits}  # fmt: skip
    save_scores(result_file.with_suffix(".npz"), scores)
    Result(
        **{f.name: getattr(record, f.name) for f in fields(RunSummary)},
        file=result_file,
        method=run.method,
        trained_on=run.corpus,
        seed=run.seed,
        flags=run.flags,
        speed=Speed.of(record),
        validation_curve=[(e["epoch"], e["eval_spearman"]) for e in record.history if "eval_spearman" in e],
    ).save()  # last: where it is, the run is not repeated
    for checkpoint in output.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
