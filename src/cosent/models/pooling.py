"""Poolings of a sentence encoder, from token vectors to a sentence vector; all of them ignore padding."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.utils import cached_file

from cosent.compute.distributed import seeded
from cosent.errors import InputError

CONFIG_NAME, WEIGHTS_NAME = "config.json", "model.safetensors"
# Keys of sentence-transformers' `Pooling` up to 5.3, in the order in which it concatenates several modes.
MODE_KEYS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
FIRST_LAST_MEAN, LINEAR_CLS = "first_last_mean", "linear_cls"
POOLINGS = (*MODE_KEYS, "attention", FIRST_LAST_MEAN)
CHOICES = (*POOLINGS, LINEAR_CLS)  # of --pooling: the last is `cls` and a Dense layer without activation


class Pooling(nn.Module):
    """Turns token vectors into one sentence vector, here and as a module of sentence-transformers.

    `pool` computes. `forward`, `save` and `load` follow the protocol of sentence-transformers' modules without
    importing it, so that it can load folders with our own poolings wherever this package is installed.

    Modes, all of which read the attention mask and take padding on either side:
        cls, lasttoken: the first or the last token.
        mean, max: over all tokens, special ones included, as sentence-transformers does.
        mean_sqrt_len_tokens: sum over tokens / square root of their number.
        weightedmean: mean weighted by position 1, 2, 3, ... (SGPT, arXiv 2202.08904).
        first_last_mean: mean over tokens of the average of the first and the last layer's output (BERT-whitening,
            arXiv 2103.15316).
        attention: softmax-weighted mean with one learned score per token.

    Args:
        mode: one of `POOLINGS`, or several joined by `+`, whose vectors are concatenated in this order.
        hidden_size: width of the token vectors.
        seed: seed of the fresh weights of `attention`; the global random state is left alone.
    """

    include_prompt = True  # read by `forward`, in sentence-transformers; here `Prompts` decides, and passes `skip`

    def __init__(self, mode: str, hidden_size: int, seed: int = 42):
        super().__init__()
        self.mode = mode
        self.hidden_size = hidden_size
        if not set(self.modes) <= set(POOLINGS) or (len(self.modes) > 1 and FIRST_LAST_MEAN in self.modes):
            raise InputError(
                f"pooling must be one of {', '.join(CHOICES)}, or several joined by + (but not {FIRST_LAST_MEAN} or "
                f"{LINEAR_CLS}), got {mode!r}."
            )
        if "attention" in self.modes:
            with seeded(seed):
                self.linear = nn.Linear(hidden_size, 1)

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes whose vectors are concatenated."""
        return tuple(self.mode.split("+"))

    @property
    def layers(self) -> tuple[int, ...]:
        """Indices of the backbone's `hidden_states` to average: 0 would be the embeddings, -1 is the output."""
        return (1, -1) if self.mode == FIRST_LAST_MEAN else (-1,)

    @property
    def embedding_dimension(self) -> int:
        """Width of the pooled vectors."""
        return self.hidden_size * len(self.modes)

    def pool(self, tokens: torch.Tensor, mask: torch.Tensor, skip: int | torch.Tensor = 0) -> torch.Tensor:
        """Pools one sentence per row.

        Args:
            tokens (`torch.Tensor` of shape `(sentences, tokens, hidden)`): mean of the layers named by `layers`.
            mask (`torch.Tensor` of shape `(sentences, tokens)`): 1 for tokens, 0 for padding on the left or right.
            skip: number of tokens at the start of every sentence that are not pooled, those of a prompt; or of each,
                `torch.Tensor` of shape `(sentences,)`. The last token of a sentence is pooled in any case.

        Returns:
            `torch.Tensor` of shape `(sentences, embedding_dimension)`.
        """
        mask = mask.bool()
        place = mask.cumsum(dim=1)  # (sentences, tokens), 1 for the first token of a sentence
        last = place[:, -1:] - 1
        mask = mask & (place > last.clamp(max=skip if isinstance(skip, int) else skip[:, None]))
        return torch.cat([self.pool_by(mode, tokens, mask, place) for mode in self.modes], dim=-1)

    def pool_by(self, mode: str, tokens: torch.Tensor, mask: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """Pools by one mode, see `pool`; `place` is the position of each token in its sentence."""
        if mode in ("cls", "lasttoken"):
            index = mask.int().argmax(dim=1)  # the first of equal ones
            if mode == "lasttoken":
                index = mask.shape[1] - 1 - mask.int().flip(1).argmax(dim=1)
            return tokens[torch.arange(tokens.shape[0], device=tokens.device), index]
        if mode == "max":
            return tokens.masked_fill(~mask[..., None], -torch.inf).amax(dim=1)
        if mode == "attention":
            weights = self.linear(tokens).masked_fill(~mask[..., None], -torch.inf).softmax(dim=1)
        else:
            weights = token_weights(mode, mask, place)[..., None]
        return (tokens * weights.to(tokens.dtype)).sum(dim=1)

    def config(self) -> dict[str, str | int]:
        """Content of `config.json` that `load` needs."""
        config = {"word_embedding_dimension": self.hidden_size, "pooling_mode": self.mode}
        return config if self.include_prompt else config | {"include_prompt": False}

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Adds `sentence_embedding` to the output of sentence-transformers' `Transformer`.

        Raises:
            ValueError: a batch without padding, as made by sentence-transformers under flash attention.
        """
        if "attention_mask" not in features:
            raise ValueError(
                "Expected a padded batch with its attention_mask, got sentences in one row. Set "
                "model[0].unpad_inputs = False."
            )
        tokens = features["token_embeddings"]
        if self.layers != (-1,):
            tokens = torch.stack([features["all_layer_embeddings"][layer] for layer in self.layers]).mean(dim=0)
        skip = 0 if self.include_prompt else features.get("prompt_length", 0)
        return features | {"sentence_embedding": self.pool(tokens, features["attention_mask"], skip)}

    def get_embedding_dimension(self) -> int:
        return self.embedding_dimension

    def save(self, output_path: str, *args, **kwargs) -> None:
        Path(output_path, CONFIG_NAME).write_text(json.dumps(self.config(), indent=2) + "\n", encoding="utf-8")
        if self.state_dict():
            save_file(self.state_dict(), Path(output_path, WEIGHTS_NAME))

    @classmethod
    def load(
        cls, model_name_or_path: str, subfolder: str = "", cache_folder: str | None = None, **options
    ) -> "Pooling":
        """Loads what `save` wrote, from a folder or the Hub."""
        place = {name: options.get(name) for name in ("token", "revision")} | {"cache_dir": cache_folder}

        def file(name: str) -> str:
            offline = options.get("local_files_only", False)
            return cached_file(model_name_or_path, f"{subfolder}/{name}", local_files_only=offline, **place)

        config = json.loads(Path(file(CONFIG_NAME)).read_text(encoding="utf-8"))
        pooling = cls(config["pooling_mode"], config["word_embedding_dimension"])
        pooling.include_prompt = config.get("include_prompt", True)
        if pooling.state_dict():
            pooling.load_state_dict(load_file(file(WEIGHTS_NAME)))
        return pooling


def token_weights(mode: str, mask: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """Weights of the tokens in a mean, shape `(sentences, tokens)`, 0 where `mask` is."""
    if mode == "weightedmean":
        weights = mask * place
        return weights / weights.sum(dim=1, keepdim=True)
    count = mask.sum(dim=1, keepdim=True)
    return mask / (count.sqrt() if mode == "mean_sqrt_len_tokens" else count)
