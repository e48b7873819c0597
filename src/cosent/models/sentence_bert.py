"""The bi-encoder in training: one encoder for both sentences, and Sentence-BERT's head for losses of logits."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from cosent.errors import InputError
from cosent.evaluation.similarity import pair_cosines
from cosent.losses.checks import check_embeddings
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.folder import submodule_state

HEAD_NAME = "head.safetensors"
HEAD_FEATURES = {
    "u": lambda u, v: u,
    "v": lambda u, v: v,
    "|u-v|": lambda u, v: (u - v).abs(),
    "u*v": lambda u, v: u * v,
}


class SentenceBertHead(nn.Module):
    """Sentence-BERT's classifier: a linear layer on a concatenation of features of two sentence embeddings.

    Drawn as in the source (Glorot uniform, bias 0), from `seed`; the global random state is left alone.

    Args:
        features: any of `HEAD_FEATURES`, in the order of concatenation.
        bias: true in Sentence-BERT and kexue.fm 8847; false in the joint model of 8541.

    Source: https://arxiv.org/abs/1908.10084, section 3; https://github.com/bojone/CoSENT, `sbert.py`.
    """

    def __init__(self, hidden_size: int, num_classes: int, features=("u", "v", "|u-v|"), bias=True, seed: int = 0):
        super().__init__()
        features = tuple(features)
        if not features or len(set(features)) < len(features) or not set(features) <= set(HEAD_FEATURES):
            names = " ".join(HEAD_FEATURES)
            raise InputError(f"--features takes some of {names}, each once, got {' '.join(features)}.")
        self.features = features
        self.linear = nn.utils.skip_init(nn.Linear, hidden_size * len(features), num_classes, bias=bias)
        nn.init.xavier_uniform_(self.linear.weight, generator=torch.Generator().manual_seed(seed))
        if bias:
            nn.init.zeros_(self.linear.bias)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Logits `(batch, num_classes)` of embeddings `(batch, 2, hidden)`, in the dtype of the weights."""
        check_embeddings(embeddings)
        with torch.autocast(embeddings.device.type, enabled=False):  # bf16 logits of a pair are often equal
            u, v = embeddings.to(self.linear.weight.dtype).unbind(1)
            return self.linear(torch.cat([HEAD_FEATURES[name](u, v) for name in self.features], dim=-1))


class BiEncoder(nn.Module):
    """Module that the trainer wraps: one encoder for both sentences of a pair and, for Sentence-BERT, the head."""

    def __init__(self, encoder: SentenceEncoder, head: nn.Module | None = None):
        super().__init__()
        self.encoder, self.head = encoder, head

    @property
    def packing(self) -> bool:
        return self.encoder.packing

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """Embeds and compares pairs; arguments as in `SentenceEncoder.forward`, of shape `(batch, 2, tokens)`.

        Returns:
            `embeddings` of shape `(batch, 2, hidden)`; `scores` of shape `(batch,)`, their cosines in float32; with a
            head also `logits` of shape `(batch, classes)`.
        """
        embeddings = self.encoder(input_ids.flatten(0, 1), attention_mask.flatten(0, 1))
        embeddings = embeddings.float().unflatten(0, (-1, 2))
        if self.training:
            scores = cosine_similarity(embeddings[:, 0], embeddings[:, 1])
        else:  # as `similarity` computes them, so that equal sentences tie
            scores = pair_cosines(*normalize(embeddings, dim=-1).unbind(1))
        outputs = {"embeddings": embeddings, "scores": scores}
        if self.head is not None:
            outputs["logits"] = self.head(embeddings)
        return outputs

    def activation_checkpointing_enable(self, **kwargs) -> None:
        self.encoder.activation_checkpointing_enable(**kwargs)

    def save_pretrained(self, folder: str | Path, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        """Writes the encoder as `SentenceEncoder` does, and the head, which only resuming needs."""
        state_dict = self.state_dict() if state_dict is None else state_dict
        self.encoder.save_pretrained(folder, submodule_state(state_dict, "encoder."))
        Path(folder, HEAD_NAME).unlink(missing_ok=True)  # left by an earlier model with a head
        if self.head is not None:
            save_file(submodule_state(state_dict, "head."), Path(folder, HEAD_NAME))

    def saved_state(self, folder: str | Path) -> dict[str, torch.Tensor]:
        """The weights that `save_pretrained` wrote to `folder`, as `load_state_dict` takes them."""
        saved = self.encoder.saved_state(folder)
        head = {} if self.head is None else load_file(Path(folder, HEAD_NAME))
        return {f"encoder.{name}": weight for name, weight in saved.items()} | {
            f"head.{name}": weight for name, weight in head.items()
        }
