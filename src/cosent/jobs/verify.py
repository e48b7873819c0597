"""Check that a model, checkpoint or corpus is whole: exit status 1 if it is not.

cosent verify runs/faq       compares every file with whole.json, and loads the model

Weights must be as they were saved; an edited card, setting or tokenizer file is reported and is no damage. A folder of
other software, without whole.json, must hold what its modules.json and config.json name.
"""

from dataclasses import dataclass
from pathlib import Path

from cosent.atomic import SEAL, faults, is_weight, model_files, refuse_damaged, sealed_files
from cosent.data.corpus import MANIFEST_NAME, load_corpus
from cosent.encoders import local
from cosent.errors import InputError
from cosent.flags import REQUIRED, option


@dataclass(kw_only=True)
class VerifyArguments:
    """Folder to check."""

    folder: str = option(REQUIRED, "Folder, or a shipped model.", positional=True)


def main(args: VerifyArguments) -> int:
    path = local(args.folder)
    try:
        print(*(verify_corpus(path) if (path / MANIFEST_NAME).is_file() else verify_folder(path)), sep="\n")
    except InputError as error:
        print(error)
        return 1
    return 0


def verify_folder(path: Path) -> list[str]:
    """Lines on a model, checkpoint or other sealed folder; an `InputError` for a damaged one."""
    is_model, listed = (path / "config.json").is_file(), sealed_files(path) or {}
    if not is_model and not listed:
        raise InputError(f"{path} holds no model, checkpoint or corpus. Check the path.")
    changes = list(faults(path))
    is_checkpoint = not is_model or (path / "trainer_state.json").is_file()
    if damages := [f"{name} {fault}" for name, fault in changes if is_checkpoint or is_weight(name)]:
        raise InputError(f"{path}: {'; '.join(damages)}. Copy it again.")
    refuse_damaged(path)
    if is_model and not (path / "export.json").is_file():  # of ONNX: a graph instead of weights
        from cosent.models import load_model

        load_model(str(path))
    names = sorted(file.relative_to(path).as_posix() for file in model_files(path))
    lines = [f"changed since it was saved: {name} {fault}" for name, fault in changes]
    lines += [f"not listed in {SEAL}: {name}" for name in names if listed and name not in listed]
    return [*lines, f"{path} is whole" + (f": {len(listed)} files" if listed else f"; it has no {SEAL} of its bytes")]


def verify_corpus(path: Path) -> list[str]:
    """A line on a corpus, whose files `load_corpus` compares with its manifest."""
    return [f"{path} is whole: {', '.join(load_corpus(str(path)).splits)}"]
