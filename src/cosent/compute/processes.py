"""Processes: the launch of several, children that end with their parent, and peak memory.

`python -m cosent.compute.processes` is the `accelerate launch` of --launch.
"""

import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import psutil

PARENT_VARIABLE = "COSENT_PARENT"  # environment variable of a launched job: id of the process that it must not outlive
ORPHANED = 1  # exit status of a process whose parent has gone


def end_with_parent(parent: int, every: float = 1.0) -> None:
    """Ends this process, without cleaning up, soon after another one has ended for whatever reason.

    SIGKILL leaves a process no time to stop its children, and only Linux can have the kernel do it. So a daemon thread
    of the child polls the parent every so many seconds.
    """

    def watch() -> None:
        with suppress(psutil.NoSuchProcess):
            # A zombie has ended too; it only waits for its parent to read its exit status.
            while followed.is_running() and followed.status() != psutil.STATUS_ZOMBIE:
                time.sleep(every)
        os._exit(ORPHANED)

    try:
        followed = psutil.Process(parent)  # compares start times too: a reused process id is another process
    except psutil.NoSuchProcess:
        os._exit(ORPHANED)
    Thread(target=watch, name="end_with_parent", daemon=True).start()


def end_tree(process: subprocess.Popen, patience: float = 20.0) -> None:
    """Ends a running process and all its descendants: terminates them, and kills those left after `patience` seconds.

    Windows cannot ask a process to end, so all are killed at once.
    """
    started = []
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid).children(recursive=True)
    for end in ("terminate", "kill"):
        for member in [process, *started]:
            with suppress(psutil.NoSuchProcess):
                getattr(member, end)()
        psutil.wait_procs(started, timeout=patience)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=patience)


def run_logged(command: list[str], log_file: Path, threads: int, stop: Event | None = None) -> str:
    """Runs a job until it ends or should stop; returns the reason of a failure, or "".

    It ends with this process, even if that is killed, and with this call, even if Ctrl-C interrupts it.

    Args:
        log_file: for all of its output.
        threads: OMP_NUM_THREADS, unless it is set: more threads than free cores wait for one another.
    """
    environment = {"OMP_NUM_THREADS": str(threads)} | os.environ | {PARENT_VARIABLE: str(os.getpid())}
    log_file.parent.mkdir(parents=True, exist_ok=True)
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


def peak_memory_mib() -> float:
    """Peak resident memory of this process, in MiB."""
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset / 2**20
    if sys.platform == "linux":
        # Not `ru_maxrss`: a child inherits that of the process which started it.
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(re.findall(r"VmHWM:\s*(\d+) kB", status)[0]) / 2**10
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes on macOS


def launch() -> None:
    """Runs `accelerate launch`: on the CPU where there is no GPU, and without a traceback of its own."""
    import torch
    from accelerate.commands import launch as accelerate
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        options = ["-q", "--log_dir", os.devnull]  # else torch leaves an empty folder of logs in the temporary one
        if not torch.accelerator.is_available():
            if any(Path(word).stem == "single_gpu" for word in sys.argv):
                print("error: --launch single_gpu: there is no GPU here. Leave it out to use the CPU.", file=sys.stderr)
                sys.exit(2)
            print("--launch: there is no GPU here, so the processes share the CPU.", file=sys.stderr)
            os.environ.setdefault("ACCELERATE_USE_CPU", "true")
            options += ["--mixed_precision", "no"]
        sys.argv[1:1] = options
        accelerate.main()
    except ChildFailedError as error:  # the process has said why
        sys.exit(max(1, error.get_first_failure()[1].exitcode))
    except (SignalException, KeyboardInterrupt):
        sys.exit(130)


if __name__ == "__main__":
    launch()
