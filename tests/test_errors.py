"""What goes wrong while a file is read or written ends in a message of one line, and what is our own fault does not."""

import errno
import subprocess
import sys

import numpy as np
import pytest
from datasets.exceptions import DatasetGenerationError
from safetensors import SafetensorError
from tokenizers import Tokenizer

from cosent.errors import InputError, messages_for_users, reading, writing


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EROFS, "Read-only", "a.npy"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
        OSError("57504 requested and 0 written"),  # NumPy's has no number
        RuntimeError("[enforce fail at inline_container.cc:626] . unexpected pos"),
        RuntimeError("Symlink loop from 'a.npy'"),
    ],
)
def test_what_cannot_be_written_is_a_message(tmp_path, error):
    """Fails if a full or read-only disk is a traceback, also below the error of a library."""
    with pytest.raises(InputError, match=r"a\.npy could not be written"), writing(tmp_path / "a.npy"):
        raise error
    with pytest.raises(InputError, match=r"a\.npy could not be written"), writing(tmp_path / "a.npy"):
        raise DatasetGenerationError("An error occurred") from error


@pytest.mark.parametrize("error", [KeyError("a"), RuntimeError("shapes"), KeyboardInterrupt(), InputError("said")])
def test_faults_of_our_own_stay_as_they_are_while_writing(tmp_path, error):
    """Fails if a mistake of the code, Ctrl-C or a message is turned into one about the disk."""
    with pytest.raises(type(error)) as raised, writing(tmp_path / "a"):
        raise error
    assert raised.value is error


def test_damaged_files_of_every_kind_are_named(tmp_path):
    """Fails if a torn archive, a nested JSON, or a tokenizer that the Rust library refuses is a traceback."""
    file = tmp_path / "a.file"
    file.write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(InputError, match="a.file"), reading(file):
        np.load(file)
    file.write_text("{", encoding="utf-8")
    with (
        pytest.raises(InputError, match=r"a.file cannot be read .*line 1.*Encode"),
        reading(file, advice="Encode again."),
    ):
        Tokenizer.from_file(str(file))
    with pytest.raises(InputError, match="RecursionError"), reading(file):
        raise RecursionError("maximum recursion depth exceeded")
    with pytest.raises(InputError, match="No such file.*Check the path"), reading(file):
        (tmp_path / "missing").read_bytes()


def test_jobs_end_with_the_name_of_the_file_that_they_cannot_open(tmp_path, capsys):
    """Fails if a folder that is a file ends a job with a traceback, or an error without a file loses its own."""
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended, messages_for_users():
        (tmp_path / "file" / "a").write_text("", encoding="utf-8")
    assert ended.value.code == 2 and f"{tmp_path}/file/a" in capsys.readouterr().err
    with pytest.raises(OSError, match="no file at all"), messages_for_users():
        raise OSError("no file at all")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of Windows break with another error")
def test_a_reader_that_goes_ends_a_job_in_silence():
    """Fails if `cosent similarity ... | head` ends in a trace, or a pipe that is not stdout breaks without one."""
    lines = "from cosent.errors import messages_for_users\nwith messages_for_users():\n    "
    for code, status, silent in (
        ("[print(line) for line in range(100_000)]", 141, True),
        ("raise BrokenPipeError", 1, False),
    ):
        with subprocess.Popen([sys.executable, "-c", lines + code], stdout=-1, stderr=-1) as job:
            job.stdout.readline()
            job.stdout.close()
            assert (job.stderr.read() == b"") == silent
        assert job.returncode == status
