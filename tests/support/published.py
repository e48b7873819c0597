"""Tiny random models in the file layout of published ones: names of weights, configs, tokenizers, module folders."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertModel,
    PreTrainedModel,
    Qwen3Config,
    Qwen3Model,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

VOCABULARY = Path(__file__).parent / "vocabulary"
LINES = ["我喜欢北京", "我不喜欢北京", "今天天气很好，今天天气不好", "推荐一辆红车", "怎么还款，如何还款", "红色的苹果"]
END, TURN = "<|endoftext|>", "<|im_end|>"
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
THEIRS = "sentence_transformers.models."


def qwen3_embedding(folder: Path) -> str:
    """As Qwen/Qwen3-Embedding-0.6B: pooled by the last token, which its tokenizer puts there and also pads with.

    Its architecture is called a CausalLM, its weights are those of the bare model, and its config has no padding token.
    """
    save_tokenizer(
        byte_level([END, "<|im_start|>", TURN], f"$A:0 {END}:0", f"$A:0 {END}:0 $B:1 {END}:1"),
        folder,
        tokenizer_class="Qwen2Tokenizer",
        eos_token=TURN,
        pad_token=END,
        unk_token=None,
        bos_token=None,
        additional_special_tokens=["<|im_start|>", TURN],
        padding_side="left",
        model_max_length=131072,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    end = tokenizer.convert_tokens_to_ids(END)
    config = Qwen3Config(
        vocab_size=len(tokenizer), num_key_value_heads=2, head_dim=8, bos_token_id=end, eos_token_id=end, **SIZES
    )
    save(Qwen3Model(config).bfloat16(), folder, architectures=["Qwen3ForCausalLM"], torch_dtype="bfloat16")
    prompts = {"query": "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"}
    prompts["document"] = ""
    settings = {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    write(folder, SETTINGS, settings)
    describe_pooling(folder, "lasttoken", 32, ("Normalize",))
    return str(folder)


def bert_encoder(
    folder: Path, pooling: str | None = None, after: tuple[str, ...] = (), files: Mapping[str, dict] = {}, **sizes
) -> str:
    """A BERT with its pooler: the key of its pooling, the modules after that, and further files by name."""
    tokenizer = AutoTokenizer.from_pretrained(VOCABULARY)
    config = BertConfig(vocab_size=len(tokenizer), **SIZES | sizes)
    save(BertModel(config), folder)
    tokenizer.save_pretrained(folder)
    for name, content in files.items():
        write(folder, name, content)
    if pooling is not None:
        describe_pooling(folder, pooling, config.hidden_size, after)
    return str(folder)


SETTINGS, LENGTHS = "config_sentence_transformers.json", "sentence_bert_config.json"
VERSIONS = {"sentence_transformers": "2.2.2", "transformers": "4.28.1", "pytorch": "1.13.0+cu117"}
bert = bert_encoder  # as bert-base-chinese: no modules, no prompts
# As BAAI/bge-base-zh-v1.5: pooled by [CLS] and normalised.
bge_zh = partial(
    bert_encoder,
    pooling="cls_token",
    after=("Normalize",),
    files={LENGTHS: {"max_seq_length": 512, "do_lower_case": True}, SETTINGS: {"__version__": VERSIONS}},
)
# As intfloat/multilingual-e5-small, and as it is used for similarity: with a default prompt; 12 layers x 384.
e5_small = partial(
    bert_encoder,
    pooling="mean_tokens",
    after=("Normalize",),
    files={SETTINGS: {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "query"}},
    **{"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 16},
)
# As sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2: mean pooling without a Normalize.
minilm = partial(bert_encoder, pooling="mean_tokens", files={SETTINGS: {"prompts": {}, "similarity_fn_name": "cosine"}})
# As thenlper/gte-small-zh: pooled by [CLS], not normalised, with the maximum length of its config.
gte = partial(bert_encoder, pooling="cls_token", files={LENGTHS: {"max_seq_length": 512, "do_lower_case": False}})


def bge_reranker(folder: Path) -> str:
    """As BAAI/bge-reranker-v2-m3: an XLM-RoBERTa with one logit."""
    tokenizer = AutoTokenizer.from_pretrained(VOCABULARY, model_input_names=["input_ids", "attention_mask"])
    sizes = SIZES | {"max_position_embeddings": 130, "type_vocab_size": 1, "classifier_dropout": 0.0}
    config = XLMRobertaConfig(vocab_size=len(tokenizer), num_labels=1, pad_token_id=tokenizer.pad_token_id, **sizes)
    save(XLMRobertaForSequenceClassification(config), folder, id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0})
    tokenizer.save_pretrained(folder)
    return str(folder)


def byte_level(special: list[str], single: str, pair: str) -> Tokenizer:
    """A byte-level BPE as of Qwen2, learnt from `LINES`, with templates of `tokenizers`."""
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(LINES, trainer)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    used = [(token, backend.token_to_id(token)) for token in special if token in pair]
    template = processors.TemplateProcessing(single=single, pair=pair, special_tokens=used)
    plain = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    backend.post_processor = processors.Sequence([plain, template])
    return backend


def save_tokenizer(backend: Tokenizer, folder: Path, **config) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", config | {"clean_up_tokenization_spaces": False})


def save(model: PreTrainedModel, folder: Path, **config) -> None:
    """Saves weights drawn with a deviation of 0.15, under the names that the model has; `config` overrides its keys."""
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.15, generator=generator)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.contiguous() for name, weight in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.architectures = [type(model).__name__]
    write(folder, "config.json", model.config.to_dict() | config)


def describe_pooling(folder: Path, mode: str, width: int, after: tuple[str, ...]) -> None:
    """Writes modules.json with Pooling and modules without a config, as versions before 5.4 did."""
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    keys = {f"pooling_mode_{name}": name == mode for name in modes}
    write(folder, "1_Pooling/config.json", {"word_embedding_dimension": width, **keys, "include_prompt": True})
    modules = {"": "Transformer", "1_Pooling": "Pooling"} | {f"2_{name}": name for name in after}
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"{THEIRS}{kind}"}
        for number, (path, kind) in enumerate(modules.items())
    ]
    write(folder, "modules.json", listed)


def write(folder: Path, name: str, content: dict | list) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")
