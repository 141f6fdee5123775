"""One timer for all deadlines, and what it does when the loop comes late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from broker.process import timer
from broker.process.timer import LATE_MS, LoopTimer
from replication.timer_queue import Deadlines


class FakeLoop:
    """Runs what it is given when told to; its clock is moved by hand."""

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
        """One turn's timers."""
        due = [handle for at_ms, handle in self.later if at_ms <= self.now_ms]
        self.later = [(at_ms, handle) for at_ms, handle in self.later if at_ms > self.now_ms]
        for handle in due:
            _run(handle)

    def run_soon(self) -> None:
        """What stands in line."""
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


def test_a_punctual_loop_runs_what_is_due_at_once(loop: FakeLoop) -> None:
    """timer.py rule 1."""
    deadlines, ran = Deadlines(), []
    LoopTimer(loop, deadlines)  # type: ignore[arg-type]
    deadlines.schedule(1050, lambda: ran.append(1))
    deadlines.schedule(1020, lambda: ran.append(2))
    loop.now_ms = 1020
    loop.run_timers()
    assert ran == [2]
    loop.now_ms = 1050
    loop.run_timers()
    assert ran == [2, 1]


def test_nothing_is_over_before_what_came_in_meanwhile_is_heard(loop: FakeLoop) -> None:
    """timer.py rule 3: sockets are looked at, then reports that stand in line; only then is something late."""
    deadlines, ran = Deadlines(), []
    LoopTimer(loop, deadlines)  # type: ignore[arg-type]
    heard_from_a_client = deadlines.schedule(1010, lambda: ran.append("client"))
    heard_from_a_thread = deadlines.schedule(1010, lambda: ran.append("thread"))
    deadlines.schedule(1010, lambda: ran.append("nobody"))
    loop.now_ms = 1010 + LATE_MS
    loop.run_timers()
    heard_from_a_client.cancel()
    loop.call_soon(heard_from_a_thread.cancel)
    loop.now_ms += 1
    loop.run_timers()
    assert not ran
    loop.run_soon()
    assert ran == ["nobody"]


def test_a_timer_that_was_stopped_runs_nothing(loop: FakeLoop) -> None:
    """timer.py: not even what was late already."""
    deadlines, ran = Deadlines(), []
    stopped = LoopTimer(loop, deadlines)  # type: ignore[arg-type]
    deadlines.schedule(1010, lambda: ran.append(1))
    loop.now_ms = 1010 + LATE_MS
    loop.run_timers()
    loop.now_ms += 1
    loop.run_timers()
    stopped.stop()
    loop.run_soon()
    assert not ran
