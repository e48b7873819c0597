"""Progress bar of a study."""

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
        options = {"bar_format": form, "unit": "pair", "unit_scale": True}
        self.bar = tqdm(total=sum(work.values()), desc=self.description(), disable=not work, **options)

    def description(self) -> str:
        return f"{self.done}/{len(self.work)} runs"

    def advance(self, run: Run, share: float, finished: bool = False) -> None:
        with self.lock:
            self.shares[run] = max(share, self.shares[run])
            self.done += finished
            self.bar.n = sum(share * self.work[run] for run, share in self.shares.items())
            self.bar.set_description_str(self.description())

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.bar.close()
