"""A call that has to come back, of a library that cannot be told so.

RULES    1. The call runs in a thread of its own. Where it has not come back in time, the thread is given up: it ends with its
            process, which ends soon, since its job has failed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from barnabas.pipeline.errors import JobError

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T], otherwise: str) -> T:
    """What the call answers or raises; a JobError with these words when it does neither in time."""
    ended = threading.Event()
    answers: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as failure:  # noqa: BLE001 - it is the caller's
            failures.append(failure)
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    if not ended.wait(seconds):
        raise JobError(otherwise)
    if failures:
        raise failures[0]
    return answers[0]
