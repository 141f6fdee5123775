"""Stops a job or a verb on SIGTERM or SIGINT, which terminals and supervisors may also send to its JVM.

RULES    1. The first signal raises KeyboardInterrupt in the job, or after a deferred part of it. A continuous job then
            ends normally.
         2. Failures after a signal are consequences of it and are not reported. The exit code is 128 + signal number.
         3. A second SIGINT ends the process at once. A second SIGTERM is ignored: `timeout` sends two.
NOT HERE The state of an interrupted job: as after a kill (`store/`, `sender.py`).
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

HANDLERS_AFTER_FIRST = {signal.SIGINT: signal.SIG_DFL, signal.SIGTERM: signal.SIG_IGN}


class Stopped(Exception):
    """A signal has stopped the job."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"stopped by {'Ctrl-C' if number == signal.SIGINT else number.name}")
        self.exit_code = 128 + number


class StopSignals:
    """A context manager: a signal raises KeyboardInterrupt inside, and `Stopped` on exit."""

    def __init__(self) -> None:
        self._signal: signal.Signals | None = None
        self._is_deferred = False

    def __enter__(self) -> Self:
        self._previous_handlers = {number: signal.getsignal(number) for number in HANDLERS_AFTER_FIRST}
        self.install()
        return self

    def install(self) -> None:
        """Installs the signal handlers, replacing those of others."""
        for number in HANDLERS_AFTER_FIRST:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signal = signal.Signals(number)
        for other, disposition in HANDLERS_AFTER_FIRST.items():
            signal.signal(other, disposition)
        if not self._is_deferred:
            raise KeyboardInterrupt

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """A part that the first signal does not interrupt; KeyboardInterrupt is raised after it."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        if self._signal is not None:
            raise KeyboardInterrupt

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._signal is None:
            for number, handler in self._previous_handlers.items():
                signal.signal(number, handler)
        if error is not None and (self._signal or isinstance(error, KeyboardInterrupt)):
            raise Stopped(self._signal or signal.SIGINT) from None
