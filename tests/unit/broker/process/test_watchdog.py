"""Stalls of the event loop: seen, counted, told of now and then (design D6)."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator

import pytest

from broker.process.watchdog import SAY_EVERY_S, STALL_S, Stall, Stalls, Watchdog, describe
from tests.support.waiting import until


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_a_stall_is_counted_with_the_call_it_was_in(loop: asyncio.AbstractEventLoop, said: list[str]) -> None:
    """Rule 1: the stack is taken while the loop stands still."""
    watchdog = Watchdog(loop, say=said.append)
    seen = threading.Event()

    def stand_still() -> None:
        watchdog.wake()
        until(lambda: seen.is_set() or None, "the watchdog has looked at the stack")

    watchdog._answered = _Announcing(seen)
    loop.call_soon(stand_still)
    loop.call_later(4 * STALL_S, loop.stop)
    loop.run_forever()
    watchdog.stop()
    assert any("stand_still" in stall.stack for stall in watchdog.stalls.recent)
    assert watchdog.stalls.longest_s >= STALL_S
    assert "the loop stood still" in said[0]


class _Announcing(threading.Event):
    """An answer that tells when it is waited for: when what there is to see was seen."""

    def __init__(self, seen: threading.Event) -> None:
        super().__init__()
        self._seen = seen

    def wait(self, timeout: float | None = None) -> bool:
        self._seen.set()
        return super().wait(timeout)


def test_without_requests_the_watchdog_sleeps(loop: asyncio.AbstractEventLoop) -> None:
    """Rule 3: after a while it is parked, and asks the loop nothing any more."""
    watchdog = Watchdog(loop)
    loop.call_soon(watchdog.wake)

    async def parked() -> None:
        await asyncio.to_thread(until, lambda: watchdog.is_parked or None, "the watchdog parks itself")

    loop.run_until_complete(parked())
    assert watchdog._thread is not None
    watchdog._loop = _DeadLoop()  # type: ignore[assignment]  # a question to it would end the thread
    assert watchdog._thread.is_alive()
    watchdog.stop()


class _DeadLoop:
    def call_soon_threadsafe(self, *_: object) -> None:
        raise RuntimeError("Event loop is closed")


def test_a_broker_without_requests_has_no_watching_thread(loop: asyncio.AbstractEventLoop) -> None:
    """Rule 3: the thread is made by the first request."""
    watchdog = Watchdog(loop)
    assert watchdog.is_parked
    assert watchdog._thread is None
    watchdog.stop()


def test_stalls_are_told_of_together_at_most_every_few_seconds(said: list[str]) -> None:
    """Rule 4: one line for the first, one for all that came while it was too early to speak again."""
    stalls = Stalls(said.append)
    stalls.add(Stall(0.030, 0.001, "a"), 100.0)
    stalls.add(Stall(0.090, 0.080, "b"), 100.5)
    stalls.add(Stall(0.040, 0.002, "c"), 101.0)
    assert said == ["the loop stood still once, 30 ms (1 ms of processor time) in a"]
    assert stalls.wait_s(101.0) == SAY_EVERY_S - 1.0
    stalls.tell(100.0 + SAY_EVERY_S)
    assert said[1:] == ["the loop stood still 2 times, at the longest 90 ms (80 ms of processor time) in b"]
    assert stalls.wait_s(106.0) is None
    stalls.tell_all()
    assert said[2:] == ["the loop stood still 3 times for more than 20 ms, 160 ms together, 90 ms at the longest"]


def test_a_quiet_life_is_not_spoken_of(said: list[str]) -> None:
    """Rule 4: no line where there was no stall."""
    Stalls(said.append).tell_all()
    assert not said


def test_the_innermost_call_of_a_stack_comes_first() -> None:
    """The line says what the loop waits in before it says how it came there."""
    assert describe(sys._getframe()).startswith(
        "process/test_watchdog.py:test_the_innermost_call_of_a_stack_comes_first <- "
    )
    assert describe(None) == "no Python"
