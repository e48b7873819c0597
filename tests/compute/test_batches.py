"""Slices of what several clients ask: who waits for whom, and who gets what."""

import asyncio
import time

import pytest

from cosent.compute import batches
from cosent.compute.batches import LEAST, Batches, Work, cost


def answers(*requests, gone=()) -> list:
    """What each of several requests, a `Work` and its things, gets if all come at once; `gone` are cancelled."""

    async def ask():
        queue = Batches()
        asked = [asyncio.ensure_future(queue.results(work, things)) for work, things in requests]
        await asyncio.sleep(0)
        for number in gone:
            asked[number].cancel()
        await asyncio.sleep(0)
        task = asyncio.create_task(queue.run())
        results = await asyncio.gather(*asked, return_exceptions=True)
        task.cancel()
        return results

    return asyncio.run(ask())


def test_a_request_that_is_cancelled():
    """Fails if something is computed for a request that nobody waits for, or its results are given to the next one."""
    computed = []

    def compute(things):
        computed.extend(things)
        return [2 * thing for thing in things]

    work = Work(compute)
    gone, answer = answers((work, ["a", "b"]), (work, ["c"]), gone=[0])
    assert isinstance(gone, asyncio.CancelledError) and answer == ["cc"] and computed == ["c"]


def test_a_small_request_does_not_wait_for_large_ones():
    """Fails if a text waits for more than two slices of each kind of work while thousands of others are asked for."""
    slices = []

    def compute(things):
        slices.append(things)
        return things

    texts, others = Work(compute), Work(compute)
    large = [[f"{number}{place}" for place in range(1500)] for number in "abc"]
    pairs = [(number, "好" * 50) for number in map(str, range(1500))]
    results = answers(
        *((texts, things) for things in large), (others, pairs), (texts, ["small"]), (others, [("x", "y")])
    )
    assert results == [*large, pairs, ["small"], [("x", "y")]]
    assert any("small" in things for things in slices[:3]) and any(("x", "y") in things for things in slices[:3])
    assert all(len({type(thing) for thing in things}) == 1 for things in slices), "two kinds of work in one call"
    assert len(slices) > 4
    assert any("small" in things and len(things) > 1 for things in slices), "clients share no batch"


@pytest.mark.parametrize(("slice_seconds", "sizes"), [(0.001, [1, 1, 1]), (10.0, [1, 2, 4])])
def test_slices_follow_the_speed_within_bounds(monkeypatch, slice_seconds, sizes):
    """Fails if a slow machine gets slices of a text or two, whose time is overhead, or a fast one no larger ones."""
    monkeypatch.setattr(batches, "SLICE", slice_seconds)
    slices = []

    def compute(things):
        time.sleep(0.01)
        slices.append(sum(map(cost, things)))
        return things

    answers((Work(compute), ["好" * 48] * 400))  # a cost of 64 each
    assert [size / LEAST for size in slices[:3]] == sizes


def test_a_text_that_fails():
    """Fails if the error of one request's text is the answer to those that were computed with it."""

    def compute(things):
        if "bad" in things:
            raise ValueError("bad")
        return things

    work = Work(compute)
    failed, answer = answers((work, ["good", "bad"]), (work, ["good"]))
    assert isinstance(failed, ValueError) and answer == ["good"]
