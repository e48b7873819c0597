"""Encoders that both sides load: the shipped one, and a 12-layer BERT, hidden size 768, with seeded random weights."""

import tempfile
from pathlib import Path

import torch
from transformers import AutoTokenizer, BertConfig, BertModel

from cosent.encoders import resolve
from cosent.models.cross_encoder import CrossEncoder


def encoder_folder(name: str) -> str:
    """Folder of `mini`, of `base` (made once per machine, 350 MB in the temporary folder), or of any other model."""
    if name != "base":
        return resolve(name)
    tokenizer = AutoTokenizer.from_pretrained(resolve("mini"))
    folder = Path(tempfile.gettempdir(), f"cosent-benchmark-base-{len(tokenizer)}")
    if not (folder / "tokenizer_config.json").is_file():
        with torch.random.fork_rng():
            torch.manual_seed(1)
            BertModel(BertConfig(vocab_size=len(tokenizer)), add_pooling_layer=False).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return str(folder)


def cross_encoder_folder(name: str, max_length: int) -> str:
    """Folder of a one-logit cross-encoder on such an encoder, dropout 0, with a seeded head that both sides load."""
    folder = Path(tempfile.gettempdir(), f"cosent-benchmark-cross-{Path(name).name}-{max_length}")
    CrossEncoder.from_pretrained(
        encoder_folder(name), num_labels=1, max_length=max_length, dropout=0.0, seed=1
    ).save_pretrained(folder)
    return str(folder)
