"""The cross-encoder: a transformers sequence classifier that reads both sentences of a pair in one sequence."""

import logging
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm
from transformers import AutoModelForSequenceClassification

from cosent.compute.packing import LOOKUP, packed_forward, plain_forward
from cosent.data.labels import NLI_CLASSES
from cosent.data.pairs import JoinedPairCollator, Prefixes, tokenize_joined, warn_truncated
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.models.embedding import check_finite, chunks, evaluating, run_by_length
from cosent.models.folder import (
    add_server_keys,
    is_cross_encoder,
    refuse_adapter,
    remove_modules,
    submodule_state,
)
from cosent.models.layout import CROSS_ENCODER, read_prompts, save_classifier_prompts
from cosent.models.loading import (
    check_architecture,
    dropout_changes,
    load_config,
    load_seeded,
    load_tokenizer,
    missing_models,
    quiet_transformers,
)
from cosent.models.modules import IDENTITY, logits_of_tokens
from cosent.models.text_model import TextModel

logger = logging.getLogger(__name__)

# Names of classes, as regular expressions. Other names are refused: a score is never guessed.
SIMILAR_CLASS = (
    "entailment|similar|same|paraphrase|duplicate|equivalent|relevant|match|yes|true|1|蕴含|相似|相同|同义|重复|是"
)
DISSIMILAR_CLASS = (
    f"contradiction|different|no|false|0|矛盾|不同|否|((not|non|no|un|dis|in|ir|mis)_?|不是|不)({SIMILAR_CLASS})"
)
BINARY_CLASSES = ("dissimilar", "similar")  # the label is the position


def scored_classes(id2label: dict[int, str]) -> tuple[int, int | None]:
    """Indices of the logits for similar and dissimilar (the score is their difference); 0 and None for one logit."""
    names = [re.sub(r"[\s-]+", "_", str(id2label[number]).strip().lower()) for number in sorted(id2label)]
    if len(names) == 1:
        return 0, None
    similar = [place for place, name in enumerate(names) if re.fullmatch(SIMILAR_CLASS, name)]
    dissimilar = [place for place, name in enumerate(names) if re.fullmatch(DISSIMILAR_CLASS, name)]
    if len(similar) != 1 or len(dissimilar) != 1:
        raise InputError(
            f"The classes of this classifier are named {', '.join(names)}: which one means similar is unknown. Set "
            "id2label in its config.json, e.g. to similar and dissimilar."
        )
    return similar[0], dissimilar[0]


def rising_classes(names: Sequence[str]) -> list[int] | None:
    """Places of classes from the least to the most similar, by their names; None if these do not tell."""
    if all(name.isdecimal() for name in names):
        return sorted(range(len(names)), key=lambda place: int(names[place]))
    try:
        similar, dissimilar = scored_classes(dict(enumerate(names)))
    except InputError:
        return None
    if dissimilar is None or len(names) > len(NLI_CLASSES):
        return None
    return sorted(range(len(names)), key=lambda place: (place == similar) - (place == dissimilar))


def order_classes(model: Any) -> None:
    """Puts two or three logits of a head in the order of the labels, in which losses read them, if their names tell."""
    names = [str(model.config.id2label[place]).strip() for place in sorted(model.config.id2label)]
    order = rising_classes(names)
    if order is None or len(names) > len(NLI_CLASSES):  # `name_classes` does not rename more
        return
    head = [each for each in model.modules() if isinstance(each, nn.Linear) and each.out_features == len(order)][-1]
    for values in head.parameters():
        values.data = values.data[order]


def name_classes(config) -> None:
    """Names three classes as in NLI, and two as `BINARY_CLASSES`, in the order of the labels.

    transformers saves no names of two classes, and Text Embeddings Inference refuses a classifier without names.
    """
    names = {len(NLI_CLASSES): NLI_CLASSES, len(BINARY_CLASSES): BINARY_CLASSES}.get(config.num_labels)
    if names is not None:
        config.id2label = dict(enumerate(names))
        config.label2id = {name: number for number, name in enumerate(names)}


def find_last_token(config, tokenizer, fresh: bool) -> None:
    """Sets the padding token of a decoder's classifier, so that every server reads the score at the same token.

    transformers reads the last token that is not `config.pad_token_id`. A head that was trained so keeps that token,
    and the tokenizer pads with it. For a fresh head, padding is another token than the one that ends every pair, as in
    Qwen3-Embedding: transformers would read the token before it, and servers that read the very last token (vLLM)
    another score.

    Args:
        config, tokenizer: changed in place, and saved with the model.
        fresh: whether its head is new.
    """
    if not fresh and config.pad_token_id is not None:
        if config.pad_token_id != tokenizer.pad_token_id:
            tokenizer.pad_token = tokenizer.convert_ids_to_tokens(config.pad_token_id)
        return
    if not tokenizer.num_special_tokens_to_add(pair=True):
        raise InputError("This tokenizer puts no token between two sentences. Start from an embedding model.")
    last = tokenizer.convert_ids_to_tokens(tokenizer("a", "b")["input_ids"][-1])
    if last == tokenizer.pad_token:
        padding = [token for token in tokenizer.all_special_tokens if token != last]
        if not padding:
            raise InputError(f"This tokenizer ends a pair with its padding token {last}. Give it another pad_token.")
        tokenizer.pad_token = padding[0]
    config.pad_token_id = tokenizer.pad_token_id


class CrossEncoder(TextModel):
    """Pair scoring model: a transformers sequence classifier and its tokenizer.

    The score is the logit of a model with a single one; otherwise the logit of the similar class minus that of the
    dissimilar one (`scored_classes`). sentence-transformers' `CrossEncoder` computes the same logits.
    """

    tower = "cross_encoder"
    highest_score = torch.finfo(torch.float32).max  # a logit; times a slope of 0, infinity would be no number

    def __init__(self, model: nn.Module, tokenizer):
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        if model.config.num_labels == 2 and model.config.id2label == {0: "LABEL_0", 1: "LABEL_1"}:
            name_classes(model.config)

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        num_labels: int | None = None,
        segment_ids: str = "tokenizer",
        max_length: int | None = None,
        dropout: float | None = None,
        seed: int = 42,
        device: str | torch.device | None = None,
    ) -> "CrossEncoder":
        """Loads a classifier in float32, or a backbone with a fresh head.

        Args:
            num_labels: number of logits, for training; default: as in the folder. A head of another size is replaced,
                and classes are put and named in the order of the labels.
            segment_ids: `tokenizer`: as the tokenizer numbers them; `zero`: all 0, also wherever the folder is served.
            The others: see `TextModel`.
        """
        path = resolve(model_name_or_path)
        with missing_models(model_name_or_path):
            config = load_config(path)
            if config.model_type == "xlnet":
                raise InputError(f"{path}: XLNet's classifier depends on padding. Use another cross-encoder.")
            if config.model_type == LOOKUP:
                raise InputError(f"{path} has a lookup, which reads each sentence by itself. Take --tower bi_encoder.")
            changes: dict[str, Any] = {**dropout_changes(path, dropout)}
            is_classifier = is_cross_encoder(path)
            has_head = is_classifier and num_labels in (None, config.num_labels)
            if num_labels is not None:
                changes |= {"num_labels": num_labels, "ignore_mismatched_sizes": True}
            if not has_head and num_labels is None:
                logger.warning(
                    "%s holds no cross-encoder: the head is new, and scores mean nothing until trained.", path
                )
            elif not has_head and is_classifier:
                logger.warning("%s has no head of %d logit(s): a new one starts from seed %d.", path, num_labels, seed)
            model, _ = load_seeded(AutoModelForSequenceClassification, path, seed, has_head, **changes)
            options = {} if segment_ids == "tokenizer" else {"model_input_names": ["input_ids", "attention_mask"]}
            tokenizer = load_tokenizer(path, model, **options)
            if num_labels is not None:
                if has_head:
                    order_classes(model)
                name_classes(model.config)
            if "score" in dict(model.named_children()):  # transformers' name of the head of decoders
                find_last_token(model.config, tokenizer, fresh=not has_head)
            check_architecture(model.config)
            encoder = cls(model, tokenizer)
            encoder.prompts = read_prompts(path, CROSS_ENCODER)
        if max_length is not None:
            encoder.max_length = max_length
        return encoder.to(device=device)

    @property
    def backbone(self) -> nn.Module:
        return self.model.base_model

    @property
    def rules(self) -> str:
        return repr((super().rules, scored_classes(self.model.config.id2label)))

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Scores pairs, `(batch, tokens)` each, padded on the right; without segment ids, all are 0.

        Returns:
            In float32: `logits` of shape `(batch, classes)` and `scores` of shape `(batch,)`.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        run = packed_forward if self.packing else plain_forward
        logits = logits_of_tokens(self.model, run(self.backbone, inputs), inputs).float()
        similar, dissimilar = scored_classes(self.model.config.id2label)
        scores = logits[:, similar] if dissimilar is None else logits[:, similar] - logits[:, dissimilar]
        return {"logits": logits, "scores": scores}

    def prefixes(
        self, prompt: str | Sequence[str] | None = None, prompt_name: str | Sequence[str] | None = None
    ) -> Prefixes:
        """The prompt of a pair: text in front of the first sentence, as in sentence-transformers."""
        first, second = self.prompts.sides(prompt, prompt_name)
        if first != second:
            raise InputError(f"A cross-encoder reads a pair behind one prompt, got {first!r} and {second!r}.")
        return self.prefix(first), ""

    def pair_scores(
        self,
        sentences1: list[str],
        sentences2: list[str],
        sides: tuple[str, str],
        batch_size: int = 512,
        show_progress_bar: bool = False,
    ) -> np.ndarray:
        """The logit of each pair, or of two logits the difference."""
        prefixes, collate = self.prefixes(sides), JoinedPairCollator.from_tokenizer(self.tokenizer)
        scores, truncated = np.empty(len(sentences1), dtype=np.float32), 0
        again = partial(self.pair_scores, sides=sides, batch_size=1)
        bar = tqdm(total=len(scores), unit="pair", disable=not show_progress_bar)
        with evaluating(self), bar as progress:
            for chunk in chunks(len(scores)):
                columns = {"sentence1": sentences1[chunk], "sentence2": sentences2[chunk]}
                pairs = tokenize_joined(columns, self.tokenizer, self.max_length, prefixes)
                ids, first_tokens = pairs["input_ids"], pairs["first_tokens"]
                if [] in ids:
                    position = chunk.start + ids.index([])
                    raise InputError(f"Expected a token in every pair, got none at position {position}. Drop it.")

                def run(rows: np.ndarray, ids=ids, first_tokens=first_tokens) -> torch.Tensor:
                    batch = collate([(ids[row], first_tokens[row], {}) for row in rows])
                    return self(**{name: tensor.to(self.device) for name, tensor in batch.items()})["scores"]

                scores[chunk] = run_by_length(self, ids, batch_size, run, progress=progress.update).cpu().numpy()
                check_finite(self, scores[chunk], again, *columns.values())
                truncated += sum(pairs["truncated"])
        warn_truncated(truncated, len(scores), "pairs", self.max_length)
        return scores

    def predict(self, sentences: Sequence[str] | Sequence[Sequence[str]], batch_size: int = 512, **options: Any) -> Any:
        """Scores of pairs in the form of sentence-transformers' `CrossEncoder.predict`, without a sigmoid.

        Args:
            sentences: a pair of strings, or a list of pairs.
            batch_size, options: as in `similarity`.

        Returns:
            A float for a single pair, else float32 of shape `(pairs,)`.
        """
        single = len(sentences) > 0 and isinstance(sentences[0], str)
        pairs = [sentences] if single else list(sentences)
        if wrong := [place for place, pair in enumerate(pairs) if isinstance(pair, str) or len(pair) != 2]:
            raise InputError(f"predict takes pairs of sentences, got {pairs[wrong[0]]!r} at position {wrong[0]}.")
        first, second = ([pair[side] for pair in pairs] for side in (0, 1))
        scores = self.similarity(first, second, batch_size, **options)
        return float(scores[0]) if single else scores

    def save_pretrained(self, folder: str | Path, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        """Writes a folder that transformers and sentence-transformers load, see `SentenceEncoder.save_pretrained`."""
        state_dict = self.state_dict() if state_dict is None else state_dict
        refuse_adapter(state_dict)
        # Otherwise sentence-transformers applies a sigmoid to a single logit, which makes 23 and 40 equal.
        self.model.config.sentence_transformers = {"activation_fn": IDENTITY}
        add_server_keys(self.model.config)
        with quiet_transformers():
            self.model.save_pretrained(folder, state_dict=submodule_state(state_dict, "model."))
        self.save_around_backbone(folder, state_dict)

    def save_around_backbone(self, folder: str | Path, state_dict: dict[str, torch.Tensor]) -> None:
        """Writes everything but the classifier."""
        self.save_tokenizer(folder)
        remove_modules(folder)
        save_classifier_prompts(folder, self.prompts)
