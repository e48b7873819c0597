"""Check that a model, checkpoint, bundle, corpus or file of vectors is whole: exit status 1 if it is not.

cosent verify runs/faq               compares every file with whole.json, and loads the model
cosent verify runs/faq --accept      first writes whole.json anew, after a change of your own

Folders of other makers, which have no whole.json, hold what their modules.json and config.json name.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cosent.atomic import write_atomically
from cosent.cli import REQUIRED, option
from cosent.data.manifest import MANIFEST_NAME
from cosent.encoders import local
from cosent.errors import InputError
from cosent.seal import SEAL, UNFINISHED, check, faults, model_files, seal, sealed_files


@dataclass(kw_only=True)
class VerifyArguments:
    """Folder to check."""

    folder: str = option(REQUIRED, "Folder, shipped model, or vectors of `cosent encode`.", positional=True)
    accept: bool = option(False, "Write whole.json anew first, for the files as they are now.")


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
            raise InputError(f"--accept is for models, and {path} must fit its input. Encode or prepare again.")
        return [verify_data(path)]
    is_model = (path / "config.json").is_file() and not (path / "bundle.json").is_file()
    if not is_model and not (path / SEAL).is_file():
        raise InputError(f"{path} holds no model, checkpoint, bundle, corpus or vectors. Check the path.")
    if not accept or (path / UNFINISHED).exists():
        return verify_folder(path, is_model)
    before = (path / SEAL).read_bytes() if (path / SEAL).is_file() else None
    seal(path, files_to_accept(path, is_model))
    try:
        return verify_folder(path, is_model)
    except InputError:  # what is no model stays as it was
        (path / SEAL).unlink() if before is None else write_atomically(path / SEAL, before)
        raise


def files_to_accept(path: Path, is_model: bool) -> list[Path] | None:
    """The files of a model, with those listed before; None for all of them, in a bundle whose list cannot be read."""
    listed: list[Path] = []
    with suppress(InputError):
        listed = [file for name in sealed_files(path) or {} if (file := path / name).is_file()]
    if not listed and (path / "trainer_state.json").is_file():
        raise InputError(f"{path} is a checkpoint without a {SEAL} that can be read: it may be half. Remove it.")
    return sorted({*model_files(path), *listed}) if is_model or listed else None


def verify_folder(path: Path, is_model: bool) -> list[str]:
    """Verifies a model, checkpoint or bundle."""
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
