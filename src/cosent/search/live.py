"""`LiveIndex`: an index of changing files, for a long-running process."""

import logging
import os
from collections.abc import Callable, Sequence
from threading import Event, Lock
from typing import TYPE_CHECKING

from cosent.errors import InputError
from cosent.models.decision import DecisionRule
from cosent.search.index import Hit, Index

if TYPE_CHECKING:
    from cosent.models.text_model import TextModel

logger = logging.getLogger(__name__)

SECONDS = 2.0  # between two looks at the files

Question = tuple[str, int, tuple[tuple[str, float], ...]]  # query, and of `Index.search` the top and a limit by name


class LiveIndex:
    """Index of files, rebuilt when one of them changes; the old one answers until the new one is ready.

    A file that cannot be read keeps the old index, says so in the log, and is read again when it changes.

    Args:
        make: reads the files and makes an index of them.
        paths: of the files.
        rule: of the scores: those of the reranker if there is one.
    """

    def __init__(
        self,
        make: Callable[[], Index],
        paths: Sequence[str],
        rule: DecisionRule | None = None,
        reranker: "TextModel | None" = None,
    ):
        self.make, self.paths, self.rule, self.reranker = make, paths, rule, reranker
        self.seen = self.states()  # before they are read: what is written meanwhile is another state
        self.index = make()
        self.stopped, self.making = Event(), Lock()

    def states(self) -> list[tuple | None]:
        """State of each file, which changes when it is written, replaced or made readable; None if it is missing."""
        states: list[tuple | None] = []
        for path in self.paths:
            try:
                about = os.stat(path)
            except OSError:
                states.append(None)
            else:
                states.append((about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino))
        return states

    def refresh(self) -> None:
        """Rebuilds the index if a file has changed."""
        with self.making:
            if (states := self.states()) == self.seen:
                return
            self.seen = states
            try:
                index = self.make()
            except (OSError, ValueError) as error:  # half written, or gone while another program replaces it
                logger.warning("The %s sentences from before are searched: %s", f"{len(self.index):,}", error)
                return
            logger.info("%s sentences are searched now, %s before.", f"{len(index):,}", f"{len(self.index):,}")
            self.index = index

    def watch(self) -> None:
        """Looks at the files every `SECONDS` until `stopped` is set."""
        while not self.stopped.wait(SECONDS):
            self.refresh()

    def answers(self, questions: Sequence[Question]) -> list[list[Hit] | InputError]:
        """Hits of each question, or the reason why it is refused; questions with equal limits are searched together."""
        index = self.index  # one for all, whatever `watch` does meanwhile
        answers: list[list[Hit] | InputError] = [[]] * len(questions)
        alike: dict[tuple, list[int]] = {}
        for row, (_, *options) in enumerate(questions):
            alike.setdefault(tuple(options), []).append(row)
        for (top, limits), rows in alike.items():
            queries = [questions[row][0] for row in rows]
            found: Sequence[list[Hit] | InputError]
            try:
                found = index.search(queries, top, reranker=self.reranker, rule=self.rule, **dict(limits))
            except InputError as error:
                found = [error] * len(rows)
            for row, one in zip(rows, found, strict=True):
                answers[row] = one
        return answers
