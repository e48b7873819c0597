"""Trial of `cosent search` on an FAQ of 3,000 sentences: 200 queries with a synonym in it and 100 without.

    python -m lab.benchmarks.trial --corpora lcqmc bq --output lab/results/trial.json

Queries and sentences are of the test split. Every rule answers by the command, the service and Python, which must find
the same rows. An answer is right if the labels, or chains of them, call it a synonym.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np

from cosent import Index
from cosent.comparing.document import Cell, markdown_table
from cosent.data.corpus import load_corpus
from cosent.data.groups import sentence_groups
from cosent.errors import InputError
from cosent.record import shortened
from lab.benchmarks.common import save

SENTENCES, WITH, WITHOUT = 3000, 200, 100
RULES = ({}, {"min_probability": 0.8}, {"precision": 0.6}, {"precision": 0.7}, {"precision": 0.8})
TIE = 1e-5  # of two cosines
OUTCOMES = ("right", "wrong", "nothing found", "answered without one")

Found = tuple[int, float] | None  # row and cosine


def drawn(name: str, seed: int = 0) -> tuple[dict[str, int], dict[str, int]]:
    """Sentences of an FAQ and queries, each with the number of its synonym group; queries with a synonym first."""
    corpus = load_corpus(name)
    rows = corpus.split("test")
    groups = sentence_groups(rows, corpus.manifest.similar_from)
    members: dict[int, list[str]] = {}
    for sentences, pair in zip(zip(rows["sentence1"], rows["sentence2"], strict=True), groups, strict=True):
        for sentence, group in zip(sentences, pair, strict=True):
            if sentence not in members.setdefault(int(group), []):
                members[int(group)].append(sentence)
    order = np.random.default_rng(seed).permutation(list(members)).tolist()
    asked = [group for group in order if len(members[group]) > 1][: WITH + WITHOUT]
    queries = {members[group][0]: group for group in asked}
    kept = [(sentence, group) for group in asked[:WITH] for sentence in members[group][1:]]
    others = [(sentence, group) for group in order if group not in set(asked) for sentence in members[group]]
    return dict((kept + others)[:SENTENCES]), queries


def by_command(file: Path, queries: Path, rule: dict) -> list[Found]:
    flags = [word for name, value in rule.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "cosent", "search", "--text", str(file), "--text_column", "question", *flags]
    asked = ["--queries", str(queries), "--top", "1", "--json"]
    lines = subprocess.run([*command, *asked], capture_output=True, text=True, check=True).stdout.splitlines()
    hits = [json.loads(line)["hits"] for line in lines]
    return [(some[0]["row"], some[0]["cosine"]) if some else None for some in hits]


def by_service(port: int, queries: list[str], rule: dict) -> list[Found]:
    body = json.dumps({"queries": queries, "top": 1} | rule).encode()
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/search", body, headers)) as answer:
        results = json.loads(answer.read())["results"]
    return [(one["hits"][0]["row"], one["hits"][0]["cosine"]) if one["found"] else None for one in results]


def differ(some: list[Found], others: list[Found]) -> int:
    """Number of queries with different answers, ties up to rounding apart."""
    both = zip(some, others, strict=True)
    return sum(a != b if a is None or b is None else a[0] != b[0] and abs(a[1] - b[1]) > TIE for a, b in both)


def served(file: Path, port: int) -> subprocess.Popen:
    """A running `cosent serve`, ready for requests; the caller ends it."""
    command = [sys.executable, "-m", "cosent", "serve", "--text", str(file), "--text_column", "question"]
    process = subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL)
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
            return process
        except OSError:
            time.sleep(1)
    process.terminate()
    raise SystemExit("The service does not answer.")


def measure(name: str, folder: Path, port: int) -> list[dict]:
    """A row for each rule."""
    sentences, queries = drawn(name)
    file, asked, groups = folder / "faq.jsonl", folder / "queries.txt", list(sentences.values())
    lines = (json.dumps({"question": sentence, "answer": row}) for row, sentence in enumerate(sentences))
    file.write_text("\n".join(lines), encoding="utf-8")
    asked.write_text("\n".join(queries), encoding="utf-8")
    index, service, found = Index.load("similar", [str(file)], "question"), served(file, port), []
    try:
        for rule in RULES:
            row = {"corpus": name, "rule": rule, "sentences": len(sentences), "queries": len(queries)}
            try:
                hits = index.search(list(queries), top=1, **rule)
            except InputError as error:
                found.append(row | {"refused": str(error)})
                continue
            answers: list[Found] = [(some[0].row, some[0].cosine) if some else None for some in hits]
            others = by_command(file, asked, rule), by_service(port, list(queries), rule)
            counts: Counter[str] = Counter()
            for number, (hit, group) in enumerate(zip(answers, queries.values(), strict=True)):
                if number >= WITH:
                    counts["answered without one"] += hit is not None
                else:
                    counts["nothing found" if hit is None else "right" if groups[hit[0]] == group else "wrong"] += 1
            found.append(
                row
                | {outcome: counts[outcome] for outcome in OUTCOMES}
                | {"differ": [differ(answers, one) for one in others]}
            )
    finally:
        service.terminate()
        service.wait()
    return found


def trial_table(result: dict) -> str:
    """Outcomes of the queries by corpus and rule."""
    header = [
        "test split",
        "rule",
        *(f"{one}, of {WITH}" for one in OUTCOMES[:3]),
        f"{OUTCOMES[3]}, of {WITHOUT}",
        "right",
    ]
    rows: list[list[Cell]] = []
    for row in result["rows"]:
        ((rule, value),) = row["rule"].items() or [("the nearest", "")]
        cells: list[Cell] = [row["corpus"], f"{rule} {value}"]
        if "refused" in row:
            rows.append([*cells, "refused", "", "", "", ""])
            continue
        answers = row["right"] + row["wrong"] + row["answered without one"]
        rows.append([*cells, *(row[one] for one in OUTCOMES), f"{row['right'] / max(answers, 1):.0%}"])
    unequal = sum(sum(row.get("differ", [])) for row in result["rows"])
    return (
        f"{markdown_table(header, rows)}\n\n`similar`, {SENTENCES:,} sentences of each test split; answers of the "
        f"command or the service that are not those of Python: {unequal}; commit {shortened(result['commit'])}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", nargs="+", required=True, help="prepared corpora")
    parser.add_argument("--port", type=int, default=8123, help="of the service")
    parser.add_argument("--output", required=True, help="JSON file to write")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in args.corpora for row in measure(name, Path(folder), args.port)]
    print(trial_table(save(args.output, "trial", rows, model="similar")))


if __name__ == "__main__":
    main()
