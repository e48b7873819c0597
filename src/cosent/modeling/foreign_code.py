"""Models that come with code of their own: never run, and refused with the name of a copy that needs none."""

import logging
from functools import cache

import transformers
from transformers import AutoConfig
from transformers.models.auto import CONFIG_MAPPING

from cosent.errors import InputError
from cosent.modeling.saved_folder import ensemble_kind, read_json

logger = logging.getLogger(__name__)

# The class of the config that comes as code -> the architecture in transformers, and copies converted for it.
CONVERTED = {
    "NewConfig": ("gte", "alibaba-nlp-community/gte-multilingual-base (or -reranker-base, gte-base-en-v1.5, ...)"),
    "XLMRobertaFlashConfig": ("jina_embeddings_v3", "jinaai/jina-embeddings-v3-hf"),
}


def load_config(path: str):
    """Reads the config of a transformers model, without running or asking to run code that comes with it.

    Raises:
        InputError: an ensemble; the model needs such code, or an architecture that transformers does not have.
    """
    if ensemble_kind(path) is not None:
        raise InputError(
            f"{path} is an ensemble of several models. It answers as one, but it has no weights that could be trained "
            "on or merged again as one model's. Take one of its members, or let it teach: cosent distill --teacher."
        )
    raw = read_json(path, "config.json") or {}
    code = raw.get("auto_map") or {}
    name = str(code.get("AutoConfig", "")).rsplit(".", 1)[-1]
    kind = raw.get("model_type")
    if name in CONVERTED:
        architecture, copy = CONVERTED[name]
        raise InputError(
            f"{path} needs code of its own ({code['AutoConfig']}), which is never run. transformers computes this "
            f"architecture as `{architecture}`: pass a copy that was converted for it, {copy}."
        )
    if kind is not None and kind not in CONFIG_MAPPING:
        needs = (
            f"needs code of its own ({', '.join(map(str, code.values()))}), which is never run, and " if code else ""
        )
        raise InputError(
            f"{path} {needs}has type {kind}, which transformers {transformers.__version__} does not have. Look for a "
            "copy that was converted for transformers, or take another model."
        )
    if code:
        say_code_is_not_run(path, kind)
    return AutoConfig.from_pretrained(path, trust_remote_code=False)


@cache
def say_code_is_not_run(path: str, kind: str) -> None:
    """Warns once: some code is an earlier copy of what transformers has by now, some changes the architecture."""
    logger.warning(
        "%s comes with code, which is not run: transformers' own %s computes it. If that code changes the architecture "
        "(bidirectional attention, say), vectors differ from those on the model card. Compare one before you train.",
        path,
        kind,
    )
