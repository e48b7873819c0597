"""Check that a model, checkpoint, bundle, corpus or file of vectors is whole: exit status 1 if it is not.

cosent verify runs/faq               compares every file with whole.json, and loads the model
cosent verify runs/faq --accept      first writes whole.json anew, after a change of your own

Folders of other makers, which have no whole.json, hold what their modules.json and config.json name.
"""

from dataclasses import dataclass
from pathlib import Path

from cosent.cli import REQUIRED, option
from cosent.data.manifest import MANIFEST_NAME
from cosent.encoders import local
from cosent.errors import InputError
from cosent.seal import SEAL, UNFINISHED, check, faults, model_files, seal, sealed_files


@dataclass(kw_only=True)
class VerifyArguments:
    """Folder to check."""

    folder: str = option(REQUIRED, "Folder, shipped model, or vectors of `cosent encode`.", positional=True)
    accept: bool = option(False, "List the files of the folder as they are now.")


def main(args: VerifyArguments) -> int:
    path = local(args.folder)
    try:
        for line in verify(path, args.accept):
            print(line)
    except InputError as error:
        print(error)
        return 1
    return 0


def verify(path: Path, accept: bool) -> list[str]:
    """What holds, in lines; an `InputError` for what does not."""
    if path.suffix == ".npy" or (path / MANIFEST_NAME).is_file():
        if accept:
            raise InputError(f"--accept: {path} belongs to its input. Encode or prepare again.")
        return [verify_data(path)]
    is_model = (path / "config.json").is_file()
    if not is_model and not (path / SEAL).is_file():
        raise InputError(f"{path} holds no model, checkpoint, bundle, corpus or vectors. Check the path.")
    if accept and not (path / UNFINISHED).exists():
        earlier = [] if not (path / SEAL).is_file() else [path / name for name in sealed_files(path) or {}]
        seal(path, sorted({*model_files(path), *(file for file in earlier if file.is_file())}))
    listed = sealed_files(path) or {}
    if wrong := [f"{name} {fault}" for name, fault in faults(path)]:
        raise InputError(f"{path}: {'; '.join(wrong)}. Copy it again, or add --accept after a change of your own.")
    check(path)
    if is_model:
        from cosent.models.auto import load_model

        load_model(str(path))
    names = (file.relative_to(path).as_posix() for file in model_files(path))
    other = [f"not listed in {SEAL}: {name}" for name in sorted(names) if listed and name not in listed]
    return [*other, f"{path} is whole" + (f": {len(listed)} files" if listed else f"; it has no {SEAL} of its bytes")]


def verify_data(path: Path) -> str:
    """Verifies a corpus, or vectors of `cosent encode` with their input."""
    if path.suffix != ".npy":
        from cosent.data.corpus import load_corpus

        return f"{path} is whole: {', '.join(load_corpus(str(path)).splits)}"
    from cosent.search.vectors import open_vectors

    stored = open_vectors(path)
    return f"{path} is whole: {len(stored.sentences())} vectors of {stored.input}"
