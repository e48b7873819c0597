"""Slices of what several clients ask: who waits for whom, and who gets what."""

import asyncio

import pytest

from cosent.compute.batches import Batches


class Client:
    """What `Batches` asks of a request."""

    def __init__(self, gone=False):
        self.gone = gone

    async def is_disconnected(self):
        return self.gone


def answers(batches: Batches, *requests, gone=()) -> list:
    """What each of several lists of things gets that are asked at once; `gone` are those whose client has left."""

    async def ask():
        asked = [asyncio.ensure_future(batches.results(things, Client())) for things in requests]
        await asyncio.sleep(0)
        for number in gone:
            asked[number].cancel()
        task = asyncio.create_task(batches.run())
        results = await asyncio.gather(*asked, return_exceptions=True)
        task.cancel()
        return results

    return asyncio.run(ask())


def test_a_client_that_has_gone():
    """Fails if something is computed for a client that has gone, or its results are given to the next one."""
    computed = []

    def compute(things):
        computed.extend(things)
        return [2 * thing for thing in things]

    gone, answer = answers(Batches(compute, 8), ["a", "b"], ["c"], gone=[0])
    assert isinstance(gone, InterruptedError) and answer == ["cc"] and computed == ["c"]

    async def leave():
        await Batches(compute, 8).results(["d"], Client(gone=True))

    with pytest.raises(ConnectionAbortedError):
        asyncio.run(leave())


def test_a_small_request_does_not_wait_for_large_ones():
    """Fails if a text waits for more than two slices while thousands of others are asked for."""
    slices = []

    def compute(things):
        slices.append(things)
        return things

    large = [[f"{number}{place}" for place in range(1500)] for number in "abc"]
    results = answers(Batches(compute, 100), *large, ["small"])
    assert results == [*large, ["small"]]
    assert any("small" in things for things in slices[:2]) and len(slices) > 4
    assert max(map(len, slices)) <= 1024


def test_a_text_that_fails():
    """Fails if the error of one request's text is the answer to those that were computed with it."""

    def compute(things):
        if "bad" in things:
            raise ValueError("bad")
        return things

    failed, answer = answers(Batches(compute, 8), ["good", "bad"], ["good"])
    assert isinstance(failed, ValueError) and answer == ["good"]
