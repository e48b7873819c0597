"""Damage input files of jobs, as disks and copies do, and compare the outcome with that of the whole file.

python -m lab.benchmarks.damage --work /tmp/damage --cases 2000 --output lab/results/damage.json

A case is one file, damaged in one way at a place drawn by the number of the case, and a job that reads it. It is
refused in words; or what was damaged is made again or passed over, with a warning; or the answer is that of the whole
file; or it is another one, a traceback, a crash or a hang. The campaign continues where it was stopped.
"""

import argparse
import hashlib
import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from cosent.comparing.document import markdown_table
from cosent.comparing.results import read_results, save_results
from cosent.errors import InputError, messages_for_users
from cosent.record import shortened
from lab import ROOT
from lab.benchmarks.common import save
from lab.benchmarks.forked import SHORT, cosent, forked, make, set_up

SENTENCES = ["怎么还款", "如何还款", "借呗怎么还不了", "花呗可以提前还款吗", "怎样提高额度", "今天天气不错"]
COPY, LOG, CASES = Path("case"), Path("log.txt"), Path("cases.jsonl")
CHECKPOINTS = ["--save_strategy", "steps", "--save_steps", "3", "--eval_strategy", "steps", "--eval_steps", "3"]
RESUMED = ["train", *SHORT, *CHECKPOINTS, "--save_total_limit", "9"]
OUTCOMES = ["refused", "again", "harmless", "other", "traceback", "crash", "hang"]
BYTES = ("truncated", "bit", "zeros", "empty", "missing")
TEXT = (*BYTES, "digit")


@dataclass(frozen=True)
class Kind:
    """An input of jobs: a folder, the function that reads a copy of it in `COPY`, and its turns in a round."""

    folder: Path
    read: Callable[[], Any]
    turns: int = 2
    pattern: str = "**/*"
    left_out: str = r"README\.md|run\.py|log\.txt|adapter/|checkpoint-"  # what this reader does not read

    @property
    def files(self) -> list[str]:
        files = [path for path in sorted(self.folder.glob(self.pattern)) if path.is_file()]
        names = (str(path.relative_to(self.folder)) for path in files)
        return [name for name in names if not re.search(self.left_out, name)]


def kinds() -> dict[str, Kind]:
    """All kinds, made where they are not there yet."""
    if not Path("study").is_dir():
        measured = read_results(ROOT / "lab/results/pawsx_few")
        save_results(Path("study"), measured.definition, [*measured.results, *measured.trials])
    for name in ("vectors", "index", "cache"):
        Path(name).mkdir(exist_ok=True)
    for name in ("vectors", "index"):
        shutil.copy("texts.txt", name)
        words = ["--model", "bi", "--device", "cpu", "--normalize"]
        make(Path(name, "v.npy"), "encode", *words, "--text", f"{name}/texts.txt", "--output", f"{name}/v.npy")
    found = {
        "bi-encoder": Kind(Path("bi"), scores, 5),
        "cross-encoder": Kind(Path("cross"), scores, 4),
        "corpus": Kind(Path("data/pairs"), corpus, 3),
        "vectors": Kind(Path("vectors"), search(), 3),
        "cache of a teacher": Kind(Path("cache"), teacher, 2),
        "study": Kind(Path("study"), report, 1, "*.*"),
        "checkpoint": Kind(Path("stopped"), resumed, 2, "checkpoint-9/*", left_out="training_args|$^"),
    }
    if find_spec("faiss"):
        forked(search("--faiss", "HNSW32,Flat", folder="index"), LOG)
        found["index of faiss"] = Kind(Path("index"), search("--faiss", "HNSW32,Flat"), 1, "*.faiss")
    for name in ("onnx", "openvino"):
        if find_spec(name):
            make(Path(name), "export", "--model", "bi", "--format", name, "--output", name)
            found[f"{name} bundle"] = Kind(Path(name), bundle, 1)
    if not Path("stopped/checkpoint-9/whole.json").exists():
        make(Path("stopped/run.json"), *RESUMED, "--output_dir", "stopped")
        unfinish(Path("stopped"))
    if not any(Path("cache").iterdir()):
        forked(lambda: teacher(Path("cache")), LOG)
    return found


def unfinish(folder: Path) -> None:
    """Makes a finished run one that was killed after step 9."""
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
        elif not path.name.startswith("checkpoint-") or int(path.name.split("-")[1]) > 9:
            shutil.rmtree(path)
    shutil.copy(folder / "checkpoint-9/settings.json", folder / "UNFINISHED")


def digest(*arrays: Any) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[:16]


def scores() -> Any:
    from cosent.models.auto import load_model
    from cosent.models.decision import choose_rule, decision_rules

    model = load_model(str(COPY))
    values = model.similarity(SENTENCES[:-1], SENTENCES[1:])
    rule = choose_rule(decision_rules(str(COPY)), None, str(COPY))
    return [digest(values), rule and digest(rule.probabilities(values), rule.similar(values))]


def corpus() -> Any:
    from cosent.data.corpus import load_corpus

    loaded = load_corpus(str(COPY))
    rows = {name: hashlib.sha256(repr(split[:]).encode()).hexdigest() for name, split in loaded.splits.items()}
    manifest = loaded.manifest
    return [rows, manifest.label_kind, manifest.label_min, manifest.label_max, manifest.max_length, manifest.prompt]


def search(*flags: str, folder: str | Path = COPY) -> Callable[[], str]:
    def found() -> str:
        words = ["--model", "bi", "--index", f"{folder}/v.npy", "--device", "cpu", "--top", "10", *flags]
        cosent("search", *words, "--query", SENTENCES[0])()
        return digest(np.frombuffer(b"".join(answers(LOG)), np.uint8))

    return found


def answers(log: Path) -> list[bytes]:
    """The lines of JSON in a log: what a job prints, without what it logs."""
    return [line for line in log.read_bytes().splitlines() if line.startswith(b"{")]


def teacher(cache: Path = COPY) -> Any:
    from cosent.models.auto import load_model
    from cosent.models.cache import growing_vectors, teacher_scores

    pairs = SENTENCES[:-1], SENTENCES[1:]
    return [
        digest(growing_vectors(load_model("bi"), SENTENCES, cache)),
        digest(teacher_scores(load_model("cross"), *pairs, cache)),
    ]


def bundle() -> Any:
    from cosent.models.bundle import Bundle

    try:
        loaded = Bundle(COPY)
    except ValueError as error:  # run.py, which needs no cosent, ends with its message
        raise InputError(str(error)) from error
    values = loaded.similarity(SENTENCES[:-1], SENTENCES[1:])
    return [digest(values), digest(loaded.probabilities(values)), digest(loaded.similar(values))]


def report() -> Any:
    cosent("report", COPY)()
    return [digest(np.fromfile(path, np.uint8)) for path in sorted(COPY.rglob("*.md"))]


def resumed() -> Any:
    cosent(*RESUMED, "--output_dir", COPY, "--resume_from_checkpoint", "auto")()
    return digest(np.fromfile(COPY / "model.safetensors", np.uint8))


def damage(path: Path, how: str, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    place = draw.randrange(len(content)) if content else 0
    if how == "truncated":
        del content[place:]
    elif how == "bit":
        content[place : place + 1] = bytes([content[place] ^ (1 << draw.randrange(8))]) if content else b"\1"
    elif how == "zeros":
        end = min(len(content), place + draw.choice([16, 512, 4096]))
        content[place:end] = bytes(end - place)
    elif how == "digit":
        place = draw.choice([match.start() for match in re.finditer(rb"\d", content)] or [place])
        digits = [b"%d" % digit for digit in range(10)]
        content[place : place + 1] = draw.choice([digit for digit in digits if digit != content[place : place + 1]])
    else:
        content.clear()
    path.write_bytes(content)
    if how == "missing":
        path.unlink()


def measure(name: str, kind: Kind, number: int, whole: Any) -> dict:
    draw = random.Random(number)
    file = draw.choice(kind.files)
    is_text = Path(file).suffix in (".json", ".jsonl", ".txt", ".xml")
    how = draw.choice(TEXT if is_text else BYTES)
    fresh(kind)
    damage(COPY / file, how, draw)
    ended = forked(kind.read, LOG)
    outcome = ended.how
    if outcome == "ok" and ended.value == whole:
        outcome = "again" if re.search(r"again|skipped", ended.text) else "harmless"
    elif outcome == "ok":
        outcome = "other"
    return {"number": number, "kind": name, "file": file, "how": how, "outcome": outcome, "text": ended.text[-300:]}


def fresh(kind: Kind) -> None:
    """A new copy of what is damaged, without the other checkpoints' work of earlier cases."""
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(kind.folder, COPY)


def reference(kind: Kind) -> Any:
    """Answers of the undamaged folder, checked to be equal twice."""
    values = []
    for _ in range(2):
        fresh(kind)
        ended = forked(kind.read, LOG)
        if ended.how != "ok":
            raise InputError(f"The whole {kind.folder} is {ended.how}: {ended.text}")
        values.append(ended.value)
    if values[0] != values[1]:
        raise InputError(f"{kind.folder} answers differently twice: {values}.")
    return values[0]


def damage_table(result: dict) -> str:
    """Outcomes by damaged input."""
    rows = [[row["kind"], row["cases"], *(row[outcome] for outcome in OUTCOMES[:5])] for row in result["rows"]]
    rows.append(["all", *(sum(column) for column in zip(*(row[1:] for row in rows), strict=True))])
    header = ["damaged", "cases", "refused in words", "made again", "no effect", "other numbers", "traceback"]
    ended = sum(row["crash"] + row["hang"] for row in result["rows"])
    return (
        f"{markdown_table(header, rows)}\n\nA file cut off, with a bit flipped, zeros or one digit changed, empty or "
        f"missing; {ended} crashes or hangs. {result['device']}, commit {shortened(result['commit'])}."
    )


def main(args: argparse.Namespace) -> None:
    output = args.output.absolute()
    set_up(args.work)
    every = kinds()
    done = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()] if CASES.exists() else []
    turns = [name for name, kind in every.items() for _ in range(kind.turns)]
    order = list(islice(cycle(turns), args.cases))
    references: dict[str, Any] = {}
    with open(CASES, "a", encoding="utf-8") as file:
        for number in range(len(done), args.cases):
            name = order[number]
            if name not in references:
                references[name] = reference(every[name])
            done.append(measure(name, every[name], number, references[name]))
            file.write(json.dumps(done[-1], ensure_ascii=False) + "\n")
            file.flush()
            if done[-1]["outcome"] not in OUTCOMES[:3]:
                print(json.dumps(done[-1], ensure_ascii=False), flush=True)
    rows = []
    for name in every:
        outcomes = Counter(case["outcome"] for case in done if case["kind"] == name)
        rows.append({"kind": name, "cases": outcomes.total()} | {outcome: outcomes[outcome] for outcome in OUTCOMES})
    print(damage_table(save(str(output), "damage", rows, cases=len(done))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for models, copies and finished cases")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    with messages_for_users():
        main(parser.parse_args())
