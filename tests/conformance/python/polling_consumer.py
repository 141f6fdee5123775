"""A consumer that polls in its own thread; other calls on it run between two polls."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.conformance.python.driver import Driver

CALL_LIMIT_S = 60.0


class PollingConsumer:
    """Only the thread touches the consumer, from its start to its close."""

    def __init__(self, driver: Driver, consumer: Any) -> None:
        self.consumer = consumer
        self.records: list[dict[str, Any]] = []
        self._driver = driver
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], Any]) -> Any:
        """Runs a function in the thread, between two polls."""
        result: Future[Any] = Future()
        self._calls.put((function, result))
        return result.result(CALL_LIMIT_S)

    def leave(self) -> None:
        """Stops polling and closes the consumer, which leaves the group."""
        self._stop.set()
        self._thread.join(CALL_LIMIT_S)

    def _run(self) -> None:
        self._driver.start_consumer(self.consumer)
        while not self._stop.is_set():
            self.records += self._driver.poll_member(self.consumer)
            while not self._calls.empty():
                function, result = self._calls.get()
                try:
                    result.set_result(function())
                except Exception as error:  # noqa: BLE001 - the caller raises it
                    result.set_exception(error)
        self._driver.close_consumer(self.consumer)
