"""A consumer that polls in a thread of its own; what else is asked of it is done between two polls."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

LIMIT_S = 60.0


class Polling:
    """The only thread that touches one consumer, from its first poll to its close."""

    def __init__(self, poll: Callable[[], list[dict[str, Any]]], close: Callable[[], None]) -> None:
        self.records: list[dict[str, Any]] = []
        self._poll, self._close = poll, close
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def call(self, what: Callable[[], Any]) -> Any:
        """Have something done between two polls."""
        answer: Future[Any] = Future()
        self._asked.put((what, answer))
        return answer.result(LIMIT_S)

    def leave(self) -> None:
        """Stop polling, and say goodbye to the group."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.records += self._poll()
            while not self._asked.empty():
                what, answer = self._asked.get()
                try:
                    answer.set_result(what())
                except Exception as error:  # noqa: BLE001 - whoever asked gets it
                    answer.set_exception(error)
        self._close()
