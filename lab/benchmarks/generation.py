"""Speed of generating similar sentences: cached and batched, against RoFormer-Sim's own loop.

python -m lab.benchmarks.generation --models runs/student --output lab/results/generation.json

Their loop (roformer-sim with bert4keras' `random_sample`) takes one source at a time with all its samples, and runs
the full sequence again for every token; samples that have ended are dropped. Both sides draw the same sentences with
the same random numbers and the same oneDNN layers.
"""

import argparse
import json
import statistics
import time
from dataclasses import asdict

import numpy as np
import torch
from torch.nn.functional import pad

from cosent.comparing.document import Cell, markdown_table
from cosent.compute.onednn import onednn_linears
from cosent.data.corpus import load_corpus
from cosent.models.decoding import Sampling, sample_tokens, unilm_mask, unwritable, write_targets
from cosent.models.student import Student
from cosent.record import shortened
from cosent.training.job import environment


@torch.inference_mode()
def write_without_cache(student: Student, source: list[int], sampling: Sampling) -> list[list[int]]:
    """As `write_targets` for one source, every step a forward pass over all tokens of the unfinished samples."""
    end = student.tokenizer.sep_token_id
    uniform = sampling.uniform()
    banned = unwritable(student.tokenizer, student.backbone.config.vocab_size)
    ids, going, targets = torch.tensor([source]), torch.arange(sampling.num_samples), {}
    for step in range(sampling.max_length):
        types = pad(torch.zeros(len(ids), len(source), dtype=torch.long), (0, step), value=1)
        mask = unilm_mask(torch.ones_like(ids), types)
        hidden = student.backbone(input_ids=ids, token_type_ids=types, attention_mask=mask).last_hidden_state
        logits = student.head(hidden)[:, -1].masked_fill(banned, -torch.inf)
        if step == 0:  # once for all samples
            ids, logits = ids.expand(len(going), -1), logits.expand(len(going), -1)
        drawn = sample_tokens(logits, uniform[going, step], sampling.top_p, sampling.top_k, sampling.temperature)
        for sample in (drawn == end).nonzero().flatten().tolist():
            targets[int(going[sample])] = ids[sample, len(source) :].tolist()
        more = drawn != end
        ids, going = torch.cat([ids, drawn[:, None]], dim=1)[more], going[more]
        if not len(going):
            break
    return [targets[sample] for sample in sorted(targets)]


def measure(model: str, texts: list[str], sampling: Sampling, rounds: int) -> dict:
    """Seconds of both sides for all texts, taking turns, and the share of equal sentences."""
    student = Student.from_pretrained(model).eval()
    sources = student.tokenize_sources(texts, [], [])
    seconds, written = {"ours": [], "theirs": []}, {}
    write_targets(student, sources[:2], sampling)  # warm up
    for _ in range(rounds):
        start = time.perf_counter()
        written["ours"] = write_targets(student, sources, sampling)
        seconds["ours"].append(time.perf_counter() - start)
        start = time.perf_counter()
        with onednn_linears(student, reorder=True):
            written["theirs"] = [write_without_cache(student, source, sampling) for source in sources]
        seconds["theirs"].append(time.perf_counter() - start)
    lengths = [len(target) for group in written["ours"] for target in group]
    # Not all: where the nucleus is wide, rounding decides between neighbours. The logits are compared in the tests.
    same = [
        a == b
        for ours, theirs in zip(written["ours"], written["theirs"], strict=True)
        for a, b in zip(ours, theirs, strict=False)
    ]
    return {
        "model": model,
        "layers": student.backbone.config.num_hidden_layers,
        "seconds": seconds,
        "ratio": statistics.median(b / a for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)),
        "equal": float(np.mean(same)),
        "ended": len(lengths) / (len(sources) * sampling.num_samples),
        "tokens_per_sentence": float(np.mean(lengths)) if lengths else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", required=True, help="folders of students")
    parser.add_argument("--corpus", default="data/lcqmc", help="prepared corpus that the sources come from")
    parser.add_argument("--sources", type=int, default=50)
    parser.add_argument("--samples", type=int, default=20, help="samples per source")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each side, which take turns")
    parser.add_argument("--output", help="JSON file to write")
    args = parser.parse_args()

    rows = load_corpus(args.corpus).split("test")
    chosen = np.random.default_rng(1).permutation(len(rows))[: args.sources]
    texts = [rows[int(index)]["sentence1"] for index in chosen]
    sampling = Sampling(num_samples=args.samples)
    result = {
        "kind": "generation",
        "corpus": args.corpus,
        "sources": args.sources,
        "samples": args.samples,
        "rows": [measure(model, texts, sampling, args.rounds) for model in args.models],
        **asdict(environment()),
    }
    text = json.dumps(result, indent=2)
    if args.output:
        with open(args.output, "w", encoding="utf-8") as file:
            print(text, file=file)
    print(text)


def generation_table(result: dict) -> str:
    """Speed of sampling sentences against RoFormer-Sim's own loop."""
    header = ["student", "tokens per sentence", "seconds, ours", "theirs", "ratio", "same sentences"]
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        tokens, ratio = (f"{row[key]:.1f}" for key in ("tokens_per_sentence", "ratio"))
        medians = [f"{statistics.median(row['seconds'][side]):.2f}" for side in ("ours", "theirs")]
        rows.append([f"{row['layers']} layers", tokens, *medians, ratio, f"{row['equal']:.0%}"])
    ratios = [(place, header.index("ratio")) for place in range(len(rows))]
    turns = len(result["rows"][0]["seconds"]["ours"])
    return (
        f"{markdown_table(header, rows, strong=ratios)}\n\n"
        f"{result['sources']} sources x {result['samples']} samples, medians of {turns} turns; {result['device']}, "
        f"{result['threads']} threads, commit {shortened(result['commit'])}."
    )


if __name__ == "__main__":
    main()
