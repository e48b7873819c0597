"""The bi-encoder: a backbone with pooling, saved in a folder that sentence-transformers can load."""

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import cosine_similarity, normalize

from cosent.compute.packed_backbone import packed_forward, padded_forward
from cosent.data.prefix import Prefix
from cosent.data.tokenization import tokenizer_rules
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.evaluation.cosines import pair_cosines
from cosent.modeling.carried import Carried, warn_of_similarity
from cosent.modeling.embedder import Embedder
from cosent.modeling.loading import (
    dropout_changes,
    load_backbone,
    load_tokenizer,
    missing_models,
    quiet_transformers,
)
from cosent.modeling.modules import load_modules
from cosent.modeling.pooling import Pooling
from cosent.modeling.prompts import Prompts
from cosent.modeling.saved_folder import MODULES, is_cross_encoder, read_json, save_modules, submodule_state
from cosent.modeling.server_keys import add_server_keys
from cosent.modeling.tail import Normalize, embedding_dimension
from cosent.modeling.trial import check_architecture

HEAD_NAME = "head.safetensors"


class SentenceEncoder(Embedder):
    """Sentence embedding model: a transformer backbone with its tokenizer, pooling and the modules after it.

    Args:
        tail: modules of `tail.py`, which read the vectors of the pooling one after the other.

    Attributes:
        prompts, carried: what else the starting folder says; saved with the model.
    """

    prompts, carried = Prompts(), Carried()

    def __init__(self, backbone: nn.Module, tokenizer, pooling: Pooling, tail: Iterable[nn.Module] = ()):
        super().__init__()
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.tail = nn.Sequential(*tail)

    @property
    def embedding_dimension(self) -> int:
        """Width of a sentence vector."""
        return embedding_dimension(self.pooling.embedding_dimension, self.tail)

    @property
    def modules_after_backbone(self) -> str:
        """Description of the pooling and the tail: two encoders with the same one have weights of the same shapes."""
        return ", ".join(f"{type(module).__name__} {module.config()}" for module in (self.pooling, *self.tail))

    @property
    def rules(self) -> str:
        """See `TextModel`; with its modules."""
        return repr((self.modules_after_backbone, self.max_length, tokenizer_rules(self.tokenizer)))

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        pooling: str | None = None,
        max_length: int | None = None,
        dropout: float | None = None,
        seed: int = 42,
        attn_implementation: str | None = None,
        quantization_config=None,
        device: str | torch.device | None = None,
    ) -> "SentenceEncoder":
        """Loads a backbone, or a folder that this class or sentence-transformers wrote, in float32.

        Args:
            pooling: one of `CHOICES`, or several modes joined by `+`; default: that of the folder, else `mean`.
            The others: see `TextModel`.

        Raises:
            InputError: no model there, a cross-encoder although no pooling is named, or a pooling that this project
                does not support.
        """
        path = resolve(model_name_or_path)
        if pooling is None and is_cross_encoder(path) and read_json(path, MODULES) is None:
            raise InputError(
                f"{model_name_or_path} is a cross-encoder, which has no sentence vectors. Load it with CrossEncoder or "
                "load_model; to train a bi-encoder from its backbone, name a pooling, e.g. mean."
            )
        changes = {"attn_implementation": attn_implementation, "quantization_config": quantization_config}
        if quantization_config is not None:
            quantization_config.llm_int8_skip_modules = ["^pooler"]  # saved as it is, see `load_backbone`
        with missing_models(model_name_or_path):
            changes |= dropout_changes(path, dropout)
            backbone, unused = load_backbone(path, seed, **changes)
            tokenizer = load_tokenizer(path)
        pool, tail = load_modules(path, backbone.config.hidden_size, pooling, seed)
        check_architecture(backbone, tokenizer, pool.mode)
        encoder = cls(backbone, tokenizer, pool, tail)
        encoder.take_over(path, max_length, unused)
        return encoder.to(device=device)

    def take_over(self, path: str, max_length: int | None, unused: dict[str, torch.Tensor]) -> None:
        """Applies and keeps what a starting folder says besides its modules.

        Args:
            max_length: instead of that of the folder.
            unused: weights of the folder that this module does not have.
        """
        self.prompts, self.carried = Prompts.read(path), Carried.read(path, unused)
        self.carried.prepare(self.tokenizer)
        if max_length is not None:
            self.max_length = max_length
        similarity = self.carried.settings.get("similarity_fn_name") or "cosine"
        unit = len(self.tail) > 0 and isinstance(self.tail[-1], Normalize)
        if similarity != "cosine" and not (unit and similarity == "dot"):
            warn_of_similarity(path, similarity)

    def save_pretrained(self, folder: str | Path, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        """Writes backbone, tokenizer, the other modules and settings; sentence-transformers can load the folder.

        Args:
            state_dict: this module's weights, if gathered from shards; default: its own.
        """
        state_dict = self.state_dict() if state_dict is None else state_dict
        weights = submodule_state(state_dict, "backbone.") | self.carried.weights
        add_server_keys(self.backbone.config)
        with quiet_transformers():
            self.backbone.save_pretrained(folder, state_dict=weights)
        self.save_around_backbone(folder, state_dict)

    def save_around_backbone(self, folder: str | Path, state_dict: dict[str, torch.Tensor]) -> None:
        """Writes everything but the backbone."""
        self.save_tokenizer(folder)
        layers, include_prompt = self.backbone.config.num_hidden_layers, self.prompts.include_prompt
        save_modules(folder, layers, self.pooling, self.tail, state_dict, include_prompt)
        self.carried.save(folder, self.prompts, self.max_length, all_layers=self.pooling.layers != (-1,))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, skip: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Embeds sentences.

        Args:
            input_ids, attention_mask (`torch.Tensor` of shape `(sentences, tokens)`): padded on the right.
            skip (`torch.Tensor` of shape `(sentences,)`): see `Pooling.pool`.

        Returns:
            `torch.Tensor` of shape `(sentences, embedding_dimension)`, of length 1 only after a `Normalize`.
        """
        run = packed_forward if self.packing else padded_forward
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        tokens = run(self.backbone, inputs, self.pooling.layers)  # (sentences, longest, hidden)
        mask = attention_mask[:, : tokens.shape[1]]
        return self.tail(self.pooling.pool(tokens, mask, 0 if skip is None else skip))

    def readers(self, prefix: Prefix) -> "list[tuple[SentenceEncoder, Prefix]]":
        """Itself."""
        return [(self, prefix)]

    def join(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """Its own vectors."""
        return parts[0]


class BiEncoder(nn.Module):
    """Module that the trainer wraps: one encoder for both sentences of a pair and, for Sentence-BERT, the head.

    Every forward of training goes through this module, so that the hooks of DistributedDataParallel see the head too.
    """

    def __init__(self, encoder: SentenceEncoder, head: nn.Module | None = None):
        super().__init__()
        self.encoder = encoder
        self.head = head

    @property
    def packing(self) -> bool:
        """As `TextModel.packing`."""
        return self.encoder.packing

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, skip: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Embeds and compares pairs.

        Args:
            input_ids, attention_mask (`torch.Tensor` of shape `(batch, 2, tokens)`): padded on the right.
            skip (`torch.Tensor` of shape `(batch, 2)`): as for `SentenceEncoder`.

        Returns:
            `embeddings` of shape `(batch, 2, hidden)`; `scores` of shape `(batch,)`, their cosines in float32; with a
            head also `logits` of shape `(batch, classes)`.
        """
        skip = None if skip is None else skip.flatten()
        embeddings = self.encoder(input_ids.flatten(0, 1), attention_mask.flatten(0, 1), skip=skip)
        embeddings = embeddings.float().unflatten(0, (-1, 2))
        if self.training:
            scores = cosine_similarity(embeddings[:, 0], embeddings[:, 1])
        else:  # as `similarity` computes them, so that equal sentences tie
            scores = pair_cosines(*normalize(embeddings, dim=-1).unbind(1))
        outputs = {"embeddings": embeddings, "scores": scores}
        if self.head is not None:
            outputs["logits"] = self.head(embeddings)
        return outputs

    def gradient_checkpointing_enable(self, **kwargs) -> None:
        self.encoder.gradient_checkpointing_enable(**kwargs)

    def save_pretrained(self, folder: str | Path, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        """Writes the encoder as `SentenceEncoder` does, and the head, which is needed only for resuming."""
        state_dict = self.state_dict() if state_dict is None else state_dict
        self.encoder.save_pretrained(folder, submodule_state(state_dict, "encoder."))
        Path(folder, HEAD_NAME).unlink(missing_ok=True)  # left by an earlier model with a head
        if self.head is not None:
            save_file(submodule_state(state_dict, "head."), Path(folder, HEAD_NAME))

    def saved_state(self, folder: str | Path) -> dict[str, torch.Tensor]:
        """The weights that `save_pretrained` wrote to `folder`, as `load_state_dict` takes them.

        Raises:
            InputError: a model of another kind.
        """
        if is_cross_encoder(str(folder)):
            raise InputError(f"{folder} was saved by a cross-encoder run. Resume with the recipe it was started with.")
        saved = SentenceEncoder.from_pretrained(str(folder))
        has_head = Path(folder, HEAD_NAME).is_file()
        same = saved.modules_after_backbone == self.encoder.modules_after_backbone
        if not same or has_head != (self.head is not None):
            raise InputError(
                f"{folder} was saved by a run of another kind: {saved.modules_after_backbone} with"
                f"{'' if has_head else 'out'} a Sentence-BERT head. Resume with the recipe it was started with."
            )
        state = {f"encoder.{name}": weight for name, weight in saved.state_dict().items()}
        head = {} if self.head is None else load_file(Path(folder, HEAD_NAME))
        return state | {f"head.{name}": weight for name, weight in head.items()}
