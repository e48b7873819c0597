"""Models that come with code of their own: never run, never asked about, refused by name."""

import json
import shutil

import pytest

from cosent.errors import InputError
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.student import Student
from cosent.training.pretraining import initial_model
from tests.families import save_family

GTE = {"AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig", "AutoModel": "Alibaba-NLP/new-impl--modeling.N"}
JINA = {"AutoConfig": "jinaai/xlm-roberta-flash-implementation--configuration_xlm_roberta.XLMRobertaFlashConfig"}
OWN = {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch):
    """transformers asks "Do you wish to run the custom code? [y/N]" unless it is told."""

    def refuse(prompt=""):
        raise AssertionError(f"asked: {prompt}")

    monkeypatch.setattr("builtins.input", refuse)


@pytest.fixture
def model(tiny_model, tmp_path):
    """Returns a function that copies the tiny BERT with changes of its config.json."""

    def make(**changes) -> str:
        shutil.copytree(tiny_model, tmp_path / "model")
        config = json.loads((tmp_path / "model/config.json").read_text()) | changes
        (tmp_path / "model/config.json").write_text(json.dumps(config))
        return str(tmp_path / "model")

    return make


LOADERS = [SentenceEncoder.from_pretrained, CrossEncoder.from_pretrained, Student.from_pretrained]
LOADERS += [lambda path: initial_model(path, None)]


@pytest.mark.parametrize("load", LOADERS, ids=["bi_encoder", "cross_encoder", "student", "pretraining"])
@pytest.mark.parametrize(
    "kind, code, words",
    [
        ("new", GTE, "`gte`: alibaba-nlp-community/gte-multilingual-base"),
        ("xlm-roberta", JINA, "`jina_embeddings_v3`: jinaai/jina-embeddings-v3-hf"),
        ("own", OWN, "configuration_own.OwnConfig.* never run, and has type own"),
        ("own", {}, "has type own, which transformers .* does not have"),
    ],
)
def test_a_model_that_needs_code_is_refused_by_name(model, load, kind, code, words):
    """Fails if a user is asked to run foreign code, or reads that the folder is no model at all."""
    with pytest.raises(InputError, match=words):
        load(model(model_type=kind, auto_map=code))


def test_weights_for_foreign_code_are_no_weights(model):
    """Fails if a BERT that its own code turns into another model (Jina v2) is loaded with random layers."""
    with pytest.raises(InputError, match="needs code of its own.*transformers' bert lacks"):
        SentenceEncoder.from_pretrained(model(auto_map=OWN, num_hidden_layers=3))


@pytest.mark.parametrize("load", LOADERS[:2], ids=["bi_encoder", "cross_encoder"])
def test_code_that_transformers_has_is_not_needed_afterwards(model, load, tmp_path, caplog):
    """Fails if a native architecture whose folder still names code (nomic, EuroBERT) passes the question on."""
    load(model(auto_map=OWN)).save_pretrained(tmp_path / "saved")
    assert caplog.text.count("comes with code, which is not run: transformers' own bert computes it") == 1
    assert "auto_map" not in json.loads((tmp_path / "saved/config.json").read_text())


def test_a_tokenizer_that_needs_code_is_refused(tmp_path):
    """Fails if the user is told that there is no model."""
    save_family("eurobert", tmp_path)
    names = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    with pytest.raises(InputError, match="The tokenizer of .* needs code of its own, which is never run"):
        SentenceEncoder.from_pretrained(str(tmp_path))
