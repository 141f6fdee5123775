"""The end of the event loop (broker/process/event_loop.py)."""

from __future__ import annotations

import asyncio
from typing import Any

from broker.process.event_loop import end_tasks, new_loop
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
