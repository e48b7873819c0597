"""Packed against padded batches for every architecture that packs: training steps of both towers, and `encode`.

    python -m benchmarks.speed.packing --corpus data/lcqmc --output results/packing.json

Random models of 4 layers x 256. Both ways take turns at every batch, and seconds are those of the processor, so that
other programs disturb little. 20 seconds per architecture; those that the file has are kept.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.backbone_tables import packing_table
from benchmarks.common import BATCH_SIZE, WARM_UP
from benchmarks.families import TOWERS, batches, encoder_of, loss_of, measure_each, packs, random_model
from cosent.compute.onednn import trainable_onednn_linears
from cosent.errors import messages_for_users

PAIRS = 5 * BATCH_SIZE
WAYS = {"packed": True, "padded": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True, help="prepared corpus")
    parser.add_argument("--output", required=True, help="JSON file to write, or to complete")
    parser.add_argument("--only", nargs="+", default=None, help="architectures to measure again, e.g. qwen3")
    parser.add_argument("--turns", type=int, default=3, help="times that each batch is computed in each way")
    args = parser.parse_args()
    torch.set_num_threads(1)

    def row(name, rows, max_length) -> dict:
        return {"per_second": speeds(name, rows, max_length, args.turns) if packs(name) else {}}

    print(packing_table(measure_each("packing", args.corpus, PAIRS, args.output, args.only, row)))


def speeds(name: str, rows, max_length: dict[str, int], turns: int) -> dict:
    """Pairs or sentences per second, by task and way."""
    measured = {}
    for tower in TOWERS:
        with random_model(name, tower, max_length[tower]) as model:
            made = batches(rows, model.train())

            def learn(batch, packing, model=model):
                model.zero_grad()
                loss_of(model, batch, packing).backward()

            with trainable_onednn_linears():
                measured[f"train_{tower}"] = per_second(made, learn, turns, BATCH_SIZE)
            if tower == "bi_encoder":
                sentences = [*rows["sentence1"][:], *rows["sentence2"][:]]

                def encode(sentences, packing, model=model):
                    encoder_of(model).packing = packing
                    encoder_of(model).encode(sentences)

                measured["encode"] = per_second([sentences], encode, turns, len(sentences))
    return measured


def per_second(inputs: list, run: Callable, turns: int, count: int) -> dict[str, float]:
    """`count` per second of `run(input, packing)`: medians over turns of each input, added up."""
    seconds = {way: [[] for _ in inputs] for way in WAYS}
    for turn in range(turns + 1):
        for place, batch in enumerate(inputs[:WARM_UP] if turn == 0 else inputs):
            for way in sorted(WAYS, reverse=turn % 2 == 0):
                start = time.process_time()
                run(batch, WAYS[way])
                if turn:
                    seconds[way][place].append(time.process_time() - start)
    return {way: count * len(inputs) / sum(map(statistics.median, of_way)) for way, of_way in seconds.items()}


if __name__ == "__main__":
    with messages_for_users():
        main()
