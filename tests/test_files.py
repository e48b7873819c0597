import multiprocessing

import pytest

from cosent.files import partial_file, write_atomically


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
