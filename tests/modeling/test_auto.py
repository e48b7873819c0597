"""The right model from whichever folder."""

import pytest

from cosent.errors import InputError
from cosent.modeling.auto import load_bi_encoder, load_model
from cosent.modeling.bi_encoder import BiEncoder, SentenceEncoder
from cosent.modeling.cross_encoder import CrossEncoder


@pytest.fixture
def encoder(tiny_model):
    return CrossEncoder.from_pretrained(str(tiny_model), num_labels=1)


def test_the_towers_know_their_folders(encoder, tiny_model, tmp_path):
    """Fails if evaluate takes a cross-encoder for a bi-encoder, or a folder keeps pieces of both."""
    bi_encoder = BiEncoder(SentenceEncoder.from_pretrained(str(tiny_model), pooling="linear_cls"))
    bi_encoder.save_pretrained(tmp_path)
    assert isinstance(load_model(str(tmp_path)), SentenceEncoder)
    with pytest.raises(InputError, match="saved by a run of another kind"):
        encoder.saved_state(tmp_path)
    encoder.save_pretrained(tmp_path)
    assert isinstance(load_model(str(tmp_path)), CrossEncoder)
    assert not list(tmp_path.rglob("modules.json")) and not list(tmp_path.rglob("2_Dense"))
    with pytest.raises(InputError, match="saved by a cross-encoder run"):
        bi_encoder.saved_state(tmp_path)
    with pytest.raises(InputError, match="is a cross-encoder: it reads both sentences of a pair at once"):
        load_bi_encoder(str(tmp_path))
