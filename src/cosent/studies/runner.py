"""Run the trainings of a study one by one or in parallel and keep their results."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Event

import yaml
from filelock import FileLock, Timeout

from cosent.cli import as_words, recipe_file
from cosent.compute.processes import PARENT_VARIABLE, end_tree
from cosent.errors import InputError
from cosent.run_queries import QUERIES_NAME, read_queries, save_queries
from cosent.run_record import RunSummary, read_record
from cosent.run_scores import SCORES_NAME, read_scores, save_scores
from cosent.studies.definition import Run, has_settings_of, prepared_anew, work
from cosent.studies.progress import Progress
from cosent.studies.results import Result, Speed

STOPPED = 130  # exit status after Ctrl-C
EARLIER = "earlier"  # folder next to the results


@dataclass(frozen=True)
class Place:
    """Configuration and folders of the runs of a study.

    Args:
        accelerate_config: file for `accelerate launch`.
        data_dir: folder of the prepared corpora.
        runs: folder for models and logs.
        parallel: number of runs that share the machine.
    """

    accelerate_config: str
    data_dir: str
    runs: str
    parallel: int


def run_all(study: dict, results: Path, runs: list[Run], place: Place, waiting: Sequence[Run] = ()) -> int:
    """Trains what has no result yet, and returns an exit status.

    Args:
        waiting: runs whose settings are not known yet; their earlier results stay.
    """
    name = results.name
    set_aside(results, runs, place.data_dir, waiting)
    todo = [run for run in runs if not (results / f"{run.name}.json").is_file()]
    describe(study, [*runs, *waiting], results / "study.yaml")
    print(f"{name}: {len(runs)} runs, {len(runs) - len(todo)} already finished", file=sys.stderr)

    progress, stop = Progress({run: work(run, place.data_dir) for run in todo}), Event()

    def execute(run: Run) -> str | None:
        output = Path(place.runs, name, run.name)
        error = launch(run, output, place, stop)
        if error is None:
            try:
                keep(run, output, results / f"{run.name}.json")
            except (OSError, KeyError, ValueError) as problem:
                error = f"its output in {output} cannot be kept ({type(problem).__name__}: {problem})"
        progress.advance(run, 1.0, finished=True)
        return error

    failed = {}
    with ThreadPoolExecutor(place.parallel) as pool, progress:
        started = {pool.submit(execute, run): run for run in todo}
        try:
            for future in as_completed(started):
                if future.result() is not None:
                    failed[started[future].name] = future.result()
                    progress.bar.write(f"{started[future].name} failed: {future.result()}", file=sys.stderr)
        except KeyboardInterrupt:  # or SIGTERM; the runs would continue, and collide with those of the next call
            stop.set()
            pool.shutdown(cancel_futures=True)
            progress.bar.write("stopped, with the active runs; the same command continues", file=sys.stderr)
            return STOPPED
    if failed:
        print(f"failed; the same command tries again: {', '.join(sorted(failed))}", file=sys.stderr)
    if waiting:
        print(f"not run, since their grid is not complete: {', '.join(run.name for run in waiting)}", file=sys.stderr)
    print(f"figures and intervals: cosent report {results}", file=sys.stderr)
    return 1 if failed else 0


@contextmanager
def study_lock(results: Path) -> Iterator[None]:
    """Locks a study against other processes, which would train in the same folders.

    Raises:
        InputError: another process runs it.
    """
    lock = FileLock(results / ".lock")  # released with the process, however it ends
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise InputError(f"{results}: another process runs this study now. Wait for it, or stop it.") from error
    try:
        yield
    finally:
        lock.release()


def set_aside(results: Path, runs: list[Run], data_dir: str, waiting: Sequence[Run] = ()) -> None:
    """Moves results that the study would no longer produce (other flags, methods or data) out of its report."""
    current = {(run.method, run.corpus): run for run in runs}
    unknown = {(run.method, run.corpus) for run in waiting}
    for file in sorted(results.glob("*.json")):
        result = Result.read(file)
        run = current.get((result.method, result.trained_on))
        if (result.method, result.trained_on) in unknown:
            continue
        anew = [] if run is None else prepared_anew(result, run, data_dir)
        if run is None or anew or not has_settings_of(result, run):
            (results / EARLIER).mkdir(exist_ok=True)
            for part in result.files:
                part.replace(results / EARLIER / part.name)
            other = f"from other data ({', '.join(anew)} was prepared anew)" if anew else "with other settings"
            print(f"{file.name} was made {other}: moved to {results / EARLIER}", file=sys.stderr)


def describe(study: dict, runs: list[Run], file: Path) -> None:
    """Writes the definition of the study, with its methods in order, next to the results for the report."""
    methods = list(dict.fromkeys(run.method.name for run in runs))
    text = yaml.safe_dump(study | {"methods": methods}, allow_unicode=True, sort_keys=True)
    file.write_text(text, encoding="utf-8")


def launch(run: Run, output: Path, place: Place, stop: Event) -> str | None:
    """Trains in a separate process until it ends or should stop; returns the reason of a failure, or None.

    It gets an equal share of the cores, unless OMP_NUM_THREADS is set: more threads than free cores wait for one
    another, and train several times slower.
    """
    job = ["cosent.train", "--config", run.recipe, "--corpus", *run.corpora, "--data_dir", place.data_dir]
    job += ["--output_dir", str(output), "--overwrite_output_dir", "true", "--seed", str(run.seed)]
    job += as_words({"disable_tqdm": True, "save_total_limit": 1} | run.flags)
    threads = max(1, (os.cpu_count() or 1) // place.parallel)
    return follow(job, output, place.accelerate_config, threads, stop)


def keep(run: Run, output: Path, result_file: Path, trained_on: str | None = None) -> None:
    """Saves the parts of a run that a report needs, with the validation curve and the test scores.

    The model stays in the output folder; its checkpoints are deleted.

    Args:
        trained_on: name of its corpora in the results, by default theirs.
    """
    record = read_record(output)
    if record is None:
        raise InputError("it ended without a record")
    scores = {corpus: {"test": splits["test"]} for corpus, splits in read_scores(output / SCORES_NAME).items()
              if "test" in splits}  # fmt: skip
    save_scores(result_file.with_suffix(".npz"), scores)
    queries = {corpus: {"test": splits["test"]} for corpus, splits in read_queries(output / QUERIES_NAME).items()
               if "test" in splits}  # fmt: skip
    if queries:
        save_queries(result_file.with_suffix(f".{QUERIES_NAME}"), queries)
    Result(
        **{f.name: getattr(record, f.name) for f in fields(RunSummary)},
        file=result_file,
        method=run.method,
        trained_on=trained_on or run.corpus,
        seed=run.seed,
        flags=run.flags,
        speed=Speed.of(record),
        validation_curve=[(e["epoch"], e["eval_spearman"]) for e in record.history if "eval_spearman" in e],
    ).save()  # last: a run with this file is not repeated
    for checkpoint in output.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)


def follow(job: list[str], folder: Path, accelerate_config: str, threads: int, stop: Event | None = None) -> str | None:
    """Runs a job until it ends or should stop; returns the reason of a failure, or None.

    It ends with this process, even if that is killed, and with this call, even if Ctrl-C interrupts it.

    Args:
        job: its module and its flags.
        folder: for its output in `log.txt`.
        threads: threads per process, unless OMP_NUM_THREADS is set.
    """
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file"]
    command += [recipe_file(accelerate_config, "accelerate"), "-m", *job]
    environment = {"OMP_NUM_THREADS": str(threads)} | os.environ | {PARENT_VARIABLE: str(os.getpid())}
    folder.mkdir(parents=True, exist_ok=True)
    log_file = folder / "log.txt"
    with open(log_file, "w", encoding="utf-8") as log:
        # In a separate session: Ctrl-C in the terminal reaches only this process, which then ends the job.
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            while (stop is None or not stop.is_set()) and process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.5)
        finally:
            if process.poll() is None:
                end_tree(process)
    if process.returncode == 0:
        return None
    lines = log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line for line in lines if re.match(r"(\[rank\d+\]: ?)?(error: |[\w.]*(Error|Exception)\b)", line)]
    reason = said[0].removeprefix("error: ") if said else f"exit status {process.returncode}"
    return f"{reason} (all of its output is in {log_file})"
