"""Run every recipe of a study on every corpus with every seed, through `accelerate launch`.

python -m cosent.study recipes/studies/losses_stsb.yaml --parallel 2

A run whose JSON under `recipes/results/<study>` shows the same settings is never repeated, so that a study continues
where it stopped; a run that fails is listed at the end, and the others go on.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import yaml
from tqdm import tqdm

from cosent.schema import InputError, messages_for_users

KEYS = ("recipes", "corpora", "seeds", "flags")
# What a result keeps of run.json: enough to judge and repeat the run, not its whole log.
KEPT = ("recipe", "corpora", "before", "after", "thresholds", "train_seconds", "versions", "commit", "device")


@dataclass(frozen=True)
class Run:
    """One training run of a study."""

    recipe: str
    corpus: str
    seed: int

    @property
    def name(self) -> str:
        return f"{Path(self.recipe).stem}-{Path(self.corpus).name}-{self.seed}"


def main(args: argparse.Namespace) -> int:
    study = read_study(args.study)
    name = Path(args.study).stem
    if args.limit_train:
        name += f"-limit{args.limit_train}"  # a trial never passes for a run of the study itself
    results = Path(args.results, name)
    seeds = args.seeds or study["seeds"]
    runs = [Run(recipe, corpus, seed) for seed in seeds for corpus in study["corpora"] for recipe in study["recipes"]]
    todo = [run for run in runs if not finished(results / f"{run.name}.json", run, study.get("flags", {}))]
    flags = [part for key, value in study.get("flags", {}).items() for part in (f"--{key}", str(value))]
    if args.limit_train:
        flags += ["--limit_train", str(args.limit_train)]
    print(f"{name}: {len(runs)} runs, {len(runs) - len(todo)} already finished", file=sys.stderr)

    def execute(run: Run) -> str | None:
        output = Path(args.runs, name, run.name)
        error = launch(run, output, flags, args)
        if error is None:
            keep(output / "run.json", results / f"{run.name}.json")
        return error

    failed = []
    with ThreadPoolExecutor(args.parallel) as pool, tqdm(total=len(todo), unit="run") as progress:
        for run, error in zip(todo, pool.map(execute, todo), strict=True):
            progress.update()
            if error is not None:
                failed.append(run.name)
                progress.write(f"{run.name} failed: {error}", file=sys.stderr)
    if failed:
        print(f"failed, and tried again by the same command: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def read_study(path: str) -> dict:
    """Reads a study and checks its keys.

    Raises:
        InputError: no such file, a missing or unknown key, or a recipe that is not there.
    """
    if not Path(path).is_file():
        raise InputError(f"There is no study at {path}. The shipped ones are recipes/studies/<name>.yaml.")
    study = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    wrong = ({"flags"} | set(study)) ^ set(KEYS)
    if wrong:
        raise InputError(f"{path}: a study has the keys {', '.join(KEYS)}; {', '.join(sorted(wrong))} is wrong.")
    for recipe in study["recipes"]:
        if not Path(recipe).is_file():
            raise InputError(f"{path} names {recipe}, which is not there. Run studies from the root of the project.")
    return study


def finished(result_file: Path, run: Run, flags: dict) -> bool:
    """Whether a result is there, and was made with what recipe and study say now."""
    if not result_file.is_file():
        return False
    made_with = json.loads(result_file.read_text(encoding="utf-8"))["recipe"]
    wanted = yaml.safe_load(Path(run.recipe).read_text(encoding="utf-8")) | flags
    return all(str(made_with.get(key)) == str(value) for key, value in wanted.items())


def launch(run: Run, output: Path, flags: list[str], args: argparse.Namespace) -> str | None:
    """Trains in a process of its own with an equal share of the cores; returns the last line of a failure."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", args.accelerate_config]
    command += ["-m", "cosent.train", "--config", run.recipe, "--corpus", run.corpus, "--data_dir", args.data_dir]
    command += ["--output_dir", str(output), "--overwrite_output_dir", "true", "--seed", str(run.seed)]
    threads = max(1, (os.cpu_count() or 1) // args.parallel)
    output.mkdir(parents=True, exist_ok=True)
    with open(output / "log.txt", "w", encoding="utf-8") as log:
        quiet = ["--disable_tqdm", "true", "--save_total_limit", "1"]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        status = subprocess.run([*command, *quiet, *flags], stdout=log, stderr=log, env=environment).returncode
    if status == 0:
        return None
    errors = [line for line in (output / "log.txt").read_text().splitlines() if "rror: " in line]
    return f"{errors[0] if errors else f'exit status {status}'} (all of it in {output / 'log.txt'})"


def keep(record_file: Path, result_file: Path) -> None:
    """Copies what a table needs from `run.json`, with the validation curve, and appears only when it is whole."""
    record = json.loads(record_file.read_text(encoding="utf-8"))
    kept = {key: record[key] for key in KEPT}
    curve = [(entry["epoch"], entry["eval_spearman"]) for entry in record["history"] if "eval_spearman" in entry]
    result_file.parent.mkdir(parents=True, exist_ok=True)
    partial = result_file.with_suffix(".partial")
    partial.write_text(json.dumps(kept | {"validation_curve": curve}, ensure_ascii=False, indent=1) + "\n")
    partial.replace(result_file)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", help="recipes/studies/<name>.yaml")
    parser.add_argument("--seeds", nargs="+", type=int, help="instead of those of the study")
    parser.add_argument("--limit_train", type=int, help="train on this many pairs, to try a study in minutes")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time, which share the cores")
    parser.add_argument("--accelerate_config", default="recipes/accelerate/cpu.yaml", help="where to run")
    parser.add_argument("--data_dir", default="data", help="folder of the prepared corpora")
    parser.add_argument("--runs", default="runs/studies", help="where models and logs go")
    parser.add_argument("--results", default="recipes/results", help="where the JSON of each run goes")
    return parser


if __name__ == "__main__":
    with messages_for_users():
        sys.exit(main(parser().parse_args()))
