"""The watchdog of the event loop (broker/process/watchdog.py)."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator

import pytest

from broker.handlers.request_dispatcher import Dispatcher
from broker.handlers.router import RequestContext, Route, Router
from broker.process.watchdog import LOG_INTERVAL_S, STALL_S, Stall, StallLog, Watchdog, describe, describe_place
from protocol.api import ApiKey
from protocol.messages.metadata import MetadataRequest, MetadataResponse
from protocol.schema import Message
from tests.support.waiting import until
from tests.unit.broker.handlers.test_request_dispatcher import CONNECTION, frame_of


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_a_stall_is_counted_with_the_stack_during_it(
    loop: asyncio.AbstractEventLoop, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    watchdog = Watchdog(loop, log=lines.append)
    stalls: list[Stall] = []
    add = watchdog.stalls.add
    seen = threading.Event()

    def add_and_stop(stall: Stall, now_s: float) -> None:
        stalls.append(stall)
        add(stall, now_s)
        loop.call_soon_threadsafe(loop.stop)

    def stand_still(context: RequestContext, request: Message) -> Message:
        until(lambda: seen.is_set() or None, "the watchdog has looked at the stack")
        return MetadataResponse(brokers=[], topics=[])

    monkeypatch.setattr(watchdog.stalls, "add", add_and_stop)
    watchdog._replied = _Announcing(seen)
    dispatcher = Dispatcher(watchdog)
    dispatcher.serve(Router([Route(ApiKey.METADATA, 13, 13, stand_still)]))
    # The dispatcher is compiled on a compiled build: no frame of it is in the stack.
    loop.call_soon(dispatcher.dispatch, frame_of(MetadataRequest(topics=None), 13), CONNECTION, 0)
    loop.run_forever()
    watchdog.stop()
    assert any("stand_still" in stall.stack and stall.stack.endswith("; last request METADATA") for stall in stalls)
    assert watchdog.stalls.longest_s >= STALL_S
    assert "the event loop stalled" in lines[0]


class _Announcing(threading.Event):
    """Reports when it is waited for: the stack was captured."""

    def __init__(self, seen: threading.Event) -> None:
        super().__init__()
        self._seen = seen

    def wait(self, timeout: float | None = None) -> bool:
        self._seen.set()
        return super().wait(timeout)


def test_without_requests_the_watchdog_is_parked(loop: asyncio.AbstractEventLoop) -> None:
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


def test_the_first_request_starts_the_thread(loop: asyncio.AbstractEventLoop) -> None:
    watchdog = Watchdog(loop)
    assert watchdog.is_parked
    assert watchdog._thread is None
    watchdog.stop()


def test_stalls_are_logged_together_at_intervals(lines: list[str]) -> None:
    stalls = StallLog(lines.append)
    stalls.add(Stall(0.030, 0.001, "a"), 100.0)
    stalls.add(Stall(0.090, 0.080, "b"), 100.5)
    stalls.add(Stall(0.040, 0.002, "c"), 101.0)
    assert lines == ["the event loop stalled once, 30 ms (1 ms of CPU time) in a"]
    assert stalls.wait_s(101.0) == LOG_INTERVAL_S - 1.0
    stalls.log_due(100.0 + LOG_INTERVAL_S)
    assert lines[1:] == ["the event loop stalled 2 times, longest 90 ms (80 ms of CPU time) in b"]
    assert stalls.wait_s(106.0) is None
    stalls.log_summary()
    assert lines[2:] == ["the event loop stalled 3 times for more than 20 ms, 160 ms in total, longest 90 ms"]


def test_without_stalls_nothing_is_logged(lines: list[str]) -> None:
    StallLog(lines.append).log_summary()
    assert not lines


def test_the_innermost_call_of_a_stack_is_first() -> None:
    assert describe(sys._getframe()).startswith(
        "process/test_watchdog.py:test_the_innermost_call_of_a_stack_is_first <- "
    )
    assert describe(None) == "no Python"


def test_the_last_request_is_named_even_if_the_stack_was_not_captured() -> None:
    assert describe_place(None, ApiKey.FETCH) == "(it ended before its stack was captured); last request FETCH"
    assert describe_place("a <- b", None) == "a <- b"
