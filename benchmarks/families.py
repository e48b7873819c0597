"""Random models of every architecture, as either tower, and batches of a corpus for them."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tqdm.auto import tqdm

from benchmarks.common import BATCH_SIZE, shuffled_rows
from cosent.compute.packed_backbone import POSITIONS
from cosent.data.pairs import JoinedPairCollator, PairCollator, tokenize_apart, tokenize_joined
from cosent.losses.cosent import cosent_loss
from cosent.models.bi_encoder import BiEncoder, SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.training.record import environment
from tests.families import FAMILIES, Size, save_family

SIZE = Size(width=256, inner=1024, layers=4, heads=4, longest=128, letters=20992)  # every character of the plane
TOWERS = ("bi_encoder", "cross_encoder")


def packs(name: str) -> bool:
    return (FAMILIES[name].model_type or name) in POSITIONS


@contextmanager
def random_model(name: str, tower: str, max_length: int, size: Size = SIZE) -> Iterator[BiEncoder | CrossEncoder]:
    """A tower, loaded from a folder with the random weights of a backbone; a head is fresh."""
    with TemporaryDirectory() as folder:
        path = str(save_family(name, Path(folder), size=size))
        if tower == "bi_encoder":
            yield BiEncoder(SentenceEncoder.from_pretrained(path, pooling="mean", max_length=max_length))
        else:
            yield CrossEncoder.from_pretrained(path, num_labels=1, max_length=max_length)


def encoder_of(model: BiEncoder | CrossEncoder) -> SentenceEncoder | CrossEncoder:
    return model.encoder if isinstance(model, BiEncoder) else model


def batches(rows, model: BiEncoder | CrossEncoder) -> list[dict[str, torch.Tensor]]:
    """Batches of `BATCH_SIZE` pairs in the order of the rows, as training collates them."""
    encoder, made = encoder_of(model), []
    tokenizer, limit = encoder.tokenizer, encoder.max_length
    for start in range(0, len(rows), BATCH_SIZE):
        part = rows[start : start + BATCH_SIZE]
        if isinstance(model, BiEncoder):
            ids = tokenize_apart(part, tokenizer, limit)
            collate, columns = PairCollator.from_tokenizer(tokenizer), ("input_ids1", "input_ids2")
        else:
            ids = tokenize_joined(part, tokenizer, limit)
            collate, columns = JoinedPairCollator.from_tokenizer(tokenizer), ("input_ids", "first_tokens")
        made.append(collate(list(zip(*(ids[column] for column in columns), part["label"], strict=True))))
    return made


def loss_of(model: BiEncoder | CrossEncoder, batch: dict[str, torch.Tensor], packing: bool = True) -> torch.Tensor:
    encoder_of(model).packing = packing
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    scale = 20.0 if isinstance(model, BiEncoder) else 1.0
    return cosent_loss(model(**inputs)["scores"], batch["labels"], scale)


def measure_each(
    kind: str, corpus: str, pairs: int, output: str, only: list[str] | None, row: Callable, size: Size = SIZE
) -> dict:
    """Measures one architecture after the other and writes the file after each; those in it are kept.

    Args:
        only: architectures to measure (again); default: all that the file lacks.
        row: name, rows of the train split, maximum lengths by tower -> what was measured.
    """
    file = Path(output)
    kept = json.loads(file.read_text(encoding="utf-8"))["rows"] if file.is_file() else {}
    rows, max_length = shuffled_rows(corpus, "train", pairs)
    result = {"kind": kind, "corpus": Path(corpus).name, "pairs": pairs, "size": asdict(size), "rows": kept}
    result |= asdict(environment())
    for name in tqdm(only or [name for name in FAMILIES if name not in kept], file=sys.stderr):
        kept[name] = row(name, rows, max_length) | {"commit": result["commit"]}
        result["rows"] = {name: kept[name] for name in FAMILIES if name in kept}
        write(result, output)
    return result


def write(result: dict, output: str) -> None:
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    Path(output).write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
