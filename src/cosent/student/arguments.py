"""Arguments of the distillation job."""

from dataclasses import dataclass

from cosent.errors import InputError
from cosent.flags import REQUIRED, option, refuse_changed
from cosent.inference.prompt_arguments import check_line_breaks
from cosent.losses.cosent import COSINE_SCALE
from cosent.modeling.pooling import CHOICES
from cosent.training.arguments import PairTrainingArguments


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
