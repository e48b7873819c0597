"""Random models of every architecture that a user may bring, with a tokenizer like the published one, of any size."""

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


@dataclass(frozen=True)
class Size:
    """Dimensions of a model: `longest` in tokens, `letters` the number of characters with a token of their own."""

    width: int = 32
    inner: int = 64
    layers: int = 3
    heads: int = 4
    longest: int = 64
    letters: int = 120

    @property
    def head(self) -> int:
        return self.width // self.heads

    @property
    def alphabet(self) -> list[str]:
        return [chr(code) for code in range(0x4E00, 0x4E00 + self.letters)]


SMALL = Size()
LETTERS, LONGEST = SMALL.alphabet, SMALL.longest


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

    def __call__(self, size: Size) -> PreTrainedTokenizerFast:
        tokens = list(dict.fromkeys(self.special.values()))
        vocabulary = {token: number for number, token in enumerate([*tokens, *size.alphabet])}
        backend = Tokenizer(models.WordLevel(vocabulary, unk_token=self.special["unk_token"]))
        backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        used = [(token, vocabulary[token]) for token in tokens if token in f"{self.single} {self.pair}"]
        if self.single != "$A":
            backend.post_processor = processors.TemplateProcessing(
                single=self.single, pair=self.pair, special_tokens=used
            )
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            model_input_names=["input_ids", *self.inputs.split()],
            model_max_length=size.longest,
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


def qwen2_tokenizer(size: Size) -> PreTrainedTokenizerFast:
    """Byte-level, with one token per character, and nothing around a text.

    transformers takes `Qwen2Tokenizer` for every qwen2 model; with a vocabulary of characters, all are unknown to it.
    """
    byte = bytes_to_unicode()
    spelt = [[byte[code] for code in letter.encode()] for letter in size.alphabet]  # three bytes each
    merges = list(dict.fromkeys((first, second) for first, second, _ in spelt))
    merges += [(first + second, third) for first, second, third in spelt]
    tokens = [END, *byte.values(), *("".join(pair) for pair in merges)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    options = {"eos_token": END, "pad_token": END, "unk_token": None, "padding_side": "left"}
    return Qwen2Tokenizer(vocabulary, merges, model_max_length=size.longest, **options)


T5 = Template({"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}, "$A </s>", "$A </s> $B </s>")


@dataclass(frozen=True)
class Family:
    """An architecture: what its config needs beyond the common sizes, and the kind of tokenizer it comes with."""

    config: dict = field(default_factory=dict)
    tokenizer: Callable[[Size], PreTrainedTokenizerFast] = SEGMENTS
    common: bool = True  # whether the config takes the names `hidden_size`, `num_hidden_layers`, ...
    model_type: str | None = None  # where it is not the family's name


def families(size: Size) -> dict[str, Family]:
    """The families by name. Local windows are 8 tokens wide."""
    width, inner, layers, heads, longest = size.width, size.inner, size.layers, size.heads, size.longest
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    roberta = Family(ids | {"max_position_embeddings": longest + 2, "type_vocab_size": 1}, ROBERTA)
    rotary_roberta = Family(ids | {"type_vocab_size": 1}, ROBERTA)
    decoder = {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    local = {"sliding_window": 8}
    alternating = [("sliding_attention", "full_attention")[layer % 2] for layer in range(layers)]
    return {
        "bert": Family(),
        "ernie": Family({"use_task_id": True}),
        "electra": Family({"embedding_size": width // 2}),
        "albert": Family({"embedding_size": width // 2, "pad_token_id": 0}),
        "megatron-bert": Family(),
        "roformer": Family({"embedding_size": width}),
        **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "data2vec-text"), roberta),
        "roberta-prelayernorm": roberta,
        "mpnet": Family(ids | {"max_position_embeddings": longest + 2}, ROBERTA),
        "distilbert": Family(
            {"dim": width, "n_layers": layers, "n_heads": heads, "hidden_dim": inner}
            | {"max_position_embeddings": longest},
            NO_SEGMENTS,
            common=False,
        ),
        "modernbert": Family(
            {"pad_token_id": 0, "cls_token_id": 1, "bos_token_id": 1, "sep_token_id": 2, "eos_token_id": 2}
            | {"local_attention": 8, "global_attn_every_n_layers": 2},
            NO_SEGMENTS,
        ),
        "deberta-v2": Family(
            {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8, "share_att_key": True}
            | {"norm_rel_ebd": "layer_norm", "position_biased_input": False}
        ),
        "nomic_bert": Family(),
        "gte": rotary_roberta,
        "jina_embeddings_v3": rotary_roberta,
        "eurobert": Family(decoder | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}, NO_SEGMENTS),
        "qwen3": Family(decoder | {"head_dim": size.head}, WITH_PADDING),
        "qwen3 without a padding token": Family(
            decoder | {"head_dim": size.head, "pad_token_id": None}, WITHOUT_PADDING, model_type="qwen3"
        ),
        "qwen2": Family(decoder | local | {"use_sliding_window": True, "max_window_layers": 1}, qwen2_tokenizer),
        "mistral": Family(decoder | local, WITH_PADDING),
        "llama": Family(decoder, WITH_PADDING),
        "gemma3_text": Family(
            decoder | local | {"head_dim": size.head, "use_bidirectional_attention": True, "layer_types": alternating},
            WITH_PADDING,
        ),
        "gpt2": Family(
            {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": longest, "pad_token_id": 0},
            WITH_PADDING,
            common=False,
        ),
        "bart": Family(
            {"d_model": width, "encoder_layers": layers - 1, "decoder_layers": layers - 1}
            | {"encoder_ffn_dim": inner, "decoder_ffn_dim": inner}
            | {"encoder_attention_heads": heads, "decoder_attention_heads": heads, "decoder_start_token_id": 2}
            | ids
            | {"max_position_embeddings": longest + 2},
            ROBERTA,
            common=False,
        ),
        "convbert": Family({"embedding_size": width, "head_ratio": 2, "conv_kernel_size": 3}),
        "mobilebert": Family(
            {"embedding_size": width // 2, "intra_bottleneck_size": width // 2, "true_hidden_size": width // 2}
        ),
        "fnet": Family({}),
        "squeezebert": Family({"embedding_size": width}),
        "t5": Family(
            {"d_model": width, "d_kv": size.head, "d_ff": inner, "num_layers": layers - 1, "num_heads": heads}
            | {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
            T5,
            common=False,
        ),
        "xlnet": Family({"d_model": width, "n_layer": layers - 1, "n_head": heads, "d_inner": inner}, common=False),
    }


FAMILIES = families(SMALL)
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


def random_family(name: str, num_labels: int | None = None, size: Size = SMALL, **options) -> torch.nn.Module:
    """A random model of a family without dropout, as a backbone, or as a classifier of `num_labels` logits.

    Weights are drawn with a deviation of 0.15 for a width of 32: with the usual 0.02 a mistake in a mask or a position
    hardly shows.

    Args:
        options: options of `from_config`, e.g. `attn_implementation`.
    """
    family = families(size)[name]
    common = {"hidden_size": size.width, "num_hidden_layers": size.layers, "num_attention_heads": size.heads}
    common |= {"intermediate_size": size.inner, "max_position_embeddings": size.longest}
    settings = {"vocab_size": len(family.tokenizer(size))} | (common if family.common else {}) | family.config
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
                torch.nn.init.normal_(weight, std=0.15 * (32 / size.width) ** 0.5)
    return model


def save_family(name: str, folder: Path, num_labels: int | None = None, size: Size = SMALL) -> Path:
    """Saves a random model of a family, see `random_family`, with its tokenizer."""
    random_family(name, num_labels, size).save_pretrained(folder)
    families(size)[name].tokenizer(size).save_pretrained(folder)
    return folder
