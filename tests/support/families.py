"""Small random models of every architecture that a user may bring, with a tokenizer like the published one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

WIDTH, INNER, LAYERS, HEADS = 32, 64, 3, 4
LONGEST = 64  # tokens
LETTERS = [chr(code) for code in range(0x4E00, 0x4E00 + 120)]  # characters with a token of their own


@dataclass(frozen=True)
class Template:
    """A fast tokenizer with one token per character.

    Args:
        special: role -> token, e.g. `{"pad_token": "[PAD]"}`; ids in this order from 0.
        single, pair: templates of `tokenizers`.
        inputs: what the model reads besides `input_ids`, space-separated.
        options: options of the tokenizer's class.
    """

    special: dict[str, str]
    single: str
    pair: str
    inputs: str = "attention_mask"
    options: dict = field(default_factory=dict)

    def __call__(self) -> PreTrainedTokenizerFast:
        tokens = list(dict.fromkeys(self.special.values()))
        vocabulary = {token: number for number, token in enumerate([*tokens, *LETTERS])}
        backend = Tokenizer(models.WordLevel(vocabulary, unk_token=self.special["unk_token"]))
        backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        used = [(token, vocabulary[token]) for token in tokens if token in f"{self.single} {self.pair}"]
        backend.post_processor = processors.TemplateProcessing(single=self.single, pair=self.pair, special_tokens=used)
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            model_input_names=["input_ids", *self.inputs.split()],
            model_max_length=LONGEST,
            **self.special,
            **self.options,
        )


BERT = partial(
    Template,
    {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"},
    "[CLS]:0 $A:0 [SEP]:0",
    "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
)
SEGMENTS, NO_SEGMENTS = BERT("token_type_ids attention_mask"), BERT("attention_mask")
ROBERTA = Template(
    {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    | {"cls_token": "<s>", "sep_token": "</s>"},
    "<s> $A </s>",
    "<s> $A </s> </s> $B </s>",
)
# As Qwen3-Embedding's: the padding token also ends every text, and padding goes to the left.
END = "<|endoftext|>"
DECODER = partial(Template, single=f"$A {END}", pair=f"$A {END} $B {END}", options={"padding_side": "left"})
WITH_PADDING = DECODER({"eos_token": END, "unk_token": "<unk>", "pad_token": END})
WITHOUT_PADDING = DECODER({"eos_token": END, "unk_token": "<unk>"})
T5 = Template({"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}, "$A </s>", "$A </s> $B </s>")


def qwen2_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, with one token per character, and nothing around a text.

    transformers takes `Qwen2Tokenizer` for every qwen2 model; with a vocabulary of characters, all are unknown to it.
    """
    byte = bytes_to_unicode()
    spelt = [[byte[code] for code in letter.encode()] for letter in LETTERS]  # three bytes each
    merges = list(dict.fromkeys((first, second) for first, second, _ in spelt))
    merges += [(first + second, third) for first, second, third in spelt]
    tokens = [END, *byte.values(), *("".join(pair) for pair in merges)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    options = {"eos_token": END, "pad_token": END, "unk_token": None, "padding_side": "left"}
    return Qwen2Tokenizer(vocabulary, merges, model_max_length=LONGEST, **options)


@dataclass(frozen=True)
class Family:
    """An architecture: what its config needs beyond the common sizes, and the kind of tokenizer it comes with."""

    config: dict = field(default_factory=dict)
    tokenizer: Callable[[], PreTrainedTokenizerFast] = SEGMENTS
    common: bool = True  # whether the config takes the names `hidden_size`, `num_hidden_layers`, ...
    model_type: str | None = None  # where it is not the family's name


ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
roberta = Family(ids | {"max_position_embeddings": LONGEST + 2, "type_vocab_size": 1}, ROBERTA)
rotary_roberta = Family(ids | {"type_vocab_size": 1}, ROBERTA)
decoder = {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
local = {"sliding_window": 8}
alternating = [("sliding_attention", "full_attention")[layer % 2] for layer in range(LAYERS)]
bert_ids = {"pad_token_id": 0, "cls_token_id": 1, "bos_token_id": 1, "sep_token_id": 2, "eos_token_id": 2}
FAMILIES = {  # local windows are 8 tokens wide
    "bert": Family(),
    "ernie": Family({"use_task_id": True}),
    "electra": Family({"embedding_size": WIDTH // 2}),
    "albert": Family({"embedding_size": WIDTH // 2, "pad_token_id": 0}),
    "megatron-bert": Family(),
    "roformer": Family({"embedding_size": WIDTH}),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "data2vec-text"), roberta),
    "roberta-prelayernorm": roberta,
    "mpnet": Family(ids | {"max_position_embeddings": LONGEST + 2}, ROBERTA),
    "distilbert": Family(
        {"dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": INNER, "max_position_embeddings": LONGEST},
        NO_SEGMENTS,
        common=False,
    ),
    "modernbert": Family(bert_ids | {"local_attention": 8, "global_attn_every_n_layers": 2}, NO_SEGMENTS),
    "deberta-v2": Family(
        {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8, "share_att_key": True}
        | {"norm_rel_ebd": "layer_norm", "position_biased_input": False}
    ),
    "nomic_bert": Family(),
    "gte": rotary_roberta,
    "jina_embeddings_v3": rotary_roberta,
    "eurobert": Family(decoder | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}, NO_SEGMENTS),
    "qwen3": Family(decoder | {"head_dim": WIDTH // HEADS}, WITH_PADDING),
    "qwen3 without a padding token": Family(
        decoder | {"head_dim": WIDTH // HEADS, "pad_token_id": None}, WITHOUT_PADDING, model_type="qwen3"
    ),
    "qwen2": Family(decoder | local | {"use_sliding_window": True, "max_window_layers": 1}, qwen2_tokenizer),
    "mistral": Family(decoder | local, WITH_PADDING),
    "llama": Family(decoder, WITH_PADDING),
    "gemma3_text": Family(
        decoder | local | {"head_dim": WIDTH // HEADS, "use_bidirectional_attention": True, "layer_types": alternating},
        WITH_PADDING,
    ),
    "gpt2": Family(
        {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": LONGEST, "pad_token_id": 0},
        WITH_PADDING,
        common=False,
    ),
    "convbert": Family({"embedding_size": WIDTH, "head_ratio": 2, "conv_kernel_size": 3}),
    "t5": Family(
        {"d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": INNER, "num_layers": LAYERS - 1, "num_heads": HEADS}
        | {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
        T5,
        common=False,
    ),
}
# What can differ: where positions begin, what a token sees, the head, and how layers are built. Comments name the part
# that an architecture stands for.
REPRESENTATIVES = (
    "bert",  # positions from zero
    "xlm-roberta",  # positions after the padding id, a head of two layers
    "roformer",  # relative positions, eager attention
    "modernbert",  # local windows, joined projections
    "deberta-v2",  # masks of its own: padded, never packed
    "qwen3",  # causal, last token, no token that begins a text
    "mistral",  # causal windows
    "gpt2",  # Conv1D in the place of linear layers
)


def each(names: Iterable[str]) -> list:
    """Names of families as parameters of a test; those that are no representative run with `-m matrix` only."""
    return [name if name in REPRESENTATIVES else pytest.param(name, marks=pytest.mark.matrix) for name in names]


def random_family(name: str, num_labels: int | None = None, **options) -> torch.nn.Module:
    """A random model of a family without dropout, as a backbone, or as a classifier of `num_labels` logits.

    Weights are drawn with a deviation of 0.15: with the usual 0.02 a mistake in a mask or a position hardly shows.

    Args:
        options: options of `from_config`, e.g. `attn_implementation`.
    """
    family = FAMILIES[name]
    common = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    common |= {"intermediate_size": INNER, "max_position_embeddings": LONGEST}
    settings = {"vocab_size": len(family.tokenizer())} | (common if family.common else {}) | family.config
    if num_labels is not None:
        settings["num_labels"] = num_labels
    config = AutoConfig.for_model(family.model_type or name, **settings)
    config.update({key: 0.0 for key in config.to_dict() if "drop" in key})
    auto = AutoModel if num_labels is None else AutoModelForSequenceClassification
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = auto.from_config(config, **options)
        for weight_name, weight in model.named_parameters():
            if weight.ndim > 1 and "embed_positions" not in weight_name:
                torch.nn.init.normal_(weight, std=0.15)
    return model


def save_family(name: str, folder: Path, num_labels: int | None = None) -> Path:
    """Saves a random model of a family, see `random_family`, with its tokenizer."""
    random_family(name, num_labels).save_pretrained(folder)
    FAMILIES[name].tokenizer().save_pretrained(folder)
    return folder
