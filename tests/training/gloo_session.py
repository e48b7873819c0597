"""Jobs one after the other with gloo on a CPU in the place of nccl on GPUs: what `test_sharded_training.py` launches.

python tests/training/gloo_session.py AS_LAUNCHED.json EXACT.json    the second in float32, whatever was launched

accelerate keeps FSDP and DeepSpeed for accelerators. The two functions below are all that it asks about one; what then
shards, gathers and steps is the real PyTorch and the real DeepSpeed.
"""

import os
import sys

import torch
from accelerate.state import DistributedType, PartialState

from tests.compute.session import run_jobs

PartialState._prepare_backend = lambda self, *given, **named: ("gloo", DistributedType.MULTI_GPU)
PartialState.set_device = lambda self: setattr(self, "device", torch.device("cpu"))

if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # a minute of compiling C++; gloo needs none

if __name__ == "__main__":
    as_launched, exact = sys.argv[1:]
    run_jobs(as_launched)
    os.environ["ACCELERATE_MIXED_PRECISION"] = "no"
    run_jobs(exact)
