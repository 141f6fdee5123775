"""The event loop of the daemon, and the age of its process."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""End a node; the last one is sent when its terminal is closed."""


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


def on_stop_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Calls `stop` on the loop for each signal that ends a node, also for those that arrive before the loop runs.

    uvloop forgets a signal before it runs: its handlers begin when the loop begins. A SIGHUP that is ignored, as by nohup,
    stays ignored.
    """
    numbers = [number for number in STOP_SIGNALS if number != signal.SIGHUP or not _is_ignored(number)]

    def before_the_loop_runs(*_: object) -> None:
        if not loop.is_closed():  # otherwise the start has failed
            loop.call_soon(stop)

    def use_loop() -> None:
        for number in numbers:
            loop.add_signal_handler(number, stop)

    for number in numbers:
        signal.signal(number, before_the_loop_runs)
    loop.call_soon(use_loop)


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN


def close_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Ends all tasks and closes the loop of a process that is about to end, with the exit code that it has decided on.

    Closing restores the default handlers of signals: a repeated SIGTERM would end the process with an error.
    """
    end_tasks(loop)
    loop.close()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancels all tasks: a connection that is established while the loop is closed would be a fault."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks))
