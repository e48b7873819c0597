"""Add characters to an encoder, with a tokenizer that maps full-width and traditional forms to the usual ones.

python -m lab.characters --config lab/pretraining/characters.yaml --init mini --text plain.txt.gz --output runs/mini
python -m lab.characters --config lab/pretraining/characters.yaml --init similar --like runs/mini --output runs/similar

What the encoder holds stays as it is, bit by bit. The second command takes the rows of a model that the encoder was
trained from.
"""

import base64
import json
import logging
import math
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from string import ascii_letters, digits

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast

from cosent.atomic import complete_folder
from cosent.cli import REQUIRED, option, run
from cosent.data.files import normalized_text, read_texts
from cosent.encoders import local
from cosent.errors import InputError
from cosent.jobs.arguments import OutputFolder
from cosent.models.folder import CONFIG, WEIGHTS, read_json, write_json
from cosent.models.loading import load_tokenizer
from cosent.record import RECORD_NAME
from cosent.seal import model_files, seal, sha256_of_file
from cosent.training.job import environment
from lab.lookup import rates
from lab.pretraining.batches import IGNORED, NeighbourBatches, Texts
from lab.pretraining.model import Pretraining, initial_model
from lab.pretraining.tokenizer import FULL_WIDTH, charsmap

logger = logging.getLogger("cosent.characters")

VOCABULARY = ("word_embeddings.weight", "predictions.bias")  # of the weights, a row for each token
INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
# transformers' BertTokenizer would replace the normaliser of tokenizer.json by its own.
READER = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": INPUTS}
UNKNOWN, BASIC = "[UNK]", range(0x4E00, 0xA000)  # the basic Chinese characters
RAREST = 500  # characters of the vocabulary by whose biases new ones start
RIDGE = 100.0  # of the linear map between the rows of two models
EVERY = 20  # one of so many windows is only measured
AROUND = 20  # characters of a window on either side of a new one


@dataclass(kw_only=True)
class CharacterArguments(OutputFolder):
    """Characters to add, and the text for their training."""

    config: str | None = option(None, "YAML file of defaults for these flags.")
    init: str = option(REQUIRED, "Encoder with a vocabulary of characters: a shipped one or a folder.")
    like: str | None = option(None, "In place of --text: folder to take tokenizer and rows from.")
    text: list[str] | None = option(None, "UTF-8 files of plain text, a line each, also .gz.")
    exclude: list[str] | None = option(None, "Leave out the validation and test sentences of these corpora.")
    data_dir: str = option("data", "Folder of the prepared corpora.")
    forms: str = option("TSCharacters.txt", "File of OpenCC: a traditional character, and its simplified ones.")
    standard: str = option("standard.txt", "The general standard characters: code point, tab, character.")
    fewest: int = option(3, "Times that any other character occurs in the text, to be added.")
    passes: float = option(4.0, "Passes over the windows of new characters.")
    batch_tokens: int = option(4096, "Tokens of a batch.")
    learning_rate: float = option(1e-2, "Highest learning rate.")
    lower: float = option(0.0, "Lower the biases of new tokens by so much, of a model that shall not write them.")
    seed: int = option(1, "Seed of everything random.")

    def __post_init__(self):
        if (self.text is None) == (self.like is None):
            raise InputError("Give --text, whose characters are added, or --like, a folder to take them from.")


def main(args: CharacterArguments) -> None:
    start, output, source = time.time(), args.new_folder(), local(args.init)
    weights = load_file(source / WEIGHTS)
    if args.like is None:
        lines, excluded = list(read_texts(args.text)), Texts([], args.exclude or [], args.data_dir).excluded
        tokenizer, added, written = extended(source / "tokenizer.json", lines, args)
        told = [line for line in lines if not written.isdisjoint(line) and normalized_text(line) not in excluded]
        told = [part for line in told for part in windows(line, written)]
        share = sum(map(len, told)) / sum(map(len, lines))
        rows, biases, done = trained(source, tokenizer, told, share, len(added), args)
        done["files"] = {name: sha256_of_file(name) for name in [*args.text, args.forms, args.standard]}
    else:
        tokenizer = json.loads(Path(args.like, "tokenizer.json").read_text(encoding="utf-8"))
        rows, biases = taken(weights, load_file(Path(args.like, WEIGHTS)))
        done = {}
    done |= {"settings": asdict(args), "environment": asdict(environment()), "added": len(rows)}
    done["seconds"] = time.time() - start
    with complete_folder(output) as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        save_file(weights | appended(weights, rows, biases - args.lower), folder / WEIGHTS, metadata={"format": "pt"})
        for name, changed in (
            ("tokenizer.json", tokenizer),
            ("tokenizer_config.json", READER),
            (CONFIG, {"vocab_size": len(tokenizer["model"]["vocab"])}),
            (RECORD_NAME, {"characters": done}),
        ):
            write_json(folder / name, (read_json(str(folder), name) or {}) | changed)
        seal(folder, model_files(folder))


def extended(file: Path, lines: list[str], args: CharacterArguments) -> tuple[dict, list[str], set[str]]:
    """Content of tokenizer.json with the map and the new characters; the new ones; and all characters read as them.

    New are those that were unknown: all of GB2312; of the general standard characters those that occur; others that
    occur `--fewest` times. A traditional form is read as its first simplified one that is a standard character, unless
    it is one itself.
    """
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    rows = (line.split("\t") for line in Path(args.standard).read_text(encoding="utf-8").splitlines())
    standard = {row[1] for row in rows}
    places = [bytes((first, second)) for first in range(0xA1, 0xF8) for second in range(0xA1, 0xFF)]
    national = {character for place in places for character in place.decode("gb2312", "ignore")}
    forms = {}
    for line in Path(args.forms).read_text(encoding="utf-8").splitlines():
        form, simplified = line.split("\t")
        if form not in standard and (usual := [one for one in simplified.split() if one in standard]):
            forms[form] = usual[0]
    forms |= {chr(ord(form) + FULL_WIDTH): form for form in ascii_letters + digits}
    charsmap_json = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap(forms)).decode()}
    content["normalizer"] = {"type": "Sequence", "normalizers": [charsmap_json, content["normalizer"]]}
    reader = Tokenizer.from_str(json.dumps(content))
    counts = Counter("".join(lines))
    read_as = {one: reader.normalizer.normalize_str(one).strip() for one in counts.keys() | national}
    totals = Counter[str]()
    for one, usual in read_as.items():
        totals[usual] += counts[one]
    wanted = {read_as[one] for one in national}
    wanted |= {one for one, number in totals.items() if number >= (1 if one in standard else args.fewest)}
    wanted = {
        one for one in wanted if len(one) == 1 and reader.encode(one, add_special_tokens=False).tokens == [UNKNOWN]
    }
    added = sorted(wanted, key=lambda one: (-totals[one], one))
    vocabulary |= {character: len(vocabulary) + number for number, character in enumerate(added)}
    logger.info("%d new characters, %d of them in the text", len(added), sum(totals[one] > 0 for one in added))
    return content, added, {one for one, usual in read_as.items() if usual in wanted}


def windows(line: str, written: set[str]) -> Iterator[str]:
    """Windows of `AROUND` characters on both sides of the characters `written` in a line, without overlap."""
    end = 0
    for place, character in enumerate(line):
        if character in written and place >= end:
            start, end = max(end, place - AROUND), place + AROUND
            yield line[start:end]


def appended(weights: dict[str, Tensor], rows: Tensor, biases: Tensor) -> dict[str, Tensor]:
    """The vocabulary weights in `weights` with the new ones appended, in the dtype of the old."""
    new = {
        name: part
        for name in weights
        for end, part in zip(VOCABULARY, (rows, biases), strict=True)
        if name.endswith(end)
    }
    return {name: torch.cat([weights[name], part.to(weights[name].dtype)]) for name, part in new.items()}


def trained(
    source: Path, content: dict, lines: list[str], share: float, number: int, args: CharacterArguments
) -> tuple[Tensor, ...]:
    """New rows and biases, trained by masked-language modelling, and the metrics of the training.

    A row begins as a normal draw like the rows of Chinese characters. In a step only rows that the batch holds move, so
    that those of characters that never occur stay as they were drawn, and differ.
    """
    model, vocabulary = initial_model(str(source)).eval(), content["model"]["vocab"]
    old, named = len(vocabulary) - number, load_tokenizer(str(source)).special_tokens_map
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(content)), **named)
    model.set_attn_implementation("eager")
    model.requires_grad_(False).resize_token_embeddings(len(vocabulary), mean_resizing=False)
    words, biases = model.get_input_embeddings().weight, model.cls.predictions.bias
    chinese = [row for token, row in vocabulary.items() if row < old and len(token) == 1 and ord(token) in BASIC]
    root = torch.linalg.cholesky(torch.cov(words[chinese].T) + 1e-6 * torch.eye(words.shape[1]))
    noise = torch.randn(number, words.shape[1], generator=torch.Generator().manual_seed(args.seed))
    words.data[old:] = words[chinese].mean(dim=0) + noise @ root.T
    biases.data[old:] = biases[chinese].sort().values[:RAREST].mean()

    held_out, read = lines[::EVERY], [line for place, line in enumerate(lines) if place % EVERY]
    positions = model.config.model_type != "roformer"
    batches, others = (
        NeighbourBatches(lambda some=some: iter(some), tokenizer, args.batch_tokens, positions, args.seed)
        for some in (read, held_out)
    )
    objective, tokens = Pretraining(model, tokenizer), sum(map(len, batches.pieces()))
    steps = int(args.passes * tokens / args.batch_tokens)
    done = {"windows": len(lines), "tokens": tokens, "steps": steps, "before": measured(objective, others, old)}
    optimizer = torch.optim.SparseAdam([words.requires_grad_(), biases.requires_grad_()], args.learning_rate)
    for step, batch in zip(rates(optimizer, steps), batches, strict=False):  # which have no end
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = objective(**batch)["mlm"]
        loss.backward()
        written = torch.where(batch["labels"] == IGNORED, batch["input_ids"], batch["labels"])
        present = written[written >= old].unique()
        for weight in (words, biases):
            moves = weight.grad[present]
            weight.grad = torch.sparse_coo_tensor(present[None], moves, weight.shape, check_invariants=True)
        optimizer.step()
        if step % 20 == 0:
            logger.info("step %d of %d: loss %.4f", step, steps, loss.item())
    done["after"] = measured(objective, others, old)
    # These lines are a `share` of the text: in all of it, new characters are rarer.
    return words[old:].detach(), biases[old:].detach() + math.log(share), done


@torch.no_grad()
def measured(objective: Pretraining, batches: NeighbourBatches, old: int) -> dict[str, float]:
    """Loss and accuracy on masked old tokens, among old ones, and on new ones; masks are the same in every call."""
    sums = np.zeros((2, 3))
    tokens = sum(map(len, batches.pieces()))
    for batch in islice(batches, 1 + tokens // batches.batch_tokens):
        labels = batch.pop("labels")
        chosen = labels != IGNORED
        scores, labels = objective.head(objective.hidden(**batch)[chosen]), labels[chosen]
        for row, (some, among) in enumerate(((labels < old, old), (labels >= old, None))):
            right = scores[some, :among].argmax(dim=1) == labels[some]
            loss = cross_entropy(scores[some, :among], labels[some], reduction="sum")
            sums[row] += [loss.item(), right.sum().item(), len(right)]
    names = [f"{kind}_{what}" for kind in ("old", "new") for what in ("loss", "accuracy")]
    return dict(zip(names, (sums[:, :2] / sums[:, 2:]).round(4).ravel().tolist(), strict=True))


def taken(weights: dict[str, Tensor], like: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """New rows and biases of `like`, mapped by a linear fit of the old ones from `like` to `weights`."""
    parts: list[Tensor] = []
    for end in VOCABULARY:
        mine, other = (next((w.float() for n, w in some.items() if n.endswith(end)), None) for some in (weights, like))
        if mine is None:
            parts.append(torch.zeros(len(parts[0])))
            continue
        known, new = other[: len(mine)].view(len(mine), -1), other[len(mine) :].view(-1, mine[0].numel())
        mine, centre = mine.view(len(mine), -1), known.mean(dim=0)
        move, spread = mine - known, known - centre
        ridge = RIDGE * torch.eye(known.shape[1])
        linear = torch.linalg.solve(spread.T @ spread + ridge, spread.T @ (move - move.mean(dim=0)))
        parts.append((new + move.mean(dim=0) + (new - centre) @ linear).squeeze(-1))
    return parts[0], parts[1]


if __name__ == "__main__":
    run(main)
