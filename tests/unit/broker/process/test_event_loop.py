"""Signals before the event loop runs, and its end (broker/process/event_loop.py)."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any

import pytest

from broker.process.event_loop import STOP_SIGNALS, end_tasks, new_loop, on_stop_signals
from tests.support.accept_queue import full_listener


def test_a_pending_connection_is_cancelled_before_the_loop_closes() -> None:
    faults: list[dict[str, Any]] = []
    loop = new_loop()
    loop.set_exception_handler(lambda _loop, context: faults.append(context))
    with full_listener() as (host, port):
        task = loop.create_task(loop.create_connection(asyncio.Protocol, host, port))
        loop.call_soon(loop.stop)  # behind the first step of the task
        loop.run_forever()
        end_tasks(loop)
        assert task.cancelled()
        loop.close()
    assert faults == []


@pytest.mark.parametrize("make", [new_loop, asyncio.new_event_loop])
def test_a_signal_that_arrives_before_the_loop_runs_stops_the_node(make: Callable[[], AbstractEventLoop]) -> None:
    """uvloop forgets it; a node starts before its loop runs. A second signal, while it runs, counts as well."""
    loop, stops = make(), list[int]()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def stop() -> None:
        stops.append(len(stops))
        if len(stops) == 2:
            loop.stop()
        else:
            os.kill(os.getpid(), signal.SIGINT)

    try:
        on_stop_signals(loop, stop)
        os.kill(os.getpid(), signal.SIGTERM)
        loop.call_later(30, loop.stop)
        loop.run_forever()
    finally:
        loop.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    assert stops == [0, 1]
