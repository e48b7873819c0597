"""Small models that ship with the package, each a folder that `AutoModel.from_pretrained` reads."""

from functools import cache
from pathlib import Path

from cosent.cli import nearest
from cosent.errors import InputError

SHIPPED = ("mini", "mini-roformer", "similar", "similar-writer")


def local(model_name_or_path: str | Path) -> Path:
    """The folder of a shipped model, unless one of that name is in the current folder; other names are paths."""
    shipped = str(model_name_or_path) in SHIPPED and not Path(model_name_or_path).exists()
    return Path(__file__).parent / model_name_or_path if shipped else Path(model_name_or_path)


def resolve(model_name_or_path: str) -> str:
    """Resolves a model name to the folder of a shipped encoder, a local folder or a Hub id that exists."""
    path = local(model_name_or_path).expanduser()
    if path.is_dir():
        return str(path)
    if path.is_file():
        raise InputError(
            f"{path} is a file; a model is a folder with config.json, weights and tokenizer. Pass the folder."
        )
    looks_like_a_path = model_name_or_path.startswith((".", "/", "~")) or model_name_or_path.count("/") > 1
    if looks_like_a_path or ("/" in model_name_or_path and Path(model_name_or_path).parent.is_dir()):
        raise InputError(
            f"There is no model at {model_name_or_path}.{near_folder(path)} Pass a folder that a training run wrote, a "
            f"shipped encoder ({', '.join(SHIPPED)}) or a Hub id such as hfl/chinese-roberta-wwm-ext."
        )
    ask_hub(model_name_or_path)
    return model_name_or_path


def near_folder(path: Path) -> str:
    """The shipped encoder or the model folder, here or in runs, whose name is the most similar, as a question."""
    folders = (str(config.parent) for place in (path.parent, Path("runs")) for config in place.glob("*/config.json"))
    return nearest(str(path), [*SHIPPED, *folders])


@cache
def ask_hub(name: str) -> None:
    """Asks the Hub once for a model that was not downloaded before; transformers repeats every request for minutes."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HTTPError, RepositoryNotFoundError
    from huggingface_hub.utils import HFValidationError

    try:
        # The second is that of an ensemble, which has no config of its own.
        if any(isinstance(try_to_load_from_cache(name, file), str) for file in ("config.json", "modules.json")):
            return
        get_hf_file_metadata(hf_hub_url(name, "config.json"))
        return
    except HFValidationError:
        answer = "A Hub id has no such characters either."
    except HfHubHTTPError as error:
        if isinstance(error, GatedRepoError) or not isinstance(error, RepositoryNotFoundError):
            return  # the Hub has it; what else it may say comes with the download
        answer = "The Hub does not have it either, or shows it only after a login (hf auth login)."
    except (HTTPError, OSError) as error:
        answer = (
            f"The Hub cannot be asked ({error}): HF_ENDPOINT names a mirror, and with HF_HUB_OFFLINE=1 only downloaded "
            "models load."
        )
    raise InputError(
        f"{name} is neither a folder nor a shipped encoder ({', '.join(SHIPPED)}).{near_folder(Path(name))} {answer} "
        "Check the spelling."
    )
