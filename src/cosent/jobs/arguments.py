"""Arguments shared by jobs: model, corpus, sentences, pairs and output.

Importing this module loads no torch, so that --help answers at once.
"""

import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cosent.data.corpus import DataFolder
from cosent.data.files import FileArguments, TableArguments
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.flags import REQUIRED, option

logger = logging.getLogger(__name__)

MODEL = (
    "Folder of a trained model, a shipped model or a Hub id: a bi-encoder where vectors are needed, a student for "
    "`generate`."
)
FILE_KINDS = "txt (one per line), tsv, csv, jsonl, parquet, xlsx; text also as .gz."


@dataclass(kw_only=True)
class ModelSource:
    """Model and device."""

    model: str = option("similar", MODEL)
    device: str | None = option(None, "cpu, cuda or cuda:N; default: cuda if available.")
    int8: bool = field(default=False, init=False)


# A base in front of `ModelSource`, whose constant it makes a flag.
@dataclass(kw_only=True)
class Int8:
    """Model and device."""

    int8: bool = option(False, "Compute linear layers in int8, on the CPU, which is then the default of --device.")


def choose_device(device: str | None, int8: bool = False) -> str:
    """The device of a flag, checked; default: a GPU if there is one, else the CPU."""
    import torch  # takes seconds

    if device is None:
        return "cuda" if torch.cuda.is_available() and not int8 else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise InputError(f"--device is cpu, cuda or cuda:N, got {device}.")
    if device != "cpu" and int8:
        raise InputError(f"--int8 is for the CPU, got --device {device}. Drop one of the two.")
    if device != "cpu" and not torch.cuda.is_available():
        raise InputError(f"--device {device}: this PyTorch sees no CUDA device. Install a CUDA build, or use the CPU.")
    return device


def open_model(source: ModelSource, bi_encoder: bool = False):
    """The model of `--model` on its device, in evaluation mode; `bi_encoder` refuses a cross-encoder."""
    resolve(source.model)  # before imports that take seconds
    from cosent.models import load_model
    from cosent.models.bi_encoder import SentenceEncoder
    from cosent.models.embedding import quantized

    device = choose_device(source.device, source.int8)
    load = SentenceEncoder.from_pretrained if bi_encoder else load_model
    model = load(source.model).to(device).eval()
    return quantized(model) if source.int8 else model


@dataclass(kw_only=True)
class CorpusSource(DataFolder):
    """Prepared corpora."""

    corpus: str | None = option(None, "Prepared corpus: a name under --data_dir, or a folder.")


@dataclass(kw_only=True)
class TextColumn(FileArguments):
    """Sentences."""

    text_column: str | None = option(None, "Column of the sentences; default: text or sentence, or the only one.")


@dataclass(kw_only=True)
class SentenceFile(TextColumn):
    """Sentences."""

    text: str | None = option(None, f"File of sentences: {FILE_KINDS}")


@dataclass(kw_only=True)
class HitLimits:
    """Limits for hits."""

    min_score: float | None = option(
        None, "Lowest score of a hit: its cosine, or with --rerank the score of the reranker."
    )
    min_probability: float | None = option(
        None, "Lowest probability of a hit, by the decision rule of the model (with --rerank: of the reranker)."
    )

    @property
    def limits(self) -> dict[str, Any]:
        """The limit, by name."""
        values = {"min_score": self.min_score, "min_probability": self.min_probability}
        return {name: value for name, value in values.items() if value is not None}

    def check_limits(self) -> None:
        """Refuses two limits at once, and a probability outside 0 to 1."""
        if len(names := list(self.limits)) > 1:
            raise InputError(f"--{names[0]} and --{names[1]} both decide what is found. Give one of them.")
        if self.min_probability is not None and not 0 < self.min_probability < 1:
            raise InputError(f"--min_probability must lie between 0 and 1, got {self.min_probability:g}.")


@dataclass(kw_only=True)
class PairsFile(TableArguments):
    """File of pairs."""

    pairs: str | None = option(None, "Pairs, one a row: txt or tsv (tabs), csv, jsonl, parquet, xlsx; text also .gz.")


@dataclass(kw_only=True)
class OutputFile:
    """Output."""

    output: str | None = option(None, "File to write, in the form described above.")
    overwrite: bool = option(False, "Replace the output if it exists.")

    def refuse_existing(self) -> None:
        """Refuses to replace a file without `--overwrite`."""
        if self.output is not None and Path(self.output).exists() and not self.overwrite:
            raise InputError(f"--output {self.output} exists. Name another, or pass --overwrite.")


@dataclass(kw_only=True)
class OutputFolder:
    """Output."""

    output: str = option(REQUIRED, "Folder to write.")

    def new_folder(self) -> Path:
        """The folder, which must not exist."""
        if (folder := Path(self.output)).exists():
            raise InputError(f"--output {folder} exists. Name another folder, or remove it.")
        return folder
