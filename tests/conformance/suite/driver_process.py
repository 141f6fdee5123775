"""A client driver in its own process, controlled by JSON lines.

RULES    1. One request at a time; a response that takes longer than ANSWER_S ends the process.
         2. The driver's standard error is stored, and its end is reported when the driver exits.
         3. No driver outlives its block.
NOT HERE How drivers are built (`clients.py`), the requests (`tables/`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.line_process import LineProcess, ProgramEnded
from tests.support.security_profiles import Login

ANSWER_S = 60.0


class DriverEnded(RuntimeError):
    """The driver exited, or did not answer in time."""


class Unsupported(RuntimeError):
    """The client library has no such function."""


class Refused(RuntimeError):
    """The broker or the client returned an error."""

    def __init__(self, code: int | str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Driver:
    """The process, until `stop` or `kill`."""

    def __init__(self, command: Sequence[str], bootstrap: str, login: Login | None = None) -> None:
        security = [] if login is None else [json.dumps(login._asdict())]
        self._process = LineProcess([*command, bootstrap, *security])
        self.stop = self._process.stop

    def ask(self, verb: str, arguments: Mapping[str, Any], within_s: float = ANSWER_S) -> dict[str, Any]:
        """The driver's result; raises `Unsupported`, `Refused` or `DriverEnded`."""
        timer = threading.Timer(within_s, self._process.kill)
        timer.start()
        try:
            answer = json.loads(self._process.ask(json.dumps({"verb": verb, **arguments})))
        except ProgramEnded as end:
            why = (
                f"no answer to {verb} within {within_s:.0f} s, so it"
                if timer.finished.is_set()
                else f"asked {verb}, it"
            )
            raise DriverEnded(f"{why} {end}") from None
        finally:
            timer.cancel()
        if "unsupported" in answer:
            raise Unsupported(answer["unsupported"])
        if "refused" in answer:
            raise Refused(answer["refused"], answer["message"])
        response: dict[str, Any] = answer["told"]
        return response

    def kill(self) -> None:
        self._process.kill()
        self.stop()
