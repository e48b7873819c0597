"""The cross-encoder: a transformers sequence classifier that reads both sentences of a pair in one sequence."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import processors
from torch import nn
from tqdm.auto import tqdm
from transformers import AutoModelForSequenceClassification

from cosent.compute.packed_backbone import flash_precision, packed_forward, packing_obstacle, warn_of_padding
from cosent.data.manifest import NLI_CLASSES
from cosent.data.pairs import Prefix, Prefixes, warn_truncated
from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.inference.embedding import score_pairs
from cosent.models.bi_encoder import TextModel
from cosent.models.folder import add_server_keys, is_cross_encoder, remove_modules, submodule_state
from cosent.models.heads import classifier_heads, keep_in_full_precision, logits_of_tokens, patterns_of_heads
from cosent.models.loading import (
    check_architecture,
    dropout_changes,
    load_config,
    load_seeded,
    load_tokenizer,
    missing_models,
    quiet_transformers,
)
from cosent.models.modules import IDENTITY
from cosent.models.prompts import CROSS_ENCODER, Prompts

logger = logging.getLogger(__name__)

ENGLISH = ("entailment", "entail", "entails", "entailed", "similar", "same", "paraphrase", "duplicate", "equivalent",
           "related", "relevant", "match")  # fmt: skip
CHINESE = ("蕴含", "相似", "相同", "同义", "重复", "等价", "相关", "匹配", "一致")
SIMILAR = (*ENGLISH, *CHINESE)
NEGATIONS = ("not_", "non_", "no_", "not", "non", "un", "dis", "in", "ir")
DISSIMILAR = (
    *("contradiction", "contradict", "contradicts", "contradictory", "mismatch", "different", "矛盾", "不同", "无关"),
    *(f"{negation}{name}" for negation in NEGATIONS for name in ENGLISH),
    *(f"{negation}{name}" for negation in ("不", "非", "不是") for name in CHINESE),
)
# Of two classes; one of a pair alone may mean anything.
ANSWERS = (("no", "yes"), ("false", "true"), ("0", "1"), ("否", "是"), ("不是", "是"))
BINARY_CLASSES = ("dissimilar", "similar")  # the label is the position
UNNAMED = re.compile(r"LABEL_\d+")


def scored_classes(id2label: dict[int, str]) -> tuple[int, int | None]:
    """Indices of the logits for similar and dissimilar, whose difference is the score.

    A single logit is the score itself. Two classes without a name have one since `name_two_classes`.

    Args:
        id2label: from a transformers config.

    Returns:
        Both indices; None for the second one if there is a single logit.

    Raises:
        InputError: names that do not identify the classes.
    """
    # `str`: transformers' example scripts keep the labels of a CSV file, which may be the numbers 0 and 1.
    names = {int(number): normal(str(name)) for number, name in id2label.items()}
    if len(names) == 1:
        return 0, None
    by_name = {name: number for number, name in names.items()}
    for no, yes in ANSWERS:
        if set(by_name) == {no, yes}:
            return by_name[yes], by_name[no]
    similar = [number for number, name in names.items() if name in SIMILAR]
    dissimilar = [number for number, name in names.items() if name in DISSIMILAR]
    if len(names) == 2 and len(similar) == 1 != len(dissimilar):
        dissimilar = [1 - similar[0]]
    if len(similar) != 1 or len(dissimilar) != 1:
        raise InputError(
            f"The classes of this classifier are named {', '.join(names[number] for number in sorted(names))}, and "
            "which of them means similar is unclear: scores might be inverted. Set `id2label` in its config.json "
            "to entailment, neutral, contradiction, or to similar and dissimilar."
        )
    return similar[0], dissimilar[0]


def normal(name: str) -> str:
    """A name of a class without its case and spaces: `Is-Duplicate` is `duplicate`."""
    return re.sub(r"[\s-]+", "_", name.strip().lower()).removeprefix("is_")


def name_classes(config, path: str) -> None:
    """Names the classes of a classifier before training, in the order of its labels.

    Three are those of NLI, two are `BINARY_CLASSES`; names of the folder that mean the same stay. Under others the
    score of what is trained as similar might be inverted.

    Args:
        config: config of a transformers model; changed in place.
        path: name of the loaded model, for the warning that its head is retrained with another order of classes.
    """
    old = [str(config.id2label[number]) for number in range(config.num_labels)]
    unnamed = all(UNNAMED.fullmatch(name) for name in old)
    names = {len(NLI_CLASSES): NLI_CLASSES, len(BINARY_CLASSES): BINARY_CLASSES}.get(config.num_labels)
    if names is None or (not unnamed and in_order_of_labels(config.id2label)):
        return
    if not unnamed:
        logger.warning("%s has the classes %s; its head is trained as %s.", path, old, list(names))
    set_names(config, names)


def in_order_of_labels(id2label: dict[int, str]) -> bool:
    """Whether the first class is known to be the dissimilar one and the last the similar one."""
    try:
        return scored_classes(id2label) == (len(id2label) - 1, 0)
    except InputError:  # names that say neither
        return False


def name_two_classes(config) -> None:
    """Names two classes without a name, which are the labels 0 and 1: transformers would save none at all.

    Text Embeddings Inference refuses a classifier without `id2label` in its config.json.
    """
    if config.num_labels == 2 and all(UNNAMED.fullmatch(str(name)) for name in config.id2label.values()):
        set_names(config, BINARY_CLASSES)


def set_names(config, names: tuple[str, ...]) -> None:
    config.id2label = dict(enumerate(names))
    config.label2id = {name: number for number, name in enumerate(names)}


def reads_last_token(model) -> bool:
    """Whether a sequence classifier reads the last token that is not padding, as those of decoders do.

    transformers names the layer that reads it `score`, and that of an encoder otherwise.
    """
    return "score" in dict(model.named_children())


def reads_last_place(config) -> bool:
    """Whether a sequence classifier reads the last place of a row, padded or not, as that of XLNet does."""
    return config.model_type == "xlnet" and config.summary_type == "last"


def padded_on_the_left(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of shape `(batch, tokens)` with the padding of each row moved from its end to its start."""
    mask = inputs["attention_mask"]
    padding = (mask == 0).sum(1, keepdim=True)  # (batch, 1)
    places = (torch.arange(mask.shape[1], device=mask.device) - padding) % mask.shape[1]
    return {name: tensor.gather(1, places) for name, tensor in inputs.items()}


def find_last_token(config, tokenizer, fresh: bool) -> None:
    """Makes the token that transformers takes for the last one of a pair the right one, wherever the folder is served.

    transformers reads the last token that is not `config.pad_token_id`. A head that was trained so keeps that token,
    and the tokenizer pads with it. For a fresh head, sentences are separated, and padding is told from the end.

    Args:
        config, tokenizer: of a decoder's classifier; changed in place, and saved with it.
        fresh: whether its head is new.

    Raises:
        InputError: see `tell_padding_from_end`.
    """
    if fresh:
        separate_sentences(tokenizer)
    if fresh or config.pad_token_id is None:
        tell_padding_from_end(tokenizer)
        config.pad_token_id = tokenizer.pad_token_id
    elif config.pad_token_id != tokenizer.pad_token_id:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(config.pad_token_id)


def separate_sentences(tokenizer) -> None:
    """Puts an end-of-text token between two sentences if there is nothing: "ab" + "c" would be "a" + "bc"."""
    if tokenizer.num_special_tokens_to_add(pair=True):
        return
    backend, end = tokenizer.backend_tokenizer, tokenizer.eos_token or tokenizer.pad_token
    between = processors.TemplateProcessing(
        single="$A", pair=f"$A {end} $B", special_tokens=[(end, tokenizer.convert_tokens_to_ids(end))]
    )
    earlier = [] if backend.post_processor is None else [backend.post_processor]
    backend.post_processor = processors.Sequence([*earlier, between])


def tell_padding_from_end(tokenizer) -> None:
    """Pads with another special token if every pair ends with the padding token, as in Qwen3-Embedding.

    transformers would read the token before it, and servers that read the very last token (vLLM) another score. Padding
    is masked, so that it changes nothing else.

    Raises:
        InputError: the tokenizer has no other special token.
    """
    last = tokenizer("a", "b")["input_ids"][-1]
    if last != tokenizer.pad_token_id:
        return
    others = [token for token in tokenizer.all_special_tokens if tokenizer.convert_tokens_to_ids(token) != last]
    if not others:
        raise InputError(
            f"This tokenizer ends a pair with its padding token {tokenizer.pad_token}, and has no other special token: "
            "scores would be read one token too early. Set another pad_token in its tokenizer_config.json."
        )
    tokenizer.pad_token = others[0]


WITHOUT_SEGMENTS = ["input_ids", "attention_mask"]


class CrossEncoder(TextModel):
    """Pair scoring model: a sequence classifier and its tokenizer.

    The score is the logit of a model with a single one; otherwise the logit of the similar class minus that of the
    dissimilar one (`class_names.scored_classes`): `logit 1 - logit 0` of a binary classifier, `entailment -
    contradiction` of one for NLI, in whatever order it has them. sentence-transformers' `CrossEncoder` loads the saved
    folder and computes the same logits.

    Args:
        model: an `AutoModelForSequenceClassification`.
    """

    def __init__(self, model: nn.Module, tokenizer):
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        name_two_classes(model.config)
        for head in classifier_heads(model).values():
            keep_in_full_precision(head)

    @classmethod
    def from_pretrained(
        cls,
        model_name_or_path: str,
        num_labels: int | None = None,
        segment_ids: str = "tokenizer",
        max_length: int | None = None,
        dropout: float | None = None,
        seed: int = 42,
        attn_implementation: str | None = None,
        quantization_config=None,
        device: str | torch.device | None = None,
    ) -> "CrossEncoder":
        """Loads a classifier in float32, or a backbone with a fresh head.

        Args:
            num_labels: number of logits, for training; default: that of the folder. A head of another size is
                replaced, and classes are named in the order of the labels (`class_names.name_classes`).
            segment_ids: `tokenizer`: those of the tokenizer (all 0 if it was saved that way); `zero`: all 0, in
                training, here and wherever the saved folder is served.
            The others: see `TextModel`.

        Raises:
            InputError: no model there.
        """
        path = resolve(model_name_or_path)
        with missing_models(model_name_or_path):
            config = load_config(path)
            changes = dropout_changes(path, dropout, head=True)
        changes |= {"attn_implementation": attn_implementation, "quantization_config": quantization_config}
        if quantization_config is not None:
            quantization_config.llm_int8_skip_modules = patterns_of_heads(config)
        has_head = is_cross_encoder(path) and num_labels in (None, config.num_labels)
        if num_labels is not None:
            if is_cross_encoder(path) and not has_head:
                logger.warning("%s has no head of %d logit(s): a new one starts from seed %d.", path, num_labels, seed)
            changes |= {"num_labels": num_labels, "ignore_mismatched_sizes": True}
        elif not has_head:
            logger.warning("%s holds no cross-encoder: the head is new, and scores mean nothing until trained.", path)
        with missing_models(model_name_or_path):
            model = load_seeded(AutoModelForSequenceClassification, path, seed, **changes)
            options = {} if segment_ids == "tokenizer" else {"model_input_names": WITHOUT_SEGMENTS}
            if reads_last_place(config):
                options |= {"padding_side": "left"}  # saved with the folder, for those who serve it
            tokenizer = load_tokenizer(path, **options)
        if num_labels is not None:
            name_classes(model.config, path)
        if reads_last_token(model):
            find_last_token(model.config, tokenizer, fresh=not has_head)
        check_architecture(model.base_model, tokenizer)
        encoder = cls(model, tokenizer)
        encoder.prompts = Prompts.read(path, CROSS_ENCODER)
        if max_length is not None:
            encoder.max_length = max_length
        return encoder.to(device=device)

    @property
    def backbone(self) -> nn.Module:
        return self.model.base_model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Scores pairs.

        Args:
            input_ids, attention_mask, token_type_ids (`torch.Tensor` of shape `(batch, tokens)`): padded on the right;
                without segment ids, all are 0.

        Returns:
            In float32: `logits` of shape `(batch, classes)` and `scores` of shape `(batch,)`.
        """
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        obstacle = packing_obstacle(self.model.config) if self.packing else None
        if self.packing and obstacle is None:
            logits = logits_of_tokens(self.model, packed_forward(self.backbone, inputs), inputs)
        else:
            if obstacle is not None:
                warn_of_padding(self.model.config.model_type, obstacle)
            if reads_last_place(self.model.config):
                inputs = padded_on_the_left(inputs)
            with flash_precision(self.backbone):
                logits = self.model(**inputs).logits
        logits = logits.float()
        similar, dissimilar = scored_classes(self.model.config.id2label)
        scores = logits[:, similar] if dissimilar is None else logits[:, similar] - logits[:, dissimilar]
        return {"logits": logits, "scores": scores}

    def prefixes(
        self, prompt: str | Sequence[str] | None = None, prompt_name: str | Sequence[str] | None = None
    ) -> Prefixes:
        """The prompt of a pair, which stands in front of its first sentence, as in sentence-transformers.

        Raises:
            InputError: two that differ.
        """
        first, second = self.prompts.sides(prompt, prompt_name)
        if first != second:
            raise InputError(
                f"A cross-encoder reads a pair in one sequence, with one prompt in front, got {first!r} and "
                f"{second!r}: no server could repeat that. Pass one prompt."
            )
        return self.prefix(first), Prefix()

    def pair_scores(
        self,
        sentences1: list[str],
        sentences2: list[str],
        sides: tuple[str, str],
        batch_size: int = 512,
        show_progress_bar: bool = False,
    ) -> np.ndarray:
        """The logit of each pair, or of two logits the difference."""
        prefixes = self.prefixes(sides)
        with tqdm(total=len(sentences1), unit="pair", disable=not show_progress_bar) as progress:
            scores, truncated = score_pairs(self, sentences1, sentences2, batch_size, progress.update, prefixes)
        warn_truncated(truncated, len(scores), "pairs", self.max_length)
        return scores

    def save_pretrained(self, folder: str | Path, state_dict: dict[str, torch.Tensor] | None = None) -> None:
        """Writes classifier and tokenizer; transformers and sentence-transformers load the folder.

        Args:
            state_dict: this module's weights, if gathered from shards; default: its own.
        """
        state_dict = self.state_dict() if state_dict is None else state_dict
        # Otherwise sentence-transformers applies a sigmoid to a single logit, which makes 23 and 40 equal.
        self.model.config.sentence_transformers = {"activation_fn": IDENTITY}
        add_server_keys(self.model.config)
        with quiet_transformers():
            self.model.save_pretrained(folder, state_dict=submodule_state(state_dict, "model."))
        self.save_tokenizer(folder)
        remove_modules(folder)
        self.prompts.save_for_classifier(folder)

    def saved_state(self, folder: str | Path) -> dict[str, torch.Tensor]:
        """The weights that `save_pretrained` wrote to `folder`, as `load_state_dict` takes them.

        Raises:
            InputError: a model of another kind.
        """
        saved = CrossEncoder.from_pretrained(str(folder)) if is_cross_encoder(str(folder)) else None
        classes = self.model.config.num_labels
        if saved is None or saved.model.config.num_labels != classes:
            raise InputError(
                f"{folder} was saved by a run of another kind, not by a cross-encoder of {classes} logit(s). Resume "
                "with the recipe it was started with."
            )
        return saved.state_dict()
