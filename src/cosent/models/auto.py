"""Load the model of a folder or Hub id, whatever its type."""

from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.models.bi_encoder import Embedder, SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.ensemble import VectorEnsemble
from cosent.models.folder import is_cross_encoder, is_ensemble


def load_model(model_name_or_path: str, **options) -> Embedder | CrossEncoder:
    """Loads a bi-encoder, a cross-encoder or an ensemble; all have `similarity(sentences1, sentences2, batch_size)`.

    Args:
        options: those that `from_pretrained` of both towers have, see `TextModel`.
    """
    path = resolve(model_name_or_path)
    tower = VectorEnsemble if is_ensemble(path) else CrossEncoder if is_cross_encoder(path) else SentenceEncoder
    return tower.from_pretrained(model_name_or_path, **options)


def load_bi_encoder(model_name_or_path: str, long_texts: str = "truncate", truncate_dim: int | None = None) -> Embedder:
    """Loads a bi-encoder, or an ensemble of them; see `Embedder.long_texts` and `SentenceEncoder.truncate`."""
    model = load_model(model_name_or_path)
    if not isinstance(model, Embedder):
        raise InputError(f"{model_name_or_path} is a cross-encoder, which has no sentence vectors. Name a bi-encoder.")
    if not isinstance(model, SentenceEncoder) and (long_texts != "truncate" or truncate_dim is not None):
        flag = f"--long_texts {long_texts}" if truncate_dim is None else f"--truncate_dim {truncate_dim}"
        raise InputError(f"{flag}: {model_name_or_path} is an ensemble. Name one of its members.")
    model.long_texts = long_texts
    if truncate_dim is not None:
        model.truncate(truncate_dim)
    return model
