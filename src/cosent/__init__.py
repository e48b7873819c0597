"""Fine-tune Chinese sentence-similarity models with the CoSENT family.

    from cosent import SentenceEncoder

`import cosent` loads nothing else: each name is imported when it is first used (PEP 562).
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cosent.data.labels import Labels as Labels
    from cosent.models import load_model as load_model
    from cosent.models.bi_encoder import SentenceEncoder as SentenceEncoder
    from cosent.models.cross_encoder import CrossEncoder as CrossEncoder
    from cosent.models.decision import decision_rules as decision_rules
    from cosent.models.student import Student as Student
    from cosent.search.index import Index as Index
    from cosent.training.arguments import PairTrainingArguments as PairTrainingArguments
    from cosent.training.arguments import StudentTrainingArguments as StudentTrainingArguments
    from cosent.training.student import StudentTrainer as StudentTrainer
    from cosent.training.trainer import PairTrainer as PairTrainer

__version__ = "0.1.0"

if (Path(__file__).parents[2] / "data_scripts").is_dir():  # a clone; a wheel has it, and the recipes, in this folder
    __path__.append(str(Path(__file__).parents[2]))

HOMES = {
    "CrossEncoder": "cosent.models.cross_encoder",
    "Index": "cosent.search.index",
    "Labels": "cosent.data.labels",
    "PairTrainer": "cosent.training.trainer",
    "PairTrainingArguments": "cosent.training.arguments",
    "SentenceEncoder": "cosent.models.bi_encoder",
    "Student": "cosent.models.student",
    "StudentTrainer": "cosent.training.student",
    "StudentTrainingArguments": "cosent.training.arguments",
    "decision_rules": "cosent.models.decision",
    "load_model": "cosent.models",
}


__all__ = [*HOMES]


def __getattr__(name: str):
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
