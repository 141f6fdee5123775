"""Calls functions of other packages that authenticate clients, in threads.

RULES    1. A function may block: it runs in one of a few daemon threads, and the client's connection waits. While all threads
            are busy, other logins with callbacks wait too; connected clients do not.
         2. An exception that is not a refusal is logged with its stack trace, and the client is refused.
NOT HERE What the functions are (`broker/config/sasl_callbacks.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final

from broker.security.sasl.oauthbearer import InvalidToken, ValidToken
from replication.completion import Completion

_log = logging.getLogger("barnabas.security")

_THREADS: Final = 4


class CallbackThreads:
    """The threads of a node; `call_soon` calls a function on the event loop, from any thread."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Completion[Any]]] = SimpleQueue()
        self._are_started = False

    def run(self, function: Callable[[], Any]) -> Completion[Any]:
        """The result of a function, or its exception."""
        if not self._are_started:
            self._are_started = True
            for number in range(_THREADS):
                Thread(target=self._run, name=f"sasl-callback-{number}", daemon=True).start()
        result: Completion[Any] = Completion()
        self._jobs.put((function, result))
        return result

    def _run(self) -> None:
        while True:
            function, result = self._jobs.get()
            try:
                report = partial(result.complete, function())
            except Exception as error:  # noqa: BLE001  # the caller handles it on the loop
                report = partial(result.fail, error)
            try:
                self._call_soon(report)
            except RuntimeError:  # the loop is closed: the node has stopped
                return


def password_check(
    threads: CallbackThreads, callback: Callable[[str, str], bool]
) -> Callable[[str, str], Completion[bool]]:
    """Checks passwords of PLAIN with a function."""

    def is_right(done: Completion[Any]) -> bool:
        if done.error is not None:
            _log.error("the callback of PLAIN failed", exc_info=done.error)
            return False
        return done.value is True

    return lambda user, password: threads.run(lambda: callback(user, password)).handle(is_right)


def token_check(
    threads: CallbackThreads, callback: Callable[[str], tuple[str, float]]
) -> Callable[[str], Completion[ValidToken]]:
    """Validates tokens of OAUTHBEARER with a function."""

    def valid(done: Completion[Any]) -> ValidToken:
        if done.error is not None:
            if not isinstance(done.error, ValueError):
                _log.error("the callback of OAUTHBEARER failed", exc_info=done.error)
            raise InvalidToken("the callback refused it")
        try:
            user, expires_s = done.value
            return ValidToken(str(user), int(expires_s * 1000))
        except (TypeError, ValueError, OverflowError):
            _log.exception("the callback of OAUTHBEARER returned no user and expiry")
            raise InvalidToken("the callback returned no user and expiry") from None

    return lambda token: threads.run(lambda: callback(token)).handle(valid)
