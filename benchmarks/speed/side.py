"""One side of a measurement, in its own process: measures once for every line on stdin, one JSON line each.

`benchmarks.speed` starts a process per side and lets them take turns, so that both see the same machine.
"""

import argparse
import json
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import torch
from transformers import set_seed

from benchmarks.speed import encode, loss_kernel, read_pairs, train_bi_encoder, train_cross_encoder
from cosent.compute.processes import peak_memory_mib

TASKS = {
    "train": train_bi_encoder.measure,
    "train_cross_encoder": train_cross_encoder.measure,
    "pair_inputs": read_pairs.measure,
    "encode": encode.measure,
    "kernel": loss_kernel.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", required=True, choices=TASKS)
    parser.add_argument("--side", required=True, choices=("ours", "ours_int8", "theirs"))
    parser.add_argument("--encoder", default="mini", help="mini, base (12 x 768, random) or a folder")
    parser.add_argument("--corpus", help="prepared corpus")
    parser.add_argument("--split", default="train")
    args = parser.parse_args()
    stdout, sys.stdout = sys.stdout, sys.stderr  # trainers print their own lines; ours are the only ones on stdout
    for line in sys.stdin:
        args.count = int(line)  # steps, sentences or pairs, as the task counts
        set_seed(1)
        result = TASKS[args.task](args)
        result["peak_mib"] = peak_memory_mib()
        if torch.cuda.is_available():
            result["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
        print(json.dumps(result), file=stdout, flush=True)


if __name__ == "__main__":
    main()
