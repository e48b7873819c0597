"""The right model from whichever folder."""

import pytest

from cosent.errors import InputError
from cosent.models.auto import load_bi_encoder, load_model
from cosent.models.bi_encoder import BiEncoder, SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.ensemble import VectorEnsemble
from cosent.models.student import Student


@pytest.fixture
def encoder(tiny_model):
    return CrossEncoder.from_pretrained(str(tiny_model), num_labels=1)


def test_the_towers_know_their_folders(encoder, tiny_model, tmp_path):
    """Fails if evaluate takes a cross-encoder for a bi-encoder, or a folder keeps pieces of both."""
    bi_encoder = BiEncoder(SentenceEncoder.from_pretrained(str(tiny_model), pooling="linear_cls"))
    bi_encoder.save_pretrained(tmp_path)
    assert isinstance(load_model(str(tmp_path)), SentenceEncoder)
    with pytest.raises(InputError, match="not by a cross-encoder of 1"):
        encoder.saved_state(tmp_path)
    encoder.save_pretrained(tmp_path)
    assert isinstance(load_model(str(tmp_path)), CrossEncoder)
    assert not list(tmp_path.rglob("modules.json")) and not list(tmp_path.rglob("2_Dense"))
    with pytest.raises(InputError, match="saved by a cross-encoder run"):
        bi_encoder.saved_state(tmp_path)
    with pytest.raises(InputError, match="is a cross-encoder"):
        load_bi_encoder(str(tmp_path))
    with pytest.raises(InputError, match="cross-encoder.* name a pooling"):
        SentenceEncoder.from_pretrained(str(tmp_path))
    assert SentenceEncoder.from_pretrained(str(tmp_path), pooling="mean").pooling.mode == "mean"


def test_every_model_loads_onto_a_device(encoder, tiny_model, tiny_student, tmp_path):
    """Fails if `device=` is unknown to a class, or leaves a part of a model on the CPU."""
    bi_encoder = SentenceEncoder.from_pretrained(str(tiny_model), pooling="linear_cls")
    ensemble = VectorEnsemble([bi_encoder, bi_encoder])
    for name, model in {"bi": bi_encoder, "cross": encoder, "vectors": ensemble}.items():
        model.save_pretrained(tmp_path / name)
        loaded = load_model(str(tmp_path / name), device="meta")
        assert {weight.device.type for weight in loaded.parameters()} == {"meta"}
    assert Student.from_pretrained(str(tiny_student), device="meta").device.type == "meta"
    assert load_model(str(tmp_path / "bi")).device.type == "cpu"
