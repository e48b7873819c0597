"""Teach a small encoder the similarities of a public one, among near neighbours, beside CoSENT on labelled corpora.

    python -m lab.student vectors --teacher e5-small-stsb --lines lines.txt --vectors runs/vectors
    python -m lab.student train --start similar --lines lines.txt --vectors runs/vectors --labelled 0.5 --steps 2000 \\
        --output_dir runs/taught
    python -m lab.student measure similar runs/taught --output lab/results/student_public.json

`vectors` stores the teacher's vectors in parts of 10,000 lines, so that a training takes what is there. `train` mines
the nearest lines of every line by the teacher, and a batch has 16 lines with 7 neighbours each: random lines would
teach topics. Its loss is `kl` (the teacher's softmax over the other lines of the batch, of centred cosines) or `cosent`
(the teacher's cosines within each group as graded labels, of which only the order counts), plus the squared distance
between the teacher's unit vectors and a linear map of the student's, which is dropped afterwards. A share of the steps
is in-batch CoSENT on labels instead, each batch from one corpus, as in recipes/bi_encoder/similar.yaml. No line of a
validation or test split is a line of the text. `measure` scores on test, on unseen questions, and LCQMC retrieval.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from cosent.data.collators import PairCollator, pad
from cosent.data.corpus import load_corpus
from cosent.data.pairs import NO_PREFIXES
from cosent.data.retrieval import retrieval_task
from cosent.data.samplers import CorpusSampler
from cosent.errors import messages_for_users
from cosent.evaluation.metrics import correlations
from cosent.evaluation.retrieval import retrieval_metrics
from cosent.losses import find_loss
from cosent.losses.cosent import cosent_loss
from cosent.losses.in_batch import cosent_in_batch_loss
from cosent.models.auto import load_bi_encoder
from cosent.models.bi_encoder import SentenceEncoder
from cosent.search.neighbours import nearest
from cosent.training.objective import build_objective
from cosent.training.pairs import training_pairs
from lab.benchmarks.common import save
from lab.benchmarks.front import search

PART = 10_000  # lines of a file of vectors
GROUPS, MEMBERS, NEIGHBOURS = 16, 8, 32  # groups of a batch, their lines, and the mined neighbours that they come from
HELD_OUT = 300  # first lines, whose order among their neighbours is measured
TEMPERATURE = 0.05
WEIGHTS = {"lcqmc": 6.0, "atec": 3.0, "bq": 2.5, "stsb": 1.0, "nli": 1.0}  # shares of labelled batches
TESTS = ("atec", "bq", "lcqmc", "pawsx", "stsb")
PAIRS = 1000  # of a validation split


def read_lines(file: str) -> list[str]:
    return Path(file).read_text(encoding="utf-8").splitlines()


def write_vectors(args: argparse.Namespace) -> None:
    """Encodes the parts that are not there yet."""
    teacher, lines = load_bi_encoder(args.teacher).eval(), read_lines(args.lines)
    Path(args.vectors).mkdir(parents=True, exist_ok=True)
    for start in range(0, len(lines), PART):
        file = Path(args.vectors, f"{start // PART:03d}.npy")
        if not file.is_file():
            with torch.autocast("cpu", torch.bfloat16):
                vectors = teacher.encode(lines[start : start + PART], normalize_embeddings=True)
            np.save(file.with_suffix(".part.npy"), vectors.astype(np.float16))
            file.with_suffix(".part.npy").rename(file)


def read_vectors(folder: str, parts: int | None) -> np.ndarray:
    """The stored vectors, centred and of length 1: what all lines have in common says nothing."""
    files = sorted(file for file in Path(folder).glob("*.npy") if ".part" not in file.name)[:parts]
    vectors = np.concatenate([np.load(file) for file in files]).astype(np.float32)
    vectors -= vectors.mean(0)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def teacher_batches(rows: np.ndarray, seed: int) -> Iterator[np.ndarray]:
    """Numbers of the lines of batches: `GROUPS` lines, each followed by `MEMBERS` - 1 of its neighbours."""
    draw = np.random.default_rng(seed)
    while True:
        order = draw.permutation(np.arange(HELD_OUT, len(rows)))
        for start in range(0, len(order) - GROUPS, GROUPS):
            anchors = order[start : start + GROUPS]
            near = draw.permuted(rows[anchors], axis=1)[:, : MEMBERS - 1]
            yield np.column_stack([anchors, near]).ravel()


def teaching_loss(vectors: Tensor, target: Tensor, head: torch.nn.Linear, kind: str, regression: float) -> Tensor:
    """The loss of a batch of lines, see the top of the file."""
    student, teacher = F.normalize(vectors.float(), dim=-1), target
    mine, theirs = student @ student.T, teacher @ teacher.T  # (lines, lines)
    if kind == "kl":
        other = ~torch.eye(len(mine), dtype=torch.bool)
        mine, theirs = (each[other].view(len(mine), -1) / TEMPERATURE for each in (mine, theirs))
        loss = F.kl_div(mine.log_softmax(1), theirs.log_softmax(1), reduction="batchmean", log_target=True)
    else:
        group = torch.arange(len(mine)) // MEMBERS
        pairs = (group[:, None] == group).triu(1)
        loss = cosent_loss(mine[pairs], (theirs[pairs] * 50).round())
    far = (F.normalize(head(student), dim=-1) - teacher).square().sum(1).mean()
    return loss + regression * far


def labelled_batches(encoder: SentenceEncoder, seed: int, batch: int = 64) -> Iterator[dict[str, Tensor]]:
    """Batches of labelled pairs, each of one corpus."""
    corpora = {name: load_corpus(name) for name in WEIGHTS}
    labels = {name: corpus.manifest for name, corpus in corpora.items()}
    rows = {name: corpus.split("train") for name, corpus in corpora.items()}
    objective = build_objective(find_loss("cosent_in_batch"), {}, list(labels.values()))
    pairs = training_pairs(rows, labels, dict.fromkeys(rows, objective), encoder, NO_PREFIXES)
    sampler = CorpusSampler([len(part) for part in rows.values()], batch, seed, list(WEIGHTS.values()))
    collator = PairCollator.from_tokenizer(encoder.tokenizer)
    while True:
        yield from DataLoader(pairs, batch, sampler=sampler, collate_fn=collator)
        sampler.set_epoch(sampler.epoch + 1)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    settings = {name: value for name, value in vars(args).items() if name != "job"}
    encoder = load_bi_encoder(args.start)
    vectors, lines = read_vectors(args.vectors, args.parts), read_lines(args.lines)
    lines = lines[: len(vectors)]
    began = time.process_time()
    file = Path(args.vectors, f"neighbours_{len(lines)}.npz")
    if not file.is_file():
        pool = vectors[HELD_OUT:]
        exclude = np.arange(len(lines)) - HELD_OUT
        np.savez(file, rows=nearest(vectors, pool, NEIGHBOURS, np.maximum(exclude, -1))[0] + HELD_OUT)
    rows = np.load(file)["rows"]
    ids = encoder.tokenizer(lines, truncation=True, max_length=64, return_attention_mask=False)["input_ids"]
    ids = [np.array(each) for each in ids]
    teaching, labelled = teacher_batches(rows, args.seed), labelled_batches(encoder, args.seed)
    head = torch.nn.Linear(encoder.embedding_dimension, vectors.shape[1])
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=args.rate, weight_decay=0.0)
    ramp = args.steps * 0.1
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / ramp, (args.steps - step) / (args.steps - ramp))
    )
    history = [validate(encoder, lines, vectors, rows) | {"step": 0}]
    print(history[-1], flush=True)
    sums = {"teach": [], "label": []}
    for step in range(1, args.steps + 1):
        encoder.train()
        on_labels = int(step * args.labelled) > int((step - 1) * args.labelled)
        with torch.autocast("cpu", torch.bfloat16):
            if on_labels:
                batch = next(labelled)
                targets = batch["labels"], batch["groups"]
                embeddings = encoder(batch["input_ids"].flatten(0, 1), batch["attention_mask"].flatten(0, 1))
            else:
                numbers = next(teaching)
                embeddings = encoder(**pad([ids[number] for number in numbers], encoder.tokenizer.pad_token_id))
        if on_labels:
            loss = cosent_in_batch_loss(embeddings.float().unflatten(0, (-1, 2)), *targets)
        else:
            target = torch.from_numpy(vectors[numbers])
            loss = teaching_loss(embeddings, target, head, args.loss, args.regression)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        sums["label" if on_labels else "teach"].append(float(loss.detach()))
        if step % args.every == 0 or step == args.steps:
            losses = {name: float(np.mean(values[-200:])) for name, values in sums.items() if values}
            history.append(validate(encoder, lines, vectors, rows) | losses | {"step": step})
            history[-1]["seconds"] = time.process_time() - began
            print({name: round(value, 3) for name, value in history[-1].items()}, flush=True)
            encoder.save_pretrained(args.output_dir)
    taught = json.dumps({"settings": settings, "history": history}, indent=1)
    Path(args.output_dir, "taught.json").write_text(taught, encoding="utf-8")


def validate(encoder: SentenceEncoder, lines: list[str], vectors: np.ndarray, rows: np.ndarray) -> dict[str, float]:
    """Validation Spearman x100, and how well the order of a held-out line's neighbours agrees with the teacher's."""
    encoder.eval()
    result = {name: spearman(encoder, name, "validation", PAIRS) for name in TESTS}
    result["mean"] = float(np.mean(list(result.values())))
    near = rows[:HELD_OUT, ::2]  # (held out, neighbours)
    mine = encoder.encode([lines[row] for row in near.ravel()], normalize_embeddings=True).reshape(*near.shape, -1)
    anchors = encoder.encode(lines[:HELD_OUT], normalize_embeddings=True)
    scores = np.einsum("ad,and->an", anchors, mine)
    theirs = np.einsum("ad,and->an", vectors[:HELD_OUT], vectors[near])
    agreement = [correlations(*both)["spearman"] for both in zip(scores, theirs, strict=True)]
    return result | {"agreement": 100 * float(np.mean(agreement))}


def spearman(encoder: SentenceEncoder, corpus: str, split: str, limit: int | None = None) -> float:
    loaded = load_corpus(corpus)
    rows = loaded.split(split)
    scores = encoder.similarity(rows["sentence1"][:limit], rows["sentence2"][:limit])
    return 100 * correlations(scores, loaded.labels(split)[:limit])["spearman"]


def measure(args: argparse.Namespace) -> None:
    """Test Spearman of all corpora, Recall of unseen questions, Recall@10 of LCQMC; rows that are there stay."""
    before = json.loads(args.output.read_text(encoding="utf-8"))["rows"] if args.output.is_file() else []
    rows = {row["name"]: row for row in before}
    for folder in args.models:
        encoder = load_bi_encoder(folder).eval()
        row = {"name": Path(folder).name, "megabytes": sum(w.numel() for w in encoder.parameters()) * 2 / 1e6}
        row |= search(encoder) | {"spearman": {name: spearman(encoder, name, "test") for name in TESTS}}
        row["lcqmc_recall_at_10"] = 100 * recall_at_10(encoder, "lcqmc")
        if (record := Path(folder, "taught.json")).is_file():
            row |= json.loads(record.read_text(encoding="utf-8"))
        rows[row["name"]] = row
        save(str(args.output), "student_public", list(rows.values()))


def recall_at_10(encoder: SentenceEncoder, corpus: str) -> float:
    """Of the test split, as `cosent evaluate` has it."""
    loaded = load_corpus(corpus)
    task = retrieval_task(loaded.split("test"), loaded.manifest, corpus)
    vectors = encoder.encode(task.pool, normalize_embeddings=True)
    found = retrieval_metrics(vectors, vectors, task.relevance)
    return float(found["recall_at_10"].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    jobs = parser.add_subparsers(required=True)
    job = jobs.add_parser("vectors", help="store the teacher's vectors of all lines")
    job.set_defaults(job=write_vectors)
    job.add_argument("--teacher", required=True)
    student = jobs.add_parser("train", help="train a student")
    student.set_defaults(job=train)
    student.add_argument("--start", default="similar")
    student.add_argument("--parts", type=int, help="files of vectors to read; default: all")
    student.add_argument("--loss", choices=("kl", "cosent"), default="kl")
    student.add_argument("--regression", type=float, default=1.0, help="weight of the squared distance of vectors")
    student.add_argument("--labelled", type=float, default=0.5, help="share of the steps on labels")
    student.add_argument("--steps", type=int, default=2000)
    student.add_argument("--every", type=int, default=500, help="steps between validations")
    student.add_argument("--rate", type=float, default=3e-4)
    student.add_argument("--seed", type=int, default=1)
    student.add_argument("--output_dir", required=True)
    for each in (job, student):
        each.add_argument("--lines", required=True, help="file of sentences, one a line")
        each.add_argument("--vectors", required=True, help="folder of their vectors")
    job = jobs.add_parser("measure", help="score students on test splits and unseen questions")
    job.set_defaults(job=measure)
    job.add_argument("models", nargs="+")
    job.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    args.job(args)


if __name__ == "__main__":
    with messages_for_users():
        main()
