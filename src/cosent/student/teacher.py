"""Teacher embeddings and scores, computed once and cached on disk by teacher and texts."""

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import nn

from cosent.compute.distributed import gather_object, local_rank, local_world_size, rank, wait_for_everyone
from cosent.data.prefix import Prefix
from cosent.data.tokenization import tokenizer_rules
from cosent.files import partial_file
from cosent.modeling.bi_encoder import SentenceEncoder
from cosent.modeling.cross_encoder import CrossEncoder

logger = logging.getLogger(__name__)

DEFAULT_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "cosent", "teachers")


def teacher_vectors(
    teacher: SentenceEncoder,
    sentences1: list[str],
    sentences2: list[str],
    cache: Path = DEFAULT_CACHE,
    **prompts,
) -> tuple[np.ndarray, np.ndarray]:
    """A teacher's unit vectors of all distinct sentences; a sentence is another one behind another prompt.

    Args:
        sentences1, sentences2: the sentences of each pair.
        cache: cache folder.
        prompts: `prompt` or `prompt_name`, as for `similarity` of the teacher.

    Returns:
        Memory-mapped float32 vectors of shape `(distinct sentences, hidden)`, and which of them belong to each pair,
        shape `(pairs, 2)`.
    """
    place: dict[tuple[str, str], int] = {}
    sides, both = teacher.prompts.sides(**prompts), zip(sentences1, sentences2, strict=True)
    rows = np.array([[place.setdefault(read, len(place)) for read in zip(sides, pair, strict=True)] for pair in both])
    distinct = list(place)

    def compute(share: slice) -> np.ndarray:
        some, vectors = distinct[share], None
        for prompt in dict.fromkeys(sides):
            chosen = np.array([own == prompt for own, _ in some], dtype=bool)
            sentences = [sentence for own, sentence in some if own == prompt]
            encoded = teacher.encode(sentences, normalize=True, show_progress_bar=local_rank() == 0, prompt=prompt)
            vectors = np.empty((len(some), encoded.shape[1]), dtype=np.float32) if vectors is None else vectors
            vectors[chosen] = encoded
        return vectors

    prefixes = {prompt: teacher.prefix(prompt) for prompt in sides}
    texts = [in_key(prefixes[prompt], sentence) for prompt, sentence in distinct]
    return cached_array(cache, teacher, texts, compute, "vectors"), rows


def teacher_scores(
    teacher: CrossEncoder,
    sentences1: list[str],
    sentences2: list[str],
    cache: Path = DEFAULT_CACHE,
    **prompts,
) -> np.ndarray:
    """A teacher's scores of all pairs, memory-mapped float32 of shape `(pairs,)`; arguments of `teacher_vectors`."""
    prefix, _ = teacher.prefixes(**prompts)
    pairs = [in_key(prefix, f"{first}\t{second}") for first, second in zip(sentences1, sentences2, strict=True)]

    def compute(share: slice) -> np.ndarray:
        progress = local_rank() == 0
        return teacher.similarity(sentences1[share], sentences2[share], show_progress_bar=progress, **prompts)

    return cached_array(cache, teacher, pairs, compute, "scores")


def cached_array(
    cache: Path, teacher: nn.Module, texts: list[str], compute: Callable[[slice], np.ndarray], what: str
) -> np.ndarray:
    """An array from the cache, or computed and stored there; the file is complete or absent, even after a kill.

    The processes of a machine share out the texts: none waits longer for the others than for its own share.

    Args:
        texts: what the teacher reads; one row of the array each.
        compute: a slice of `texts` -> its rows.
    """
    file = Path(cache, f"{fingerprint(teacher, [what, *texts])}.npy")
    if any(gather_object(not file.is_file())):  # another machine may have another cache
        logger.info("The teacher reads %d distinct texts once; cached in %s.", len(texts), file)
        here, number = local_world_size(), local_rank()
        bounds = np.linspace(0, len(texts), here + 1).astype(int)
        shares = [file.with_suffix(f".{rank() - number + other}.npy") for other in range(here)]
        file.parent.mkdir(parents=True, exist_ok=True)
        write_array(shares[number], compute(slice(bounds[number], bounds[number + 1])))
        wait_for_everyone()
        if number == 0:
            write_array(file, np.concatenate([np.load(share, mmap_mode="r") for share in shares]))
        wait_for_everyone()
        shares[number].unlink()
    return np.load(file, mmap_mode="r")


def write_array(file: Path, values: np.ndarray) -> None:
    with partial_file(file) as partial, open(partial, "wb") as opened:
        np.save(opened, values)


def in_key(prefix: Prefix, text: str) -> str:
    """A text with its prompt, for `fingerprint`; the same tokens mean another vector if fewer of them are pooled."""
    return f"{prefix.text}\0{prefix.skip}\0{text}" if prefix.text else text


def fingerprint(teacher: nn.Module, texts: list[str]) -> str:
    """Key of the cache: a teacher's weights, modules, tokenizer and maximum length, and the texts."""
    digest = hashlib.sha256()
    for name, value in sorted(teacher.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    modules = teacher.modules_after_backbone if isinstance(teacher, SentenceEncoder) else "none"
    digest.update(repr((modules, teacher.max_length, tokenizer_rules(teacher.tokenizer))).encode())
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:40]
