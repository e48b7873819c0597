"""Train a RoFormer-Sim student: only on synonyms (stage 1), or on synonyms and a teacher (stage 2).

cosent distill --config recipes/student/distill.yaml --corpus lcqmc --teacher runs/teacher --output_dir runs/student
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import datasets
import numpy as np
from transformers import set_seed

from cosent.cli import option, refuse_changed, run
from cosent.data.corpus import Corpus, labels_of
from cosent.data.pairs import NO_PREFIXES, read_texts
from cosent.errors import InputError
from cosent.losses.distillation import pair_ranking_loss, similarity_matrix_loss, synonym_loss
from cosent.models.auto import load_model
from cosent.models.bi_encoder import BiEncoder, SentenceEncoder, TextModel
from cosent.models.loading import keep_layers
from cosent.models.prompts import PromptArguments, check_line_breaks
from cosent.models.student import Student
from cosent.models.teacher import DEFAULT_CACHE, teacher_scores, teacher_vectors
from cosent.training.arguments import CorpusArguments, EncoderArguments, PairTrainingArguments
from cosent.training.evaluation import evaluate_splits, set_selection
from cosent.training.job import begin, output_folder, run_training
from cosent.training.setup import load_corpora, tokenised, use_prompts
from cosent.training.student import Corruption, StudentCollator, StudentDataset, StudentTrainer, held_out_synonyms


@dataclass
class StudentArguments(EncoderArguments):
    """The student."""

    model_name_or_path: str = option("mini-roformer", "A RoFormer, a student or a published RoFormer-Sim.")
    student_layers: int | None = option(None, "Keep this many of its layers, evenly spaced; default: all.")
    generation: bool = option(True, "Learn to generate too; false trains a small retrieval model of any architecture.")


@dataclass
class DistillArguments:
    """Objectives of distillation."""

    teacher: str | None = option(None, "Bi- or cross-encoder to learn from; without one, synonyms find each other.")
    teacher_prompt: list[str] | None = option(
        None, "Text in front of what the teacher reads, as --prompt for the student; default: that of the teacher.",
        commas=True,
    )  # fmt: skip
    corruption_share: float = option(0.5, "Share of the sources some of whose words are hidden or replaced.")

    def __post_init__(self):
        check_line_breaks(self.teacher_prompt)
        if self.teacher is None:
            refuse_changed(self, ("teacher_prompt",), "--teacher")


@dataclass
class StudentTrainingArguments(PairTrainingArguments):
    """As `PairTrainingArguments`, with batches of equal size, since the similarity loss depends on it."""

    dataloader_drop_last: bool = option(True, "Leave out the last pairs of an epoch that do not fill a batch.")

    def __post_init__(self):
        super().__post_init__()
        for flag in ("on_collapse", "balanced_batches", "local_comparisons", "label_smoothing_factor"):
            if getattr(self, flag):
                raise InputError(f"--{flag} does nothing for students. Leave it out.")


def main(
    model_args: StudentArguments,
    prompt_args: PromptArguments,
    data_args: CorpusArguments,
    distill_args: DistillArguments,
    args: StudentTrainingArguments,
):
    start = begin(args)
    if start is None:
        return
    if not data_args.corpus:
        raise InputError("--corpus is missing: name prepared corpora with similar pairs.")
    corpora = load_corpora(data_args)
    set_seed(args.seed)
    model, encoder = build(model_args, corpora.max_length("bi_encoder"), args.seed)
    args.choose_learning_rate(encoder.backbone.config.hidden_size)
    prefixes = use_prompts(encoder, prompt_args, make_room=model_args.max_length is None)
    if model_args.generation and prefixes != NO_PREFIXES:
        raise InputError(
            f"The prompt {prefixes[0] or prefixes[1]!r} is for a student that only embeds. Add --generation false, or "
            "switch it off with --prompt ''."
        )

    rows, synonyms = training_rows(corpora.training, data_args.text, distill_args.teacher)
    with args.main_process_first(desc="tokenising"):  # the other processes read its cache
        pairs = tokenised("train", rows, StudentDataset, encoder, prefixes, synonyms.astype(np.float32))
        sets = corpora.evaluation_sets(StudentDataset, encoder, prefixes)
    pairs.synonyms = synonyms
    batch = args.cached_batch_size or args.train_batch_size * args.world_size
    if args.dataloader_drop_last and len(pairs) < batch:
        raise InputError(f"{len(pairs)} pairs do not fill a batch of {batch}. Lower --per_device_train_batch_size.")
    similarity_loss: Callable = lambda embeddings, teacher: synonym_loss(embeddings)  # noqa: E731
    if distill_args.teacher:
        teacher = load_model(distill_args.teacher).to(args.device)
        similarity_loss = similarity_matrix_loss if isinstance(teacher, SentenceEncoder) else pair_ranking_loss
        if not args.dry_run:  # it would read all of the text
            pairs.targets = teacher_targets(teacher, rows, distill_args.teacher_prompt)
    for name, splits in sets.items():
        for held_out in splits.values():
            held_out.synonyms = held_out_synonyms(held_out.labels, corpora.by_name[name].manifest.similar_from)
    selecting = set_selection(args, sets, corpora)

    corruption = Corruption.from_tokenizer(encoder.tokenizer, distill_args.corruption_share)
    collator = StudentCollator(encoder.tokenizer.pad_token_id, model_args.generation, corruption)
    with output_folder(args):
        trainer = StudentTrainer(
            model=model,
            args=args,
            similarity_loss=similarity_loss,
            train_dataset=pairs,
            eval_dataset=selecting,
            data_collator=collator,
        )
    evaluate = partial(evaluate_splits, trainer, sets, "bi_encoder", corpora)
    arguments = (args, model_args, prompt_args, data_args, distill_args)
    run_training(start, trainer, corpora, prefixes, evaluate, arguments, synonyms=int(synonyms.sum()))


def build(args: StudentArguments, max_length: int, seed: int) -> tuple[Student | BiEncoder, SentenceEncoder]:
    """The model to train, and its encoder (the same object for a student that generates)."""
    kind = Student if args.generation else SentenceEncoder
    max_length = max_length if args.max_length is None else args.max_length
    encoder = kind.from_pretrained(
        args.model_name_or_path, args.pooling, max_length=max_length, dropout=args.dropout, seed=seed
    )
    if args.student_layers is not None:
        keep_layers(encoder.backbone, args.student_layers)
    encoder.packing = args.packing
    return (encoder if args.generation else BiEncoder(encoder)), encoder


def training_rows(
    corpora: list[Corpus], text: list[str] | None, teacher: str | None
) -> tuple[datasets.Dataset, np.ndarray]:
    """All pairs of sentences, and which of them are synonyms (bool of shape `(pairs,)`).

    Pairs that are not synonyms, and adjacent lines of text, are used only by the similarity term, with a teacher.
    """
    parts, flags = [], []
    for corpus in corpora:
        rows, least = corpus.split("train"), corpus.manifest.similar_from
        positive = labels_of(rows) >= least
        if not positive.any():
            raise InputError(f"{corpus.manifest.name} has no synonyms in train: no label reaches {least:g}.")
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


def teacher_targets(teacher: TextModel, rows: datasets.Dataset, prompt: list[str] | None) -> tuple:
    """The teacher's `targets` of `StudentDataset`, through the cache on disk."""
    sides = rows["sentence1"][:], rows["sentence2"][:]
    if isinstance(teacher, SentenceEncoder):
        return teacher_vectors(teacher, *sides, DEFAULT_CACHE, prompt=prompt)
    return teacher_scores(teacher, *sides, DEFAULT_CACHE, prompt=prompt), np.arange(len(rows))


ARGUMENTS = (StudentArguments, PromptArguments, CorpusArguments, DistillArguments, StudentTrainingArguments)

if __name__ == "__main__":
    run(main, *ARGUMENTS)
