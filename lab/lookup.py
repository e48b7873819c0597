"""Make a lookup: distil a table from a bi-encoder, on plain text and training sentences, then train it by CoSENT.

python -m lab.lookup --config lab/pretraining/similar_lookup.yaml --text plain.txt.gz --output runs/similar-lookup

Only rows that a batch reads get a gradient, so that a step costs the same for tables of any size.
"""

import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, embedding_bag, normalize

from cosent.atomic import complete_folder, sha256_of_file
from cosent.cli import run
from cosent.data.corpus import Corpus, load_corpus
from cosent.data.files import normalized_text
from cosent.errors import InputError
from cosent.evaluation.similarity import principal_directions
from cosent.flags import REQUIRED, option
from cosent.jobs.arguments import OutputFolder
from cosent.losses.cosent import cosent_loss
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cache import sentence_vectors
from cosent.models.lookup import BYTES, Characters, LookupConfig, LookupModel
from cosent.models.modules import Pooling, seeded
from cosent.record import CorpusRecord, RunRecord
from cosent.training.job import environment, footprint
from lab.pretraining.batches import Texts
from lab.pretraining.tokenizer import SPECIAL, character_tokenizer

logger = logging.getLogger("cosent.lookup")

SHORTEST, LONGEST = 4, 60  # characters of a sentence to distil
FEWEST = 2  # times that a character occurs, to be in the vocabulary
DISTILLED = 256  # sentences of a batch
PROJECTED = 50_000  # sentences whose principal directions are kept
WARMUP = 0.05  # share of the steps


@dataclass(kw_only=True)
class TableArguments(OutputFolder):
    """Table content, source text, and CoSENT."""

    config: str | None = option(None, "YAML file of defaults for these flags.")
    text: list[str] = option(REQUIRED, "UTF-8 files of plain text, a line each, also .gz.")
    corpus: list[str] = option(REQUIRED, "Prepared corpora; only their training splits are read.")
    exclude: list[str] = option(REQUIRED, "Corpora whose validation and test sentences are not read.")
    data_dir: str = option("data", "Folder of the prepared corpora.")
    sentences: int = option(160_000, "Sentences to read, half of them plain text.")
    hashed_rows: int = option(2048, "Rows that all others share.")
    steps: int = option(6000, "Batches of CoSENT.")
    batch_size: int = option(128, "Pairs of a batch, which are of one corpus.")
    learning_rate: float = option(1e-3, "Highest learning rate of CoSENT.")
    corpus_weights: list[float] | None = option(None, "Share of the batches of each corpus; default: equal ones.")
    entry_dropout: float = option(0.0, "Probability that the row of a pair is left out.")
    seed: int = option(1, "Seed of everything random.")


@dataclass(kw_only=True)
class LookupArguments(TableArguments):
    """Table size and distillation."""

    forms: str | None = option(None, "File of OpenCC: a character and the one it is read as, e.g. TSCharacters.txt.")
    teacher: str = option("similar", "Bi-encoder to distil from.")
    width: int = option(128, "Numbers of a row.")
    distilled_width: int = option(256, "Numbers of a row in distillation, projected on --width after it.")
    entries: int = option(60_000, "Characters and pairs with a row of their own, the most frequent ones.")
    passes: float = option(2.0, "Passes over the sentences in distillation.")
    distillation_rate: float = option(2e-3, "Highest learning rate of distillation.")


def main(args: LookupArguments) -> None:
    start, output = time.time(), args.new_folder()
    shares(args)  # refuses what does not fit before anything is read
    corpora = {name: load_corpus(name, args.data_dir) for name in args.corpus}
    rows = [corpus.split("train") for corpus in corpora.values()]
    sentences = sentences_to_distil(args, rows)
    characters = vocabulary(sentences)
    tokenizer = character_tokenizer(characters)
    reader = Characters.of(tokenizer)
    config = LookupConfig(len(tokenizer), args.distilled_width, args.entries, args.hashed_rows)
    bytes_and_padding = [number for number in range(len(SPECIAL) + len(BYTES)) if number not in reader.ends]
    table = Table(config, args, lambda texts: reader.encode(texts, 512)[:2], sentences, bytes_and_padding)
    trained = time.time()
    distil(table, sentences, SentenceEncoder.from_pretrained(args.teacher), args)
    if args.width < args.distilled_width:
        table.project(table.read(sentences[:PROJECTED]), args.width)
    compare(table, rows, args)
    if args.forms is not None:  # after training: rows of both forms have been read by then
        tokenizer = character_tokenizer(characters, single_forms(args.forms))
    encoder = SentenceEncoder(table.model, tokenizer, Pooling("mean", args.width))
    recipe = asdict(args) | {"model_name_or_path": args.teacher}
    write_encoder(output, encoder, recipe, corpora, start, trained)
    logger.info("wrote %s; its threshold: cosent calibrate --model %s --corpus ... --output ...", output, output)


def write_encoder(
    output: Path, encoder: SentenceEncoder, recipe: dict, corpora: dict[str, Corpus], start: float, trained: float
) -> None:
    """Writes a model folder of int8 rows with its record; `start` and `trained`: when the run and training began."""
    record = RunRecord(
        recipe=recipe,
        environment=environment(),
        train_seconds=time.time() - trained,
        seconds=time.time() - start,
        files={name: sha256_of_file(name) for name in recipe["text"]},
        footprint=footprint(encoder),
        corpora={name: CorpusRecord.of(corpus.folder) for name, corpus in corpora.items()},
    )
    rows = {f"backbone.{name}": weight for name, weight in int8_state(encoder.backbone.state_dict()).items()}
    with complete_folder(output) as folder:
        encoder.save_pretrained(folder, encoder.state_dict() | rows)
        record.save(folder)


def int8_state(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of a `LookupModel` with rows rounded to int8, one step for all of them: a quarter of the size."""
    step = weights["table.weight"].abs().max() / 127
    return weights | {"table.weight": (weights["table.weight"] / step).round().to(torch.int8), "scale": step}


def shares(args: TableArguments) -> np.ndarray:
    """Share of the batches of each corpus."""
    weights = args.corpus_weights or [1.0] * len(args.corpus)
    if len(weights) != len(args.corpus):
        raise InputError(f"--corpus_weights takes one number for each of {len(args.corpus)} corpora.")
    return np.array(weights) / sum(weights)


def sentences_to_distil(args: TableArguments, corpora: list) -> list[str]:
    """Training sentences and as many lines of plain text, without held-out ones, in random order."""
    texts, draw = Texts(args.text, args.exclude, args.data_dir), random.Random(args.seed)
    trained = {text for rows in corpora for name in ("sentence1", "sentence2") for text in rows[name][:]}
    groups = [sorted(text for text in trained if normalized_text(text) not in texts.excluded), texts.read()]
    sentences: list[str] = []
    for group in groups:
        fitting = [text for text in dict.fromkeys(group) if SHORTEST <= len(text) <= LONGEST]
        sentences += draw.sample(fitting, min(args.sentences // 2, len(fitting)))
    sentences = list(dict.fromkeys(sentences))
    draw.shuffle(sentences)
    return sentences


def vocabulary(sentences: list[str]) -> list[str]:
    """Normalised characters: the frequent ones of the sentences, most frequent first, and all of GB2312."""
    rules = character_tokenizer([]).backend_tokenizer.normalizer
    characters, counts = np.unique(list("".join(map(rules.normalize_str, sentences))), return_counts=True)
    frequent = characters[np.argsort(-counts, kind="stable")][: np.count_nonzero(counts >= FEWEST)]
    lead, trail = range(0xB0, 0xF8), range(0xA1, 0xFF)
    codes = (bytes((first, second)) for first in lead for second in trail)
    return [*frequent.tolist(), *"".join(code.decode("gb2312", "ignore") for code in codes)]


def single_forms(file: str) -> dict[str, str]:
    """Characters of an OpenCC table with exactly one other form in the basic plane, and that form."""
    forms = {}
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        source, targets = line.split("\t")
        usual = [target for target in targets.split() if len(target) == 1 and ord(target) < 0x10000]
        if len(source) == len(usual) == 1 and usual != [source]:
            forms[source] = usual[0]
    return forms


class Read(NamedTuple):
    """Concatenated row indices of texts, with the start and the number of rows of each text."""

    rows: np.ndarray
    starts: np.ndarray
    counts: np.ndarray


class Table:
    """A lookup in training: a table with sparse gradients, and texts as row indices.

    Args:
        encode: gives the token ids of texts one after the other, and how many each has.
        without_row: tokens that share hashed rows, whether they occur or not.
    """

    def __init__(
        self,
        config: LookupConfig,
        args: TableArguments,
        encode: Callable[[list[str]], tuple[np.ndarray, np.ndarray]],
        sentences: list[str],
        without_row: list[int],
    ):
        self.encode, self.size, self.dropout = encode, config.vocab_size, args.entry_dropout
        self.random = np.random.default_rng(args.seed)
        with seeded(args.seed):
            self.model = LookupModel(config)
        keys = self.frequent_keys(sentences, config.entries, without_row)
        self.model.keys.copy_(torch.from_numpy(keys))
        logger.info("%s entries, %s of them pairs", f"{len(keys):,}", f"{(keys >= self.size).sum():,}")

    def tokens(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Token ids, the id before each (0 at the start of a text), and lengths of texts."""
        ids, lengths = self.encode(texts)
        before = np.concatenate([[0], ids[:-1]])
        before[np.cumsum(lengths) - lengths] = 0
        return ids, before, lengths

    def frequent_keys(self, sentences: list[str], entries: int, without_row: list[int]) -> np.ndarray:
        """Keys of all tokens that occur and may have a row, and of the most frequent pairs, ascending."""
        ids, before, _ = self.tokens(sentences)
        own = np.setdiff1d(ids, without_row)
        pairs, counts = np.unique((before * self.size + ids)[before > 0], return_counts=True)
        room = entries - len(own)
        if not 0 <= room <= len(pairs):
            raise InputError(f"--entries {entries}: there are {len(own)} characters and {len(pairs)} pairs.")
        return np.sort(np.concatenate([own, pairs[np.argsort(-counts, kind="stable")[:room]]])).astype(np.int32)

    @torch.no_grad()
    def read(self, texts: list[str]) -> Read:
        """Row indices of texts."""
        ids, before, lengths = self.tokens(texts)
        rows = self.model.rows(torch.from_numpy(ids), torch.from_numpy(before)).numpy().astype(np.int32).ravel()
        return Read(rows, 2 * (np.cumsum(lengths) - lengths), 2 * lengths)

    def vectors(self, read: Read, chosen: np.ndarray) -> Tensor:
        """Unit vectors of the chosen texts, `(chosen, width)`; `entry_dropout` drops rows of pairs."""
        starts, counts = read.starts[chosen], read.counts[chosen]
        offsets = np.cumsum(counts) - counts
        rows = read.rows[np.repeat(starts - offsets, counts) + np.arange(counts.sum())]
        kept = np.ones(len(rows), np.float32)
        kept[1::2] = self.random.random(len(rows) // 2) >= self.dropout
        bags = [torch.from_numpy(array) for array in (rows.astype(np.int64), offsets)]
        options = {"mode": "sum", "sparse": True, "per_sample_weights": torch.from_numpy(kept)}
        sums = embedding_bag(bags[0], self.model.table.weight, bags[1], **options)
        return normalize(sums)

    def project(self, read: Read, width: int) -> None:
        """Projects the rows onto the first `width` principal directions of the vectors of these texts."""
        with torch.no_grad():
            directions = principal_directions(self.vectors(read, np.arange(len(read.starts))).numpy())[:, :width]
            shorter = (self.model.table.weight @ torch.from_numpy(directions).float()).contiguous()
        self.model.table = nn.Embedding.from_pretrained(shorter, freeze=False)
        self.model.config.hidden_size = width


def rates(optimizer: torch.optim.Optimizer, steps: int) -> Iterator[int]:
    """Yields steps; learning rates rise linearly over the share `WARMUP` and fall to 0."""
    highest = [group["lr"] for group in optimizer.param_groups]
    for step in range(steps):
        for group, rate in zip(optimizer.param_groups, highest, strict=True):
            group["lr"] = rate * min(1.0, (step + 1) / (WARMUP * steps)) * (1 - step / steps)
        yield step


def distil(table: Table, sentences: list[str], teacher: SentenceEncoder, args: LookupArguments) -> None:
    """Distils a teacher: its cosines within batches and, through a projection, its vectors."""
    targets, read = sentence_vectors(teacher, sentences), table.read(sentences)
    with seeded(args.seed):
        projection = nn.Linear(table.model.config.hidden_size, teacher.embedding_dimension, bias=False)
    optimizer = torch.optim.SparseAdam(table.model.table.parameters(), args.distillation_rate)
    other = torch.optim.Adam(projection.parameters(), 1e-3)
    order = np.zeros(0, np.int64)
    for step in rates(optimizer, int(args.passes * len(sentences) / DISTILLED)):
        if len(order) < DISTILLED:
            order = table.random.permutation(len(sentences))
        chosen, order = np.sort(order[:DISTILLED]), order[DISTILLED:]
        wanted, vectors = torch.from_numpy(np.array(targets[chosen])), table.vectors(read, chosen)
        cosines = ((vectors @ vectors.T - wanted @ wanted.T) ** 2).mean()
        loss = 100 * cosines + (1 - cosine_similarity(projection(vectors), wanted)).mean()
        optimizer.zero_grad()
        other.zero_grad()
        loss.backward()
        optimizer.step()
        other.step()
        if step % 200 == 0:
            logger.info("distillation, step %d: loss %.4f", step, loss.item())


def compare(table: Table, corpora: list, args: TableArguments) -> None:
    """Trains by CoSENT, each batch from one corpus."""
    pairs = [[table.read(rows[name][:]) for name in ("sentence1", "sentence2")] for rows in corpora]
    labels = [torch.tensor(rows["label"][:]) for rows in corpora]
    orders = [np.zeros(0, np.int64) for _ in corpora]
    probabilities = shares(args)
    optimizer = torch.optim.SparseAdam(table.model.table.parameters(), args.learning_rate)
    for step in rates(optimizer, args.steps):
        number = table.random.choice(len(corpora), p=probabilities)
        if len(orders[number]) < args.batch_size:
            orders[number] = table.random.permutation(len(labels[number]))
        chosen, orders[number] = np.split(orders[number], [args.batch_size])
        first, second = (table.vectors(side, chosen) for side in pairs[number])
        loss = cosent_loss((first * second).sum(dim=1), labels[number][chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 500 == 0:
            logger.info("CoSENT, step %d: loss %.4f", step, loss.item())


if __name__ == "__main__":
    run(main)
