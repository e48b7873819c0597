"""Files and folders that are replaced while signals and other processes come in between, and are read only if whole."""

import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from cosent import atomic
from cosent.atomic import (
    SEAL,
    complete_folder,
    faults,
    filled_folder,
    locked,
    model_files,
    partial_file,
    sealed_files,
    write_atomically,
)
from cosent.encoders import SHIPPED, local
from cosent.errors import InputError
from cosent.models import load_model
from cosent.models.bi_encoder import SentenceEncoder
from cosent.models.decision import decision_rules


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with one file."""
    (tmp_path / "faq").mkdir()
    (tmp_path / "faq" / "rows").write_text("old")
    return tmp_path / "faq"


def replace(folder: Path, content: str = "new") -> None:
    with complete_folder(folder, overwrite=True) as partial:
        (partial / "rows").write_text(content)


KILL_AT_RENAME = """
import os, pathlib, sys
from cosent.atomic import complete_folder
folder, number = pathlib.Path(sys.argv[1]), int(sys.argv[2])
rename, done = pathlib.Path.rename, []
def killing(self, target):
    if len(done) == number:
        os.kill(os.getpid(), 9)
    done.append(target)
    return rename(self, target)
pathlib.Path.rename = killing
with complete_folder(folder, overwrite=True) as partial:
    (partial / "rows").write_text("new")
"""


@pytest.mark.parametrize("renames", [0, 1])
def test_a_corpus_outlives_a_kill_at_any_rename(folder, renames, caplog):
    """Fails if a power cut or the kernel's OOM killer takes the old corpus, or leaves hidden copies for ever."""
    process = subprocess.run([sys.executable, "-c", KILL_AT_RENAME, folder, str(renames)], check=False)
    assert process.returncode == -signal.SIGKILL
    assert folder.exists() == (renames == 0) and len(list(folder.parent.iterdir())) >= 2, "it was killed elsewhere"
    with locked(folder), caplog.at_level(logging.WARNING):
        assert (folder / "rows").read_text() == "old"
        assert {path.name for path in folder.parent.iterdir()} == {"faq", ".faq.lock"}
    assert ("is back" in caplog.text) == (renames == 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_between_two_renames_waits(folder, monkeypatch, number):
    """Fails if Ctrl-C or `docker stop` deletes a corpus, or is lost."""
    earlier, rename, arrived = signal.signal(number, signal.default_int_handler), Path.rename, []

    def signalled(self, target):
        rename(self, target)
        arrived.append(target)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(Path, "rename", signalled)
    try:
        with pytest.raises(KeyboardInterrupt):
            replace(folder)
    finally:
        signal.signal(number, earlier)
    assert len(arrived) == 2
    assert (folder / "rows").read_text() == "new" and [path.name for path in folder.parent.iterdir()] == ["faq"]


def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(folder, monkeypatch):
    """Fails if a full or failing disk takes the old corpus along."""
    rename = Path.rename

    def failing(self, target):
        if self.suffix == ".partial":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(InputError, match="faq could not be written .No space"):
        replace(folder)
    assert (folder / "rows").read_text() == "old" and [path.name for path in folder.parent.iterdir()] == ["faq"]


def test_a_new_folder_never_replaces_one_that_came_meanwhile(folder):
    """Fails if a model that another machine wrote in the meantime is overwritten without being asked."""
    with pytest.raises(InputError, match="faq could not be written .*not empty"), complete_folder(folder) as partial:
        (partial / "rows").touch()
    assert (folder / "rows").read_text() == "old"


def test_each_process_has_its_own_partial_folder(folder):
    """Fails if two jobs that write one folder, or one file of a cache, mix what they write."""
    with complete_folder(folder, overwrite=True) as one, complete_folder(folder, overwrite=True) as two:
        (one / "rows").write_text("one")
        (two / "rows").write_text("two")
        assert one.name.startswith(".faq.") and (one / "rows").read_text() == "one"
    assert (folder / "rows").read_text() == "one", "the outer block ends last"
    with partial_file(folder / "rows") as one, partial_file(folder / "rows") as two:
        one.write_text("one")
        two.write_text("two")
    assert (folder / "rows").read_text() == "one" and len(list(folder.iterdir())) == 1


def test_links_are_followed(folder):
    """Fails if a corpus on another disk lands in place of the link to it, or a link to nothing is a traceback."""
    link, nothing = folder.parent / "link", folder.parent / "nothing"
    link.symlink_to(folder)
    nothing.symlink_to("/no/such/disk")
    replace(link)
    assert link.is_symlink() and (folder / "rows").read_text() == "new"
    (folder.parent / "rows").symlink_to(folder / "rows")
    atomic.write_atomically(folder.parent / "rows", "by link")
    assert (folder.parent / "rows").is_symlink() and (folder / "rows").read_text() == "by link"
    for writes in (complete_folder, locked, lambda folder: filled_folder(folder, "", print)):
        with pytest.raises(InputError, match="nothing is a link to /no/such/disk"), writes(nothing):
            pass


HOLD = """
import sys, time
from cosent.atomic import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_job_is_told_who_is_there(folder):
    """Fails if two jobs write one folder, one that was killed blocks its own restart, a job refuses its own trainer, or
    a lock stays."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"held\n"
        for _ in range(2):
            with pytest.raises(InputError, match="in use"), locked(folder):
                pass
    finally:
        process.kill()
        process.communicate()
    with locked(folder), locked(str(folder)):
        assert (folder.parent / ".faq.lock").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["faq"]


def test_a_place_that_cannot_be_locked_is_warned_of(folder, monkeypatch, caplog):
    """Fails if a file system without locks, or a folder that only others may write, ends a job in a traceback."""
    monkeypatch.setattr(atomic.FileLock, "acquire", Mock(side_effect=OSError(37, "No locks available")))
    with caplog.at_level(logging.WARNING), locked(folder):
        pass
    assert "faq cannot be locked ([Errno 37] No locks available)" in caplog.text


def test_a_file_is_whole_or_as_it_was(tmp_path):
    """Fails if text is not UTF-8 with LF on every system, an error half-way (a full disk, Ctrl-C) damages the file that
    was there, or a partial file stays next to it."""
    file = tmp_path / "run.json"
    write_atomically(str(file), b"\x00\xff")
    assert file.read_bytes() == b"\x00\xff"
    write_atomically(file, "你好\n")
    with pytest.raises(KeyboardInterrupt), partial_file(file) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt
    assert file.read_bytes() == "你好\n".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_what_a_killed_process_left_is_removed(tmp_path):
    """Fails if every kill leaves a file for ever, or one that another process still writes is removed."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    machine = re.sub(r"[^A-Za-z0-9]", "", socket.gethostname())
    left, others, of_ours, unrelated = (
        tmp_path / f"{name}-0123abcd.partial"
        for name in (
            f"a.npy.{machine}-{ended.pid}",
            f"a.npy.other{machine}-{ended.pid}",
            f"a.npy.{machine}-{os.getpid()}",
            f"b.npy.{machine}-{ended.pid}",
        )
    )
    for file in (left, others, of_ours, unrelated):
        file.write_bytes(b"half")
    write_atomically(tmp_path / "a.npy", b"whole")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "a.npy", others, of_ours, unrelated])


def flip(file, place: int = -9) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_models_are_those_that_were_sealed(name):
    """Fails if a shipped model was changed and not sealed again: nobody could load it."""
    listed = sealed_files(local(name))
    assert not list(faults(local(name)))
    assert set(listed) == {path.relative_to(local(name)).as_posix() for path in model_files(local(name))}
    assert {"config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json", "run.json"} <= set(listed)


def test_a_trained_folder_that_is_not_what_it_was(bi_run, tmp_path):
    """Fails if a model with a flipped bit, a missing module, half a tokenizer or half a list of its files is read."""
    damages = {
        "model.safetensors": flip,
        "1_Pooling/config.json": lambda file: file.unlink(),
        "tokenizer.json": lambda file: os.truncate(file, 9),
        SEAL: lambda file: os.truncate(file, 40),
    }
    for number, (name, damage) in enumerate(damages.items()):
        folder = shutil.copytree(bi_run.folder, tmp_path / str(number))
        load_model(str(folder))
        damage(folder / name)
        with pytest.raises(InputError, match=re.escape(str(folder))):
            load_model(str(folder))


def test_what_may_change_in_a_folder(lora_run, tmp_path):
    """Fails if a note, an edited card, setting or tokenizer, or a download without the adapter stops a model from being
    read."""
    folder = shutil.copytree(lora_run.folder, tmp_path / "run")
    assert "adapter/adapter_model.safetensors" in sealed_files(folder)
    shutil.rmtree(folder / "adapter")
    (folder / "onnx").mkdir()
    for name in ("README.md", "onnx/model.onnx", "notes.txt", ".gitattributes"):
        (folder / name).write_text("new")
    for name in ("config.json", "tokenizer_config.json", "run.json"):
        (folder / name).write_text((folder / name).read_text(encoding="utf-8") + "\n", encoding="utf-8")
    load_model(str(folder))


def test_a_model_that_is_saved_over_a_sealed_one(bi_run, tmp_path):
    """Fails if Python code that changes a trained model and saves it in place gets a folder that cannot be read.

    Or if the new model answers with the thresholds of the one before.
    """
    folder = shutil.copytree(bi_run.folder, tmp_path / "run")
    assert decision_rules(folder)
    model = load_model(str(folder))
    model.truncate(8)
    model.save_pretrained(folder)
    assert SentenceEncoder.from_pretrained(str(folder)).embedding_dimension == 8
    assert not decision_rules(folder)
