"""Poolings of a sentence encoder, from token vectors to a sentence vector; all of them ignore padding."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.utils import cached_file

from cosent.compute.contexts import seeded
from cosent.errors import InputError

CONFIG_NAME, WEIGHTS_NAME = "config.json", "model.safetensors"
POOLINGS = ("cls", "mean", "first_last_mean", "max", "attention", "linear_cls")


class Pooling(nn.Module):
    """Turns token vectors into one sentence vector, here and as a module of sentence-transformers.

    `pool` computes. `forward`, `save` and `load` follow the protocol of sentence-transformers' modules without
    importing it, so that it can load folders with our own poolings wherever this package is installed.

    `cls`: the first token. `mean`, `max`: over all tokens, [CLS] and [SEP] included, as sentence-transformers does.
    `first_last_mean`: mean over tokens of the average of the first and the last layer's output (BERT-whitening,
    arXiv 2103.15316). `attention`: softmax-weighted mean with one learned score per token. `linear_cls`: a linear
    layer without activation on [CLS] (RoFormer-Sim, kexue.fm 8454).

    Args:
        mode: one of `POOLINGS`.
        hidden_size: width of the token vectors.
        seed: seed of the fresh weights of `attention` and `linear_cls`; the global random state is left alone.
    """

    def __init__(self, mode: str, hidden_size: int, seed: int = 42):
        super().__init__()
        if mode not in POOLINGS:
            raise InputError(f"pooling must be one of {', '.join(POOLINGS)}, got {mode!r}.")
        self.mode = mode
        self.hidden_size = hidden_size
        outputs = {"attention": 1, "linear_cls": hidden_size}.get(mode)
        if outputs is not None:
            with seeded(seed):
                self.linear = nn.Linear(hidden_size, outputs)

    @property
    def layers(self) -> tuple[int, ...]:
        """Indices of the backbone's `hidden_states` to average: 0 would be the embeddings, -1 is the output."""
        return (1, -1) if self.mode == "first_last_mean" else (-1,)

    def pool(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Pools one sentence per row.

        Args:
            tokens (`torch.Tensor` of shape `(sentences, tokens, hidden)`): mean of the layers named by `layers`.
            mask (`torch.Tensor` of shape `(sentences, tokens)`): 1 for tokens, 0 for padding on the right.

        Returns:
            `torch.Tensor` of shape `(sentences, hidden)`.
        """
        if self.mode == "cls":
            return tokens[:, 0]
        if self.mode == "linear_cls":
            return self.linear(tokens[:, 0])
        mask = mask[..., None].bool()  # (sentences, tokens, 1)
        if self.mode == "max":
            return tokens.masked_fill(~mask, -torch.inf).amax(dim=1)
        if self.mode == "attention":
            weights = self.linear(tokens).masked_fill(~mask, -torch.inf).softmax(dim=1)
        else:
            weights = mask / mask.sum(dim=1, keepdim=True)
        return (tokens * weights.to(tokens.dtype)).sum(dim=1)

    def config(self) -> dict[str, str | int]:
        """Content of `config.json` that `load` needs."""
        return {"word_embedding_dimension": self.hidden_size, "pooling_mode": self.mode}

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Adds `sentence_embedding` to the output of sentence-transformers' `Transformer`.

        Raises:
            ValueError: a batch without padding, as made by sentence-transformers under flash attention.
        """
        if "attention_mask" not in features:
            raise ValueError(
                "Expected a padded batch with its attention_mask, got sentences in one row: they would be pooled "
                "together. Set model[0].unpad_inputs = False."
            )
        tokens = features["token_embeddings"]
        if self.layers != (-1,):
            tokens = torch.stack([features["all_layer_embeddings"][layer] for layer in self.layers]).mean(dim=0)
        return features | {"sentence_embedding": self.pool(tokens, features["attention_mask"])}

    def get_embedding_dimension(self) -> int:
        return self.hidden_size

    def save(self, output_path: str, *args, **kwargs) -> None:
        Path(output_path, CONFIG_NAME).write_text(json.dumps(self.config(), indent=2) + "\n", encoding="utf-8")
        if self.state_dict():
            save_file(self.state_dict(), Path(output_path, WEIGHTS_NAME))

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: str | bool | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        **kwargs,
    ) -> "Pooling":
        """Loads what `save` wrote, from a folder or the Hub."""
        place = {"token": token, "cache_dir": cache_folder, "revision": revision, "local_files_only": local_files_only}

        def file(name: str) -> str:
            return cached_file(model_name_or_path, f"{subfolder}/{name}", **place)

        config = json.loads(Path(file(CONFIG_NAME)).read_text(encoding="utf-8"))
        pooling = cls(config["pooling_mode"], config["word_embedding_dimension"])
        if pooling.state_dict():
            pooling.load_state_dict(load_file(file(WEIGHTS_NAME)))
        return pooling
