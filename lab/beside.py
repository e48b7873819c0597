"""Put a table beside a BERT: rows for its tokens and for frequent pairs of them, zeros or trained beside it.

python -m lab.beside --model_name_or_path mini --text plain.txt.gz --corpus stsb --exclude stsb --output runs/beside

Without --steps no label is read, and the vectors are those of before: train both by `cosent train`. With --steps,
CoSENT trains the rows, and the BERT, which embeds each sentence once, stays; what has no row then adds nothing.
"""

import logging
import time
from dataclasses import asdict, dataclass

import numpy as np
import torch
from datasets import Dataset
from transformers import BertModel

from cosent.cli import option, run
from cosent.data.corpus import load_corpus
from cosent.data.tokens import read_texts
from cosent.errors import InputError
from cosent.models.auto import load_bi_encoder
from cosent.models.lookup import BertLookupModel, LookupConfig
from lab.lookup import Table, TableArguments, compare, sentences_to_distil, shares, write_encoder

logger = logging.getLogger("cosent.beside")


@dataclass(kw_only=True)
class BesideArguments(TableArguments):
    """What the table is put beside, and how large it is."""

    model_name_or_path: str = option("similar", "Bi-encoder of type bert.")
    entries: int = option(32_000, "Tokens and pairs with a row of their own, the most frequent ones.")
    hashed_rows: int = option(1, "Rows that all others share.")
    steps: int = option(0, "Batches of CoSENT; 0: rows of zeros.")
    limit_train: int | None = option(None, "Most pairs of each corpus to train on.")


def main(args: BesideArguments) -> None:
    start, output = time.time(), args.new_folder()
    shares(args)  # refuses what does not fit before anything is read
    corpora = {name: load_corpus(name, args.data_dir) for name in args.corpus}
    rows = [corpus.split("train") for corpus in corpora.values()]
    sentences = sentences_to_distil(args, rows)
    encoder = load_bi_encoder(args.model_name_or_path)
    bert = encoder.backbone
    if not isinstance(bert, BertModel):
        raise InputError(f"{args.model_name_or_path} is of type {bert.config.model_type}. Name one of type bert.")

    def token_ids(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        ids, _ = read_texts(encoder.tokenizer, texts, encoder.max_length)
        return np.concatenate([np.array(row, np.int64) for row in ids]), np.array([len(row) for row in ids])

    config = LookupConfig(hidden_size=bert.config.hidden_size, entries=args.entries, hashed_rows=args.hashed_rows)
    table, trained = Table(config, args, token_ids, sentences, [], encoder.encode), time.time()
    model = BertLookupModel.beside(bert, table.model.keys.numpy(), args.hashed_rows, args.entry_dropout)
    if args.steps:
        torch.nn.init.zeros_(table.model.table.weight)
        compare(table, [some(corpus, args) for corpus in rows], args)
        model.lookup.table.weight.data[: args.entries] = table.model.table.weight.data[: args.entries]
    encoder.backbone = model
    write_encoder(output, encoder, asdict(args), corpora, start, trained)
    logger.info("wrote %s", output)


def some(rows: Dataset, args: BesideArguments) -> Dataset:
    """At most `limit_train` of the rows of a corpus, drawn at random."""
    if args.limit_train is None or args.limit_train >= len(rows):
        return rows
    return rows.shuffle(seed=args.seed).select(range(args.limit_train))


if __name__ == "__main__":
    run(main)
