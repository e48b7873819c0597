"""What Text Embeddings Inference and vLLM read in our folders, and the numbers that follow from it.

TEI 1.9.3 (huggingface/text-embeddings-inference 0d124dc: router/src/lib.rs, core/src/download.rs, the configurations in
backends/candle/src/models/*.rs) and vLLM (vllm-project/vllm 0036026: transformers_utils/config.py, config/pooler.py).
"""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.modules import IDENTITY, TANH, Dense, Normalize
from cosent.models.pooling import MODE_KEYS
from tests.families import LETTERS, save_family

SENTENCES = ["".join(LETTERS[start : start + length]) for start, length in ((0, 5), (7, 60), (30, 1))]
# Numbers in a config.json without which TEI stops; it takes no other names.
COMMON = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"]
COMMON += ["max_position_embeddings"]
BERT = [*COMMON, "type_vocab_size", "pad_token_id", "hidden_dropout_prob", "initializer_range", "layer_norm_eps"]
NEEDED = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), BERT),
    "modernbert": [*COMMON, "pad_token_id", "eos_token_id", "bos_token_id", "cls_token_id", "sep_token_id"]
    + ["global_attn_every_n_layers", "local_attention", "initializer_range", "initializer_cutoff_factor", "norm_eps"]
    + ["global_rope_theta", "attention_dropout", "local_rope_theta"],
    "qwen3": [*COMMON, "num_key_value_heads", "eos_token_id", "rms_norm_eps"],
}


def read(folder, name: str):
    return json.loads((folder / name).read_text(encoding="utf-8"))


def poolings(folder) -> list[str]:
    """The modes whose key of sentence-transformers before 5.4 is true, which both servers look for."""
    config = read(folder, "1_Pooling/config.json")
    return [mode for mode, key in MODE_KEYS.items() if config.get(key) is True]


@pytest.fixture
def saved(tmp_path):
    """Returns a function that saves a bi-encoder of a family as training does, and gives back encoder and folder."""

    def make(family: str, pooling: str, modules=()):
        start = save_family(family, tmp_path / f"start-{family}")
        encoder = SentenceEncoder.from_pretrained(str(start), pooling=pooling, max_length=24)
        encoder.after_pooling.extend(modules)
        shutil.rmtree(tmp_path / "saved", ignore_errors=True)
        encoder.save_pretrained(tmp_path / "saved")
        return encoder, tmp_path / "saved"

    return make


@torch.inference_mode()
def served(folder, pooling: str) -> np.ndarray:
    """Unit vectors as a server computes them: transformers' model, the pooling, and every `Dense` it finds."""
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    length, rows = read(folder, "sentence_bert_config.json")["max_seq_length"], []
    for sentence in SENTENCES:
        inputs = tokenizer(sentence, truncation=True, max_length=length, return_tensors="pt")
        tokens = model(**inputs).last_hidden_state[0]
        vector = {"cls": tokens[0], "mean": tokens.mean(0), "lasttoken": tokens[-1]}[pooling]
        for module in read(folder, "modules.json"):
            if module["type"] == "sentence_transformers.models.Dense":  # TEI knows no other path
                weights = load_file(folder / module["path"] / "model.safetensors")
                vector = torch.nn.functional.linear(vector, weights["linear.weight"], weights["linear.bias"])
                activation = read(folder, f"{module['path']}/config.json")["activation_function"]
                vector = {IDENTITY: vector, TANH: vector.tanh()}[activation]
        rows.append(vector / vector.norm())
    return torch.stack(rows).numpy()


@pytest.mark.parametrize("family", NEEDED)
def test_bi_encoders_serve_with_their_own_vectors(saved, family):
    """Fails if a server refuses a folder, pools otherwise, or reads more tokens than the model was trained on."""
    pooling = "lasttoken" if family == "qwen3" else "mean"
    encoder, folder = saved(family, pooling)
    config = read(folder, "config.json")
    assert not [name for name in NEEDED[family] if not isinstance(config.get(name), float | int)]
    assert poolings(folder) == [pooling] and (folder / "tokenizer.json").is_file() and config["dtype"] == "float32"
    # TEI takes 512 tokens without the first, and vLLM ignores the first without the second.
    assert read(folder, "sentence_bert_config.json") == {"max_seq_length": 24, "do_lower_case": False}
    np.testing.assert_allclose(served(folder, pooling), encoder.encode(SENTENCES, normalize=True), atol=1e-5)


def test_modules_after_the_pooling_reach_the_servers(saved):
    """Fails if a Dense (as of `linear_cls`) or Normalize is lost on the way: other vectors, or of another width."""
    modules = [Dense(32, 48, seed=1), Normalize()]
    for pooling, others, width in (("cls", modules, 48), ("linear_cls", (), 32)):
        encoder, folder = saved("bert", pooling, others)
        types = [module["type"] for module in read(folder, "modules.json")]
        names = ["Transformer", "Pooling", "Dense", *["Normalize"] * bool(others)]
        assert types == [f"sentence_transformers.models.{name}" for name in names] and poolings(folder) == ["cls"]
        answers = served(folder, "cls")
        np.testing.assert_allclose(answers, encoder.encode(SENTENCES, normalize=True), atol=1e-5)
        assert answers.shape == (3, width)


def test_loading_and_saving_cures_folders_of_sentence_transformers(saved, tmp_path):
    """Fails if the page about serving is out of date: since 5.4 sentence-transformers leaves out keys that TEI needs.

    vllm-project/vllm#45995 is the same for vLLM, which has read both since #54533.
    """
    _, folder = saved("bert", "mean")
    SentenceTransformer(str(folder), device="cpu").save(str(tmp_path / "theirs"))
    assert not poolings(tmp_path / "theirs")
    assert "max_seq_length" not in read(tmp_path / "theirs", "sentence_bert_config.json")
    SentenceEncoder.from_pretrained(str(tmp_path / "theirs")).save_pretrained(tmp_path / "ours")
    for file in ("1_Pooling/config.json", "sentence_bert_config.json", "modules.json"):
        cured, expected = read(tmp_path / "ours", file), read(folder, file)
        assert (cured == expected) if isinstance(expected, list) else (cured | expected == cured)


@pytest.mark.parametrize("family", ["bert", "xlm-roberta", "modernbert"])
@pytest.mark.parametrize("labels", [1, 2, 3])
def test_cross_encoders_serve_with_their_own_scores(tmp_path, family, labels):
    """Fails if TEI refuses a classifier for want of names, or its answer is not our score."""
    start = save_family(family, tmp_path / "start")
    encoder = CrossEncoder.from_pretrained(str(start), num_labels=labels)
    encoder.save_pretrained(tmp_path / "saved")
    config = read(tmp_path / "saved", "config.json")
    names = config["id2label"]
    assert config["label2id"] == {name: int(number) for number, name in names.items()} and len(names) == labels
    assert config["architectures"][0].endswith("ForSequenceClassification")
    pair = (SENTENCES[0], SENTENCES[2])
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    with torch.inference_mode():
        logits = model(**AutoTokenizer.from_pretrained(tmp_path / "saved")(*pair, return_tensors="pt")).logits[0]
    if labels == 1:  # /rerank: sigmoid of the logit
        assert logits.item() == pytest.approx(encoder.similarity(*pair), abs=1e-5)
        return
    answer = {names[str(number)]: p for number, p in enumerate(torch.softmax(logits, 0).tolist())}  # /predict
    one, other = ("similar", "dissimilar") if labels == 2 else ("entailment", "contradiction")
    assert np.log(answer[one] / answer[other]) == pytest.approx(encoder.similarity(*pair), abs=1e-4)


def test_modernbert_loads_as_it_was(saved):
    """Fails if the keys for the server change what transformers reads: its layers and angles."""
    encoder, folder = saved("modernbert", "mean")
    config = read(folder, "config.json")
    assert (config["global_attn_every_n_layers"], config["global_rope_theta"]) == (2, 160000.0)
    again = SentenceEncoder.from_pretrained(str(folder))
    assert again.backbone.config.layer_types == encoder.backbone.config.layer_types
    assert again.backbone.config.rope_parameters == encoder.backbone.config.rope_parameters
    np.testing.assert_array_equal(again.encode(SENTENCES), encoder.encode(SENTENCES))
