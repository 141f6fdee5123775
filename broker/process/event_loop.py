"""The event loop of the daemon, and the age of its process."""

from __future__ import annotations

import asyncio
import os
import time


def process_age_s() -> float:
    """Seconds since the process was started, including the start of the interpreter."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            ticks = int(stat.read().rsplit(b")", 1)[1].split()[19])
    except OSError:  # not Linux
        return time.process_time()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def new_loop() -> asyncio.AbstractEventLoop:
    """A uvloop event loop if uvloop is installed, otherwise asyncio's."""
    try:
        import uvloop  # noqa: PLC0415  # optional
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancels all tasks: a connection that is established while the loop is closed would be a fault."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
