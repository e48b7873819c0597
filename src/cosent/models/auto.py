"""Load the model of a folder or Hub id, whatever its type."""

from cosent.encoders import resolve
from cosent.errors import InputError
from cosent.models.bi_encoder import Embedder, SentenceEncoder
from cosent.models.cross_encoder import CrossEncoder
from cosent.models.ensemble import ScoreEnsemble, VectorEnsemble
from cosent.models.folder import ensemble_kind, is_cross_encoder

CLASSES = {"VectorEnsemble": VectorEnsemble, "ScoreEnsemble": ScoreEnsemble}


def load_model(model_name_or_path: str, **options) -> Embedder | CrossEncoder | ScoreEnsemble:
    """Loads a bi-encoder, a cross-encoder or an ensemble; all have `similarity(sentences1, sentences2, batch_size)`.

    Args:
        options: those that `from_pretrained` of both towers have, see `TextModel`.
    """
    path = resolve(model_name_or_path)
    kind = ensemble_kind(path)
    if kind is not None:
        return CLASSES[kind].from_pretrained(path, **options)
    tower = CrossEncoder if is_cross_encoder(path) else SentenceEncoder
    return tower.from_pretrained(model_name_or_path, **options)


def load_bi_encoder(model_name_or_path: str) -> Embedder:
    """Loads a bi-encoder, or an ensemble of them.

    Raises:
        InputError: the folder holds a cross-encoder, which has no sentence embeddings.
    """
    path = resolve(model_name_or_path)
    if is_cross_encoder(path) or ensemble_kind(path) == "ScoreEnsemble":
        raise InputError(
            f"{model_name_or_path} is a cross-encoder: it reads both sentences of a pair at once and cannot embed a "
            "single one. Score pairs with `cosent similarity` or `evaluate`, or encode with a bi-encoder."
        )
    model = load_model(model_name_or_path)
    assert isinstance(model, Embedder)
    return model
