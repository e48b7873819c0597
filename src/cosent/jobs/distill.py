"""Train a student: a small encoder of a teacher's similarities, or a RoFormer-Sim that writes synonyms too.

cosent distill --teacher intfloat/multilingual-e5-large --text questions.txt         a small encoder, without labels
cosent distill --corpus lcqmc --student_layers 2 --output_dir runs/stage1            RoFormer-Sim, stage 1: synonyms
cosent distill --corpus lcqmc --teacher runs/teacher --model_name_or_path runs/stage1 --output_dir runs/student
"""

from dataclasses import dataclass
from typing import Any

from transformers import set_seed

from cosent.errors import InputError
from cosent.flags import option, refuse_changed
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.loading import keep_layers
from cosent.models.prompts import PromptArguments, check_line_breaks
from cosent.models.student import Student
from cosent.training.arguments import CorpusArguments, EncoderArguments, StudentTrainingArguments
from cosent.training.corpora import adjacent_lines, defaults_of_run, load_corpora
from cosent.training.job import begin, make_room, run_training
from cosent.training.student import StudentTrainer


@dataclass
class StudentArguments(EncoderArguments):
    """Student."""

    model_name_or_path: str = option("mini-roformer", "A RoFormer, a student or a published RoFormer-Sim.")
    student_layers: int | None = option(None, "Keep this many of its layers, evenly spaced; default: all.")
    generation: bool = option(True, "Learn to generate too; false trains a small retrieval model of any architecture.")


@dataclass
class DistillArguments:
    """Objectives of distillation."""

    teacher: str | None = option(
        None, "Bi- or cross-encoder to learn from (stage 2); default: none, only synonyms (stage 1)."
    )
    teacher_prompt: list[str] | None = option(
        None,
        "Prompt of the teacher, as --prompt is of the student; default: that of its folder.",
    )
    corruption_share: float = option(0.5, "Share of the source sentences in which words are masked or replaced.")

    def __post_init__(self):
        check_line_breaks(self.teacher_prompt)
        if self.teacher is None:
            refuse_changed(self, ("teacher_prompt",), "--teacher")


def defaults(flags: dict[str, Any]) -> dict[str, Any]:
    """Recipe and folder of a run that names none, by its stage."""
    if "teacher" in flags and "corpus" not in flags:
        run = defaults_of_run(flags, "student/taught_by_public", "a student of --teacher without labels")
        return {"output_dir": "runs/taught"} | run
    if "teacher" in flags:
        return defaults_of_run(flags, "student/distill", "a student of --teacher")
    return defaults_of_run(flags, "student/stage1", "a student without --teacher")


def main(
    model_args: StudentArguments,
    prompt_args: PromptArguments,
    data_args: CorpusArguments,
    distill_args: DistillArguments,
    args: StudentTrainingArguments,
):
    with begin(args) as start:
        if start is None:
            return
        if not data_args.corpus and (model_args.generation or not (distill_args.teacher and data_args.text)):
            raise InputError(
                "--corpus is missing: name prepared corpora with similar pairs, or learn from --teacher on --text with "
                "--generation false."
            )
        corpora = load_corpora(data_args, adjacent_lines, args.seed)
        set_seed(args.seed)
        student = build_student(model_args, corpora.max_length("bi_encoder") if corpora.by_name else None, args.seed)
        if model_args.max_length is None:
            make_room(student, prompt_args)
        trainer = StudentTrainer(
            student,
            args,
            teacher=distill_args.teacher,
            teacher_prompt=distill_args.teacher_prompt,
            generation=model_args.generation,
            corruption_share=distill_args.corruption_share,
            train_dataset=corpora.training_rows,
            eval_dataset=corpora.validation_rows,
            labels=corpora.labels,
            prompt=prompt_args.prompt,
            prompt_name=prompt_args.prompt_name,
        )
        arguments = (model_args, prompt_args, data_args, distill_args)
        run_training(start, trainer, corpora, arguments, synonyms=trainer.synonyms)


def build_student(args: StudentArguments, max_length: int | None, seed: int) -> SentenceEncoder:
    """The student to train."""
    kind = Student if args.generation else SentenceEncoder
    max_length = max_length if args.max_length is None else args.max_length
    student = kind.from_pretrained(
        args.model_name_or_path, args.pooling, max_length=max_length, dropout=args.dropout, seed=seed
    )
    if args.student_layers is not None:
        keep_layers(student.backbone, args.student_layers)
    return student
