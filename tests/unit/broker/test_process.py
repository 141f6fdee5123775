"""Guards broker/process.py: the end of the event loop."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

from broker.process import end_tasks, new_loop

BACKLOG = 0


def test_a_connection_that_is_on_its_way_gives_up_before_the_loop_closes() -> None:
    """Else it is made, or fails, amid the end of the loop, and that counts as a fault of the broker."""
    faults: list[dict[str, Any]] = []
    loop = new_loop()
    loop.set_exception_handler(lambda _loop, context: faults.append(context))
    with socket.socket() as listening, socket.socket() as first, socket.socket() as second:
        listening.bind(("127.0.0.1", 0))
        listening.listen(BACKLOG)
        for one in (first, second):  # nobody accepts, so there is no room for a third one
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(listening.getsockname())
        host, port = listening.getsockname()
        task = loop.create_task(loop.create_connection(asyncio.Protocol, host, port))
        loop.call_soon(loop.stop)  # behind the first step of the task
        loop.run_forever()
        end_tasks(loop)
        assert task.cancelled()
        loop.close()
    assert faults == []
