"""`Batches`: requests of several clients, computed in shared slices by one thread."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

SLICE = 0.2  # seconds: a slice that took less may grow, one that took twice as long shrinks
LEAST = 1024  # cost of a slice; with less, most of its time is overhead
MOST_WAITING = 256  # requests; one more is refused


@dataclass(eq=False)
class Work:
    """Work of one kind: `compute` maps a list of things, texts or tuples with texts, to a result for each.

    Attributes:
        room: cost of the next slice.
    """

    compute: Callable[[list], Iterable]
    room: int = LEAST


def cost(thing: Any) -> int:
    """Cost of a thing: about its tokens."""
    texts = (thing,) if isinstance(thing, str) else (text for text in thing if isinstance(text, str))
    return 16 + sum(map(len, texts))


@dataclass(eq=False)
class Request:
    """A waiting request; its first `taken` things are computed or being computed."""

    work: Work
    things: list
    future: asyncio.Future
    taken: int = 0
    results: list = field(default_factory=list)


class Batches:
    """A queue of requests, computed round robin in slices of about `SLICE` seconds.

    So a small request waits for one or two slices of each kind of work, however large its neighbours are. Requests for
    the same work share a slice: one call of `compute`.
    """

    def __init__(self):
        self.waiting: list[Request] = []
        self.arrived = asyncio.Event()

    async def results(self, work: Work, things: list) -> list:
        """The result of each thing; `asyncio.QueueFull` if too many requests wait."""
        if len(self.waiting) >= MOST_WAITING:
            raise asyncio.QueueFull
        request = Request(work, things, asyncio.get_running_loop().create_future())
        self.waiting.append(request)
        self.arrived.set()
        return await request.future

    async def run(self) -> None:
        """Computes slices until it is cancelled."""
        while True:
            if not (parts := self.next_slice()):
                self.arrived.clear()
                await self.arrived.wait()
                continue
            work, started = parts[0][0].work, time.monotonic()
            await self.answer(parts)
            seconds = time.monotonic() - started
            # Behind those that came while it was computed.
            self.waiting += [request for request, _ in parts if request.taken < len(request.things)]
            if seconds > 2 * SLICE:
                work.room = max(work.room // 2, LEAST)
            elif seconds < SLICE and sum(cost(thing) for _, things in parts for thing in things) >= work.room:
                work.room *= 2

    def next_slice(self) -> list[tuple[Request, list]]:
        """The next slice: an even share of each request for the work of the first one, at most `room` in all."""
        self.waiting = [request for request in self.waiting if not request.future.done()]
        alike = [request for request in self.waiting if request.work is self.waiting[0].work]
        room = alike[0].work.room if alike else 0
        parts: list[tuple[Request, list]] = []
        for number, request in enumerate(alike):
            if room <= 0:
                break
            start, end = request.taken, room - room / (len(alike) - number)  # what the last one left is shared again
            while request.taken < len(request.things) and room > end:
                room -= cost(request.things[request.taken])
                request.taken += 1
            parts.append((request, request.things[start : request.taken]))
            self.waiting.remove(request)
        return parts

    async def answer(self, parts: list[tuple[Request, list]]) -> None:
        """Computes a slice; if that fails, the part of each request alone, which fails no other."""
        things = [thing for _, part in parts for thing in part]
        try:
            results = iter(await asyncio.to_thread(parts[0][0].work.compute, things))
        except Exception as error:
            if len(parts) > 1:
                for single in parts:
                    await self.answer([single])
            elif not parts[0][0].future.done():
                parts[0][0].future.set_exception(error)
            return
        for request, part in parts:
            request.results += islice(results, len(part))
            if len(request.results) == len(request.things) and not request.future.done():
                request.future.set_result(request.results)
