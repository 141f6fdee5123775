"""A job is told to stop: SIGTERM or Ctrl-C, which terminals and supervisors send to Python alone or to its JVM as well.

RULES    1. The first wish interrupts the job wherever it is; a job that goes on until it is stopped ends well then.
         2. What fails after a wish is its consequence and not told: one sentence, and the exit code that shells give to
            the signal.
         3. A second Ctrl-C ends the process at once. A second SIGTERM does nothing: `timeout` sends two.
NOT HERE What is left when a job is interrupted: the same as when it is killed (`store/`, `sender.py`).
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self

AFTER_THE_FIRST = {signal.SIGINT: signal.SIG_DFL, signal.SIGTERM: signal.SIG_IGN}


class Stopped(Exception):
    """Somebody wished the job to stop, and it did."""

    def __init__(self, wish: signal.Signals) -> None:
        super().__init__(f"stopped by {'Ctrl-C' if wish == signal.SIGINT else wish.name}")
        self.exit_code = 128 + wish


class Stopping:
    """While this is entered, a wish becomes a KeyboardInterrupt, and what comes of that a `Stopped`."""

    def __init__(self) -> None:
        self._wish: signal.Signals | None = None

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in AFTER_THE_FIRST}
        self.listen()
        return self

    def listen(self) -> None:
        """Be the one who hears signals, whoever was until now."""
        for number in AFTER_THE_FIRST:
            signal.signal(number, self._hear)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._wish = signal.Signals(number)
        for other, disposition in AFTER_THE_FIRST.items():
            signal.signal(other, disposition)
        raise KeyboardInterrupt

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._wish is None:
            for number, handler in self._before.items():
                signal.signal(number, handler)
        if error is not None and (self._wish or isinstance(error, KeyboardInterrupt)):
            raise Stopped(self._wish or signal.SIGINT) from None
