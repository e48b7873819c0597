"""Jobs that `cosent study` launches: their flags, their processes and what is kept of them."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from threading import Event
from typing import Any

from filelock import FileLock, Timeout

from cosent.cli import as_words, parser_of, read_yaml, recipe_file
from cosent.comparing.results import Result
from cosent.compute.processes import PARENT_VARIABLE, end_tree
from cosent.data.manifest import corpus_folder
from cosent.errors import InputError
from cosent.record import QUERIES_NAME, SCORES_NAME, CorpusRecord, RunRecord, read_queries, read_record, read_scores
from cosent.training.arguments import TRAIN_ARGUMENTS

STOPPED = 130  # exit status after Ctrl-C
# Flags that are set for every run.
RESERVED = ("corpus", "seed", "output_dir", "data_dir", "overwrite_output_dir", "resume_from_checkpoint")


@dataclass(frozen=True)
class Run:
    """A training: a recipe with flags on top, on corpora, with a seed; `method` and `point` as in `Result`."""

    method: str
    recipe: str
    corpora: tuple[str, ...]
    seed: int
    flags: dict[str, Any] = field(default_factory=dict, compare=False)
    point: str = ""

    @property
    def corpus(self) -> str:
        """The training corpus, under its name in the results."""
        return ",".join(self.corpora)

    @property
    def name(self) -> str:
        return "-".join([*self.method.split(), *(Path(part).name for part in self.corpora), str(self.seed)])

    @property
    def settings(self) -> dict[str, Any]:
        """What is asked for, as JSON holds it; the number of epochs decides nothing where that of steps is given."""
        settings = parser_of(*TRAIN_ARGUMENTS).read_recipe(self.recipe) | self.flags
        if float(settings.get("max_steps") or 0) > 0:
            settings.pop("num_train_epochs", None)
        return json.loads(json.dumps(settings, default=str))

    def job(self, output: Path, data_dir: str, **flags) -> list[str]:
        """Command line of the training, from its module on."""
        words = ["cosent.jobs.train", "--config", self.recipe, "--corpus", *self.corpora, "--data_dir", data_dir]
        words += ["--output_dir", str(output), "--seed", str(self.seed)]
        return words + as_words({"disable_tqdm": True, "save_total_limit": 1} | flags | self.flags)


def values_of(flags: dict, where: str) -> dict[str, Any]:
    """The values of flags of training, each of the type of its flag."""
    if not isinstance(flags, dict):
        raise InputError(f"{where} must be a mapping of flags to values ({{}} for none), got {flags!r}.")
    for key, value in flags.items():
        if key in RESERVED:
            raise InputError(f"{where}: {key} is set for every run. Take it out.")
        if value is None:
            raise InputError(f"{where}: {key} must have a value as on a command line, got null.")
    return parser_of(*TRAIN_ARGUMENTS).read_mapping(flags, where)


def settings_of(pairs: list[str], where: str) -> dict[str, Any]:
    """Parses `KEY=VALUE` flags to a mapping, values as YAML."""
    for pair in pairs:
        if "=" not in pair:
            raise InputError(f"--set takes KEY=VALUE, got {pair!r}. E.g. --set model_name_or_path=mini pooling=mean")
    settings = {key: read_yaml(value, f"--set {key}") for key, value in (pair.split("=", 1) for pair in pairs)}
    return values_of(settings, f"--set for {where}")


def launch(job: list[str], folder: Path, accelerate_config: str, parallel: int = 1, stop: Event | None = None) -> str:
    """Runs a job through `accelerate launch` until it ends or should stop; returns the reason of a failure, or "".

    It ends with this process, even if that is killed, and with this call, even if Ctrl-C interrupts it. It gets an
    equal share of the cores, unless OMP_NUM_THREADS is set: more threads than free cores wait for one another.

    Args:
        job: its module and its flags.
        folder: for its output in `log.txt`.
    """
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file"]
    command += [recipe_file(accelerate_config, "accelerate"), "-m", *job]
    threads = max(1, (os.cpu_count() or 1) // parallel)
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
        return ""
    lines = log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [line for line in lines if re.match(r"(\[rank\d+\]: ?)?(error: |[\w.]*(Error|Exception)\b)", line)]
    reason = said[0].removeprefix("error: ") if said else f"exit status {process.returncode}"
    return f"{reason} (all of its output is in {log_file})"


def result_of(run: Run, output: Path, corpus: str | None = None) -> Result:
    """What a report needs of a finished run, under its own or another name of its corpora; deletes its checkpoints."""
    record = read_record(output)
    if record is None:
        raise InputError(f"{output} has no record of the run")
    for checkpoint in output.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    scores, queries = read_scores(output / SCORES_NAME), read_queries(output / QUERIES_NAME)
    trained, scored = speeds(record)
    summary = {f.name: getattr(record, f.name) for f in fields(RunRecord)} | {"history": []}
    return Result(
        **summary,
        method=run.method,
        corpus=corpus or run.corpus,
        seed=run.seed,
        point=run.point,
        settings=run.settings,
        train_pairs_per_second=trained,
        score_pairs_per_second=scored,
        validation_curve=[(e["epoch"], e["eval_spearman"]) for e in record.history if "eval_spearman" in e],
        scores={name: splits["test"] for name, splits in scores.items() if "test" in splits},
        queries={name: splits["test"] for name, splits in queries.items() if "test" in splits},
    )


def speeds(record: RunRecord) -> tuple[float | None, float | None]:
    """Pairs per second of training, without evaluations, and of scoring, by Trainer's own clock; None if unknown."""
    seconds, pairs, epochs = 0.0, 0.0, 0.0
    for entry in record.history:
        epochs = max(epochs, entry.get("epoch", 0.0))
        for key in entry:
            if re.fullmatch(r"eval_(.+_)?runtime", key):
                seconds += entry[key]
                pairs += entry[key] * entry[key.replace("runtime", "samples_per_second")]
    training = record.train_seconds - seconds
    trained = epochs * record.train_pairs / training if record.train_pairs is not None and training > 0 else None
    return trained, pairs / seconds if seconds else None


def prepared_anew(result: Result, run: Run, data_dir: str) -> list[str]:
    """Corpora of a run that were prepared anew after a result; those that are not on this machine are not compared."""
    hashes = {Path(corpus.folder).name: corpus.manifest_sha256 for corpus in result.corpora.values()}
    names = [*run.corpora, *(run.settings.get("eval_corpora") or [])]
    folders = {name: corpus_folder(name, data_dir) for name in names if Path(name).name in hashes}
    return [name for name, folder in folders.items()
            if folder is not None and CorpusRecord.of(folder).manifest_sha256 != hashes[Path(name).name]]  # fmt: skip


@contextmanager
def study_lock(results: Path) -> Iterator[None]:
    """Locks a folder of results against other processes, which would train in the same folders."""
    results.mkdir(parents=True, exist_ok=True)
    lock = FileLock(results / ".lock")  # released with the process, however it ends
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise InputError(f"{results}: another process runs this study now. Wait for it, or stop it.") from error
    try:
        yield
    finally:
        lock.release()
