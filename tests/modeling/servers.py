"""What two servers read in a model folder, and the vectors that follow: their rules, written anew from their sources.

Text Embeddings Inference 1.9.3 (huggingface/text-embeddings-inference 0d124dc, 2026-07-24), candle backend:
router/src/lib.rs, core/src/download.rs, backends/src/lib.rs, backends/candle/src/lib.rs and models/*.rs.
vLLM (vllm-project/vllm 0036026, which has #54533 of 2026-08-31): vllm/transformers_utils/config.py,
vllm/config/pooler.py, vllm/model_executor/models/registry.py.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

MODELS = "sentence_transformers.models."
ST_CONFIGS = ["sentence_bert_config.json", *(f"sentence_{kind}_config.json" for kind in (
    "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"))]  # fmt: skip
IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"


class Refused(Exception):
    """The server stops with this message."""


@dataclass
class Served:
    """What a server will compute: `kind` embedding, classifier or reranker, and how.

    Args:
        pooling: cls, mean or lasttoken; None for the default of the architecture.
        dense: folders of the linear layers after it.
        max_length: tokens; None for the model's positions.
        warnings: what the server logs and then does without.
    """

    kind: str
    pooling: str | None = None
    dense: list[str] = field(default_factory=list)
    normalize: bool = False
    max_length: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def read(folder: Path, name: str):
    file = folder / name
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


# Fields of the configurations that TEI's candle backend cannot do without, by their kind.
BERT = {int: "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size max_position_embeddings "
             "type_vocab_size pad_token_id",
        float: "hidden_dropout_prob initializer_range layer_norm_eps", str: "hidden_act"}  # fmt: skip
TEI_CONFIGS: dict[str, dict[type, str]] = {
    "bert": BERT, "roberta": BERT, "xlm-roberta": BERT, "camembert": BERT,
    "modernbert": {int: "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
                        "max_position_embeddings pad_token_id eos_token_id bos_token_id cls_token_id sep_token_id "
                        "global_attn_every_n_layers local_attention",
                   float: "initializer_range initializer_cutoff_factor norm_eps global_rope_theta attention_dropout "
                          "local_rope_theta",
                   bool: "norm_bias attention_bias", str: "hidden_activation classifier_activation"},
    "qwen3": {int: "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
                   "num_key_value_heads max_position_embeddings eos_token_id",
              float: "rms_norm_eps", bool: "attention_bias use_sliding_window", str: "hidden_act"},
    "nomic_bert": {int: "n_embd n_head n_inner n_layer n_positions vocab_size type_vocab_size",
                   float: "rotary_emb_fraction rotary_emb_base layer_norm_epsilon",
                   bool: "prenorm qkv_proj_bias rotary_emb_interleaved mlp_fc1_bias mlp_fc2_bias",
                   str: "activation_function"},
    "gte": {int: "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size "
                 "max_position_embeddings type_vocab_size",
            float: "layer_norm_eps", str: "hidden_act layer_norm_type position_embedding_type"},
}  # fmt: skip


def text_embeddings_inference(folder: Path) -> Served:
    """Raises `Refused` where the router or its candle backend stops, in their order."""
    config = read(folder, "config.json")
    served = Served("embedding")
    if any(name.endswith("Classification") for name in config["architectures"]):
        for name in ("id2label", "label2id"):
            if config.get(name) is None:
                raise Refused(f"`config.json` does not contain `{name}`")
        served.labels = config["id2label"]
        served.kind = "reranker" if len(served.labels) == 1 else "classifier"
    else:
        served.pooling = tei_pooling(folder, config["model_type"])
    if not (folder / "tokenizer.json").is_file():
        raise Refused("only supports fast tokenizers")
    length = next((given for name in ST_CONFIGS if (given := read(folder, name)) is not None), None)
    if length is not None:
        if "max_seq_length" not in length:
            raise Refused("Failed to parse `sentence_bert_config.json`: missing field `max_seq_length`")
        served.max_length = length["max_seq_length"]
    modules = read(folder, "modules.json") or []
    known = {MODELS + name for name in ("Dense", "Normalize", "Pooling", "Transformer")}
    if unknown := [module["type"] for module in modules if module["type"] not in known]:
        served.warnings.append(f"Failed to parse local modules.json: {unknown[0]}")
    else:
        served.dense = [module["path"] for module in modules if module["type"] == MODELS + "Dense"]
    check_candle(folder, config, served)
    return served


def check_candle(folder: Path, config: dict, served: Served) -> None:
    """Refuses architectures, settings and activations that the candle backend does not have."""
    model_type = config["model_type"]
    if model_type not in TEI_CONFIGS:
        raise Refused(f"Model is not supported: {model_type}")
    for kind, names in TEI_CONFIGS[model_type].items():
        for name in names.split():
            value = config.get(name)
            if value is None or not isinstance(value, (float, int) if kind is float else kind):
                raise Refused(f"Model is not supported: {model_type} with {name} = {value!r}")
    if model_type == "qwen3" and config["use_sliding_window"]:
        raise Refused("Sliding window is not supported for Qwen3")
    if served.kind != "embedding" and model_type == "qwen3":
        raise Refused(f"`classifier` model type is not supported for {model_type}")
    if served.pooling == "lasttoken" and model_type != "qwen3":
        raise Refused(f"`LastToken` pooling is not supported for {model_type}")
    for path in served.dense:
        if read(folder, f"{path}/config.json").get("activation_function", IDENTITY) not in (IDENTITY, TANH):
            raise Refused(f"{path}: unknown activation")


def tei_pooling(folder: Path, model_type: str) -> str:
    """`1_Pooling/config.json` with the keys of sentence-transformers before 5.4: the first of three that is true."""
    pooling = read(folder, "1_Pooling/config.json")
    if pooling is None:
        if "bert" not in model_type:
            raise Refused("could not find a pooling configuration")
        return "cls"
    for key in ("pooling_mode_cls_token", "pooling_mode_mean_tokens"):
        if not isinstance(pooling.get(key), bool):
            raise Refused(f"Failed to parse `1_Pooling/config.json`: missing field `{key}`")
    keys = {"cls": "cls_token", "mean": "mean_tokens", "lasttoken": "lasttoken"}
    mode = next((mode for mode, key in keys.items() if pooling.get(f"pooling_mode_{key}")), None)
    if mode is None:
        raise Refused("Pooling config is not supported")
    return mode


VLLM_EMBEDDERS = {"BertModel", "RobertaModel", "XLMRobertaModel", "ModernBertModel", "Qwen3ForCausalLM", "Qwen3Model"}
VLLM_CROSS_ENCODERS = {f"{name}ForSequenceClassification" for name in ("Bert", "Roberta", "XLMRoberta", "ModernBert")}
VLLM_CROSS_ENCODERS |= {"Qwen3ForSequenceClassification"}  # converted from Qwen3ForCausalLM, see adapters.py
VLLM_POOLINGS = {"CLS": "cls", "LAST": "lasttoken", "MEAN": "mean"}


def vllm(folder: Path) -> Served:
    """Raises `Refused` for an architecture that vLLM does not compute."""
    (architecture,) = read(folder, "config.json")["architectures"]
    if architecture not in VLLM_EMBEDDERS | VLLM_CROSS_ENCODERS:
        raise Refused(f"{architecture} has no vLLM implementation")
    length = next((given for name in ST_CONFIGS if (given := read(folder, name))), {})
    served = Served("classifier" if architecture in VLLM_CROSS_ENCODERS else "embedding")
    if {"max_seq_length", "do_lower_case"} <= length.keys():  # one without the other is ignored
        served.max_length = length["max_seq_length"]
    modules = read(folder, "modules.json") or []
    pooling = next((module for module in modules if module["type"] == MODELS + "Pooling"), None)
    served.normalize = any(module["type"] == MODELS + "Normalize" for module in modules)
    served.dense = [module["path"] for module in modules if module["type"] == MODELS + "Dense"]
    for key, value in (read(folder, f"{pooling['path']}/config.json") if pooling else {}).items():
        name = value if key == "pooling_mode" else key if value is True else None
        if name is not None:  # pooling_mode_mean_tokens -> MEAN, pooling_mode_lasttoken -> LAST
            name = name.replace("pooling_mode_", "").split("_")[0].replace("lasttoken", "last").upper()
            served.pooling = VLLM_POOLINGS.get(name, served.pooling)
    if pooling and served.pooling is None:
        served.warnings.append("Unable to determine Sentence Transformers pooling type")
    return served


@torch.inference_mode()
def vectors(served: Served, folder: Path, sentences: list[str], normalize: bool) -> np.ndarray:
    """Vectors of shape `(sentences, width)` as a server computes them, sentence by sentence and without padding."""
    model, tokenizer = (
        AutoModel.from_pretrained(folder, dtype=torch.float32).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    rows = []
    for sentence in sentences:
        inputs = tokenizer(sentence, truncation=True, max_length=served.max_length, return_tensors="pt")
        tokens = model(**inputs).last_hidden_state[0]
        vector = {"cls": tokens[0], "mean": tokens.mean(0), "lasttoken": tokens[-1]}[served.pooling]
        for path in served.dense:
            weights, described = load_file(folder / path / "model.safetensors"), read(folder, f"{path}/config.json")
            vector = torch.nn.functional.linear(vector, weights["linear.weight"], weights.get("linear.bias"))
            vector = vector.tanh() if described["activation_function"] == TANH else vector
        rows.append(vector / vector.norm() if normalize else vector)
    return torch.stack(rows).numpy()
