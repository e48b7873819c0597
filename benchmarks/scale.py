"""Measure what a sentence costs to read, encode and store, for the estimate of docs/scale.md: results/scale.json.

python -m benchmarks.scale --corpus lcqmc

One thread, seconds of processor time: what a core does, also where others use the machine at the same time.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import torch

from cosent.compute.processes import peak_memory_mib
from cosent.data.corpus import load_corpus
from cosent.data.files import SENTENCE, open_table, table_writer
from cosent.inference.embedding import chunk_embedder
from cosent.inference.vectors import encode_shard
from cosent.models.teacher import load_with_settings
from cosent.training.record import environment

RESULT = Path(__file__).parents[1] / "results/scale.json"


def main(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    rows = load_corpus(args.corpus, args.data_dir).split("train")
    texts = list(dict.fromkeys(text for name in ("sentence1", "sentence2") for text in rows[name][:]))[: args.sentences]
    encoder, settings = load_with_settings(args.model, normalize=True)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "part.parquet")
        with table_writer(source, ("text",)) as write:
            write([{"text": text} for text in texts])
        reading = cpu_seconds(lambda: sum(1 for _ in open_table(source, None, SENTENCE, "--text_column").texts()))
        encoding = []
        with chunk_embedder(encoder, lambda: encoder) as run:
            for turn in range(args.repeats + 1):
                output = Path(scratch, f"{turn}.npy")
                encoding.append(cpu_seconds(lambda to=output: encode_shard(run, source, to, settings)))
        stored = output.stat().st_size
    measured = {
        "model": args.model,
        "corpus": Path(args.corpus).name,
        "sentences": len(texts),
        "characters": sum(map(len, texts)) / len(texts),
        "dim": settings.dim,
        "encode_seconds": encoding[1:],  # the first turn also made caches
        "read_seconds": reading,
        "bytes_per_sentence": stored / len(texts),
        "peak_mib": peak_memory_mib(),
        "load_average": os.getloadavg()[0],
    }
    RESULT.write_text(
        json.dumps({"kind": "scale"} | measured | asdict(environment()), indent=1) + "\n", encoding="utf-8"
    )
    print(RESULT)


def cpu_seconds(work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="lcqmc", help="prepared corpus whose sentences are encoded")
    parser.add_argument("--data_dir", default="data")
    parser.add_argument("--model", default="mini")
    parser.add_argument("--sentences", type=int, default=12288, help="distinct ones")
    parser.add_argument("--repeats", type=int, default=3)
    main(parser.parse_args())
