"""`accelerate launch` for --launch: on the CPU where there is no GPU, and without a traceback of its own."""

import os
import sys
from pathlib import Path

import torch
from accelerate.commands.launch import main
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

if __name__ == "__main__":
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
        main()
    except ChildFailedError as error:  # the process has said why
        sys.exit(max(1, error.get_first_failure()[1].exitcode))
    except (SignalException, KeyboardInterrupt):
        sys.exit(130)
