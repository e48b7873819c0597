"""Trainings of a study in separate processes, and the update of its stored results."""

import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from tqdm import tqdm

from cosent.cli import launch_command
from cosent.comparing.results import Result, save_results
from cosent.comparing.runs import Run
from cosent.compute.processes import run_logged
from cosent.data.corpus import corpus_folder
from cosent.errors import InputError
from cosent.models.decision import decision_rules
from cosent.record import QUERIES_NAME, SCORES_NAME, CorpusRecord, read_queries, read_record, read_scores

EARLIER = "earlier.jsonl"  # next to the results


@dataclass
class Session:
    """Results of a study, and training of the missing ones.

    Args:
        folder: of the results.
        definition: first line of the results, see `Study`.
        parallel: trainings at the same time, which share the cores.
    """

    folder: Path
    definition: dict[str, Any]
    results: list[Result]
    data_dir: str
    accelerate_config: str
    parallel: int

    def train(self, runs: list[Run]) -> set[str]:
        """Trains runs without a result, and returns the names of failed ones."""
        self.set_aside(runs)
        finished = {(r.point, r.method, r.corpus, r.seed) for r in self.results}
        todo = [run for run in runs if (run.point, run.method, run.corpus, run.seed) not in finished]
        print(f"{self.folder.name}: {len(runs)} runs, {len(runs) - len(todo)} already finished", file=sys.stderr)
        stop, failed = Event(), set()
        with ThreadPoolExecutor(self.parallel) as pool, tqdm(total=len(todo), unit="run") as bar:
            started = {pool.submit(self.execute, run, stop): run for run in todo}
            try:
                for future in as_completed(started):
                    outcome, run = future.result(), started[future]
                    if isinstance(outcome, str):
                        failed.add(run.name)
                        bar.write(f"{run.name} failed: {outcome}", file=sys.stderr)
                    else:
                        self.results.append(outcome)
                        save_results(self.folder, self.definition, self.results)
                    bar.update()
            except BaseException:  # the active runs would continue, and collide with those of the next call
                stop.set()
                pool.shutdown(cancel_futures=True)
                raise
        return failed

    def execute(self, run: Run, stop: Event) -> Result | str:
        """The result of a training in a separate process, or the reason of its failure."""
        output = Path("runs/studies", self.folder.name, run.point, run.name)
        command = launch_command("train", run.words(output, self.data_dir), self.accelerate_config)
        error = run_logged(command, output / "log.txt", max(1, (os.cpu_count() or 1) // self.parallel), stop)
        if error:
            return error
        try:
            return result_of(run, output)
        except (OSError, KeyError, ValueError) as problem:
            return f"its output in {output} cannot be kept ({type(problem).__name__}: {problem})"

    def set_aside(self, runs: list[Run]) -> None:
        """Moves results of these runs with other flags or data to `EARLIER`, so that no report mixes the two."""
        current = {(run.point, run.method, run.corpus): run for run in runs}
        valid = []
        for result in self.results:
            run = current.get((result.point, result.method, result.corpus))
            reason = "" if run is None else difference(result, run, self.data_dir)
            if not reason:
                valid.append(result)
                continue
            print(f"{result.name} was made {reason}: moved to {self.folder / EARLIER}", file=sys.stderr)
            with open(self.folder / EARLIER, "a", encoding="utf-8") as file:
                file.write(json.dumps(result.to_json({}), ensure_ascii=False, default=str) + "\n")
        self.results = valid
        save_results(self.folder, self.definition, self.results)


def result_of(run: Run, output: Path) -> Result:
    """Result of a finished run for the report; deletes the checkpoints."""
    record = read_record(output)
    if record is None:
        raise InputError(f"{output} has no record of the run")
    for checkpoint in output.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    scores, queries = read_scores(output / SCORES_NAME), read_queries(output / QUERIES_NAME)
    return Result(
        **vars(record) | {"history": []},
        calibrations={name: rule.calibration for name, rule in decision_rules(output).items() if rule.calibration},
        method=run.method,
        corpus=run.corpus,
        seed=run.seed,
        point=run.point,
        settings=run.settings,
        validation_curve=[(e["epoch"], e["eval_spearman"]) for e in record.history if "eval_spearman" in e],
        scores={name: splits["test"] for name, splits in scores.items() if "test" in splits},
        queries={name: splits["test"] for name, splits in queries.items() if "test" in splits},
    )


def difference(result: Result, run: Run, data_dir: str) -> str:
    """The difference between a stored result and the run in its place; "" if there is none."""
    hashes = {Path(corpus.folder).name: corpus.manifest_sha256 for corpus in result.corpora.values()}
    for name in (*run.corpora, *(run.settings.get("eval_corpora") or [])):
        folder = corpus_folder(name, data_dir) if Path(name).name in hashes else None
        # A corpus that is not on this machine cannot be compared.
        if folder is not None and CorpusRecord.of(folder).manifest_sha256 != hashes[Path(name).name]:
            return f"from other data ({name} was prepared anew)"
    return "" if result.settings == run.settings else "with other settings"
