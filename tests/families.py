"""Tiny random models of every architecture that a user may bring, with a tokenizer like the published one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedTokenizerFast

LETTERS = [chr(code) for code in range(0x4E00, 0x4E00 + 120)]  # one token each
LONGEST = 64  # tokens
WIDTH, LAYERS, HEADS = 32, 3, 4


def tokenizer(special: dict[str, str], single: str, pair: str, inputs: str, **options) -> PreTrainedTokenizerFast:
    """A fast tokenizer with one token per character.

    Args:
        special: role -> token, e.g. `{"pad_token": "[PAD]"}`; ids in this order from 0.
        single, pair: templates of `tokenizers`.
        inputs: what the model reads besides `input_ids`, space-separated.
    """
    tokens = list(dict.fromkeys(special.values()))
    vocabulary = {token: number for number, token in enumerate([*tokens, *LETTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=special["unk_token"]))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    used = [(token, vocabulary[token]) for token in tokens if token in f"{single} {pair}"]
    if single != "$A":
        backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=used)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=["input_ids", *inputs.split()],
        model_max_length=LONGEST,
        **special,
        **options,
    )


def bert_tokenizer(inputs: str = "token_type_ids attention_mask") -> PreTrainedTokenizerFast:
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    return tokenizer(special, "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", inputs)


def roberta_tokenizer() -> PreTrainedTokenizerFast:
    special = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    special |= {"cls_token": "<s>", "sep_token": "</s>"}
    return tokenizer(special, "<s> $A </s>", "<s> $A </s> </s> $B </s>", "attention_mask")


def decoder_tokenizer(pad: bool = True) -> PreTrainedTokenizerFast:
    """As Qwen3-Embedding's: the padding token also ends every text, and padding goes to the left."""
    special = {"eos_token": "<|endoftext|>", "unk_token": "<unk>"} | ({"pad_token": "<|endoftext|>"} if pad else {})
    end = "<|endoftext|>"
    return tokenizer(special, f"$A {end}", f"$A {end} $B {end}", "attention_mask", padding_side="left")


def t5_tokenizer() -> PreTrainedTokenizerFast:
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return tokenizer(special, "$A </s>", "$A </s> $B </s>", "attention_mask")


@dataclass(frozen=True)
class Family:
    """An architecture: what its config needs beyond the common sizes, and the kind of tokenizer it comes with."""

    config: dict = field(default_factory=dict)
    tokenizer: Callable[[], PreTrainedTokenizerFast] = bert_tokenizer
    common: bool = True  # whether the config takes the names `hidden_size`, `num_hidden_layers`, ...
    model_type: str | None = None  # where it is not the family's name


def without_segments() -> PreTrainedTokenizerFast:
    return bert_tokenizer("attention_mask")


ROBERTA_IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "max_position_embeddings": LONGEST + 2}
DECODER = {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
FAMILIES = {
    "bert": Family(),
    "ernie": Family({"use_task_id": True}),
    "electra": Family({"embedding_size": 16}),
    "albert": Family({"embedding_size": 16, "pad_token_id": 0}),
    "megatron-bert": Family(),
    "roformer": Family({"embedding_size": WIDTH}),
    "roberta": Family(ROBERTA_IDS | {"type_vocab_size": 1}, roberta_tokenizer),
    "xlm-roberta": Family(ROBERTA_IDS | {"type_vocab_size": 1}, roberta_tokenizer),
    "camembert": Family(ROBERTA_IDS | {"type_vocab_size": 1}, roberta_tokenizer),
    "xlm-roberta-xl": Family(ROBERTA_IDS | {"type_vocab_size": 1}, roberta_tokenizer),
    "data2vec-text": Family(ROBERTA_IDS | {"type_vocab_size": 1}, roberta_tokenizer),
    "roberta-prelayernorm": Family(ROBERTA_IDS | {"type_vocab_size": 1}, roberta_tokenizer),
    "mpnet": Family(ROBERTA_IDS, roberta_tokenizer),
    "distilbert": Family(
        {"dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 2 * WIDTH}, without_segments, common=False
    ),
    "modernbert": Family(
        {"pad_token_id": 0, "cls_token_id": 1, "bos_token_id": 1, "sep_token_id": 2, "eos_token_id": 2}
        | {"local_attention": 8, "global_attn_every_n_layers": 2},
        without_segments,
    ),
    "deberta-v2": Family(
        {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8, "share_att_key": True}
        | {"norm_rel_ebd": "layer_norm", "position_biased_input": False}
    ),
    "nomic_bert": Family(),
    "gte": Family(ROBERTA_IDS | {"max_position_embeddings": LONGEST, "type_vocab_size": 1}, roberta_tokenizer),
    "jina_embeddings_v3": Family(
        ROBERTA_IDS | {"max_position_embeddings": LONGEST, "type_vocab_size": 1}, roberta_tokenizer
    ),
    "eurobert": Family(DECODER | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}, without_segments),
    "qwen3": Family(DECODER | {"head_dim": 8}, decoder_tokenizer),
    "qwen3 without a padding token": Family(
        DECODER | {"head_dim": 8, "pad_token_id": None}, lambda: decoder_tokenizer(pad=False), model_type="qwen3"
    ),
    "qwen2": Family(
        DECODER | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, decoder_tokenizer
    ),
    "mistral": Family(DECODER | {"sliding_window": 8}, decoder_tokenizer),
    "llama": Family(DECODER, decoder_tokenizer),
    "gemma3_text": Family(
        DECODER
        | {"head_dim": 8, "sliding_window": 8, "use_bidirectional_attention": True}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        decoder_tokenizer,
    ),
    "gpt2": Family(
        {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": LONGEST, "pad_token_id": 0},
        decoder_tokenizer,
        common=False,
    ),
    "bart": Family(
        {"d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
        | {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "decoder_start_token_id": 2}
        | ROBERTA_IDS,
        roberta_tokenizer,
        common=False,
    ),
    "convbert": Family({"embedding_size": WIDTH, "head_ratio": 2, "conv_kernel_size": 3}),
    "mobilebert": Family({"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16}),
    "fnet": Family({}),
    "squeezebert": Family({"embedding_size": WIDTH}),
    "t5": Family(
        {"d_model": WIDTH, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": HEADS, "decoder_start_token_id": 0}
        | {"pad_token_id": 0, "eos_token_id": 1},
        t5_tokenizer,
        common=False,
    ),
    "xlnet": Family({"d_model": WIDTH, "n_layer": 2, "n_head": HEADS, "d_inner": 64}, common=False),
}


def random_family(name: str, num_labels: int | None = None, **options) -> torch.nn.Module:
    """A random model of a family without dropout, as a backbone, or as a classifier of `num_labels` logits.

    Weights are drawn with a deviation of 0.15: with the usual 0.02 a mistake in a mask or a position hardly shows.

    Args:
        options: options of `from_config`, e.g. `attn_implementation`.
    """
    family = FAMILIES[name]
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    sizes |= {"intermediate_size": 2 * WIDTH, "max_position_embeddings": LONGEST}
    settings = {"vocab_size": len(family.tokenizer())} | (sizes if family.common else {}) | family.config
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
