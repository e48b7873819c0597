"""`Batches`: concurrent requests of several clients, computed in shared slices."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

BATCH, SLICE = 1024, 0.3  # things computed at a time, and about how many seconds that takes
WAITING = 256  # requests; one more is refused


@dataclass(eq=False)
class Asked:
    """A request in the queue."""

    things: list
    future: asyncio.Future
    taken: int = 0  # things that are or were computed
    results: list = field(default_factory=list)


def characters(thing: str | tuple) -> int:
    """Of a text, or of the texts of a pair."""
    return sum(map(len, (thing,) if isinstance(thing, str) else thing))


class Batches:
    """Computes waiting requests in a thread, round robin, in slices of about `SLICE` seconds.

    So a small request waits for one or two slices, however large its neighbours are, and nothing is computed for a
    client that has gone. Requests that wait together are computed in one call of `compute`.

    Args:
        compute: a list of things, texts or pairs of them -> a result for each.
        longest: tokens that the model reads of a thing, a bound of its work.
        characters: of a thing.
    """

    def __init__(
        self, compute: Callable[[list], Iterable], longest: int, characters: Callable[[Any], int] = characters
    ):
        self.compute, self.longest, self.characters = compute, longest, characters
        self.waiting: deque[Asked] = deque()
        self.arrived = asyncio.Event()
        self.room = 2048.0  # work of the next slice, as `work` counts it

    async def results(self, things: list, request) -> list:
        """The results of things; `asyncio.QueueFull` if too many requests wait, `ConnectionError` without a client.

        `InterruptedError` if the server stops first.
        """
        if len(self.waiting) >= WAITING:
            raise asyncio.QueueFull
        asked = Asked(things, asyncio.get_running_loop().create_future())
        self.waiting.append(asked)
        self.arrived.set()
        try:
            while not (await asyncio.wait([asked.future], timeout=0.5))[0]:
                if await request.is_disconnected():
                    raise ConnectionAbortedError
            return asked.future.result()
        except asyncio.CancelledError:  # by uvicorn, `GRACE` seconds after SIGTERM
            raise InterruptedError from None
        finally:
            asked.future.cancel()  # if nobody waits for it any more

    async def run(self) -> None:
        """Answers requests for ever."""
        while True:
            if not (shares := self.next_slice()):
                self.arrived.clear()
                await self.arrived.wait()
                continue
            started = time.monotonic()
            await self.answer(shares)
            rate = sum(self.work(thing) for _, things in shares for thing in things) / (time.monotonic() - started)
            self.room = min(max(rate * SLICE, self.room / 4), self.room * 4)

    def work(self, thing: Any) -> int:
        """Cost of a text or a pair: about the number of its tokens, and a few for the overhead."""
        return 16 + min(self.characters(thing), self.longest)

    def next_slice(self) -> list[tuple[Asked, list]]:
        """The next slice: an equal share of each request, and more where others leave room."""
        shares: list[tuple[Asked, list]] = []
        room, count, share = self.room, 0, self.room / max(1, len(self.waiting))
        while self.waiting and room > 0 and count < BATCH:
            asked = self.waiting.popleft()
            if asked.future.done():
                continue
            start, end = asked.taken, room - min(share, room)
            while room > end and asked.taken < len(asked.things) and count < BATCH:
                room -= self.work(asked.things[asked.taken])
                asked.taken, count = asked.taken + 1, count + 1
            shares.append((asked, asked.things[start : asked.taken]))
            if asked.taken < len(asked.things):
                self.waiting.append(asked)
        return shares

    async def answer(self, shares: list[tuple[Asked, list]]) -> None:
        """Computes a slice; if that fails, each request's part alone, which fails no other."""
        try:
            results = iter(await asyncio.to_thread(self.compute, [thing for _, things in shares for thing in things]))
        except Exception as error:
            if len(shares) > 1:
                for share in shares:
                    await self.answer([share])
            elif not shares[0][0].future.done():
                shares[0][0].future.set_exception(error)
            return
        for asked, things in shares:
            asked.results += islice(results, len(things))
            if len(asked.results) == len(asked.things) and not asked.future.done():
                asked.future.set_result(asked.results)
