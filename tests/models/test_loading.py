"""Names, folders and Hub ids: the right model, or an error that says what to pass; foreign code is never run."""

import json
import re
import shutil
from collections import Counter
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub.errors import GatedRepoError, HTTPError, RemoteEntryNotFoundError, RepositoryNotFoundError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForPreTraining

from cosent import encoders
from cosent.errors import InputError, once
from cosent.models import load_model
from cosent.models.bi_encoder import BiEncoder, SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from tests.support.families import FAMILIES, random_family, save_family


@pytest.fixture
def encoder(tiny_model):
    return CrossEncoder.from_pretrained(str(tiny_model), num_labels=1)


def test_the_towers_know_their_folders(encoder, tiny_model, tmp_path):
    """Fails if a cross-encoder is taken for a bi-encoder, a folder keeps pieces of both, or `device=` is ignored."""
    bi_encoder = BiEncoder(SentenceEncoder.from_pretrained(str(tiny_model), pooling="linear_cls"))
    bi_encoder.save_pretrained(tmp_path)
    assert isinstance(load_model(str(tmp_path)), SentenceEncoder)
    assert {weight.device.type for weight in load_model(str(tmp_path), device="meta").parameters()} == {"meta"}
    encoder.save_pretrained(tmp_path)
    assert isinstance(load_model(str(tmp_path)), CrossEncoder)
    assert {weight.device.type for weight in load_model(str(tmp_path), device="meta").parameters()} == {"meta"}
    assert not list(tmp_path.rglob("modules.json")) and not list(tmp_path.rglob("2_Dense"))
    with pytest.raises(InputError, match="cross-encoder"):
        SentenceEncoder.from_pretrained(str(tmp_path))
    with pytest.raises(InputError, match="--tower cross_encoder"):
        SentenceEncoder.from_pretrained(str(tmp_path), pooling="mean")


def test_a_plain_folder_says_how_it_is_pooled(tiny_model, tiny_bi, caplog):
    """Fails if the pooling of a folder that names none stays unsaid, or is said at every load."""
    caplog.set_level("INFO", "cosent")
    once.cache_clear()
    for folder in (tiny_model, tiny_model, tiny_bi):
        load_model(str(folder))
    (note,) = [record.getMessage() for record in caplog.records if "pooled by" in record.getMessage()]
    assert note.startswith(f"{tiny_model} has no modules.json: it is pooled by mean.") and "--pooling" in note


def test_wrong_arguments_are_explained(tiny_model):
    """Fails if a wrong pooling, length or path is accepted or ends in a stack trace of the Hub client."""
    for options, message in (
        ({"pooling": "avg"}, "--pooling .*cls, mean"),
        ({"max_length": 1000}, "max_length must be 3 to 512"),
    ):
        with pytest.raises(InputError, match=message):
            SentenceEncoder.from_pretrained(str(tiny_model), **options)
    for path in ("./nowhere", "/nowhere/model", "runs/a/b", "nobody/nothing", f"{tiny_model}/config.json"):
        with pytest.raises(InputError, match=path):
            SentenceEncoder.from_pretrained(path)


NO = SimpleNamespace(headers={}, request=None)  # a response
ANSWERS = {
    "bert-base-chinese": None,
    "org/gated": GatedRepoError("no", response=NO),
    "org/pickle": RemoteEntryNotFoundError("no", response=NO),
    "org/none": RepositoryNotFoundError("no", response=NO),
    "mini-roforner": HTTPError("refused"),
}


def test_the_hub_is_asked_once_and_near_names_are_told(tmp_path, monkeypatch):
    """Fails if a misspelt name waits minutes for retries, or an id without owner, or a downloaded model, is refused."""
    downloaded = tmp_path / "hub/models--org--kept"
    for file, text in {"refs/main": "c" * 40, f"snapshots/{'c' * 40}/config.json": "{}"}.items():
        (downloaded / file).parent.mkdir(parents=True)
        (downloaded / file).write_text(text)
    (tmp_path / "runs/faq").mkdir(parents=True)
    (tmp_path / "runs/faq/config.json").touch()
    asked: Counter[str] = Counter()

    def hub(url: str) -> None:
        name = url.split("//")[1].partition("/")[2].split("/resolve/")[0]
        asked[name] += 1
        if ANSWERS[name] is not None:
            raise ANSWERS[name]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", hub)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(encoders, "ask_hub", cache(encoders.ask_hub.__wrapped__))
    for name in ("bert-base-chinese", "org/gated", "org/pickle", "org/kept"):
        assert encoders.resolve(name) == name
    for name, words, absent in (
        ("org/none", ["org/none", "login"], "HF_ENDPOINT"),
        ("mini-roforner", ["'mini-roformer'", "HF_ENDPOINT", "HF_HUB_OFFLINE"], "login"),
        ("mini-roforner", ["'mini-roformer'", "HF_ENDPOINT"], "login"),
        ("runs/fqa", ["'runs/faq'"], "HF_ENDPOINT"),
        ("模型", ["模型"], "HF_ENDPOINT"),
    ):
        with pytest.raises(InputError) as error:
            encoders.resolve(name)
        assert all(word in str(error.value) for word in words) and absent not in str(error.value)
    assert asked == dict.fromkeys(ANSWERS, 1)


def test_the_folder_of_a_run_that_was_stopped(tmp_path):
    """Fails if a user reads that runs/faq is no model, and not how to go on."""
    (tmp_path / "UNFINISHED").touch()
    with pytest.raises(InputError, match="--resume_from_checkpoint auto"):
        load_model(str(tmp_path))


OWN = {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch):
    """Fails a test that would ask the user "[y/N]"."""
    monkeypatch.setattr("builtins.input", lambda prompt="": pytest.fail(f"asked: {prompt}"))


def test_a_tokenizer_that_needs_code_is_refused(tmp_path):
    """Fails if the user is told that there is no model."""
    save_family("eurobert", tmp_path)
    names = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    with pytest.raises(InputError, match="tokenizer of .* needs its own code"):
        SentenceEncoder.from_pretrained(str(tmp_path))


HEADS = {
    AutoModelForMaskedLM: ("bert", "xlm-roberta", "modernbert", "distilbert"),
    AutoModelForPreTraining: ("albert", "electra"),
    AutoModelForCausalLM: ("qwen3",),
}


@pytest.mark.parametrize(("auto", "name"), [(auto, name) for auto, names in HEADS.items() for name in names])
def test_the_head_of_another_task_is_left_aside(auto, name, tmp_path):
    """Fails if a published encoder is refused since its weights have a head that vectors do not need, or buffers of
    an older transformers, or since they lack a pooler."""
    backbone = random_family(name)
    model = auto.from_config(backbone.config)
    inner = getattr(model, model.base_model_prefix)
    inner.load_state_dict(backbone.state_dict(), strict=False)
    weights = model.state_dict()
    older = {f"{model.base_model_prefix}.embeddings.position_ids": torch.arange(8)[None]}
    model.save_pretrained(tmp_path, state_dict=weights | (older if name in ("bert", "xlm-roberta") else {}))
    FAMILIES[name].tokenizer().save_pretrained(tmp_path)
    loaded = SentenceEncoder.from_pretrained(str(tmp_path), pooling="mean")
    for weight_name, weight in loaded.backbone.state_dict().items():
        torch.testing.assert_close(weight, inner.state_dict()[weight_name])


SETTINGS, LENGTHS, POOLING = "config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json"
DENSE = "2_Dense/config.json"


def edit(name: str, **changes):
    """A change of a JSON file of a folder."""

    def change(folder) -> None:
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | changes))

    return change


def text(name: str, content: str):
    return lambda folder: (folder / name).write_text(content)


def without(name: str):
    return lambda folder: (folder / name).unlink()


def weights(rename):
    """Saves weights under other names, without those that are renamed to None."""

    def change(folder) -> None:
        renamed = {rename(name): weight for name, weight in load_file(folder / "model.safetensors").items()}
        renamed.pop(None, None)
        save_file(renamed, folder / "model.safetensors", {"format": "pt"})

    return change


def module(number: int, **changes):
    """A change of a module in modules.json."""

    def change(folder) -> None:
        listed = json.loads((folder / "modules.json").read_text())
        listed[number] |= changes
        (folder / "modules.json").write_text(json.dumps(listed))

    return change


def larger_vocabulary(folder) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["北京"] = 10**6
    (folder / "tokenizer.json").write_text(json.dumps(content))


DAMAGES = [
    (edit("config.json", model_type="own", auto_map=OWN), "OwnConfig.* never run.*type own"),
    (edit("config.json", auto_map=OWN, num_hidden_layers=3), "needs code of its own.*lacks 16 weights .* bert"),
    (without("tokenizer.json"), "tokenizer.json, or another vocabulary"),
    (edit("tokenizer_config.json", pad_token=None), "padding token"),
    (larger_vocabulary, r"tokenizer.json has tokens up to number 1000000.*reads 9"),
    (edit("config.json", num_hidden_layers=1), "model.safetensors holds 16 weights"),
    (edit("config.json", num_hidden_layers=3), "model.safetensors lacks 16 weights"),
    (
        weights(lambda name: None if "word_emb" in name else name),
        r"model.safetensors lacks 1 weights \(embeddings.word_embeddings.weight\)",
    ),
    (weights("module.{}".format), "model.safetensors lacks 37 weights"),
    (without(POOLING), f"{POOLING}.* is missing"),
    (without("modules.json"), "modules.json.* is missing"),
    (without(DENSE), f"{DENSE}.* is missing"),
    (without("2_Dense/model.safetensors"), "2_Dense"),
    *((module(1, path=path), "modules.json") for path in ("../secret", "/etc", None)),
    *((edit("config.json", **{name: value}), "model") for name in ("hidden_size", "hidden_act") for value in (0, "32")),
    (edit("config.json", _attn_implementation="kernels-community/other"), "model"),
    *((edit(LENGTHS, max_seq_length=value), f"{LENGTHS}.*max_seq_length") for value in ("64", 1.5, 2, True)),
    *((edit(SETTINGS, prompts=value), "model") for value in ("abc", {"query": 5})),
    (edit(SETTINGS, prompts={"a": "a"}, default_prompt_name=5), SETTINGS),
    (edit(POOLING, pooling_mode=5), "model"),
    (edit(DENSE, in_features="32"), "2_Dense"),
    *((text(file, "5"), re.escape(file)) for file in ("config.json", "modules.json", SETTINGS, LENGTHS, POOLING)),
    *((text("modules.json", content), "modules.json") for content in ("null", "{", '{"a":' * 100_000)),
    (edit(DENSE, activation_function="own.Swish"), f"{DENSE}: .*own.Swish.*--pooling"),
    (edit(DENSE, use_residual=True), f"{DENSE}: use_residual"),
    (edit(DENSE, module_input_name="token_embeddings"), f"{DENSE}: module_input_name"),
    (edit(POOLING, pooling_mode=["cls", "mean"]), f"{POOLING}: pooling cls.mean"),
    (edit(POOLING, include_prompt=False), f"{POOLING}: include_prompt"),
    (edit(POOLING, temperature=2), f"{POOLING}: temperature"),
    (edit(SETTINGS, truncate_dim=8), f"{SETTINGS}: truncate_dim = 8"),
    (edit(LENGTHS, processor_kwargs={"x": 1}), f"{LENGTHS}: processor_kwargs"),
    (edit(LENGTHS, module_output_name="scores"), f"{LENGTHS}: module_output_name = 'scores'"),
    (edit(LENGTHS, modality_config={"text": {"method": "talk"}}), f"{LENGTHS}: modality_config"),
    (module(3, type="own_code.Router"), "modules.json: own_code.Router.*--pooling"),
    (module(1, type="sentence_transformers.SpladePooling"), "modules.json: SpladePooling in place of a Pooling"),
]


def test_code_that_transformers_has_is_not_needed_afterwards(start, tmp_path, caplog):
    """Fails if a native architecture whose folder still names code (nomic, EuroBERT) passes the question on."""
    folder = shutil.copytree(start, tmp_path / "model")
    edit("config.json", auto_map=OWN)(folder)
    SentenceEncoder.from_pretrained(str(folder)).save_pretrained(tmp_path / "saved")
    assert caplog.text.count("comes with code, which is not run: transformers' own bert computes it") == 1
    assert "auto_map" not in json.loads((tmp_path / "saved/config.json").read_text())


@pytest.mark.parametrize(("damage", "words"), DAMAGES)
def test_a_folder_of_others_that_is_not_whole(start, tmp_path, damage, words):
    """Fails if something missing, absurd or not computed here ends in a trace, or in other scores without a word, or
    its file is not named."""
    folder = shutil.copytree(start, tmp_path / "model")
    damage(folder)
    with pytest.raises(InputError, match=words):
        load_model(str(folder))


def test_a_backbone_of_modules_that_are_not_computed(start, tmp_path):
    """Fails if `--pooling`, which the error of such a folder names, is refused as well."""
    folder = shutil.copytree(start, tmp_path / "model")
    module(3, type="own_code.Router")(folder)
    assert SentenceEncoder.from_pretrained(str(folder), pooling="mean").pooling.mode == "mean"


def test_a_cross_encoder_without_its_head(tiny_cross, tmp_path):
    """Fails if a classifier whose head was lost scores at random."""
    folder = shutil.copytree(tiny_cross, tmp_path / "model")
    weights(lambda name: None if name.startswith("classifier.") else name)(folder)
    with pytest.raises(InputError, match=r"model.safetensors lacks 2 weights \(classifier.bias, classifier.weight\)"):
        load_model(str(folder))
