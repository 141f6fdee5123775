"""What there is one of in the daemon's process: its event loop and its age."""

from __future__ import annotations

import asyncio
import os
import time


def process_age_s() -> float:
    """Seconds since this process was started, the interpreter's own start included."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            ticks = int(stat.read().rsplit(b")", 1)[1].split()[19])
    except OSError:  # no Linux
        return time.process_time()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def new_loop() -> asyncio.AbstractEventLoop:
    """The quickest event loop that is there."""
    try:
        import uvloop  # noqa: PLC0415  # not everywhere
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Have whoever is still on the way to another node give up: a connection that is made while the loop closes is a fault."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
