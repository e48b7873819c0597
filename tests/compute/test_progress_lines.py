"""A bar in a file is a line every 10%, and a bar on a terminal is what it was."""

import io
import re

import pytest
from tqdm.auto import tqdm
from tqdm.std import tqdm as tqdm_of_all

from cosent import cli as progress_lines
from cosent.cli import use_progress_lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def lines(monkeypatch):
    """Lines as in a job, without waiting between two of them."""
    for name in ("display", "clear", "told"):
        monkeypatch.setattr(tqdm_of_all, name, vars(tqdm_of_all).get(name), raising=False)  # set back afterwards
    monkeypatch.setattr(progress_lines, "SECONDS", 0.0)
    use_progress_lines()


def written(file: io.StringIO, total: int | None = 400, **options) -> str:
    """What a bar leaves in a file."""
    with tqdm(total=total, file=file, desc="Work", mininterval=0, miniters=1, **options) as bar:
        for _ in range(400):
            bar.update()
    return file.getvalue()


def test_a_file_gets_a_line_every_tenth(lines):
    """Fails if a log holds thousands of carriage returns, or the last line is missing or not ended."""
    text = written(io.StringIO())
    assert "\r" not in text and text.endswith("\n") and "█" not in text
    found = re.findall(r"^Work: +(\d+)% (\d+)/400 \[.*\]$", text, re.MULTILINE)
    assert found == [(str(10 * tenth), str(40 * tenth)) for tenth in range(1, 11)]
    assert len(text.splitlines()) == 10


def test_short_work_gets_one_line(lines, monkeypatch):
    """Fails if bars of a second fill a log with ten lines each, or those of evaluations with any."""
    monkeypatch.setattr(progress_lines, "SECONDS", 10.0)
    assert re.fullmatch(r"Work: 100% 400/400 \[.*\]\n", written(io.StringIO()))
    assert written(io.StringIO(), leave=False) == ""


def test_a_bar_that_stops_says_where(lines):
    """Fails if the log of a failed job shows only the last tenth."""
    file = io.StringIO()
    with pytest.raises(RuntimeError), tqdm(total=400, file=file, mininterval=0) as bar:
        bar.update(57)
        raise RuntimeError
    assert file.getvalue().splitlines()[-1].startswith("14% 57/400 ")


def test_a_total_that_grows_or_is_not_known(lines, monkeypatch):
    """Fails if encoding the second file of many, or a stream, shows nothing."""
    file = io.StringIO()
    with tqdm(total=10, file=file, mininterval=0, miniters=1) as bar:
        for _ in range(10):
            bar.update()
        bar.total = 40
        for _ in range(30):
            bar.update()
    assert [int(share) for share in re.findall(r"(\d+)%", file.getvalue())][-7:] == [40, 50, 60, 70, 80, 90, 100]
    monkeypatch.setattr(progress_lines, "SECONDS_WITHOUT_TOTAL", 0.0)
    assert "Work: 7it [" in written(io.StringIO(), total=None)
    monkeypatch.setattr(progress_lines, "SECONDS_WITHOUT_TOTAL", 60.0)
    assert re.fullmatch(r"Work: 400it \[.*\]\n", written(io.StringIO(), total=None))


def test_lines_written_above_a_bar_stay_whole(lines):
    """Fails if log lines are cut by carriage returns, as those of Trainer's callback would be."""
    file = io.StringIO()
    with tqdm(total=400, file=file) as bar:
        bar.write("epoch 1.00  loss 0.5", file=file)
    assert file.getvalue().splitlines()[0] == "epoch 1.00  loss 0.5" and "\r" not in file.getvalue()


def test_a_terminal_keeps_its_bars(lines, monkeypatch):
    """Fails if somebody who watches gets lines instead of a bar."""
    text = written(Terminal())
    monkeypatch.setattr(tqdm_of_all, "display", progress_lines.on_terminal)
    monkeypatch.setattr(tqdm_of_all, "clear", progress_lines.cleared_on_terminal)
    shown, stock = (re.sub(r"\[.*?\] *", "", each) for each in (text, written(Terminal())))  # without times
    assert shown == stock and shown.count("\r") > 100


def test_only_the_first_process_shows_bars(lines, monkeypatch):
    """Fails if eight processes write eight bars, to a file or to a terminal."""
    monkeypatch.setenv("RANK", "1")
    assert written(io.StringIO()) == written(Terminal()) == ""
    monkeypatch.setenv("RANK", "0")
    assert written(io.StringIO())


def test_a_training_in_a_log(lines, train, make_corpus, pairs, capfd):
    """Fails if the bars of Trainer or of datasets still write carriage returns, or say not what they count."""
    train(make_corpus({"train": pairs, "validation": pairs[:32]}), "--disable_tqdm", "false")
    text = capfd.readouterr().err
    assert "\r" not in text and "█" not in text
    assert re.findall(r"^Training: +(\d+)% (\d)/8 \[", text, re.MULTILINE)[-1] == ("100", "8")
    assert re.search(r"^Tokenising: 100% 64/64 \[", text, re.MULTILINE)
    assert re.search(r"^epoch 2.00  step 8  eval_spearman ", text, re.MULTILINE), "log lines are whole"
