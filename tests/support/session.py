"""Jobs one after the other in one process of several, on a CPU: what `test_processes.py` launches.

python tests/support/session.py AS_LAUNCHED.json EXACT.json    the second in float32, whatever was launched

Each file is a list of [job, argument, argument, ...]. accelerate keeps FSDP and DeepSpeed for accelerators: with gloo
in the place of nccl, the two functions below are all that it asks about one. What then shards, gathers and steps is
the real PyTorch and the real DeepSpeed.
"""

import json
import os
import runpy
import sys
from importlib import import_module
from pathlib import Path

import torch
from accelerate.state import DistributedType, PartialState

from cosent.cli import module_of, run
from cosent.compute.distributed import decided_by_main, gather, gather_object, rank
from cosent.errors import InputError

DEEPSPEED = os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true"
if DEEPSPEED or os.environ.get("ACCELERATE_USE_FSDP") == "true":
    PartialState._prepare_backend = lambda self, *given, **named: ("gloo", DistributedType.MULTI_GPU)
    PartialState.set_device = lambda self: setattr(self, "device", torch.device("cpu"))
if DEEPSPEED:
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # a minute of compiling C++; gloo needs none


def check_gathering(output: str) -> None:
    """Writes what `gather` and its neighbours give this rank, and the gradient that comes back."""
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]]) + 10 * rank()
    values = values.t().requires_grad_()  # not contiguous
    pool = gather(values)  # (4, 2)
    weights = torch.arange(8.0).view(4, 2) * (rank() + 1)  # every rank has a loss of its own
    (gradient,) = torch.autograd.grad((pool * weights).sum(), values)
    decided = decided_by_main(lambda: ["main", rank()])

    def refuse():
        raise InputError("no")

    try:
        decided_by_main(refuse)
    except InputError as error:
        refused = str(error)
    told = [pool.tolist(), gradient.tolist(), gather_object(rank()), decided, refused]
    Path(f"{output}.{rank()}.json").write_text(json.dumps(told), encoding="utf-8")


def run_jobs(file: str) -> None:
    for name, *arguments in json.loads(Path(file).read_text(encoding="utf-8")):
        if name == "check_gathering":
            check_gathering(*arguments)
            continue
        sys.argv[1:] = arguments
        if name == "two_losses":
            runpy.run_path(str(Path(__file__).with_name("two_losses.py")), run_name="__main__")
            continue
        run(import_module(module_of(name)).main, shares_work=True)


if __name__ == "__main__":
    as_launched, exact = sys.argv[1:]
    run_jobs(as_launched)
    os.environ["ACCELERATE_MIXED_PRECISION"] = "no"
    run_jobs(exact)
