"""Models of either tower; `load_model` loads the model of a folder or Hub id, whatever its type."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cosent.models.bi_encoder import SentenceEncoder
    from cosent.models.cross_encoder import CrossEncoder


def load_model(model_name_or_path: str, **options) -> "SentenceEncoder | CrossEncoder":
    """Loads a bi-encoder or a cross-encoder; both have `similarity(sentences1, sentences2, batch_size)`.

    Args:
        options: keywords of `TextModel.from_pretrained`.
    """
    from cosent.encoders import resolve
    from cosent.models.bi_encoder import SentenceEncoder
    from cosent.models.cross_encoder import CrossEncoder
    from cosent.models.folder import is_cross_encoder

    tower = CrossEncoder if is_cross_encoder(resolve(model_name_or_path)) else SentenceEncoder
    return tower.from_pretrained(model_name_or_path, **options)
