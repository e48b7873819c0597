"""The lookup: characters and pairs of characters in a sorted table, as an ordinary backbone."""

import json
import logging
import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.loading import keep_layers
from cosent.models.lookup import Characters, LookupConfig, LookupModel
from cosent.models.modules import Pooling
from cosent.models.onnx_reader import OnnxModel
from lab.lookup import int8_state
from lab.pretraining.tokenizer import character_tokenizer
from tests.conftest import SENTENCES, run_train

WIDTH, HASHED = 16, 64
BYTES_OF_COMMA = [f"<0x{byte:02X}>" for byte in "，".encode()]
TEXTS = ["怎么还款", "", " \u200b\u3000", "ＡＢＣ公司 12", "陈璟", "陈颢", "😀 İ é ␂ [CLS]", "好" * 700]


def lookup_model(texts: list[str], tokenizer, width: int = WIDTH) -> LookupModel:
    """A random table with every character of the texts and every second of their pairs."""
    rows = tokenizer(texts, add_special_tokens=False)["input_ids"]
    size = len(tokenizer)
    pairs = sorted({first * size + second for row in rows for first, second in pairwise(row)})
    keys = torch.tensor(sorted({token for row in rows for token in row} | set(pairs[::2])), dtype=torch.int32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LookupConfig(size, width, entries=len(keys), hashed_rows=HASHED)
        model = LookupModel(config).eval()
    model.keys.copy_(keys)
    return model


@pytest.fixture(scope="module")
def tiny_lookup(tmp_path_factory):
    """A folder with a lookup of the characters of `SENTENCES`."""
    folder = tmp_path_factory.mktemp("lookup") / "tiny"
    tokenizer = character_tokenizer("".join(SENTENCES))
    SentenceEncoder(lookup_model(SENTENCES, tokenizer), tokenizer, Pooling("mean", WIDTH)).save_pretrained(folder)
    return folder


@pytest.fixture
def changed(tiny_lookup, tmp_path):
    """A function that copies the folder with other weights, or other entries of its config."""

    def change(weights: dict | None = None, **entries) -> str:
        folder = shutil.copytree(tiny_lookup, tmp_path / "changed", dirs_exist_ok=True)
        state = load_file(tiny_lookup / "model.safetensors") | (weights or {})
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        config = json.loads((tiny_lookup / "config.json").read_text(encoding="utf-8")) | entries
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return str(folder)

    return change


def test_vectors_by_hand(tiny_lookup):
    """Fails if a row is taken from another place of the table, or padding is counted."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_lookup))
    model, size = encoder.backbone, len(encoder.tokenizer)
    place = {key: row for row, key in enumerate(model.keys.tolist())}

    def row(key: int) -> np.ndarray:
        hashed = len(place) + (key * 0x9E3779B1 >> 15) % HASHED
        return model.table.weight[place.get(key, hashed)].detach().numpy()

    for text in ("怎么还款", "还怎么璟", ""):
        ids = encoder.tokenizer(text)["input_ids"]
        rows = [row(second) + row(first * size + second) for first, second in zip([0, *ids[:-1]], ids, strict=True)]
        np.testing.assert_allclose(encoder.encode([text, "今天天气很好"])[0], np.mean(rows, axis=0), atol=4e-6)


def test_the_tokenizer_of_the_folder_and_the_fast_one_are_equal(tmp_path):
    """Fails if vectors depend on which of the two read a text, or a rule is outside tokenizer.json."""
    forms = {"陳": "陈", "還": "还", "𡃤": "好"}
    character_tokenizer("陈还好", forms).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.tokenize("陳，還𡃤Ａ", add_special_tokens=False) == [*"陈", *BYTES_OF_COMMA, *"还好", "<0x61>"]
    plane = [chr(point) for point in range(0x3000) if not 0xD800 <= point < 0xE000] + list("！，？Ａｚ９\U0001f600")
    texts = [
        *(f"陳{one}𡃤{one}Ａ{one}" for one in plane[:2048]),
        *TEXTS,
        *SENTENCES,
        "".join(plane),
        *("".join(plane[start : start + 9]) for start in range(0, 12000, 9)),
    ]
    for length in (512, 5):
        expected = tokenizer(texts, truncation=True, max_length=length)["input_ids"]
        tokenizer(["", "陈璟"], padding=True)  # which its backend goes on doing
        ids, lengths, cut = Characters.of(tokenizer).encode(texts, length)
        assert [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])] == expected
        assert cut.tolist() == [len(ids) > length for ids in tokenizer(texts)["input_ids"]]
    assert tokenizer.decode(tokenizer("陈璟abc")["input_ids"], skip_special_tokens=True) == "陈璟abc"


def test_one_text_one_vector_and_two_characters_two(tiny_lookup):
    """Fails if a full-width spelling is another company, or two persons with unknown characters are one."""
    similarity = SentenceEncoder.from_pretrained(str(tiny_lookup)).similarity
    assert similarity("ＡＢＣ公司 １２", "abc公司12") == 1.0
    assert similarity("怎么还款，", "怎么还款,") < 0.999 and similarity("怎么还款？", "怎么还款?") < 0.999
    names = ["陈璟", "陈颢", "陈妤", "陈𬭎"]
    assert max(similarity(one, other) for one in names for other in names if one != other) < 0.99


def test_a_folder_of_every_loader(tiny_lookup, tmp_path):
    """Fails if other loaders read other vectors, or a trained or rounded table is not the one that was saved."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_lookup))
    vectors = encoder.encode(TEXTS)
    np.testing.assert_allclose(SentenceTransformer(str(tiny_lookup), device="cpu").encode(TEXTS), vectors, atol=4e-6)
    encoder.pooling = Pooling("lasttoken", WIDTH)  # the ordinary way, by padded batches
    assert np.isfinite(encoder.encode(TEXTS)).all() and not np.allclose(encoder.encode(TEXTS), vectors)
    inputs = encoder.tokenizer(TEXTS, padding=True, return_tensors="pt", truncation=True)
    tokens = AutoModel.from_pretrained(tiny_lookup).eval()(**inputs).last_hidden_state
    pooled = Pooling("mean", WIDTH)(tokens, inputs["attention_mask"]).detach().numpy()
    np.testing.assert_allclose(pooled, vectors, atol=4e-6)
    rows = {f"backbone.{name}": weight for name, weight in int8_state(encoder.backbone.state_dict()).items()}
    encoder.pooling = Pooling("mean", WIDTH)
    encoder.save_pretrained(tmp_path / "int8", encoder.state_dict() | rows)
    assert load_file(tmp_path / "int8" / "model.safetensors")["table.weight"].dtype == torch.int8
    rounded = SentenceEncoder.from_pretrained(str(tmp_path / "int8"))
    assert rounded.backbone.table.weight.dtype == torch.float32
    np.testing.assert_allclose(rounded.encode(TEXTS), vectors, atol=np.abs(vectors).max() / 50)
    rounded.save_pretrained(tmp_path / "again")
    again = SentenceEncoder.from_pretrained(str(tmp_path / "again"))
    np.testing.assert_array_equal(again.encode(TEXTS), rounded.encode(TEXTS))


def test_bad_tables(changed, tiny_lookup):
    """Fails if a table is searched that a search finds nothing in, or rows of another model are read."""
    state = load_file(tiny_lookup / "model.safetensors")
    with pytest.raises(InputError, match="changed: .* key 1 "):
        SentenceEncoder.from_pretrained(changed({"keys": state["keys"].flip(0).contiguous()}))
    for name in ("keys", "table.weight"):
        with pytest.raises(InputError, match=r"changed .*config\.json"):
            SentenceEncoder.from_pretrained(changed({name: state[name][:-1].contiguous()}))
    with pytest.raises(InputError, match="46340"):
        SentenceEncoder.from_pretrained(changed(vocab_size=50000))


def test_bad_text(tiny_lookup):
    """Fails if a text of a million characters takes the memory of as many vectors, or half a character is guessed."""
    encoder = SentenceEncoder.from_pretrained(str(tiny_lookup))
    vectors = encoder.encode(["好" * 10**6, "好" * 510])
    np.testing.assert_array_equal(vectors[0], vectors[1])
    with pytest.raises(InputError, match=r"ud800.* 2"):
        encoder.encode(["好", "坏\ud800"])
    assert encoder.encode([]).shape == (0, WIDTH)


FEW = ("--max_steps", "2", "--eval_strategy", "no", "--learning_rate", "0.01")


def test_it_trains_as_any_backbone(tiny_lookup, made_up, tmp_path, caplog):
    """Fails if `cosent train` cannot start from a lookup, or leaves it as it was, or speaks of padding or dropout."""
    flags = ("--loss", "cosent_in_batch", "--cached_batch_size", "32", "--dropout", "0.1", "--bf16", "true")
    with caplog.at_level(logging.WARNING):
        folder = run_train(tiny_lookup, made_up, tmp_path / "run", *FEW, *flags)
    assert "padded" not in caplog.text and "no dropout" not in caplog.text
    before, after = (load_file(place / "model.safetensors") for place in (tiny_lookup, folder))
    assert torch.equal(before["keys"], after["keys"]) and not torch.equal(before["table.weight"], after["table.weight"])


def test_what_a_lookup_has_not(tiny_lookup, made_up, tmp_path):
    """Fails if a run without layers to adapt, to keep or to join sentences in ends in a traceback."""
    with pytest.raises(InputError, match="lookup .*--use_peft"):
        run_train(tiny_lookup, made_up, tmp_path / "lora", *FEW, "--use_peft", "true")
    with pytest.raises(InputError, match="lookup.*--tower bi_encoder"):
        run_train(tiny_lookup, made_up, tmp_path / "cross", *FEW, "--tower", "cross_encoder")
    with pytest.raises(InputError, match="--student_layers 2.* 0 layers"):
        keep_layers(SentenceEncoder.from_pretrained(str(tiny_lookup)).backbone, 2)


@pytest.mark.slow
def test_a_graph_of_a_lookup(tiny_lookup, job, tmp_path):
    """Fails if the token before another, or an entry, is found in a way that ONNX does not know, or int8 is ignored."""
    pytest.importorskip("onnxruntime")
    job("cosent.jobs.export", "--model", tiny_lookup, "--output", tmp_path / "onnx")
    texts = [*TEXTS, *SENTENCES, "ß\u1e9eΣς\U0001d400\U000e0041"]
    expected = SentenceEncoder.from_pretrained(str(tiny_lookup)).encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(OnnxModel(tmp_path / "onnx").encode(texts), expected, atol=1e-5)
    with pytest.raises(InputError, match="--int8"):
        job("cosent.jobs.export", "--model", tiny_lookup, "--int8", "--corpus", "demo", "--output", tmp_path / "int8")
