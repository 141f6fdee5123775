"""The timer of the event loop (broker/process/timer.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from broker.process import timer
from broker.process.timer import LATE_MS, LoopTimer
from replication.timer_queue import TimerQueue


class FakeLoop:
    """Runs callbacks on request; the test moves its clock."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.later: list[tuple[float, asyncio.Handle]] = []
        self.soon: list[asyncio.Handle] = []
        self._own = asyncio.new_event_loop()

    def close(self) -> None:
        self._own.close()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.Handle:
        handle = asyncio.Handle(callback, (), self._own)
        self.later.append((self.now_ms + delay_s * 1000, handle))
        return handle

    def call_soon(self, callback: Callable[[], None]) -> asyncio.Handle:
        self.soon.append(asyncio.Handle(callback, (), self._own))
        return self.soon[-1]

    def run_timers(self) -> None:
        due = [handle for at_ms, handle in self.later if at_ms <= self.now_ms]
        self.later = [(at_ms, handle) for at_ms, handle in self.later if at_ms > self.now_ms]
        for handle in due:
            _run(handle)

    def run_soon(self) -> None:
        line, self.soon = self.soon, []
        for handle in line:
            _run(handle)


def _run(handle: asyncio.Handle) -> None:
    if not handle.cancelled():
        handle._run()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    fake = FakeLoop()
    monkeypatch.setattr(timer, "mono_ms", lambda: fake.now_ms)
    yield fake
    fake.close()


def test_a_punctual_loop_runs_deadlines_when_they_are_due(loop: FakeLoop) -> None:
    timers, ran = TimerQueue(), []
    LoopTimer(loop, timers)  # type: ignore[arg-type]
    timers.schedule(1050, lambda: ran.append(1))
    timers.schedule(1020, lambda: ran.append(2))
    loop.now_ms = 1020
    loop.run_timers()
    assert ran == [2]
    loop.now_ms = 1050
    loop.run_timers()
    assert ran == [2, 1]


def test_a_late_loop_polls_sockets_and_runs_reports_before_deadlines(loop: FakeLoop) -> None:
    timers, ran = TimerQueue(), []
    LoopTimer(loop, timers)  # type: ignore[arg-type]
    heard_from_a_client = timers.schedule(1010, lambda: ran.append("client"))
    heard_from_a_thread = timers.schedule(1010, lambda: ran.append("thread"))
    timers.schedule(1010, lambda: ran.append("deadline"))
    loop.now_ms = 1010 + LATE_MS
    loop.run_timers()
    heard_from_a_client.cancel()
    loop.call_soon(heard_from_a_thread.cancel)
    loop.now_ms += 1
    loop.run_timers()
    assert not ran
    loop.run_soon()
    assert ran == ["deadline"]


def test_a_stopped_timer_runs_nothing(loop: FakeLoop) -> None:
    timers, ran = TimerQueue(), []
    stopped = LoopTimer(loop, timers)  # type: ignore[arg-type]
    timers.schedule(1010, lambda: ran.append(1))
    loop.now_ms = 1010 + LATE_MS
    loop.run_timers()
    loop.now_ms += 1
    loop.run_timers()
    stopped.stop()
    loop.run_soon()
    assert not ran
