"""Processor time from text to vector: the shipped bi-encoders, and architectures of others with random weights.

cosent prepare lcqmc --source DIR
OMP_NUM_THREADS=1 python -m lab.benchmarks.encode --corpus lcqmc --output lab/results/encode.json

Encoders take turns in one process, in float32, each on distinct test sentences of its own number.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer, BertConfig, BertModel

from cosent.comparing.report import Cell, markdown_table
from cosent.data.corpus import load_corpus
from cosent.encoders import resolve
from cosent.errors import messages_for_users
from cosent.models.bi_encoder import SentenceEncoder
from cosent.record import shortened
from lab.benchmarks.common import save

SMALL = {"vocab_size": 21128, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
ARCHITECTURES = {  # as their config.json has it; tokens are those of `mini`, one for a Chinese character too
    "bge-small-zh-v1.5": {"num_hidden_layers": 4},
    "gte-small-zh": {"num_hidden_layers": 6},
    "multilingual-e5-small": {
        "num_hidden_layers": 12,
        "hidden_size": 384,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    },
}
SENTENCES = {"similar-lookup": 20_000, "similar": 1_000, **dict.fromkeys(ARCHITECTURES, 500)}  # of a turn


def main(args: argparse.Namespace) -> None:
    split = load_corpus(args.corpus).split("test")
    sentences = sorted({*split["sentence1"][:], *split["sentence2"][:]})
    np.random.default_rng(1).shuffle(sentences)
    samples = {name: sentences[:count] for name, count in SENTENCES.items()}
    with tempfile.TemporaryDirectory() as folder:
        encoders = {name: encoder_of(name, Path(folder)) for name in samples}
    turns: dict[str, list[float]] = {name: [] for name in samples}
    for turn in range(args.repeats + 1):
        for name, sample in samples.items():
            start = time.process_time()
            encoders[name].encode(sample, normalize_embeddings=True)
            if turn:  # the first one warms up
                turns[name].append(1000 * (time.process_time() - start) / len(sample))
    rows = [
        {"name": name, "sentences": len(samples[name]), "milliseconds": statistics.median(of), "turns": of}
        for name, of in turns.items()
    ]
    lengths = statistics.mean(map(len, sentences))
    load = round(os.getloadavg()[0], 1)
    print(encode_table(save(args.output, "encode", rows, corpus=args.corpus, characters=lengths, load=load)))


def encoder_of(name: str, folder: Path) -> SentenceEncoder:
    """A shipped encoder, or one of another's architecture with random weights, in float32 and evaluation mode."""
    if name in ARCHITECTURES:
        config = BertConfig(**SMALL | ARCHITECTURES[name])
        BertModel(config, add_pooling_layer=False).save_pretrained(folder / name)
        AutoTokenizer.from_pretrained(resolve("mini")).save_pretrained(folder / name)
    path = str(folder / name) if name in ARCHITECTURES else name
    return SentenceEncoder.from_pretrained(path, pooling="mean").float().eval()


def encode_table(result: dict) -> str:
    """Milliseconds of processor time a sentence, and the sentences a second that they make, by encoder."""
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        name = f"{row['name']}, random weights" if row["name"] in ARCHITECTURES else row["name"]
        ends = f"{min(row['turns']):#.2g} to {max(row['turns']):#.2g}"
        rows.append([name, f"{row['milliseconds']:#.2g}", ends, f"{1000 / row['milliseconds']:,.0f}"])
    note = (
        f"Distinct test sentences of {result['corpus']} ({result['characters']:.1f} characters); medians of "
        f"{len(result['rows'][0]['turns'])} turns, float32; {result['device']}, {result['threads']} thread, load of "
        f"the machine {result['load']}, commit {shortened(result['commit'])}."
    )
    return f"{markdown_table(['', 'ms a sentence', 'range', 'sentences a second'], rows)}\n\n{note}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", required=True, help="a prepared corpus")
    parser.add_argument("--repeats", type=int, default=5, help="timed turns of each encoder")
    parser.add_argument("--output", required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
