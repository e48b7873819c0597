"""On-disk cache of vectors and scores, by model and texts: one file for each list of texts."""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
from torch import nn

from cosent.atomic import is_intact, signed_file
from cosent.cli import cache_home
from cosent.compute.distributed import gather_object, local_rank, rank, wait_for_everyone
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.embedding import shared
from cosent.models.text_model import TextModel

logger = logging.getLogger(__name__)

MOST_BYTES = 20 * 2**30  # in the default folder


def default_cache() -> Path:
    """Default cache folder of the functions here."""
    return cache_home() / "cosent" / "model_outputs"


def teacher_vectors(
    teacher: SentenceEncoder, sentences1: list[str], sentences2: list[str], cache: Path | None = None, **prompts
) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of the distinct sentences of pairs with their prompts (`prompts`: see `similarity`).

    Returns:
        Memory-mapped float32 of shape `(distinct sentences, hidden)`, and the two rows of each pair, `(pairs, 2)`.
    """
    row_of: dict[tuple[str, str], int] = {}  # by prompt and sentence
    sides, pairs = teacher.prompts.sides(**prompts), zip(sentences1, sentences2, strict=True)
    rows = [[row_of.setdefault(text, len(row_of)) for text in zip(sides, pair, strict=True)] for pair in pairs]
    return prompted_vectors(teacher, list(row_of), cache), np.array(rows)


def sentence_vectors(
    encoder: SentenceEncoder, sentences: list[str], cache: Path | None = None, prompt: str | None = None
) -> np.memmap:
    """Unit vectors of sentences with one prompt, memory-mapped float32 of shape `(sentences, hidden)`."""
    text = encoder.prompts.text(prompt)
    return prompted_vectors(encoder, [(text, sentence) for sentence in sentences], cache)


def prompted_vectors(encoder: SentenceEncoder, texts: list[tuple[str, str]], cache: Path | None) -> np.memmap:
    """Unit vectors of (prompt, sentence) pairs."""

    def compute(share: slice) -> np.ndarray:
        part = texts[share]
        vectors = np.empty((len(part), encoder.embedding_dimension), dtype=np.float32)
        options = {"normalize_embeddings": True, "show_progress_bar": rank() == 0}
        for prompt in dict.fromkeys(prompt for prompt, _ in texts):
            rows = [row for row, (of_row, _) in enumerate(part) if of_row == prompt]
            vectors[rows] = encoder.encode([part[row][1] for row in rows], prompt=prompt, **options)
        return vectors

    keys = [in_key(prompt, text) for prompt, text in texts]
    return cached_array(cache, encoder, keys, compute, "vectors", "sentences")


def teacher_scores(
    teacher: CrossEncoder, sentences1: list[str], sentences2: list[str], cache: Path | None = None, **prompts
) -> np.memmap:
    """Scores of pairs, memory-mapped float32 of shape `(pairs,)`; arguments as in `teacher_vectors`."""
    prefix, _ = teacher.prefixes(**prompts)
    keys = [in_key(prefix, in_key(first, second)) for first, second in zip(sentences1, sentences2, strict=True)]

    def compute(share: slice) -> np.ndarray:
        return teacher.similarity(sentences1[share], sentences2[share], show_progress_bar=rank() == 0, **prompts)

    return cached_array(cache, teacher, keys, compute, "scores", "pairs")


def in_key(prompt: str, text: str) -> str:
    """A text and its prompt, or two texts, unambiguously joined for `fingerprint`."""
    return f"{len(prompt)} {prompt}{text}"


def cached_array(
    cache: Path | None, model: TextModel, keys: list[str], compute: Callable[[slice], np.ndarray], *names: str
) -> np.memmap:
    """An array from the cache, or computed, shared out over processes, and stored there.

    Args:
        keys: what each row is computed from, see `in_key`.
        compute: slice of the rows -> their values.
        names: what the values are, and what the rows are.
    """
    cache, (values_name, rows_name) = cache or default_cache(), names
    file = Path(cache, f"{fingerprint(model, [values_name, *keys])}.npy")
    if any(gather_object(stored_array(file) is None)):  # another machine may have another cache
        about = "Encoding %s %s (none cached yet); their %s go to %s (XDG_CACHE_HOME names another folder)."
        logger.info(about, f"{len(keys):,}", rows_name, values_name, file)
        values = shared(compute, len(keys))
        if local_rank() == 0:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_array(file, values)
            if cache == default_cache():
                prune(file)
        wait_for_everyone()
    with suppress(OSError):  # a cache that is only read
        os.utime(file)
    return np.load(file, mmap_mode="r")


def prune(used: Path, most: int = MOST_BYTES) -> None:
    """Removes the least recently used files of a cache beyond `most` bytes, but never `used`."""
    files = []
    for file in used.parent.iterdir():
        with suppress(FileNotFoundError):  # a partial file that is complete by now
            files.append((file.stat().st_mtime, file.stat().st_size, file))
    total = 0
    for _, size, file in sorted(files, reverse=True):
        total += size
        if total > most and file != used:
            with suppress(OSError):  # another job was faster, or Windows has it open
                file.unlink()


def write_array(file: Path, values: np.ndarray) -> None:
    with signed_file(file) as partial, open(partial, "wb") as opened:
        np.save(opened, values)


def stored_array(file: Path) -> np.memmap | None:
    """The memory-mapped array of a file; None if there is none, or a damaged one."""
    return np.load(file, mmap_mode="r") if is_intact(file) else None


def fingerprint(model: nn.Module, texts: Iterable[str] = ()) -> str:
    """Hash of a `TextModel` (weights, modules, tokenizer, maximum length) and of input texts."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    digest.update(model.rules.encode())
    for text in texts:
        encoded = text.encode()
        digest.update(b"%d " % len(encoded) + encoded)
    return digest.hexdigest()[:40]
