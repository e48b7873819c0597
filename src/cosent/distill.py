"""Train a RoFormer-Sim student: only on synonyms (stage 1), or on synonyms and a teacher (stage 2).

cosent distill --config recipes/student/distill.yaml --corpus lcqmc --teacher runs/teacher --output_dir runs/student
"""

from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
from transformers import set_seed

from cosent.cli import REQUIRED, option, refuse_changed, run
from cosent.data.corpus import Corpus, labels_of
from cosent.data.pairs import NO_PREFIXES, PairDataset, Prefixes, read_texts, warn_truncated
from cosent.errors import InputError
from cosent.losses.distillation import pair_ranking_loss, similarity_matrix_loss, synonym_loss
from cosent.models.auto import load_model
from cosent.models.bi_encoder import BiEncoder, Embedder, SentenceEncoder, TextModel
from cosent.models.loading import keep_layers
from cosent.models.pooling import CHOICES
from cosent.models.prompts import PromptArguments, check_line_breaks
from cosent.models.student import Student
from cosent.models.teacher import DEFAULT_CACHE, teacher_scores, teacher_vectors
from cosent.training.arguments import PairTrainingArguments
from cosent.training.evaluation import set_selection
from cosent.training.load import load_corpora, use_prompts
from cosent.training.plan import output_folder
from cosent.training.record import begin, run_training
from cosent.training.sharding import whole_state
from cosent.training.student import Corruption, StudentCollator, StudentDataset, StudentEvaluation, StudentTrainer


@dataclass
class StudentArguments:
    """The student to start from."""

    model_name_or_path: str = option("mini-roformer", "A RoFormer, a student or a published RoFormer-Sim.")
    pooling: str | None = option(None, f"{', '.join(CHOICES)}; default: that of the model, else linear_cls.")
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
    text: list[str] | None = option(None, "Files of sentences without labels, a line each: .txt, .jsonl, also .gz.")


@dataclass
class DistillArguments:
    """Objectives of distillation."""

    teacher: str | None = option(None, "Bi- or cross-encoder to learn from; without one, synonyms find each other.")
    teacher_prompt: list[str] | None = option(
        None, "Text in front of what the teacher reads, as --prompt for the student; default: that of the teacher.",
        commas=True,
    )  # fmt: skip
    judge: str | None = option(None, "Bi- or cross-encoder that judges generated sentences; default: the teacher.")
    corruption_share: float = option(0.5, "Share of the sources some of whose words are hidden or replaced.")
    teacher_cache: str | None = option(
        None, "Cache folder for the outputs of teachers; default: ~/.cache/cosent/model_outputs."
    )
    generation_sources: int = option(50, "Validation sentences to generate 20 samples each for; 0 for none.")

    def __post_init__(self):
        check_line_breaks(self.teacher_prompt)
        if self.teacher is None:
            refuse_changed(self, ("teacher_prompt",), "--teacher")


@dataclass
class StudentTrainingArguments(PairTrainingArguments):
    """As `PairTrainingArguments`, with batches of equal size, since the similarity loss depends on it."""

    dataloader_drop_last: bool = option(True, "Leave out the last pairs of an epoch that do not fill a batch.")
    output_dir: str | None = option(None, "Folder for the student, run.json and checkpoints.")

    def __post_init__(self):
        super().__post_init__()
        for flag in ("on_collapse", "balanced_batches", "local_comparisons", "label_smoothing_factor"):
            if getattr(self, flag):
                raise InputError(f"--{flag} does nothing for students yet. Leave it out.")
        if self.metric_for_best_model not in (None, "spearman"):
            raise InputError(
                f"--metric_for_best_model {self.metric_for_best_model}: students are selected by spearman."
            )


def main(
    model_args: StudentArguments,
    prompt_args: PromptArguments,
    data_args: StudentDataArguments,
    distill_args: DistillArguments,
    args: StudentTrainingArguments,
):
    start = begin(args)
    if start is None:
        return
    corpora, evaluated = load_corpora(data_args.corpus, data_args.eval_corpora, data_args.data_dir)
    set_selection(args, evaluated)

    set_seed(args.seed)
    model, encoder = build(model_args, max(c.manifest.max_length["bi_encoder"] for c in corpora), args.seed)
    args.choose_learning_rate(encoder.backbone.config.hidden_size)
    prefixes = student_prompts(encoder, model_args, prompt_args)

    rows, synonyms = training_rows(corpora, data_args.text, distill_args.teacher)
    teacher = load_model(distill_args.teacher).to(args.device) if distill_args.teacher else None
    judge = load_model(distill_args.judge).to(args.device) if distill_args.judge else teacher
    targets = None if args.dry_run else teacher_targets(teacher, rows, distill_args)  # it would read all of the text
    evaluation = StudentEvaluation(
        model.to(args.device),
        evaluated,
        model_args.generation,
        judge,
        distill_args.generation_sources,
        prompts=prefixes,
    )
    pairs = tokenised_pairs(rows, synonyms, encoder, prefixes, args)
    corruption = Corruption.from_tokenizer(encoder.tokenizer, distill_args.corruption_share)
    with output_folder(args):
        trainer = StudentTrainer(
            model=model,
            args=args,
            similarity_loss=similarity_loss(targets),
            validate=evaluation.validate,
            train_dataset=StudentDataset(pairs, targets),
            eval_dataset=list(evaluation.validation),
            data_collator=StudentCollator(
                encoder.tokenizer.pad_token_id,
                corruption if model_args.generation else None,
                model_args.generation,
            ),
        )
    run_training(
        start,
        trainer,
        model,
        (corpora, evaluated),
        prefixes,
        lambda final: evaluation.report(whole_state(trainer.model)),
        (args, model_args, prompt_args, data_args, distill_args),
        synonyms=int(synonyms.sum()),
    )


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


def student_prompts(encoder: SentenceEncoder, args: StudentArguments, prompt_args: PromptArguments) -> Prefixes:
    """The prompts of a student in training."""
    prefixes = use_prompts(encoder, prompt_args, make_room=args.max_length is None)
    if args.generation and prefixes != NO_PREFIXES:
        raise InputError(
            f"The prompt {prefixes[0] or prefixes[1]!r} is for a student that only embeds: one that "
            "generates would learn to write it too. Add --generation false, or switch it off with --prompt ''."
        )
    return prefixes


def training_rows(
    corpora: list[Corpus], text: list[str] | None, teacher: str | None
) -> tuple[datasets.Dataset, np.ndarray]:
    """All pairs of sentences, and which of them are synonyms (bool of shape `(pairs,)`).

    Pairs that are not synonyms, and adjacent lines of text, are used only by the similarity term, with a teacher.
    """
    parts, flags = [], []
    for corpus in corpora:
        rows = corpus.split("train")
        positive = labels_of(rows) >= corpus.manifest.similar_from
        if not positive.any():
            least = f"{corpus.manifest.similar_from:g}"
            raise InputError(f"{corpus.manifest.name} has no synonyms in train: no label reaches {least}.")
        if teacher is None:
            rows, positive = rows.select(np.flatnonzero(positive)), positive[positive]
        parts.append(rows)
        flags.append(positive)
    if text:
        if teacher is None:
            raise InputError("--text has no labels, so it needs a --teacher to learn similarity from. Name one.")
        lines = list(read_texts(text))
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
    """Training pairs, labelled 1 for synonyms."""
    pairs = PairDataset(rows, encoder.tokenizer, encoder.max_length, positive.astype(np.float32), prefixes)
    warn_truncated(pairs.truncated, pairs.sequences, pairs.unit, encoder.max_length, flag="--max_length")
    batch = args.cached_batch_size or args.train_batch_size * args.world_size
    if args.dataloader_drop_last and len(pairs) < batch:
        raise InputError(
            f"{len(pairs)} pairs do not fill a batch of {batch}: no step is taken. Lower --per_device_train_batch_size."
        )
    return pairs


def teacher_targets(teacher: TextModel | None, rows: datasets.Dataset, args: DistillArguments):
    """The teacher's targets for the rows, in the form of `StudentDataset`."""
    if teacher is None:
        return None
    answers = teacher_vectors if isinstance(teacher, Embedder) else teacher_scores
    cache = Path(args.teacher_cache or DEFAULT_CACHE)
    return answers(teacher, rows["sentence1"][:], rows["sentence2"][:], cache, prompt=args.teacher_prompt)


def similarity_loss(targets):
    """Similarity loss for `StudentTrainer`: `(embeddings, teacher) -> scalar`."""
    if targets is None:
        return lambda embeddings, teacher: synonym_loss(embeddings)
    return similarity_matrix_loss if isinstance(targets, tuple) else pair_ranking_loss


ARGUMENTS = (StudentArguments, PromptArguments, StudentDataArguments, DistillArguments, StudentTrainingArguments)

if __name__ == "__main__":
    run(main, *ARGUMENTS)
