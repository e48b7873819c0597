"""Progress bar of a study."""

import sys
from threading import Lock

from tqdm import tqdm

from cosent.studies.definition import Run


class Progress:
    """Progress bar of a study, which moves with the epochs of the active runs and estimates the remaining time.

    Args:
        work: pairs to train on, by run.
    """

    def __init__(self, work: dict[Run, float]):
        self.work, self.shares, self.done, self.lock = work, dict.fromkeys(work, 0.0), 0, Lock()
        form = "{desc} {percentage:3.0f}% |{bar}| {elapsed}, {remaining} left"
        self.bar = tqdm(total=sum(work.values()), bar_format=form, desc=self.description(), disable=not work)

    def description(self) -> str:
        return f"{self.done}/{len(self.work)} runs"

    def advance(self, run: Run, share: float, finished: bool = False) -> None:
        with self.lock:
            self.shares[run] = max(share, self.shares[run])
            self.done += finished
            n = sum(share * self.work[run] for run, share in self.shares.items())
            # On a terminal the clock is refreshed; a log file gets a line only for news.
            news = finished or n != self.bar.n or sys.stderr.isatty()
            self.bar.n = n
            self.bar.set_description_str(self.description(), refresh=news)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.bar.close()
