import multiprocessing
import os
import re
import socket
import subprocess
import sys

import pytest

from cosent.atomic import partial_file, write_atomically


def test_a_written_file_holds_the_content_and_nothing_else_is_left(tmp_path):
    """Fails if text is not UTF-8 with `\\n` on every system, or a partial file stays next to the result."""
    write_atomically(tmp_path / "a.json", "你好\n")
    write_atomically(str(tmp_path / "b.bin"), b"\x00\xff")
    assert (tmp_path / "a.json").read_bytes() == "你好\n".encode()
    assert (tmp_path / "b.bin").read_bytes() == b"\x00\xff"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.bin"]


def test_a_failed_write_keeps_the_earlier_file(tmp_path):
    """Fails if an error half-way (a full disk, Ctrl-C) loses or damages the file that was there before."""
    file = tmp_path / "run.json"
    write_atomically(file, "before")
    with pytest.raises(KeyboardInterrupt), partial_file(file) as partial:
        partial.write_text("half")
        assert file.read_text() == "before"
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert file.read_text() == "before"


def write_many(path, content, times):
    for _ in range(times):
        write_atomically(path, content)


def test_two_processes_can_write_the_same_file(tmp_path):
    """Fails if two runs that fill the same cache write into one partial file: a mixture of both would be read."""
    file, contents = tmp_path / "shared", [letter * 100_000 for letter in "ab"]
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(file, content, 50)) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert file.read_text() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]


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
