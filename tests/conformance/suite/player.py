"""Runs a scenario with one client against one broker.

RULES    1. Every run has its own names, so scenarios can run concurrently and repeatedly.
         2. A scenario with a step that its client cannot do is unsupported, with the driver's reason.
         3. A step that creates partitions ends when they are served, with any broker.
         4. After a failure the client's processes are restarted: the next scenario has a clean state.
NOT HERE What a step expects (`steps.py`), the driver's process (`driver_process.py`).
"""

from __future__ import annotations

import base64
import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

from protocol.errors import ErrorCode
from tests.conformance.suite.driver_process import Driver, DriverEnded, Refused, Unsupported
from tests.conformance.suite.partition_readiness import await_partitions
from tests.conformance.suite.steps import Naming, Record, Scenario, Step, mismatch
from tests.support.security_profiles import Login
from tests.support.waiting import until

EVENTUALLY_S = 40.0
AGAIN_S = 0.1
PASSED, UNSUPPORTED, FAILED = "passed", "unsupported", "failed"


class Outcome(NamedTuple):
    """The result of a scenario; the reason is empty if it passed."""

    state: str
    reason: str
    seconds: float


class StepFailed(AssertionError):
    """A response was not the expected one."""


class Player:
    """The processes of one client during a `with` block."""

    def __init__(
        self,
        command: Sequence[str],
        bootstrap: str,
        logins: Mapping[str, Login] | None = None,
        inside: str | None = None,
    ) -> None:
        """`logins` by the name of the process, "main" for all others; `inside` is an address without security."""
        self._command = command
        self._bootstrap = bootstrap
        self._logins = logins or {}
        self._inside = inside or bootstrap
        self._drivers: dict[str, Driver] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_all()

    def play(self, scenario: Scenario) -> Outcome:
        """Runs the steps until one fails."""
        started = time.monotonic()
        state, reason = PASSED, ""
        names = _Names()
        try:
            for number, step in enumerate(scenario.steps, 1):
                self._take(step, number, names)
            self._end_scenario()
        except Unsupported as why:
            state, reason = UNSUPPORTED, str(why)
            self._stop_all()
        except (StepFailed, DriverEnded) as why:
            state, reason = FAILED, str(why)
            self._stop_all()
        return Outcome(state, reason, time.monotonic() - started)

    def ask(self, verb: str, *, process: str = "main", **arguments: Any) -> dict[str, Any]:
        """One request outside of a scenario."""
        response = self._driver(process).ask(verb, _as_json(arguments))
        if verb in ("create_topic", "create_partitions"):
            await_partitions(self._inside, arguments["topic"], arguments["count"])
        return response

    def _take(self, step: Step, number: int, names: _Names) -> None:
        if step.verb == "kill":
            self._drivers.pop(step.process).kill()
            return
        arguments = names.within(step.arguments)
        expected = names.within(step.expected or {})
        where = f"step {number}, {step.verb}"
        if not step.is_eventual:
            fault = self._fault(step, arguments, expected)
            if fault is not None:
                raise StepFailed(f"{where}: {fault}")
            return
        last = ""

        def is_so() -> bool:
            nonlocal last
            last = self._fault(step, arguments, expected) or ""
            return not last

        try:
            until(is_so, where, EVENTUALLY_S, AGAIN_S)
        except AssertionError:
            raise StepFailed(f"{where}: within {EVENTUALLY_S:.0f} s only {last}") from None

    def _fault(self, step: Step, arguments: Mapping[str, Any], expected: Mapping[str, Any]) -> str | None:
        try:
            response = self._told(step, arguments)
        except Refused as refusal:
            name = error_name(refusal.code)
            if name in step.refusals:
                return None
            wanted = f" instead of {' or '.join(step.refusals)}" if step.refusals else ""
            return f"refused with {name}{wanted}: {refusal.message}"
        if step.refusals:
            return f"told {response} instead of being refused with {' or '.join(step.refusals)}"
        for key, value in expected.items():
            if (why := mismatch(value, response.get(key))) is not None:
                return f"{key}: {why}"
        return None

    def _told(self, step: Step, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if step.verb == "members":
            if (before := step.arguments.get("before")) is not None:
                self._told(before, arguments["before"])
            return self._members(arguments["names"])
        return self.ask(step.verb, process=step.process, **arguments)

    def _members(self, names: Sequence[str]) -> dict[str, Any]:
        """The combined assignments and records of a group's members."""
        response = []
        for name in names:
            member, _, process = name.partition("@")
            response.append(self._driver(process or "main").ask("member", {"member": member}))
        return {
            "shares": sorted(len(one["assigned"]) for one in response),
            "assigned": sorted(partition for one in response for partition in one["assigned"]),
            "values": {base64.b64decode(record["value"]) for one in response for record in one["records"]},
        }

    def _driver(self, process: str) -> Driver:
        if process not in self._drivers:
            login = self._logins.get(process, self._logins.get("main"))
            self._drivers[process] = Driver(self._command, self._bootstrap, login)
        return self._drivers[process]

    def _end_scenario(self) -> None:
        """Members leave and producers close; only the main process stays."""
        for process in [name for name in self._drivers if name != "main"]:
            self._drivers.pop(process).stop()
        if "main" in self._drivers:
            self._drivers["main"].ask("reset", {})

    def _stop_all(self) -> None:
        drivers, self._drivers = self._drivers, {}
        for driver in drivers.values():
            driver.stop()


class _Names:
    """The unique names of a run: $orders becomes orders-4f1c0a."""

    def __init__(self) -> None:
        self._end = secrets.token_hex(4)

    def within(self, value: Any) -> Any:
        """The value with all names replaced."""
        if isinstance(value, Naming):
            return value.make(self.within(value.value))
        if isinstance(value, Step):
            return self.within(value.arguments)
        if isinstance(value, str):
            return f"{value[1:]}-{self._end}" if value.startswith("$") else value
        if isinstance(value, Mapping):
            return {self.within(key): self.within(one) for key, one in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.within(one) for one in value)
        return value


def _as_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    if "records" not in arguments:
        return dict(arguments)
    return {**arguments, "records": [record.to_json() for record in arguments["records"]]}


def error_name(code: int | str) -> str:
    """The name of Kafka's error code; a client's own name is unchanged."""
    if isinstance(code, int):
        with contextlib.suppress(ValueError):
            return ErrorCode(code).name
    return str(code)


__all__ = ["FAILED", "PASSED", "UNSUPPORTED", "Outcome", "Player", "Record", "error_name"]
