"""Small models that ship with the package, each a folder that `AutoModel.from_pretrained` reads."""

from functools import cache
from pathlib import Path

from cosent.atomic import refuse_damaged
from cosent.errors import InputError
from cosent.flags import nearest

SHIPPED = ("mini", "mini-roformer", "similar", "similar-lookup", "similar-writer")


def local(model_name_or_path: str | Path) -> Path:
    """The folder of a shipped model, unless one of that name is in the current folder; other names are paths."""
    shipped = str(model_name_or_path) in SHIPPED and not Path(model_name_or_path).exists()
    return Path(__file__).parent / model_name_or_path if shipped else Path(model_name_or_path)


def resolve(model_name_or_path: str) -> str:
    """Resolves a model name to the folder of a shipped encoder, a whole local folder, or an existing Hub id."""
    path = local(model_name_or_path).expanduser()
    if path.is_dir():
        refuse_damaged(path)
        return str(path)
    looks_like_a_path = model_name_or_path.startswith((".", "/", "~")) or model_name_or_path.count("/") > 1
    if not (path.is_file() or looks_like_a_path or ("/" in model_name_or_path and path.parent.is_dir())):
        answer = ask_hub(model_name_or_path)
        if answer is None:
            return model_name_or_path
    else:
        answer = "A model is a folder with config.json, weights and tokenizer."
    folders = (str(config.parent) for place in (path.parent, Path("runs")) for config in place.glob("*/config.json"))
    raise InputError(
        f"There is no model at {model_name_or_path}.{nearest(str(path), [*SHIPPED, *folders])} {answer} Pass a "
        f"folder, a shipped encoder ({', '.join(SHIPPED)}) or a Hub id such as BAAI/bge-base-zh-v1.5."
    )


@cache
def ask_hub(name: str) -> str | None:
    """Asks the Hub once for a model that was not downloaded before: None if it is there, or why it is not.

    transformers repeats every request for minutes.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HTTPError, RepositoryNotFoundError
    from huggingface_hub.utils import HFValidationError

    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return None
        get_hf_file_metadata(hf_hub_url(name, "config.json"))
    except HFValidationError:
        return "A Hub id has no such characters either."
    except HfHubHTTPError as error:
        # What else the Hub may say of a model that it has comes with the download.
        if isinstance(error, RepositoryNotFoundError) and not isinstance(error, GatedRepoError):
            return "The Hub does not have it either, or shows it only after a login (hf auth login)."
    except (HTTPError, OSError) as error:
        return (
            f"The Hub cannot be asked ({error}): HF_ENDPOINT names a mirror, and with HF_HUB_OFFLINE=1 only downloaded "
            "models load."
        )
    return None
