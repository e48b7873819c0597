"""Load the model of a folder or Hub id, whatever its type."""

from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.modeling.bi_encoder import SentenceEncoder
from cosent.modeling.cross_encoder import CrossEncoder
from cosent.modeling.saved_folder import is_cross_encoder


def load_model(model_name_or_path: str, **options) -> SentenceEncoder | CrossEncoder:
    """Loads a bi-encoder or cross-encoder; both have `similarity(sentences1, sentences2, batch_size)`.

    Args:
        options: those that `from_pretrained` of both have, see `TextModel`.
    """
    tower = CrossEncoder if is_cross_encoder(resolve(model_name_or_path)) else SentenceEncoder
    return tower.from_pretrained(model_name_or_path, **options)


def load_bi_encoder(model_name_or_path: str) -> SentenceEncoder:
    """Loads a bi-encoder.

    Raises:
        InputError: the folder holds a cross-encoder, which has no sentence embeddings.
    """
    if is_cross_encoder(resolve(model_name_or_path)):
        raise InputError(
            f"{model_name_or_path} is a cross-encoder: it reads both sentences of a pair at once and cannot embed a "
            "single one. Score pairs with `cosent similarity` or `evaluate`, or encode with a bi-encoder."
        )
    return SentenceEncoder.from_pretrained(model_name_or_path)
