"""Calls a library function with a timeout when the library has none.

RULES    1. The call runs in a daemon thread. After the timeout the thread is abandoned; the job fails and its process ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from barnabas.pipeline.errors import JobError

T = TypeVar("T")


def call_with_timeout(seconds: float, call: Callable[[], T], message: str) -> T:
    """Returns or raises the call's result; raises JobError(message) after the timeout."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as failure:  # noqa: BLE001 - it is the caller's
            result.set_exception(failure)

    threading.Thread(target=run, daemon=True).start()
    if not wait([result], seconds).done:
        raise JobError(message)
    return result.result()
