"""Train a RoFormer-Sim student: on synonyms alone (stage 1), or on synonyms and a teacher (stage 2).

accelerate launch -q --config_file recipes/accelerate/cpu.yaml -m cosent.distill \
    --config recipes/student/distill.yaml --corpus lcqmc --teacher runs/teacher --output_dir runs/student
"""

import logging
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import datasets
import numpy as np
from transformers import set_seed

from cosent.cli import run
from cosent.data.pairs import Corpus, PairDataset, labels_of, limit, load_corpus
from cosent.losses.cosent import pair_ranking_loss, similarity_matrix_loss, synonym_loss
from cosent.modeling.bi_encoder import BiEncoder, SentenceEncoder
from cosent.modeling.cross_encoder import CrossEncoder
from cosent.modeling.pooling import POOLINGS
from cosent.pretraining.batches import read_texts
from cosent.schema import InputError
from cosent.student.data import Corruption, StudentCollator, StudentDataset, positive_from
from cosent.student.decoding import Sampling
from cosent.student.evaluation import HeldOut, summary
from cosent.student.model import Student, keep_layers
from cosent.student.teacher import DEFAULT_CACHE, teacher_scores, teacher_vectors
from cosent.student.trainer import StudentTrainer
from cosent.training import environment as records
from cosent.training.arguments import PairTrainingArguments, option
from cosent.training.checkpoints import find_checkpoint, has_finished, make_room
from cosent.training.towers import load_model

logger = logging.getLogger("cosent.distill")


@dataclass
class StudentArguments:
    """Which student to start from."""

    model_name_or_path: str = option("mini-roformer", "A RoFormer, a student or a published RoFormer-Sim.")
    pooling: str | None = option(None, f"{', '.join(POOLINGS)}; default: what the model says, else linear_cls.")
    student_layers: int | None = option(None, "Keep this many of its layers, evenly spaced; default: all.")
    max_length: int | None = option(None, "Tokens per sentence; default: what the corpus says.")
    dropout: float | None = option(None, "Dropout of hidden states and attention; default: what the model says.")
    no_generation: bool = option(False, "Train a small retrieval model alone, of any architecture.")
    no_packing: bool = option(False, "Pad every sequence to the longest of its batch instead of packing rows.")


@dataclass
class StudentDataArguments:
    """What to learn from."""

    corpus: str = field(metadata={"help": "Prepared corpora, which are mixed: names under --data_dir or folders, a,b."})
    eval_corpora: str | None = option(None, "Corpora to select on and to test; default: those trained on.")
    data_dir: str = option("data", "Folder of the prepared corpora.")
    limit_train: int | None = option(None, "Train on a random subset of this many pairs of each, for every --seed.")
    text: str | None = option(None, "Sentences without labels, a line each: .txt, .jsonl, also .gz. Several: a,b.")
    limit_text: int | None = option(None, "Read this many lines of --text; default: all.")


@dataclass
class DistillArguments:
    """What is learnt."""

    teacher: str | None = option(None, "Bi- or cross-encoder to learn from; without one, synonyms find each other.")
    judge: str | None = option(None, "Bi- or cross-encoder that judges what is written; default: the teacher.")
    synonyms_only: bool = option(False, "Leave pairs that are no synonyms out of the similarity term too.")
    similarity_weight: float | None = option(None, "Weight of the similarity loss; default 100 for vectors, else 1.")
    generation_weight: float = option(1.0, "Weight of the generation loss.")
    scale: float = option(20.0, "Inverse temperature, without a teacher or with a cross-encoder.")
    corruption_share: float = option(0.5, "Share of the sources that are corrupted.")
    corruption_ratio: float = option(0.15, "Share of the words of a corrupted source that are hidden or replaced.")
    teacher_cache: str = option(str(DEFAULT_CACHE), "Folder that keeps what teachers said.")
    generation_sources: int = option(50, "Held-out sentences for which samples are measured; 0 for none.")
    generation_samples: int = option(20, "Samples for each of them.")


@dataclass
class StudentTrainingArguments(PairTrainingArguments):
    """As `PairTrainingArguments`; batches are all of one size, since the similarity loss depends on it."""

    dataloader_drop_last: bool = option(True, "Leave out the last pairs of an epoch that do not fill a batch.")
    output_dir: str | None = field(default=None, metadata={"help": "Folder for the student, run.json and checkpoints."})

    def __post_init__(self):
        super().__post_init__()
        for flag in ("on_collapse", "balanced_batches", "local_comparisons"):
            if getattr(self, flag):
                raise InputError(f"--{flag} does nothing for students yet. Leave it out.")
        if self.metric_for_best_model not in (None, "spearman"):
            raise InputError(
                f"--metric_for_best_model {self.metric_for_best_model}: students are selected by spearman."
            )


def main(model_args: StudentArguments, data_args: StudentDataArguments, distill_args: DistillArguments, args):
    start = time.time()
    if has_finished(args):
        return
    checkpoint = find_checkpoint(args)
    corpora, measured = (
        {name.strip(): load_corpus(name.strip(), data_args.data_dir) for name in names.split(",")}
        for names in (data_args.corpus, data_args.eval_corpora or data_args.corpus)
    )
    set_seed(args.seed)
    model, encoder = build(model_args, max(c.manifest.max_length["bi_encoder"] for c in corpora.values()), args.seed)
    rows, positive = training_rows(corpora, data_args, distill_args)
    teacher = load_model(distill_args.teacher).to(args.device) if distill_args.teacher else None
    with args.main_process_first(desc="teacher"):
        targets = ask(teacher, rows, Path(distill_args.teacher_cache))
    generation = not model_args.no_generation
    corruption = Corruption.of(encoder.tokenizer, distill_args.corruption_share, distill_args.corruption_ratio)
    judge = load_model(distill_args.judge).to(args.device) if distill_args.judge else teacher
    sampling = Sampling(num_samples=distill_args.generation_samples)
    held = HeldOut(encoder, list(measured.values()), generation, judge, distill_args.generation_sources, sampling)
    if not held.validation:
        logger.warning("No corpus has a validation split with two different labels: the last epoch is kept.")
        args.eval_strategy, args.load_best_model_at_end, args.metric_for_best_model = "no", False, None
    pairs = PairDataset(rows, encoder.tokenizer, encoder.max_length, positive.astype(np.float32))
    if pairs.truncated:
        logger.warning("%d of %d sentences are longer than %d tokens and lose their end (--max_length).",
                       pairs.truncated, 2 * len(pairs), encoder.max_length)  # fmt: skip
    batch = args.cached_batch_size or args.train_batch_size * args.world_size
    if args.dataloader_drop_last and len(pairs) < batch:
        raise InputError(
            f"{len(pairs)} pairs fill no batch of {batch}: no step would be taken. Lower --per_device_train_batch_size."
        )
    trainer = StudentTrainer(
        model=model,
        args=args,
        similarity_loss=similarity_loss(distill_args, targets),
        generation_weight=distill_args.generation_weight,
        validate=held.validate,
        train_dataset=StudentDataset(pairs, targets),
        eval_dataset=list(held.validation),
        data_collator=StudentCollator(encoder.tokenizer.pad_token_id, corruption if generation else None, generation),
    )
    make_room(args, checkpoint, asdict(model_args) | asdict(data_args) | asdict(distill_args))
    before = held.report()
    result = trainer.train(resume_from_checkpoint=checkpoint)
    after = held.report()
    trainer.save_model()
    if trainer.is_world_process_zero():
        record = {
            "recipe": asdict(model_args) | asdict(data_args) | asdict(distill_args) | args.to_sanitized_dict(),
            "corpora": {name: records.corpus_record(corpus.folder) for name, corpus in corpora.items()},
            "train_pairs": len(rows),
            "synonyms": int(positive.sum()),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "before": before,
            "after": after,
            "history": trainer.state.log_history,
            "train_seconds": result.metrics["train_runtime"],
            "seconds": time.time() - start,
            **records.environment(),
        }
        records.save_record(args.output_dir, record)
        print(summary(before, after))
        print(f"model in {args.output_dir} ({record['train_seconds']:.0f} s of training)")


def build(args: StudentArguments, max_length: int, seed: int) -> tuple[Student | BiEncoder, SentenceEncoder]:
    """The model that is trained, and the encoder in it, which is the same where it writes."""
    options = {
        "max_length": max_length if args.max_length is None else args.max_length,
        "dropout": args.dropout,
        "seed": seed,
    }
    if not args.no_generation:
        encoder = Student.from_pretrained(args.model_name_or_path, args.pooling, layers=args.student_layers, **options)
        model = encoder
    else:
        encoder = SentenceEncoder.from_pretrained(args.model_name_or_path, args.pooling, **options)
        if args.student_layers is not None:
            keep_layers(encoder.backbone, args.student_layers)
        model = BiEncoder(encoder)
    encoder.packing = not args.no_packing
    return model, encoder


def ask(teacher: SentenceEncoder | CrossEncoder | None, rows: datasets.Dataset, cache: Path):
    """What the teacher says of the rows, as `StudentDataset` takes it."""
    if teacher is None:
        return None
    answers = teacher_scores if isinstance(teacher, CrossEncoder) else teacher_vectors
    return answers(teacher, rows["sentence1"][:], rows["sentence2"][:], cache)


def training_rows(
    corpora: dict[str, Corpus], data_args: StudentDataArguments, args: DistillArguments
) -> tuple[datasets.Dataset, np.ndarray]:
    """All pairs of sentences, and which of them are synonyms (bool of shape `(pairs,)`).

    Pairs that are no synonyms, and lines of text side by side, serve the similarity term alone.

    Raises:
        InputError: text or pairs that nothing could be learnt from.
    """
    parts, flags = [], []
    for name, corpus in corpora.items():
        rows = limit(corpus.split("train"), data_args.limit_train)
        positive = labels_of(rows) >= positive_from(corpus.manifest)
        if not positive.any():
            raise InputError(f"{name} has no synonyms in train: no label reaches {positive_from(corpus.manifest):g}.")
        if args.teacher is None or args.synonyms_only:
            rows, positive = rows.select(np.flatnonzero(positive)), positive[positive]
        parts.append(rows)
        flags.append(positive)
    if data_args.text:
        if args.teacher is None:
            raise InputError("--text has no labels: without a --teacher nothing says what is similar. Name one.")
        lines = read_texts([path.strip() for path in data_args.text.split(",")])
        lines = list(islice(lines, data_args.limit_text))
        lines = lines[: len(lines) // 2 * 2]
        columns = {"sentence1": lines[::2], "sentence2": lines[1::2], "label": [0.0] * (len(lines) // 2)}
        parts.append(datasets.Dataset.from_dict(columns, features=parts[0].features))
        flags.append(np.zeros(len(lines) // 2, dtype=bool))
    return (parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)), np.concatenate(flags)


def similarity_loss(args: DistillArguments, targets):
    """What `StudentTrainer` is given: `(embeddings, teacher) -> scalar`."""
    if targets is None:
        weight = 1.0 if args.similarity_weight is None else args.similarity_weight
        return lambda embeddings, teacher: weight * synonym_loss(embeddings, args.scale)
    if isinstance(targets, tuple):
        return partial(
            similarity_matrix_loss, weight=100.0 if args.similarity_weight is None else args.similarity_weight
        )
    weight = 1.0 if args.similarity_weight is None else args.similarity_weight
    return lambda embeddings, scores: weight * pair_ranking_loss(embeddings, scores, args.scale)


if __name__ == "__main__":
    run(main, StudentArguments, StudentDataArguments, DistillArguments, StudentTrainingArguments)
