"""Run every recipe and variant of a study on every corpus with every seed, through `accelerate launch`.

python -m cosent.study recipes/studies/losses_stsb.yaml --parallel 2

A run whose JSON under `results/<study>` shows the same settings is never repeated, so that a study continues
where it stopped; a run that fails is listed at the end, and the others go on. `plan.py` says what a study may hold.
"""

import argparse
import signal
import sys
from pathlib import Path

from cosent.cli import check_world_size
from cosent.errors import messages_for_users
from cosent.studies.definition import expand, read_study, settings_of
from cosent.studies.runner import alone, run_all


def main(args: argparse.Namespace) -> int:
    check_world_size()
    study, name = read_study(args.study), Path(args.study).stem
    overrides = settings_of(args.set or [], args.study)
    if args.limit_train:
        overrides["limit_train"] = args.limit_train
    # A trial never passes for a run of the study itself.
    name += "".join(f"-{key}={file_name(value)}" for key, value in overrides.items())
    results = Path(args.results, name)
    runs = expand(study | {"seeds": args.seeds or study["seeds"]}, overrides)
    results.mkdir(parents=True, exist_ok=True)
    with alone(results):
        return run_all(study, results, runs, args)


def file_name(value) -> str:
    """A value of a flag as part of a folder's name: `mini` for `runs/mini`, `a+b` for a list."""
    return "+".join(Path(str(part)).name for part in (value if isinstance(value, list) else [value]))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", help="recipes/studies/<name>.yaml")
    parser.add_argument("--seeds", nargs="+", type=int, help="instead of those of the study")
    parser.add_argument("--limit_train", type=int, help="train on this many pairs, to try a study in minutes")
    parser.add_argument("--set", nargs="+", metavar="KEY=VALUE", help="flags for every run that win over the study's; "
                        "results go to a folder that is named after them")  # fmt: skip
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time, which share the cores")
    parser.add_argument("--accelerate_config", default="recipes/accelerate/cpu.yaml", help="where to run")
    parser.add_argument("--data_dir", default="data", help="folder of the prepared corpora")
    parser.add_argument("--runs", default="runs/studies", help="where models and logs go")
    parser.add_argument("--results", default="results", help="where the JSON of each run goes")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with messages_for_users():
        sys.exit(main(parser().parse_args()))
