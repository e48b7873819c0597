"""Teach a small encoder the similarities of a public one, among near neighbours, beside CoSENT on labelled corpora.

    cosent encode --model e5-small-stsb --text lines.txt --dtype bfloat16 --output vectors.npy
    python -m lab.student train similar --lines lines.txt --vectors vectors.npy --output runs/taught
    python examples/soup.py similar runs/taught runs/soup
    python -m lab.student measure similar runs/taught runs/soup --output lab/results/student_public.json

`train` mines the nearest lines of every line by the teacher. A batch is 16 lines with 7 neighbours each, since random
lines would teach topics; its loss is the Kullback-Leibler divergence of the student's softmax over the other lines from
the teacher's, of centred cosines, plus the squared distance of the teacher's unit vectors from a linear map of the
student's, which is dropped afterwards. Of `--period` steps, one is such a batch; the others are in-batch CoSENT on
labels, each batch from one corpus, as recipes/bi_encoder/similar.yaml has it. Several `--vectors` are teachers whose
cosines are averaged. Lines: 60,000 random ones of training splits and of plain text, none of a
validation or test split. `measure` scores on test, on unseen questions, and on LCQMC retrieval.
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

from cosent.data.corpus import load_corpus
from cosent.data.pairs import NO_PREFIXES, CorpusSampler, PairCollator, pad
from cosent.data.retrieval import retrieval_task
from cosent.errors import messages_for_users
from cosent.evaluation.metrics import correlations
from cosent.evaluation.retrieval import retrieval_metrics
from cosent.losses import find_loss
from cosent.losses.in_batch import cosent_in_batch_loss
from cosent.models.bi_encoder import SentenceEncoder
from cosent.search.neighbours import nearest
from cosent.training.objective import build_objective
from cosent.training.pairs import training_pairs
from lab.benchmarks.common import save
from lab.benchmarks.front import search

GROUPS, MEMBERS, NEIGHBOURS = 16, 8, 32  # groups of a batch, their lines, and the mined neighbours that they come from
HELD_OUT = 300  # first lines, no anchors of a batch: the order of their neighbours is measured
TEMPERATURE, MAX_LENGTH, PAIRS = 0.05, 64, 64  # of both softmaxes; tokens of a line; pairs of a labelled batch
WEIGHTS = {"lcqmc": 6.0, "atec": 3.0, "bq": 2.5, "stsb": 1.0, "nli": 1.0}  # shares of labelled batches
TESTS, VALIDATED = ("atec", "bq", "lcqmc", "pawsx", "stsb"), 1000  # corpora, and pairs of their validation splits


def read_vectors(files: list[str]) -> np.ndarray:
    """Vectors whose cosines are the mean of the teachers', each centred: what all lines have in common says nothing."""
    teachers = []
    for file in files:
        vectors = np.load(file).astype(np.float32)
        vectors -= vectors.mean(0)
        teachers.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    return np.hstack(teachers) / np.float32(np.sqrt(len(teachers)))


def mined(vectors: np.ndarray) -> np.ndarray:
    """Rows of the nearest lines of each line, best first; of all lines but those held out."""
    itself = np.maximum(np.arange(len(vectors)) - HELD_OUT, -1)
    return nearest(vectors, vectors[HELD_OUT:], NEIGHBOURS, itself)[0] + HELD_OUT


def teacher_batches(rows: np.ndarray, seed: int) -> Iterator[np.ndarray]:
    """Numbers of the lines of batches: `GROUPS` lines, each followed by `MEMBERS` - 1 of its neighbours."""
    draw = np.random.default_rng(seed)
    while True:
        order = draw.permutation(np.arange(HELD_OUT, len(rows)))
        for start in range(0, len(order) - GROUPS, GROUPS):
            anchors = order[start : start + GROUPS]
            yield np.column_stack([anchors, draw.permuted(rows[anchors], axis=1)[:, : MEMBERS - 1]]).ravel()


def teaching_loss(vectors: Tensor, teacher: Tensor, head: torch.nn.Linear) -> Tensor:
    """The loss of a batch of lines, see the top of the file."""
    student = F.normalize(vectors.float(), dim=-1)
    other = ~torch.eye(len(student), dtype=torch.bool)
    mine, theirs = (((v @ v.T)[other].view(len(v), -1) / TEMPERATURE).log_softmax(1) for v in (student, teacher))
    far = (F.normalize(head(student), dim=-1) - teacher).square().sum(1).mean()
    return F.kl_div(mine, theirs, reduction="batchmean", log_target=True) + far


def labelled_batches(encoder: SentenceEncoder, seed: int, shares: list[float]) -> Iterator[dict[str, Tensor]]:
    """Batches of labelled pairs, each of one corpus."""
    corpora = {name: load_corpus(name) for name in WEIGHTS}
    labels = {name: corpus.manifest for name, corpus in corpora.items()}
    rows = {name: corpus.split("train") for name, corpus in corpora.items()}
    objective = build_objective(find_loss("cosent_in_batch"), {}, list(labels.values()))
    pairs = training_pairs(rows, labels, dict.fromkeys(rows, objective), encoder, NO_PREFIXES)
    sampler = CorpusSampler([len(part) for part in rows.values()], PAIRS, seed, shares)
    collator = PairCollator.from_tokenizer(encoder.tokenizer)
    while True:
        yield from DataLoader(pairs, PAIRS, sampler=sampler, collate_fn=collator)
        sampler.set_epoch(sampler.epoch + 1)


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    encoder, vectors = SentenceEncoder.from_pretrained(args.start), read_vectors(args.vectors)
    lines = Path(args.lines).read_text(encoding="utf-8").splitlines()
    rows, began = mined(vectors), time.process_time()
    tokenized = encoder.tokenizer(lines, truncation=True, max_length=MAX_LENGTH)["input_ids"]
    ids = [np.array(tokens) for tokens in tokenized]
    teaching, labelled = teacher_batches(rows, args.seed), labelled_batches(encoder, args.seed, args.weights)
    head = torch.nn.Linear(encoder.embedding_dimension, vectors.shape[1])
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=args.rate, weight_decay=0.0)
    ramp = args.steps * 0.1
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / ramp, (args.steps - step) / (args.steps - ramp))
    )
    history = [validate(encoder, lines, vectors, rows) | {"step": 0}]
    for step in range(1, args.steps + 1):
        encoder.train()
        with torch.autocast("cpu", torch.bfloat16):
            if step % args.period == 0:
                numbers = next(teaching)
                embeddings = encoder(**pad([ids[number] for number in numbers], encoder.tokenizer.pad_token_id))
            else:
                batch = next(labelled)
                embeddings = encoder(batch["input_ids"].flatten(0, 1), batch["attention_mask"].flatten(0, 1))
        if step % args.period == 0:
            loss = teaching_loss(embeddings, torch.from_numpy(vectors[numbers]), head)
        else:
            pairs = embeddings.float().unflatten(0, (-1, 2))
            loss = cosent_in_batch_loss(pairs, batch["labels"], batch["groups"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % args.every == 0 or step == args.steps:
            now = validate(encoder, lines, vectors, rows)
            history.append(now | {"step": step, "seconds": time.process_time() - began})
            print({name: round(value, 2) for name, value in history[-1].items()}, flush=True)
    encoder.save_pretrained(args.output)
    settings = {name: value for name, value in vars(args).items() if name != "job"}
    taught = json.dumps({"settings": settings | {"lines": len(lines)}, "history": history}, indent=1)
    Path(args.output, "taught.json").write_text(taught, encoding="utf-8")


def validate(encoder: SentenceEncoder, lines: list[str], vectors: np.ndarray, rows: np.ndarray) -> dict[str, float]:
    """Validation Spearman x100, and how well the order of a held-out line's neighbours agrees with the teacher's."""
    encoder.eval()
    result = {name: spearman(encoder, name, "validation", VALIDATED) for name in TESTS}
    near = rows[:HELD_OUT, ::2]  # (held out, neighbours)
    mine = encoder.encode([lines[row] for row in near.ravel()], normalize_embeddings=True).reshape(*near.shape, -1)
    anchors = encoder.encode(lines[:HELD_OUT], normalize_embeddings=True)
    scores = np.einsum("ad,and->an", anchors, mine)
    theirs = np.einsum("ad,and->an", vectors[:HELD_OUT], vectors[near])
    agreement = [correlations(*both)["spearman"] for both in zip(scores, theirs, strict=True)]
    return result | {"mean": float(np.mean(list(result.values()))), "agreement": 100 * float(np.mean(agreement))}


def spearman(encoder: SentenceEncoder, corpus: str, split: str, limit: int | None = None) -> float:
    loaded = load_corpus(corpus)
    rows = loaded.split(split)
    scores = encoder.similarity(rows["sentence1"][:limit], rows["sentence2"][:limit])
    return 100 * correlations(scores, loaded.labels(split)[:limit])["spearman"]


def measure(args: argparse.Namespace) -> None:
    """Adds rows to a result, or replaces those of the same names."""
    file = Path(args.output)
    rows = {row["name"]: row for row in json.loads(file.read_text(encoding="utf-8"))["rows"]} if file.is_file() else {}
    lcqmc = load_corpus("lcqmc")
    task = retrieval_task(lcqmc.split("test"), lcqmc.manifest, "lcqmc test")
    for folder in args.models:
        encoder, taught = SentenceEncoder.from_pretrained(folder).eval(), Path(folder, "taught.json")
        pool = encoder.encode(task.pool, normalize_embeddings=True)
        row = {"name": Path(folder).name, "millions": sum(weight.numel() for weight in encoder.parameters()) / 1e6}
        row |= search(encoder) | {"spearman": {corpus: spearman(encoder, corpus, "test") for corpus in TESTS}}
        row["lcqmc_recall_at_10"] = float(retrieval_metrics(pool, pool, task.relevance)["recall_at_10"].mean())
        rows[row["name"]] = row | (json.loads(taught.read_text(encoding="utf-8")) if taught.is_file() else {})
        save(args.output, "student_public", list(rows.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    jobs = parser.add_subparsers(required=True)
    student = jobs.add_parser("train")
    student.set_defaults(job=train)
    student.add_argument("start", help="shipped encoder or folder")
    student.add_argument("--lines", required=True, help="file of sentences, one a line")
    student.add_argument("--vectors", nargs="+", required=True, help="their vectors by one or several teachers (.npy)")
    for flag, kind, default in (
        ("steps", int, 1200),
        ("period", int, 2),
        ("every", int, 400),
        ("rate", float, 3e-4),
        ("seed", int, 1),
    ):
        student.add_argument(f"--{flag}", type=kind, default=default)
    student.add_argument(
        "--weights", type=float, nargs=len(WEIGHTS), default=list(WEIGHTS.values()), help=" ".join(WEIGHTS)
    )
    student.add_argument("--output", required=True, help="folder to write")
    table = jobs.add_parser("measure")
    table.set_defaults(job=measure)
    table.add_argument("models", nargs="+", help="shipped encoders or folders")
    table.add_argument("--output", required=True, help="JSON file to write")
    args = parser.parse_args()
    args.job(args)


if __name__ == "__main__":
    with messages_for_users():
        main()
