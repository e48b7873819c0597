"""`Carried`: what a starting folder says besides its modules, kept for the folder that is saved."""

import logging
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers.normalizers import Lowercase, Sequence

from cosent.errors import InputError
from cosent.modeling.prompts import BI_ENCODER, Prompts
from cosent.modeling.saved_folder import SETTINGS, TRANSFORMER_CONFIG, is_cross_encoder, read_json, write_json

logger = logging.getLogger(__name__)

# Settings of the backbone: the first file that exists counts, and the first is written.
TRANSFORMER_CONFIGS = (
    TRANSFORMER_CONFIG,
    *(
        f"sentence_{kind}_config.json"
        for kind in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)
TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
NOTHING = ({}, None)
# Values that mean what is computed here, of settings that may mean other vectors.
EXPECTED: dict[str, tuple] = {
    "transformer_task": ("feature-extraction",),
    "module_output_name": ("token_embeddings",),
    "modality_config": (TEXT,),
    "tokenizer_name_or_path": (None,),
    "truncate_dim": (None,),
    "config_args": (*NOTHING, {"output_hidden_states": True}),
    "config_kwargs": (*NOTHING, {"output_hidden_states": True}),
    **dict.fromkeys(("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "processing_kwargs"), NOTHING),
}
# Settings that are applied here, or mean only speed, images or `encode_query`.
APPLIED = ("max_seq_length", "do_lower_case")
HARMLESS = ("unpad_inputs", "query_length", "document_length", "query_expansion")


@dataclass(frozen=True)
class Carried:
    """Content of a starting folder that is written again as it is.

    Args:
        settings: `config_sentence_transformers.json`: prompts, similarity function, versions and the like.
        transformer: `sentence_bert_config.json`: maximum length, lower case and the like.
        weights: weights of the backbone that nothing here reads, e.g. of a trained pooler, by their names in it.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    transformer: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str, weights: dict[str, torch.Tensor]) -> "Carried":
        """Reads both files of a folder or Hub id; those of a cross-encoder are about another model.

        Raises:
            InputError: a setting that means other vectors than are computed here.
        """
        if is_cross_encoder(path):
            return cls(weights=weights)
        settings = read_json(path, SETTINGS) or {}
        refuse(f"{path}/{SETTINGS}", {"truncate_dim": settings.get("truncate_dim")})
        name = next((name for name in TRANSFORMER_CONFIGS if read_json(path, name)), TRANSFORMER_CONFIG)
        transformer = read_json(path, name) or {}
        for key, value in transformer.items():
            if key not in (*APPLIED, *HARMLESS):  # of the inputs of a model, only text is read here
                refuse(f"{path}/{name}", {key: value.get("text", TEXT) if key == "modality_config" else value})
        transformer = {key: value for key, value in transformer.items() if not key.endswith(("_args", "_kwargs"))}
        return cls(settings, transformer, weights)

    def prepare(self, tokenizer) -> None:
        """Applies the maximum length and lower case to a tokenizer, which is saved with both."""
        if self.transformer.get("max_seq_length") is not None:
            tokenizer.model_max_length = self.transformer["max_seq_length"]
        backend = tokenizer.backend_tokenizer
        if self.transformer.get("do_lower_case") and not lowers(backend.normalizer):
            backend.normalizer = Sequence([Lowercase(), *([] if backend.normalizer is None else [backend.normalizer])])

    def save(self, folder: str | Path, prompts: Prompts, max_length: int, all_layers: bool) -> None:
        """Writes both files.

        Args:
            prompts: those of the model, which may have other ones than the starting folder.
            max_length: tokens per sentence; TEI takes 512 without it, and vLLM without `do_lower_case` next to it.
            all_layers: whether the pooling reads the output of all layers.
        """
        if self.settings or prompts.texts:
            write_json(Path(folder, SETTINGS), {"model_type": BI_ENCODER} | self.settings | prompts.config())
        transformer = {"do_lower_case": False} | self.transformer | {"max_seq_length": max_length}
        if all_layers:
            transformer["config_args"] = {"output_hidden_states": True}
        write_json(Path(folder, TRANSFORMER_CONFIG), transformer)


def refuse(file: str, settings: dict[str, Any]) -> None:
    """Refuses a setting that is not among `EXPECTED`."""
    for key, value in settings.items():
        if value not in EXPECTED.get(key, ()):
            raise InputError(
                f"{file} sets {key} to {value!r}, which this project does not apply: its vectors would be others "
                "in sentence-transformers. Remove the key, or take another model."
            )


def lowers(normalizer) -> bool:
    """Whether a tokenizer's normalizer begins with what sentence-transformers adds for `do_lower_case`."""
    parts = normalizer if isinstance(normalizer, Sequence) else [normalizer]
    return any(isinstance(part, Lowercase) for part in parts)


@cache
def warn_of_similarity(path: str, name: str) -> None:
    """Says once that a folder's similarity function is not the one that is trained and measured here."""
    logger.warning(
        "%s asks sentence-transformers for %s similarity. Here all training and all scores are of cosines, and the "
        "saved folder asks for the same as before: for cosines there too, remove similarity_fn_name from its %s.",
        path,
        name,
        SETTINGS,
    )
