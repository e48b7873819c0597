"""`accelerate launch` for --launch: on the CPU where there is no GPU, and without a traceback of its own."""

import os
import sys

import torch
from accelerate.commands.launch import main
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

if __name__ == "__main__":
    try:
        options = ["-q", "--log_dir", os.devnull]  # else torch leaves an empty folder of logs in the temporary one
        if not torch.accelerator.is_available():
            print("--launch: there is no GPU here, so the processes share the CPU.", file=sys.stderr)
            os.environ.setdefault("ACCELERATE_USE_CPU", "true")
            options += ["--mixed_precision", "no"]
        sys.argv[1:1] = options
        main()
    except ChildFailedError as error:  # the process has said why
        sys.exit(max(1, error.get_first_failure()[1].exitcode))
    except (SignalException, KeyboardInterrupt):
        sys.exit(130)
