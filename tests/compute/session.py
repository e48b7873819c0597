"""Jobs one after the other in one process of several: what `test_distributed.py` launches.

python tests/compute/session.py JOBS.json    a list of [job, argument, argument, ...]
"""

import json
import sys
from importlib import import_module

from cosent.cli import run

if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        jobs = json.load(file)
    for name, *arguments in jobs:
        job = import_module(f"cosent.{name}")
        sys.argv[1:] = arguments
        run(job.main, *job.ARGUMENTS)
