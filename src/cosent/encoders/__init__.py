"""Small encoders that ship with the package, each a folder that `AutoModel.from_pretrained` reads."""

from pathlib import Path

from cosent.errors import InputError

SHIPPED = ("mini", "mini-roformer")


def resolve(model_name_or_path: str) -> str:
    """Resolves a model name to the folder of a shipped encoder, a local folder or a Hub id.

    Raises:
        InputError: the name can only be a path (it starts with `.`, `/` or `~`, has more than one `/`, or begins with
            an existing folder), and nothing is there. Otherwise a name such as `org/model` is passed on as a Hub id.
    """
    if model_name_or_path in SHIPPED and not Path(model_name_or_path).exists():
        return str(Path(__file__).parent / model_name_or_path)
    path = Path(model_name_or_path).expanduser()
    if path.is_dir():
        return str(path)
    if path.is_file():
        raise InputError(
            f"{path} is a file; a model is a folder with config.json, weights and tokenizer. Pass the folder."
        )
    looks_like_a_path = model_name_or_path.startswith((".", "/", "~")) or model_name_or_path.count("/") > 1
    if looks_like_a_path or ("/" in model_name_or_path and Path(model_name_or_path).parent.is_dir()):
        raise InputError(
            f"There is no model at {model_name_or_path}. Pass a folder that a training run wrote, a shipped encoder "
            f"({', '.join(SHIPPED)}) or a Hub id such as hfl/chinese-roberta-wwm-ext."
        )
    return model_name_or_path
