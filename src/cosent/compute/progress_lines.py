"""Progress bars as lines where the output is a file or a pipe: no carriage returns, one line every 10%.

All bars of a job are tqdm's: our own, and those of Trainer, `datasets` and other libraries.
"""

import time

from tqdm.std import tqdm

from cosent.compute.processes import is_first

SECONDS = 10.0  # at least, between two lines of a bar: what is done at once gets its last line only
SECONDS_WITHOUT_TOTAL = 60.0

on_terminal, cleared_on_terminal = tqdm.display, tqdm.clear


def use_progress_lines() -> None:
    """Replaces how tqdm displays its bars, in this process; on a terminal they stay as they are.

    Of processes that were launched together, only the first one shows any.
    """
    tqdm.told = None  # tenth and time of the last line of a bar
    tqdm.display, tqdm.clear = display, clear


def display(bar: tqdm, msg: str | None = None, pos: int | None = None) -> bool:
    """`tqdm.display`, which tqdm calls about ten times a second and when a bar is closed."""
    if not is_first():
        bar.leave = False  # no line break when it is closed
        return False
    if bar.fp.isatty():
        return on_terminal(bar, msg, pos)
    if bar.disable:  # about to be closed
        if msg is None:  # and to stay: tqdm adds the line break
            bar.fp.write(line(bar))
        return False
    tenth, now = int(10 * bar.n / bar.total) if bar.total else None, time.monotonic()
    if bar.told is None:
        bar.told = tenth, now
    told, at = bar.told
    pause = SECONDS if bar.total else SECONDS_WITHOUT_TOTAL
    if (tenth is None or tenth not in (told, 10)) and now - at >= pause:
        bar.told = tenth, now
        bar.fp.write(line(bar) + "\n")
        bar.fp.flush()
    return False


def clear(bar: tqdm, nolock: bool = False) -> None:
    """`tqdm.clear`, before a line is written above the bars: lines of a file stay where they are."""
    if is_first() and bar.fp.isatty():
        cleared_on_terminal(bar, nolock)


def line(bar: tqdm) -> str:
    """Description, share, count, time and rate of a bar."""
    return tqdm.format_meter(**bar.format_dict | {"ncols": 0}).strip()
