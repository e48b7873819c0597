"""Writes the `mini` encoder with random weights: a BERT of 4 layers, 256 wide, that knows nothing yet.

python -m cosent.encoders.random_mini --output src/cosent/encoders/mini
"""

import argparse
from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizer

from cosent.encoders.vocabulary import character_vocabulary


def write_random_encoder(folder: str | Path, layers: int = 4, width: int = 256, seed: int = 42) -> None:
    """Saves model (float16) and tokenizer to `folder`; the same arguments give the same bytes."""
    vocabulary = {token: index for index, token in enumerate(character_vocabulary())}
    tokenizer = BertTokenizer(vocab=vocabulary, do_lower_case=True, model_max_length=512)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BertModel(config, add_pooling_layer=False)
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True, help="folder to write")
    write_random_encoder(parser.parse_args().output)
