"""Jobs one after the other in one process of several: what `test_distributed.py` launches.

python tests/compute/session.py JOBS.json    a list of [job, argument, argument, ...]
"""

import json
import sys
from importlib import import_module
from pathlib import Path

from cosent.cli import run


def run_jobs(file: str) -> None:
    for name, *arguments in json.loads(Path(file).read_text(encoding="utf-8")):
        job = import_module(f"cosent.{name}")
        sys.argv[1:] = arguments
        run(job.main, *job.ARGUMENTS)


if __name__ == "__main__":
    run_jobs(sys.argv[1])
