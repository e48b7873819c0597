"""Train a RoFormer-Sim student: only on synonyms (stage 1), or on synonyms and a teacher (stage 2).

cosent distill --config recipes/student/distill.yaml --corpus lcqmc --teacher runs/teacher --output_dir runs/student
"""

import time
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import datasets
import numpy as np
from transformers import set_seed

from cosent.cli import REQUIRED, option, refuse_changed, run
from cosent.data.corpus import Corpus, labels_of, leaks, random_subset
from cosent.data.pairs import NO_PREFIXES, PairDataset, Prefixes, read_texts, warn_truncated
from cosent.errors import InputError
from cosent.losses.cosent import COSINE_SCALE
from cosent.losses.distillation import pair_ranking_loss, similarity_matrix_loss, synonym_loss
from cosent.models.auto import load_model
from cosent.models.bi_encoder import BiEncoder, Embedder, SentenceEncoder, TextModel
from cosent.models.decoding import Sampling
from cosent.models.loading import keep_layers
from cosent.models.pooling import CHOICES
from cosent.models.prompts import SavedPromptArguments, check_line_breaks
from cosent.models.student import Student
from cosent.models.teacher import DEFAULT_CACHE, teacher_scores, teacher_vectors
from cosent.run import CorpusRecord, RunRecord, manifest_hashes
from cosent.training import evaluation as verdict
from cosent.training.arguments import PairTrainingArguments
from cosent.training.checkpoints import claim_output_folder, find_checkpoint, has_finished, run_settings
from cosent.training.evaluation import select_on_validation
from cosent.training.load import load_corpora, use_prompts
from cosent.training.plan import output_folder, show_plan, truncation
from cosent.training.proof import FolderProof, sample_pairs
from cosent.training.record import environment, finish, footprint, model_line, recipe
from cosent.training.sharding import whole_state
from cosent.training.student import (
    Corruption,
    StudentCollator,
    StudentDataset,
    StudentEvaluation,
    StudentTrainer,
    summary,
)


@dataclass
class StudentArguments:
    """The student to start from."""

    model_name_or_path: str = option("mini-roformer", "A RoFormer, a student or a published RoFormer-Sim.")
    pooling: str | None = option(
        None, f"{', '.join(CHOICES)}, or several joined by +; default: that of the model, else linear_cls."
    )
    student_layers: int | None = option(None, "Keep this many of its layers, evenly spaced; default: all.")
    max_length: int | None = option(None, "Tokens per sentence; default: that of the corpus.")
    dropout: float | None = option(None, "Dropout of hidden states and attention; default: that of the model.")
    generation: bool = option(True, "Learn to generate too; false trains a small retrieval model of any architecture.")
    packing: bool = option(True, "Pack several sequences into a row; false pads each to the longest of its batch.")


@dataclass
class StudentDataArguments:
    """Training data."""

    corpus: list[str] = option(REQUIRED, "Prepared corpora, which are mixed: names under --data_dir or folders.")
    eval_corpora: list[str] | None = option(None, "Corpora for selection and test; default: those trained on.")
    data_dir: str = option("data", "Folder of the prepared corpora.")
    limit_train: int | None = option(None, "Train on a random subset of this many pairs of each, for every --seed.")
    text: list[str] | None = option(None, "Files of sentences without labels, a line each: .txt, .jsonl, also .gz.")
    limit_text: int | None = option(None, "Read this many lines of --text; default: all.")


@dataclass
class DistillArguments:
    """Objectives of distillation."""

    teacher: str | None = option(None, "Bi- or cross-encoder to learn from; without one, synonyms find each other.")
    teacher_prompt: list[str] | None = option(
        None, "Text in front of what the teacher reads, as --prompt for the student; default: that of the teacher.",
        commas=True,
    )  # fmt: skip
    teacher_prompt_name: list[str] | None = option(None, "Instead: the name of a prompt of the teacher, or two names.")
    judge: str | None = option(None, "Bi- or cross-encoder that judges generated sentences; default: the teacher.")
    synonyms_only: bool = option(False, "Use only pairs of synonyms for the similarity term too.")
    similarity_weight: float | None = option(None, "Weight of the similarity loss; default 100 for vectors, else 1.")
    generation_weight: float = option(1.0, "Weight of the generation loss.")
    scale: float = option(COSINE_SCALE, "Inverse temperature, without a teacher or with a cross-encoder.")
    corruption_share: float = option(0.5, "Share of the sources that are corrupted.")
    corruption_ratio: float = option(0.15, "Share of the words of a corrupted source that are hidden or replaced.")
    teacher_cache: str | None = option(
        None, "Cache folder for the outputs of teachers; default: ~/.cache/cosent/model_outputs."
    )
    generation_sources: int = option(50, "Held-out sentences to generate samples for and measure; 0 for none.")
    generation_samples: int = option(20, "Samples for each of them.")

    def __post_init__(self):
        check_line_breaks(self.teacher_prompt)
        if self.teacher is None:
            refuse_changed(self, ("teacher_prompt", "teacher_prompt_name"), "--teacher")


@dataclass
class StudentTrainingArguments(PairTrainingArguments):
    """As `PairTrainingArguments`, with batches of equal size, since the similarity loss depends on it."""

    dataloader_drop_last: bool = option(True, "Leave out the last pairs of an epoch that do not fill a batch.")
    output_dir: str | None = option(None, "Folder for the student, run.json and checkpoints.")

    def __post_init__(self):
        super().__post_init__()
        for flag in ("on_collapse", "balanced_batches", "local_comparisons"):
            if getattr(self, flag):
                raise InputError(f"--{flag} does nothing for students yet. Leave it out.")
        if self.metric_for_best_model not in (None, "spearman"):
            raise InputError(
                f"--metric_for_best_model {self.metric_for_best_model}: students are selected by spearman."
            )


def main(
    model_args: StudentArguments,
    prompt_args: SavedPromptArguments,
    data_args: StudentDataArguments,
    distill_args: DistillArguments,
    args: StudentTrainingArguments,
):
    start = time.time()
    if has_finished(args):
        return
    checkpoint, here = find_checkpoint(args), environment()
    corpora, measured = load_corpora(data_args.corpus, data_args.eval_corpora, data_args.data_dir)
    select_on_validation(measured, args)
    set_seed(args.seed)
    model, encoder = build(model_args, max(c.manifest.max_length["bi_encoder"] for c in corpora), args.seed)
    args.choose_learning_rate(encoder.backbone.config.hidden_size)
    prefixes = student_prompts(encoder, model_args, prompt_args)
    rows, positive = training_rows(corpora, data_args, distill_args)
    teacher = load_model(distill_args.teacher).to(args.device) if distill_args.teacher else None
    # A teacher would read all of the text.
    targets = None if args.dry_run else teacher_targets(teacher, rows, distill_args)
    judge = load_model(distill_args.judge).to(args.device) if distill_args.judge else teacher
    sampling = Sampling(num_samples=distill_args.generation_samples)
    held_out = StudentEvaluation(
        model.to(args.device),
        measured,
        model_args.generation,
        judge,
        distill_args.generation_sources,
        sampling,
        prompts=(prefixes[0].text, prefixes[1].text),
    )
    pairs = tokenised_pairs(rows, positive, encoder, prefixes, args)
    with output_folder(args):
        trainer = StudentTrainer(
            model=model,
            args=args,
            similarity_loss=similarity_loss(distill_args, targets),
            generation_weight=distill_args.generation_weight,
            validate=held_out.validate,
            train_dataset=StudentDataset(pairs, targets),
            eval_dataset=list(held_out.validation),
            data_collator=student_collator(encoder.tokenizer, model_args.generation, prefixes, distill_args),
        )
    records = {corpus.manifest.name: CorpusRecord.of(corpus.folder) for corpus in [*measured, *corpora]}
    settings = run_settings(args, model_args, prompt_args, data_args, distill_args, data=manifest_hashes(records))
    if args.dry_run:
        return show_plan(trainer, model, corpora, measured, truncation(pairs, encoder.max_length), checkpoint, settings)
    claim_output_folder(args.output_dir, checkpoint, settings)
    proof = FolderProof(model, sample_pairs([*measured, *corpora]))

    def at_start():
        proof.begin()
        return held_out.report(whole_state(trainer.model))

    result = trainer.train(checkpoint, at_start=at_start)
    before, _, written_before = trainer.before
    after, intervals, written_after = held_out.report(whole_state(trainer.model))
    trainer.save_model()
    proven = proof.check(args.output_dir)
    if trainer.is_world_process_zero():
        record = RunRecord(
            recipe=recipe(args, model_args, prompt_args, data_args, distill_args),
            environment=here,
            processes=args.world_size,
            footprint=footprint(model, trainer.optimizer),
            corpora=records,
            cached_part_size=trainer.cached_parts and trainer.cached_parts.pairs,
            train_pairs=len(rows),
            synonyms=int(positive.sum()),
            before=before,
            after=after,
            intervals=intervals,
            prompts=(prefixes[0].text, prefixes[1].text),
            written_before=written_before,
            written_after=written_after,
            history=trainer.state.log_history,
            train_seconds=result.metrics["train_runtime"],
            seconds=time.time() - start,
            proof=proven,
            leaks=leaks(corpora, measured),
        )
        floor = verdict.judge(record, measured, corpora)
        finish(trainer, record)
        print(summary(record, floor), *verdict.lines(record), sep="\n")
        print(model_line(args.output_dir, record))


def build(args: StudentArguments, max_length: int, seed: int) -> tuple[Student | BiEncoder, SentenceEncoder]:
    """The model to train, and its encoder (the same object for a student that generates)."""
    options = {
        "max_length": max_length if args.max_length is None else args.max_length,
        "dropout": args.dropout,
        "seed": seed,
    }
    if args.generation:
        encoder = Student.from_pretrained(args.model_name_or_path, args.pooling, layers=args.student_layers, **options)
        model = encoder
    else:
        encoder = SentenceEncoder.from_pretrained(args.model_name_or_path, args.pooling, **options)
        if args.student_layers is not None:
            keep_layers(encoder.backbone, args.student_layers)
        model = BiEncoder(encoder)
    encoder.packing = args.packing
    return model, encoder


def student_prompts(encoder: SentenceEncoder, args: StudentArguments, prompt_args: SavedPromptArguments) -> Prefixes:
    """The prompts of a student in training.

    Raises:
        InputError: a prompt for a student that generates.
    """
    prefixes = use_prompts(encoder, prompt_args, make_room=args.max_length is None)
    if args.generation and prefixes != NO_PREFIXES:
        raise InputError(
            f"The prompt {prefixes[0].text or prefixes[1].text!r} is for a student that only embeds: one that "
            "generates would learn to write it too. Add --generation false, or switch it off with --prompt ''."
        )
    return prefixes


def training_rows(
    corpora: list[Corpus], data_args: StudentDataArguments, args: DistillArguments
) -> tuple[datasets.Dataset, np.ndarray]:
    """All pairs of sentences, and which of them are synonyms (bool of shape `(pairs,)`).

    Pairs that are not synonyms, and adjacent lines of text, are used only by the similarity term.

    Raises:
        InputError: text without a teacher, or pairs without synonyms.
    """
    parts, flags = [], []
    for corpus in corpora:
        rows = random_subset(corpus.split("train"), data_args.limit_train)
        positive = labels_of(rows) >= corpus.manifest.similar_from
        if not positive.any():
            least = f"{corpus.manifest.similar_from:g}"
            raise InputError(f"{corpus.manifest.name} has no synonyms in train: no label reaches {least}.")
        if args.teacher is None or args.synonyms_only:
            rows, positive = rows.select(np.flatnonzero(positive)), positive[positive]
        parts.append(rows)
        flags.append(positive)
    if data_args.text:
        if args.teacher is None:
            raise InputError("--text has no labels, so it needs a --teacher to learn similarity from. Name one.")
        lines = read_texts(data_args.text)
        lines = list(islice(lines, data_args.limit_text))
        lines = lines[: len(lines) // 2 * 2]
        columns = {"sentence1": lines[::2], "sentence2": lines[1::2], "label": [0.0] * (len(lines) // 2)}
        parts.append(datasets.Dataset.from_dict(columns, features=parts[0].features))
        flags.append(np.zeros(len(lines) // 2, dtype=bool))
    return (parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)), np.concatenate(flags)


def tokenised_pairs(
    rows: datasets.Dataset,
    positive: np.ndarray,
    encoder: SentenceEncoder,
    prefixes: Prefixes,
    args: StudentTrainingArguments,
) -> PairDataset:
    """Training pairs, labelled 1 for synonyms.

    Raises:
        InputError: fewer pairs than a batch has.
    """
    pairs = PairDataset(rows, encoder.tokenizer, encoder.max_length, positive.astype(np.float32), prefixes)
    warn_truncated(pairs.truncated, pairs.sequences, pairs.unit, encoder.max_length, flag="--max_length")
    batch = args.cached_batch_size or args.train_batch_size * args.world_size
    if args.dataloader_drop_last and len(pairs) < batch:
        raise InputError(
            f"{len(pairs)} pairs do not fill a batch of {batch}: no step is taken. Lower --per_device_train_batch_size."
        )
    return pairs


def student_collator(tokenizer, generation: bool, prefixes: Prefixes, args: DistillArguments) -> StudentCollator:
    """The collator, with noise on the sources of a student that generates."""
    corruption = Corruption.from_tokenizer(tokenizer, args.corruption_share, args.corruption_ratio)
    return StudentCollator(tokenizer.pad_token_id, corruption if generation else None, generation, prefixes)


def teacher_targets(teacher: TextModel | None, rows: datasets.Dataset, args: DistillArguments):
    """The teacher's targets for the rows, in the form of `StudentDataset`."""
    if teacher is None:
        return None
    answers = teacher_vectors if isinstance(teacher, Embedder) else teacher_scores
    prompts = {"prompt": args.teacher_prompt, "prompt_name": args.teacher_prompt_name}
    cache = Path(args.teacher_cache or DEFAULT_CACHE)
    return answers(teacher, rows["sentence1"][:], rows["sentence2"][:], cache, **prompts)


def similarity_loss(args: DistillArguments, targets):
    """Similarity loss for `StudentTrainer`: `(embeddings, teacher) -> scalar`."""
    weight = args.similarity_weight
    if weight is None:
        weight = 100.0 if isinstance(targets, tuple) else 1.0
    if targets is None:
        return lambda embeddings, teacher: weight * synonym_loss(embeddings, args.scale)
    if isinstance(targets, tuple):
        return partial(similarity_matrix_loss, weight=weight)
    return lambda embeddings, scores: weight * pair_ranking_loss(embeddings, scores, args.scale)


ARGUMENTS = (StudentArguments, SavedPromptArguments, StudentDataArguments, DistillArguments, StudentTrainingArguments)

if __name__ == "__main__":
    run(main, *ARGUMENTS)
