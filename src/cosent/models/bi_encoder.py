"""The bi-encoder: `SentenceEncoder`, and `BiEncoder`, which compares the pairs of a batch in training."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import cosine_similarity, normalize
from tqdm.auto import tqdm

from cosent.compute.packing import packed_forward, plain_forward
from cosent.data.pairs import tokenizer_rules, warn_truncated
from cosent.encoders import resolve
from cosent.errors import InputError, once
from cosent.evaluation.similarity import pair_cosines, principal_directions
from cosent.models.embedding import as_texts, embed
from cosent.models.folder import SETTINGS, add_server_keys, is_cross_encoder, refuse_adapter, submodule_state
from cosent.models.layout import KeptSettings, load_modules, read_prompts, save_modules
from cosent.models.loading import (
    check_architecture,
    dropout_changes,
    load_backbone,
    load_tokenizer,
    missing_models,
    quiet_transformers,
)
from cosent.models.modules import Dense, Normalize, Pooling, projection
from cosent.models.text_model import TextModel

logger = logging.getLogger(__name__)

HEAD_NAME = "head.safetensors"  # of Sentence-BERT's head


class SentenceEncoder(TextModel):
    """Sentence embedding model: a transformer backbone with its tokenizer, pooling and the modules after it.

    It compares two sentences by the cosine of their vectors, and is saved as a folder of sentence-transformers.
    """

    kept_settings = KeptSettings()
    default_pooling = "mean"

    def __init__(self, backbone: nn.Module, tokenizer, pooling: Pooling, after_pooling: Iterable[nn.Module] = ()):
        super().__init__()
        self.backbone, self.tokenizer, self.pooling = backbone, tokenizer, pooling
        self.after_pooling = nn.Sequential(*after_pooling)

    @property
    def embedding_dimension(self) -> int:
        """Width of a sentence vector."""
        dense = (module.linear.out_features for module in reversed(self.after_pooling) if isinstance(module, Dense))
        return next(dense, self.pooling.hidden_size)

    @property
    def modules_after_backbone(self) -> str:
        """The pooling and the modules after it in words; equal ones have weights of equal shapes."""
        after = (f"{type(module).__name__} {module.config()}" for module in self.after_pooling)
        return ", ".join([f"Pooling {self.pooling.mode} {self.pooling.hidden_size}", *after])

    @property
    def rules(self) -> str:
        return repr((self.modules_after_backbone, self.max_length, tokenizer_rules(self.tokenizer)))

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        pooling: str | None = None,
        max_length: int | None = None,
        dropout: float | None = None,
        seed: int = 42,
        device: str | torch.device | None = None,
    ) -> Self:
        """Loads a backbone, or a folder that this class or sentence-transformers wrote, in float32; see `TextModel`.

        Args:
            pooling: one of `CHOICES`; default: the pooling of the folder, else `mean` (a student: `linear_cls`).
        """
        path = resolve(model_name_or_path)
        if is_cross_encoder(path):
            raise InputError(
                f"{model_name_or_path} is a cross-encoder, which has no sentence vectors. Name a bi-encoder, or train "
                "and load it as what it is (--tower cross_encoder, load_model)."
            )
        with missing_models(model_name_or_path):
            model, unused = cls.load_transformer(path, seed, dropout_changes(path, dropout))
            tokenizer = load_tokenizer(path, model)
            pool, after_pooling = load_modules(path, model.config.hidden_size, pooling, seed, cls.default_pooling)
            check_architecture(model.config, pool.mode)
            encoder = cls(model, tokenizer, pool, after_pooling)
            encoder.prompts, encoder.kept_settings = read_prompts(path), KeptSettings.read(path, unused)
            encoder.kept_settings.apply(tokenizer)
        if max_length is not None:
            encoder.max_length = max_length
        similarity = encoder.kept_settings.settings.get("similarity_fn_name") or "cosine"
        is_unit = len(after_pooling) > 0 and isinstance(after_pooling[-1], Normalize)
        if similarity != "cosine" and not (is_unit and similarity == "dot"):
            once(
                logger.warning,
                f"{path} asks sentence-transformers for {similarity} similarity, and the saved folder will too; here "
                f"all scores are cosines. For cosines there, remove similarity_fn_name from its {SETTINGS}.",
            )
        return encoder.to(device=device)

    @classmethod
    def load_transformer(cls, path: str, seed: int, changes: dict[str, Any]) -> tuple[nn.Module, dict]:
        """The transformers model of a folder, and the weights that nothing here reads."""
        return load_backbone(path, seed, **changes)

    def truncate(self, dim: int, sentences: Sequence[str] | None = None) -> None:
        """Shortens vectors to `dim` numbers by a layer that is saved with the model, before a final `Normalize`.

        With one, as in sentence-transformers' `truncate_dim` with `normalize_embeddings`, vectors have length 1.

        Args:
            sentences: keep the principal directions of their unit vectors, which are not centred, so that all
                directions together keep every cosine; default: the first numbers.
        """
        width = self.embedding_dimension
        if not 1 <= dim <= width:
            raise InputError(f"Vectors of this model have {width} numbers: truncate to 1 to {width}, got {dim}.")
        directions = np.eye(width, dtype=np.float32)
        if sentences is not None:
            directions = principal_directions(self.encode(as_texts(sentences), normalize_embeddings=True)).T
        modules = list(self.after_pooling)
        end = len(modules) - (bool(modules) and isinstance(modules[-1], Normalize))
        weight = torch.from_numpy(np.ascontiguousarray(directions[:dim], np.float32))
        modules.insert(end, projection(weight).to(self.device))
        self.after_pooling = nn.Sequential(*modules)

    def save_pretrained(self, folder: str | Path, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        """Writes a folder that sentence-transformers loads; `state_dict` holds weights gathered from shards."""
        state_dict = self.state_dict() if state_dict is None else state_dict
        refuse_adapter(state_dict)
        weights = submodule_state(state_dict, "backbone.")
        dtype = next(weight.dtype for weight in weights.values() if weight.is_floating_point())
        weights |= {name: weight.to(dtype) for name, weight in self.kept_settings.weights.items()}
        add_server_keys(self.backbone.config)
        with quiet_transformers():
            self.backbone.save_pretrained(folder, state_dict=weights)
        self.save_around_backbone(folder, state_dict)

    def save_around_backbone(self, folder: str | Path, state_dict: dict[str, torch.Tensor]) -> None:
        """Writes everything but the backbone."""
        self.save_tokenizer(folder)
        save_modules(folder, self.pooling, self.after_pooling, state_dict)
        self.kept_settings.save(folder, self.prompts, self.max_length)

    def encode(
        self,
        sentences: str | list[str],
        batch_size: int = 512,
        normalize_embeddings: bool = False,
        show_progress_bar: bool | None = False,
        prompt: str | None = None,
        prompt_name: str | None = None,
        *,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """Embeds sentences in evaluation mode, duplicates once; warns about sentences longer than `max_length`.

        Takes the keywords of sentence-transformers, for libraries that pass them.

        Args:
            sentences: a list, or a single sentence.
            normalize_embeddings: scale every vector to length 1, so that a dot product is the cosine.
            prompt, prompt_name, batch_size: as in `similarity`, with one prompt.
            convert_to_tensor: return a tensor on the model's device instead of an array. `convert_to_numpy` is accepted
                and changes nothing: False alone would mean a list of tensors.
            truncate_dim: keep the first numbers of each vector; `truncate` does so for good.

        Returns:
            float32 array or tensor of shape `(len(sentences), hidden)`, in their order; `(hidden,)` for one string.
        """
        texts = as_texts(sentences)
        prefix = self.prefix(self.prompts.text(prompt, prompt_name))
        with tqdm(total=len(texts), unit="sentence", disable=not show_progress_bar) as progress:
            whole = normalize_embeddings and truncate_dim is None
            vectors, truncated = embed(self, texts, batch_size, whole, progress.update, prefix)
        warn_truncated(truncated, len(texts), "sentences", self.max_length)
        if truncate_dim is not None:
            vectors = vectors[:, :truncate_dim]
            vectors = normalize(torch.from_numpy(vectors), dim=-1).numpy() if normalize_embeddings else vectors
        vectors = vectors[0] if isinstance(sentences, str) else vectors
        return torch.from_numpy(vectors).to(self.device) if convert_to_tensor else vectors

    def encode_query(self, sentences: str | list[str], **options: Any) -> Any:
        """`encode` with the query prompt (`Prompts.for_search`); options as in `encode`."""
        return self.encode(sentences, **self.with_prompt(options, 0))

    def encode_document(self, sentences: str | list[str], **options: Any) -> Any:
        """`encode` with the document prompt."""
        return self.encode(sentences, **self.with_prompt(options, 1))

    def with_prompt(self, options: dict[str, Any], side: int) -> dict[str, Any]:
        """Adds the default prompt of queries or documents to options of `encode` that name no prompt."""
        has_prompt = options.get("prompt") is not None or options.get("prompt_name") is not None
        return options if has_prompt else options | {"prompt": self.prompts.for_search()[side]}

    def pair_scores(
        self, sentences1: list[str], sentences2: list[str], sides: tuple[str, str], **options
    ) -> np.ndarray:
        """Cosine of each pair."""
        first, second = self.prefixes(sides)
        texts = [*(first + text for text in sentences1), *(second + text for text in sentences2)]
        vectors = self.encode(texts, normalize_embeddings=True, prompt="", **options)  # equal texts are read once
        return pair_cosines(*np.split(vectors, 2))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embeds sentences.

        Args:
            input_ids, attention_mask (`torch.Tensor` of shape `(sentences, tokens)`): padded on the right.

        Returns:
            `torch.Tensor` of shape `(sentences, embedding_dimension)`, of length 1 only after a `Normalize`.
        """
        run = packed_forward if self.packing else plain_forward
        tokens = run(self.backbone, {"input_ids": input_ids, "attention_mask": attention_mask})
        return self.after_pooling(self.pooling(tokens, attention_mask[:, : tokens.shape[1]]))


class BiEncoder(nn.Module):
    """Module that the trainer wraps: one encoder for both sentences of a pair and, for Sentence-BERT, the head."""

    def __init__(self, encoder: SentenceEncoder, head: nn.Module | None = None):
        super().__init__()
        self.encoder, self.head = encoder, head

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
