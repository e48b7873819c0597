"""A bi-encoder as mteb asks for one, and what its result files say about it."""

import hashlib
from pathlib import Path

import numpy as np
from huggingface_hub import try_to_load_from_cache

from cosent.compute.distributed import rank
from cosent.encoders import SHIPPED, resolve
from cosent.errors import InputError
from cosent.inference.shared_work import shared
from cosent.measuring.mteb_arguments import TASKS
from cosent.run import RECORD_NAME, read_record
from cosent.schema import sha256_of_file

MODEL_FILES = (".safetensors", ".bin", ".json", ".txt", ".model")  # weights, settings, vocabularies


def import_mteb():
    """The package mteb.

    Raises:
        InputError: it is not installed.
    """
    try:
        import mteb
    except ImportError as error:
        raise InputError(
            f"--mteb runs the tasks of the package mteb, which is not installed ({error}). Run pip install "
            "'cosent[mteb]'; --corpus NAME gives the same Spearman without it."
        ) from error
    return mteb


class MtebEncoder:
    """An `Embedder` with the methods that mteb calls: `EncoderProtocol` of mteb.

    It reads sentences as `cosent evaluate` does: with the same prompt and maximum length, each distinct one once,
    shared out over the processes of the job.

    Args:
        prompt: text in front of every sentence.
        meta: mteb's `ModelMeta`.
    """

    def __init__(self, model, prompt: str, meta):
        self.model, self.prompt, self.mteb_model_meta = model, prompt, meta

    def encode(self, inputs, *, batch_size: int, **of_task) -> np.ndarray:
        """Vectors of the sentences in batches `{"text": [sentence, ...]}`; nothing depends on the task."""
        sentences = [sentence for batch in inputs for sentence in batch["text"]]
        options = {"batch_size": batch_size, "show_progress_bar": rank() == 0, "prompt": self.prompt}
        return shared(lambda part: self.model.encode(sentences[part], **options), len(sentences))

    def similarity(self, embeddings1, embeddings2):
        from mteb.similarity_functions import cos_sim

        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1, embeddings2):
        from mteb.similarity_functions import pairwise_cos_sim

        return pairwise_cos_sim(embeddings1, embeddings2)


def model_meta(model, name_or_path: str, name: str | None, revision: str | None, experiment: dict):
    """The `ModelMeta` that mteb stores next to its results.

    Args:
        name, revision: see `MtebArguments`.
        experiment: settings that change the vectors and are not those of the model; results with them get a folder of
            their own.
    """
    from mteb.models import ModelMeta

    path = resolve(name_or_path)
    trained_on = trained_tasks(name_or_path)
    known = {
        "name": name or default_name(name_or_path, path),
        "revision": revision or default_revision(path),
        "n_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "max_tokens": model.max_length,
        "embed_dim": model.embedding_dimension,
        "similarity_fn_name": "cosine",
        "framework": ["PyTorch"],
        "training_datasets": None if trained_on is None else set(trained_on),
        "experiment_kwargs": experiment or None,
    }
    return ModelMeta(**(dict.fromkeys(ModelMeta.model_fields) | defaults(ModelMeta) | known))


def defaults(cls) -> dict:
    """The defaults of a pydantic model's fields that have one."""
    return {name: field.get_default(call_default_factory=True) for name, field in cls.model_fields.items()
            if not field.is_required()}  # fmt: skip


def default_name(name_or_path: str, path: str) -> str:
    if not Path(path).is_dir():
        return name_or_path if "/" in name_or_path else f"hub/{name_or_path}"
    return f"cosent/{name_or_path}" if name_or_path in SHIPPED else f"local/{Path(path).resolve().name}"


def default_revision(path: str) -> str:
    """The commit of a Hub id; of a folder the SHA-256 of its weights, settings and vocabularies, by their names."""
    if not Path(path).is_dir():
        config = try_to_load_from_cache(path, "config.json")
        return Path(str(config)).parent.name  # .../snapshots/COMMIT/config.json
    digest = hashlib.sha256()
    for file in sorted(Path(path).rglob("*")):
        inner = file.relative_to(path)
        of_run = inner.name == RECORD_NAME or inner.parts[0].startswith("checkpoint-")
        if file.suffix in MODEL_FILES and not of_run:
            digest.update(f"{inner.as_posix()} {sha256_of_file(file)}\n".encode())
    return digest.hexdigest()[:40]


def trained_tasks(model: str) -> list[str] | None:
    """The tasks on whose training splits `run.json` says that a model was trained; None if it has no such record."""
    record = read_record(model)
    if record is None:
        return None
    corpora = record.recipe.get("corpus") or []
    names = {Path(one).name.upper() for one in (corpora if isinstance(corpora, list) else [corpora])}
    return [task for task in TASKS if task in names]
