"""On-disk cache of the embeddings and scores of a model, such as a teacher, by model and texts."""

import hashlib
import logging
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import numpy as np
from torch import nn

from cosent.atomic import is_intact, signed_file
from cosent.cli import cache_home
from cosent.compute.distributed import (
    gather_object,
    local_rank,
    local_world_size,
    wait_for_everyone,
)
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.text_model import TextModel

logger = logging.getLogger(__name__)

MOST_BYTES = 20 * 2**30  # of that folder
PART_TEXTS = 32768  # computed and stored at a time: what a kill can cost


def default_cache() -> Path:
    """Default cache folder of the functions here."""
    return cache_home() / "cosent" / "model_outputs"


def teacher_vectors(
    teacher: SentenceEncoder, sentences1: list[str], sentences2: list[str], cache: Path | None = None, **prompts
) -> tuple[np.ndarray, np.ndarray]:
    """A teacher's unit vectors of all distinct sentences with their prompts (`prompts`: see `similarity`).

    Returns:
        Memory-mapped float32 of shape `(distinct sentences, hidden)`, and the two rows of each pair, `(pairs, 2)`.
    """
    place: dict[tuple[str, str], int] = {}
    sides, both = teacher.prompts.sides(**prompts), zip(sentences1, sentences2, strict=True)
    rows = np.array([[place.setdefault(read, len(place)) for read in zip(sides, pair, strict=True)] for pair in both])
    return prompted_vectors(teacher, list(place), cache), rows


def sentence_vectors(
    teacher: SentenceEncoder, sentences: list[str], cache: Path | None = None, prompt: str | None = None
) -> np.memmap:
    """A teacher's unit vectors of sentences with one prompt, memory-mapped, shape `(sentences, hidden)`."""
    text = teacher.prompts.text(prompt)
    return prompted_vectors(teacher, [(text, sentence) for sentence in sentences], cache)


def growing_vectors(
    teacher: SentenceEncoder, sentences: list[str], cache: Path | None = None, prompt: str | None = None
) -> np.memmap:
    """As `sentence_vectors`, but sentences of an earlier list are not embedded again: for files that grow.

    The newest list by the same model and prompt is looked up by the hashes of its sentences, next to its vectors.
    """
    prefix, cache = teacher.prefix(teacher.prompts.text(prompt)), cache or default_cache()
    file = Path(cache, f"{fingerprint(teacher, ['vectors', *(in_key(prefix, one) for one in sentences)])}.npy")
    ending = f".{fingerprint(teacher, [in_key(prefix, '')])}.lines"
    hashes = [blake2b(sentence.encode(), digest_size=16).digest() for sentence in sentences]
    lists = sorted(cache.glob(f"*{ending}"), key=lambda lines: lines.stat().st_mtime)
    arrays = [(lines, lines.with_name(f"{lines.name.removesuffix(ending)}.npy")) for lines in lists]
    earlier = [(lines, array) for lines, array in arrays if array.is_file()]
    old, known = map(stored_array, reversed(earlier[-1])) if earlier and not file.is_file() else (None, None)
    if old is None or known is None:
        vectors = sentence_vectors(teacher, sentences, cache, prompt)
    else:
        row_of = {line.tobytes(): row for row, line in enumerate(known)}
        rows = np.array([row_of.get(line, -1) for line in hashes])
        new = np.flatnonzero(rows < 0)
        logger.info("%s of %s sentences are new to this model.", f"{len(new):,}", f"{len(rows):,}")
        joined = np.empty((len(rows), old.shape[1]), dtype=np.float32)
        joined[rows >= 0] = old[rows[rows >= 0]]
        if len(new):
            joined[new] = sentence_vectors(teacher, [sentences[row] for row in new], cache, prompt)
        write_array(file, joined)
        vectors = np.load(file, mmap_mode="r")
    write_array(file.with_name(f"{file.stem}{ending}"), np.frombuffer(b"".join(hashes), dtype="V16"))
    return vectors


def prompted_vectors(teacher: SentenceEncoder, texts: list[tuple[str, str]], cache: Path | None) -> np.memmap:
    """Unit vectors of (prompt, sentence) pairs."""
    prompts = {prompt for prompt, _ in texts}

    def compute(share: slice) -> np.ndarray:
        part = texts[share]
        vectors = np.empty((len(part), teacher.embedding_dimension), dtype=np.float32)
        for prompt in prompts:
            rows = [row for row, (own, _) in enumerate(part) if own == prompt]
            sentences = [part[row][1] for row in rows]
            progress = local_rank() == 0
            vectors[rows] = teacher.encode(
                sentences, normalize_embeddings=True, show_progress_bar=progress, prompt=prompt
            )
        return vectors

    return cached_array(cache, teacher, [in_key(prompt, text) for prompt, text in texts], compute, "vectors")


def in_key(prompt: str, text: str) -> str:
    """A text and its prompt, or two texts, unambiguously joined for `fingerprint`."""
    return f"{len(prompt)} {prompt}{text}"


def teacher_scores(
    teacher: CrossEncoder, sentences1: list[str], sentences2: list[str], cache: Path | None = None, **prompts
) -> np.ndarray:
    """A teacher's scores of all pairs, memory-mapped float32 of shape `(pairs,)`; arguments as in `teacher_vectors`."""
    prefix, _ = teacher.prefixes(**prompts)
    pairs = [in_key(prefix, in_key(first, second)) for first, second in zip(sentences1, sentences2, strict=True)]

    def compute(share: slice) -> np.ndarray:
        progress = local_rank() == 0
        return teacher.similarity(sentences1[share], sentences2[share], show_progress_bar=progress, **prompts)

    return cached_array(cache, teacher, pairs, compute, "scores")


def cached_array(
    cache: Path | None, teacher: TextModel, texts: list[str], compute: Callable[[slice], np.ndarray], what: str
) -> np.memmap:
    """An array from the cache, or computed and stored there; the file is complete or absent, even after a kill.

    The processes of a machine share out the texts in parts of at most `PART_TEXTS`, and finished parts outlive a kill.

    Args:
        texts: what the teacher reads; one row of the array each.
        compute: a slice of `texts` -> its rows.
    """
    cache = cache or default_cache()
    file = Path(cache, f"{fingerprint(teacher, [what, *texts])}.npy")
    if any(gather_object(stored_array(file) is None)):  # another machine may have another cache
        said = "Running the model on %s texts once; cached in %s (XDG_CACHE_HOME: another folder than ~/.cache)."
        logger.info(said, f"{len(texts):,}", file)
        size = max(1, min(PART_TEXTS, math.ceil(len(texts) / local_world_size())))
        shares = [slice(start, min(start + size, len(texts))) for start in range(0, len(texts), size)]
        parts = [file.with_suffix(f".{share.start}-{share.stop}.npy") for share in shares]
        file.parent.mkdir(parents=True, exist_ok=True)
        for share, part in list(zip(shares, parts, strict=True))[local_rank() :: local_world_size()]:
            if stored_array(part) is None and not file.is_file():
                write_array(part, compute(share))
        wait_for_everyone()
        if local_rank() == 0:
            with suppress(FileNotFoundError):  # of parts that another job removed, once the file was complete
                write_array(file, np.concatenate([np.load(part, mmap_mode="r") for part in parts]))
        wait_for_everyone()
        if local_rank() == 0:
            for part in parts:
                part.unlink(missing_ok=True)  # machines may share the folder
            if cache == default_cache():
                prune(file)
    with suppress(OSError):  # a cache that is only read
        os.utime(file)
    return np.load(file, mmap_mode="r")


def prune(used: Path, most: int = MOST_BYTES) -> None:
    """Removes the least recently used entries of a cache (all files of a key) beyond `most` bytes, but never `used`."""
    entries = defaultdict(list)
    for file in used.parent.iterdir():
        with suppress(FileNotFoundError):  # a partial file that is complete by now
            entries[file.name.partition(".")[0]].append((file.stat().st_mtime, file.stat().st_size, file))
    total = 0
    for key, files in sorted(entries.items(), key=lambda entry: max(entry[1]), reverse=True):
        total += sum(size for _, size, _ in files)
        for *_, file in files if total > most and key != used.stem else []:
            with suppress(OSError):  # another job was faster, or Windows has it open
                file.unlink()


def write_array(file: Path, values: np.ndarray) -> None:
    with signed_file(file) as partial, open(partial, "wb") as opened:
        np.save(opened, values)


def stored_array(file: Path) -> np.memmap | None:
    """The array that `write_array` stored, memory-mapped; None if there is none, or a damaged one."""
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
