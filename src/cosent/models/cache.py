"""On-disk cache of vectors and scores, by model and texts: one file for each list of texts."""

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from cosent.atomic import flush, partial_file
from cosent.compute.distributed import gather_object, local_rank, rank, wait_for_everyone
from cosent.errors import reading
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.embedding import shared
from cosent.models.text_model import TextModel

logger = logging.getLogger(__name__)

MOST_BYTES = 20 * 2**30  # of the cache


def default_cache() -> Path:
    """Folder of the cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
    return home / "cosent" / "model_outputs"


def pair_vectors(
    encoder: SentenceEncoder, sentences1: list[str], sentences2: list[str], **prompts
) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of the distinct sentences of pairs with their prompts (`prompts`: see `similarity`).

    Returns:
        Memory-mapped float32 of shape `(distinct sentences, hidden)`, and the two rows of each pair, `(pairs, 2)`.
    """
    first, second = encoder.prefixes(**prompts)
    texts = [text for a, b in zip(sentences1, sentences2, strict=True) for text in (first + a, second + b)]
    row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    rows = np.array([row_of[text] for text in texts]).reshape(-1, 2)
    return text_vectors(encoder, list(row_of)), rows


def sentence_vectors(encoder: SentenceEncoder, sentences: list[str], prompt: str | None = None) -> np.memmap:
    """Unit vectors of sentences with one prompt, memory-mapped float32 of shape `(sentences, hidden)`."""
    prefix = encoder.prefix(encoder.prompts.text(prompt))
    return text_vectors(encoder, [prefix + sentence for sentence in sentences])


def text_vectors(encoder: SentenceEncoder, texts: list[str]) -> np.memmap:
    """Unit vectors of texts that begin with their prompts."""
    options = {"normalize_embeddings": True, "show_progress_bar": rank() == 0, "prompt": ""}
    return cached_array(encoder, texts, lambda part: encoder.encode(texts[part], **options), "sentences")


def pair_scores(model: CrossEncoder, sentences1: list[str], sentences2: list[str], **prompts) -> np.memmap:
    """Scores of pairs, memory-mapped float32 of shape `(pairs,)`; arguments as in `pair_vectors`."""
    prefix, _ = model.prefixes(**prompts)
    pairs = [(prefix + first, second) for first, second in zip(sentences1, sentences2, strict=True)]
    scores = partial(model.similarity, show_progress_bar=rank() == 0, prompt=prefix)
    return cached_array(model, pairs, lambda part: scores(sentences1[part], sentences2[part]), "pairs")


def cached_array(model: TextModel, rows: Sequence, compute: Callable[[slice], np.ndarray], unit: str) -> np.memmap:
    """An array from the cache, or computed, shared out over processes, and stored there.

    Args:
        rows: texts or pairs of texts, as the model reads them; `unit` is their name.
        compute: slice of the rows -> their values.
    """
    file = default_cache() / f"{fingerprint(model, rows)}.npy"
    if not all(gather_object(file.is_file())):  # another machine may have another cache
        about = "Encoding %s %s (none cached yet) into %s (XDG_CACHE_HOME names another folder)."
        logger.info(about, f"{len(rows):,}", unit, file)
        values = shared(compute, len(rows))
        if local_rank() == 0:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_array(file, values)
            prune(file)
        wait_for_everyone()
    with suppress(OSError):  # a cache that is only read
        os.utime(file)
    with reading(file, advice="Remove it: it will be made again."):
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
    with partial_file(file) as path:
        with open(path, "wb") as opened:
            np.save(opened, values)
        flush([path])


def fingerprint(model: nn.Module, rows: Iterable = ()) -> str:
    """Hash of a `TextModel` (weights, modules, tokenizer, maximum length) and of texts, or pairs of texts."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())  # bfloat16 too
    digest.update(model.rules.encode())
    for row in rows:
        digest.update(repr(row).encode())  # in quotes: no two lists are alike
    return digest.hexdigest()[:40]
