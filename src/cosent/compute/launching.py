"""Run a job in processes of its own through `accelerate launch`, and follow it until it ends."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event

from cosent.compute.processes import PARENT_VARIABLE, end_tree
from cosent.run_status import STATUS_VARIABLE, clear_status, read_failure, read_progress


def follow(
    job: list[str],
    folder: Path,
    accelerate_config: str,
    threads: int,
    advance: Callable[[float], None],
    stop: Event | None = None,
) -> str | None:
    """Runs a job until it ends or should stop; returns the reason of a failure, or None.

    It ends with this process, even if that is killed, and with this call, even if Ctrl-C interrupts it.

    Args:
        job: its module and its flags.
        folder: for its output in `log.txt`, its progress and its failure.
        threads: threads per process, unless OMP_NUM_THREADS is set.
        advance: is called with the share that is done.
    """
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", accelerate_config, "-m", *job]
    environment = {"OMP_NUM_THREADS": str(threads)} | os.environ
    environment |= {STATUS_VARIABLE: str(folder), PARENT_VARIABLE: str(os.getpid())}
    folder.mkdir(parents=True, exist_ok=True)
    clear_status(folder)
    log_file = folder / "log.txt"
    with open(log_file, "w", encoding="utf-8") as log:
        # In a separate session: Ctrl-C in the terminal reaches only this process, which then ends the job.
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            while (stop is None or not stop.is_set()) and process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=1)
                progress = read_progress(folder)
                advance(progress.share if progress is not None else 0.0)
        finally:
            if process.poll() is None:
                end_tree(process)
    if process.returncode == 0:
        return None
    failure = read_failure(folder) or f"exit status {process.returncode}"
    return f"{failure} (all of its output is in {log_file})"
