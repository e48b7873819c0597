"""Put a table beside a BERT: rows of zeros for its tokens and for frequent pairs of them.

python -m lab.beside --model_name_or_path mini --text plain.txt.gz --corpus stsb --exclude stsb --output runs/beside

The vectors are those of before, and no label is read. Train it by `cosent train --model_name_or_path runs/beside`.
"""

import logging
import time
from dataclasses import asdict, dataclass

import numpy as np
from transformers import BertModel

from cosent.atomic import complete_folder
from cosent.cli import option, run
from cosent.data.corpus import load_corpus
from cosent.data.tokens import read_texts
from cosent.errors import InputError
from cosent.models.auto import load_bi_encoder
from cosent.models.lookup import BertLookupModel, LookupConfig
from cosent.record import CorpusRecord, RunRecord
from cosent.seal import sha256_of_file
from cosent.training.job import environment, footprint
from lab.lookup import Table, TableArguments, sentences_to_distil

logger = logging.getLogger("cosent.beside")


@dataclass(kw_only=True)
class BesideArguments(TableArguments):
    """What the table is put beside, and how large it is."""

    model_name_or_path: str = option("similar", "Bi-encoder of type bert.")
    entries: int = option(32_000, "Tokens and pairs with a row of their own, the most frequent ones.")
    hashed_rows: int = option(1, "Rows that all others share.")


def main(args: BesideArguments) -> None:
    start, output = time.time(), args.new_folder()
    corpora = {name: load_corpus(name, args.data_dir) for name in args.corpus}
    sentences = sentences_to_distil(args, [corpus.split("train") for corpus in corpora.values()])
    encoder = load_bi_encoder(args.model_name_or_path)

    def encode(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        ids, _ = read_texts(encoder.tokenizer, texts, encoder.max_length)
        return np.concatenate([np.array(row, np.int64) for row in ids]), np.array([len(row) for row in ids])

    bert = encoder.backbone
    if not isinstance(bert, BertModel):
        raise InputError(
            f"--model_name_or_path {args.model_name_or_path} is of type {bert.config.model_type}, not bert."
        )
    config = LookupConfig(hidden_size=bert.config.hidden_size, entries=args.entries, hashed_rows=args.hashed_rows)
    keys = Table(config, args, encode, sentences, []).model.keys.numpy()
    encoder.backbone = BertLookupModel.beside(bert, keys, args.hashed_rows, args.entry_dropout)
    record = RunRecord(
        recipe=asdict(args),
        environment=environment(),
        train_seconds=0.0,
        seconds=time.time() - start,
        files={name: sha256_of_file(name) for name in args.text},
        footprint=footprint(encoder, None),
        corpora={name: CorpusRecord.of(corpus.folder) for name, corpus in corpora.items()},
    )
    with complete_folder(output) as folder:
        encoder.save_pretrained(folder)
        record.save(folder)
    logger.info("wrote %s", output)


if __name__ == "__main__":
    run(main)
