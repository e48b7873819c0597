"""The bi-encoder: a backbone with pooling, saved in a folder that sentence-transformers can load."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, overload

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import cosine_similarity, normalize
from tqdm.auto import tqdm

from cosent.compute.distributed import run_tokenizer
from cosent.compute.packed_backbone import max_tokens, packed_forward, plain_forward
from cosent.data.formats import is_blank
from cosent.data.pairs import Prefixes, tokenizer_rules, warn_truncated
from cosent.data.tokens import read_texts
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.evaluation.similarity import pair_cosines, principal_directions
from cosent.models.embedding import best_of_windows, check_pairs, check_sentences, embed
from cosent.models.folder import (
    add_server_keys,
    is_cross_encoder,
    read_json,
    refuse_adapter,
    save_modules,
    submodule_state,
    write_json,
)
from cosent.models.loading import (
    check_architecture,
    dropout_changes,
    load_backbone,
    load_tokenizer,
    missing_models,
    quiet_transformers,
)
from cosent.models.modules import (
    IDENTITY,
    Dense,
    KeptSettings,
    Normalize,
    Pooling,
    load_modules,
    projection,
    warn_of_similarity,
)
from cosent.models.prompts import Prompts


class TextModel(nn.Module):
    """Base class of both towers and the student: a `backbone` and a `tokenizer`, which holds the maximum length.

    Their `from_pretrained` share these parameters:
        model_name_or_path: a shipped encoder (`mini`), a folder or a Hub id.
        max_length: tokens per sentence (cross-encoder: per pair), special tokens included; default: that of the
            tokenizer.
        dropout: probability for hidden states, attention and the head of a classifier; default: that of the model.
        seed: seed of weights that the folder lacks; the global random state is left alone.
        quantization_config: a `BitsAndBytesConfig`; quantised weights stay frozen, and heads are not quantised.
        device: where to move it, e.g. `cuda`; default: the CPU.

    Attributes:
        packing: lay the sentences of a batch into shared rows, where that does not change the results (`packing.py`).
        prompts: texts in front of sentences, saved with the model.
        highest_score: no pair has a higher one.
    """

    packing = True
    highest_score = 1.0  # a cosine
    prompts = Prompts()
    library_class = "SentenceTransformer"  # in sentence-transformers

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    @property
    def rules(self) -> str:
        """Settings besides the weights that affect the output: part of a cache key."""
        return repr(("none", self.max_length, tokenizer_rules(self.tokenizer)))

    @property
    def max_length(self) -> int:
        """Tokens per sequence, [CLS] and [SEP] included; longer ones are cut. Saved with the tokenizer."""
        return min(self.tokenizer.model_max_length, max_tokens(self.backbone.config))

    @max_length.setter
    def max_length(self, tokens: int) -> None:
        limit = max_tokens(self.backbone.config)
        if not 3 <= tokens <= limit:
            raise InputError(f"max_length must be 3 to {limit} tokens for this backbone, got {tokens}.")
        self.tokenizer.model_max_length = tokens

    def count_tokens(self, text: str) -> int:
        """Number of tokens of a text, without special tokens."""
        return len(run_tokenizer(self.tokenizer, text, add_special_tokens=False, verbose=False)["input_ids"])

    @property
    def room(self) -> int | None:
        """Maximum number of tokens read of a text, special tokens included; None for no limit."""
        return self.max_length

    def token_ids(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, as the model reads it."""
        return read_texts(self.tokenizer, texts, self.room)[0]

    def prefix(self, prompt: str) -> str:
        """The prompt itself; refuses one that leaves no room for a sentence."""
        most = LONGEST_TOKEN * self.max_length  # characters: hours of tokenising end here
        tokens = len(run_tokenizer(self.tokenizer, prompt[:most], verbose=False)["input_ids"]) if prompt else 0
        if tokens >= self.max_length or len(prompt) > most:
            shown = repr(prompt) if len(prompt) < 100 else f"of {len(prompt):,} characters, {prompt[:40]!r} ...,"
            raise InputError(f"The prompt {shown} has {tokens} tokens, the model reads {self.max_length}. Shorten it.")
        return prompt

    def prefixes(
        self, prompt: str | Sequence[str] | None = None, prompt_name: str | Sequence[str] | None = None
    ) -> Prefixes:
        """The checked prompts of both sentences of a pair; arguments as in `Prompts.sides`."""
        first, second = self.prompts.sides(prompt, prompt_name)
        return self.prefix(first), self.prefix(second)

    @overload
    def similarity(self, sentences1: str, sentences2: str, *args: Any, **options: Any) -> float: ...

    @overload
    def similarity(self, sentences1: list[str], sentences2: list[str], *args: Any, **options: Any) -> np.ndarray: ...

    def similarity(
        self,
        sentences1: str | list[str],
        sentences2: str | list[str],
        batch_size: int = 512,
        show_progress_bar: bool = False,
        prompt: str | Sequence[str] | None = None,
        prompt_name: str | Sequence[str] | None = None,
    ) -> float | np.ndarray:
        """Score of each pair in evaluation mode: a float for two strings, shape `(pairs,)` for lists of equal length.

        A bi-encoder's is the cosine. A cross-encoder's is any real number, higher = more similar; (a, b) and (b, a) may
        differ. Warns about sentences, or pairs, over `max_length`.

        Args:
            batch_size: most sentences or pairs per forward pass; its number of tokens is limited too.
            prompt: text to put in front, "" for none; default: the default prompt of `prompts`. A list of two if they
                differ for `sentences1` and `sentences2`, which a cross-encoder refuses.
            prompt_name: instead, the name of one of `prompts`, or of two.
        """
        sides = self.prompts.sides(prompt, prompt_name)
        options = {"batch_size": batch_size, "show_progress_bar": show_progress_bar}
        if isinstance(sentences1, str) and isinstance(sentences2, str):
            if is_blank(sentences1) or is_blank(sentences2):
                raise InputError(f"similarity compares non-empty sentences, got {sentences1!r} and {sentences2!r}.")
            return float(self.pair_scores([sentences1], [sentences2], sides, **options)[0])
        check_pairs(sentences1, sentences2)
        return self.pair_scores(list(sentences1), list(sentences2), sides, **options)

    @abstractmethod
    def pair_scores(
        self, sentences1: list[str], sentences2: list[str], sides: tuple[str, str], **options
    ) -> np.ndarray:
        """Float32 scores `(pairs,)` of two lists of sentences, each with the prompt of its side."""

    def as_sentence_transformer(self) -> Any:
        """The same model as an object of sentence-transformers (`SentenceTransformer`, `CrossEncoder`).

        For libraries that recognise its class by name, as BERTopic, KeyBERT, mteb and its own evaluators do: they
        replace an object that they do not know by a model of their own.
        """
        import sentence_transformers  # an optional package, which takes seconds

        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            self.save_pretrained(folder)
            return getattr(sentence_transformers, self.library_class)(folder, device=str(self.device))

    def save_tokenizer(self, folder: str | Path) -> None:
        self.tokenizer.model_max_length = self.max_length
        self.tokenizer.save_pretrained(folder)
        file, settings = Path(folder, "tokenizer_config.json"), read_json(str(folder), "tokenizer_config.json")
        if settings.get("tokenizer_class") == "TokenizersBackend":  # a name that transformers 4 does not know
            write_json(file, settings | {"tokenizer_class": "PreTrainedTokenizerFast"})

    def activation_checkpointing_enable(self, **kwargs) -> None:
        self.backbone.activation_checkpointing_enable(**kwargs)


LONGEST_TOKEN = 50  # characters
HEAD_NAME = "head.safetensors"


class SentenceEncoder(TextModel):
    """Sentence embedding model: a transformer backbone with its tokenizer, pooling and the modules after it.

    It compares two sentences by the cosine of their vectors.

    Attributes:
        long_texts: how texts over `max_length` are read: `truncate`; `mean`, of the vectors of overlapping windows;
            `best`, the windows that are most similar (only to score pairs and to search). Not saved.
    """

    long_texts = "truncate"
    kept_settings = KeptSettings()

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
    def room(self) -> int | None:
        return self.max_length if self.long_texts == "truncate" else None

    @property
    def modules_after_backbone(self) -> str:
        """Description of the pooling and the modules after it; if two are equal, so are the shapes of their weights."""
        after = (f"{type(module).__name__} {module.config()}" for module in self.after_pooling)
        return ", ".join([f"Pooling {self.pooling.mode} {self.pooling.hidden_size}", *after])

    @property
    def rules(self) -> str:
        long_texts = () if self.long_texts == "truncate" else (self.long_texts,)
        return repr((self.modules_after_backbone, self.max_length, tokenizer_rules(self.tokenizer), *long_texts))

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        pooling: str | None = None,
        max_length: int | None = None,
        dropout: float | None = None,
        seed: int = 42,
        quantization_config=None,
        device: str | torch.device | None = None,
    ) -> "SentenceEncoder":
        """Loads a backbone, or a folder that this class or sentence-transformers wrote, in float32; see `TextModel`.

        Args:
            pooling: one of `CHOICES`; default: that of the folder, else `mean`.
        """
        path = resolve(model_name_or_path)
        if is_cross_encoder(path):
            raise InputError(
                f"{model_name_or_path} is a cross-encoder, not the start of a bi-encoder. Train it with --tower "
                "cross_encoder, load it by load_model, or name a bi-encoder."
            )
        changes = {"quantization_config": quantization_config}
        if quantization_config is not None:
            quantization_config.llm_int8_skip_modules = ["^pooler"]  # saved as it is, see `load_backbone`
        with missing_models(model_name_or_path):
            changes |= dropout_changes(path, dropout)
            backbone, unused = load_backbone(path, seed, **changes)
            tokenizer = load_tokenizer(path, backbone)
        pool, after_pooling = load_modules(path, backbone.config.hidden_size, pooling, seed)
        check_architecture(backbone, tokenizer, pool.mode)
        encoder = cls(backbone, tokenizer, pool, after_pooling)
        encoder.keep_settings(path, max_length, unused)
        return encoder.to(device=device)

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
            directions = principal_directions(self.encode(list(sentences), normalize_embeddings=True)).T
        modules = list(self.after_pooling)
        end = len(modules) - (bool(modules) and isinstance(modules[-1], Normalize))
        weight = torch.from_numpy(np.ascontiguousarray(directions[:dim], np.float32))
        modules.insert(end, projection(weight).to(self.device))
        self.after_pooling = nn.Sequential(*modules)

    @property
    def nested(self) -> bool:
        """Whether vectors may be cut further: `truncate` has projected them onto principal directions."""
        layers = [module for module in self.after_pooling if not isinstance(module, Normalize)]
        if not layers or not isinstance(layers[-1], Dense):
            return False
        weight, bias, rounding = layers[-1].linear.weight, layers[-1].linear.bias, 1e-3
        if not isinstance(layers[-1].linear, nn.Linear):  # in int8
            weight, bias, rounding = weight().dequantize(), bias(), 1e-2
        weight = weight.detach().float().cpu()
        eye = torch.eye(*weight.shape)
        orthonormal = torch.allclose(weight @ weight.T, eye[:, : len(weight)], atol=rounding)
        return (
            bias is None
            and layers[-1].named == IDENTITY
            and orthonormal
            and not torch.allclose(weight, eye, atol=rounding)
        )

    def keep_settings(self, path: str, max_length: int | None, unused: dict[str, torch.Tensor]) -> None:
        """Applies and keeps a folder's settings besides its modules; `unused` are weights that nothing here reads."""
        self.prompts, self.kept_settings = Prompts.read(path), KeptSettings.read(path, unused)
        self.kept_settings.apply(self.tokenizer)
        if max_length is not None:
            self.max_length = max_length
        similarity = self.kept_settings.settings.get("similarity_fn_name") or "cosine"
        unit = len(self.after_pooling) > 0 and isinstance(self.after_pooling[-1], Normalize)
        if similarity != "cosine" and not (unit and similarity == "dot"):
            warn_of_similarity(path, similarity)

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
        device: str | torch.device | None = None,
        truncate_dim: int | None = None,
        precision: str | None = "float32",
    ) -> Any:
        """Embeds sentences in evaluation mode, duplicates once; warns about sentences longer than `max_length`.

        The keywords are those of sentence-transformers, whose users and libraries pass them.

        Args:
            sentences: a list, or a single sentence.
            normalize_embeddings: scale every vector to length 1, so that a dot product is the cosine.
            prompt, prompt_name, batch_size: as of `similarity`, with one prompt.
            convert_to_tensor: return a tensor on the model's device instead of an array. `convert_to_numpy` is accepted
                and changes nothing: False alone would mean a list of tensors.
            device: move the model there first.
            truncate_dim: keep the first numbers of each vector; `truncate` does so for good.
            precision: float32 is the only one.

        Returns:
            float32 array or tensor of shape `(len(sentences), hidden)`, in their order; `(hidden,)` for one string.
        """
        if precision not in (None, "float32"):
            raise InputError(f"encode returns float32, got precision={precision!r}. Round the array afterwards.")
        if device is not None:
            self.to(device)
        texts = [sentences] if isinstance(sentences, str) else sentences
        check_sentences(texts)
        prefix = self.prefix(self.prompts.text(prompt, prompt_name))
        with tqdm(total=len(texts), unit="sentence", disable=not show_progress_bar) as progress:
            whole = normalize_embeddings and truncate_dim is None
            vectors, truncated = embed(self, list(texts), batch_size, whole, progress.update, prefix)
        warn_truncated(truncated, len(texts), "sentences", self.max_length)
        if truncate_dim is not None:
            vectors = vectors[:, :truncate_dim]
            vectors = normalize(torch.from_numpy(vectors), dim=-1).numpy() if normalize_embeddings else vectors
        vectors = vectors[0] if isinstance(sentences, str) else vectors
        return torch.from_numpy(vectors).to(self.device) if convert_to_tensor else vectors

    def encode_query(self, sentences: str | list[str], **options: Any) -> Any:
        """`encode` with the query prompt (`Prompts.for_search`); options as in `encode`."""
        return self.encode(sentences, **self.own_prompt(options, 0))

    def encode_document(self, sentences: str | list[str], **options: Any) -> Any:
        """`encode` with the document prompt."""
        return self.encode(sentences, **self.own_prompt(options, 1))

    def own_prompt(self, options: dict[str, Any], side: int) -> dict[str, Any]:
        """Options of `encode` with the default prompt of queries or documents, unless they name another prompt."""
        named = options.get("prompt") is not None or options.get("prompt_name") is not None
        return options if named else options | {"prompt": self.prompts.for_search()[side]}

    def pair_scores(
        self, sentences1: list[str], sentences2: list[str], sides: tuple[str, str], **options
    ) -> np.ndarray:
        """Cosine of each pair."""
        if self.long_texts == "best":
            return best_of_windows(self, sentences1, sentences2, sides, **options)
        first, second = sides
        if first == second:  # a sentence of both sides is read once
            vectors = self.encode([*sentences1, *sentences2], normalize_embeddings=True, prompt=first, **options)
            return pair_cosines(vectors[: len(sentences1)], vectors[len(sentences1) :])
        one = self.encode(sentences1, normalize_embeddings=True, prompt=first, **options)
        return pair_cosines(one, self.encode(sentences2, normalize_embeddings=True, prompt=second, **options))

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
        saved = SentenceEncoder.from_pretrained(str(folder)).state_dict()
        head = {} if self.head is None else load_file(Path(folder, HEAD_NAME))
        return {f"encoder.{name}": weight for name, weight in saved.items()} | {
            f"head.{name}": weight for name, weight in head.items()
        }
