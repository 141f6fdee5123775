"""Shows at the end of a test run where the event loops of the brokers under test stood still (design D6).

RULES    1. Every broker that a test starts through `barnabas.Broker` is looked at, whichever way it ends.
         2. Processes of a parallel run hand their lines to the one that prints.
         3. It is shown, not judged: a machine that is busy with other things makes a loop wait too.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from barnabas.embedded import Broker

_LINE = re.compile(r"barnabas\.watchdog: (the loop stood still (?:once|\d+ times), (?!.* together).*)")
_LONGEST = re.compile(r"(\d+) ms")
_KEY = "stall_lines"
_SHOWN = 10


def lines_of(log: str) -> list[str]:
    """What the watchdog said, its closing sum left out."""
    return [found[1] for line in log.splitlines() if (found := _LINE.search(line))]


class StallLines:
    """The plugin: collects in every process of the run, prints in the first."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        """Test and line."""
        self._end = Broker._end
        self._seen: dict[str, int] = {}

    def attach(self) -> None:
        """Look at the log of every broker when its process has ended."""
        plugin, end = self, self._end

        def end_and_look(broker: Broker, *, kill: bool) -> None:
            was_running = broker.is_running
            end(broker, kill=kill)
            if was_running:
                plugin.look(str(broker.log_path), broker.log())

        setattr(Broker, "_end", end_and_look)  # noqa: B010  # mypy has no word for it

    def detach(self) -> None:
        """Leave brokers as they were."""
        setattr(Broker, "_end", self._end)  # noqa: B010

    def look(self, path: str, log: str) -> None:
        """Keep the lines that are new in a broker's log."""
        lines = lines_of(log)
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
        self.found += [(test, line) for line in lines[self._seen.get(path, 0) :]]
        self._seen[path] = len(lines)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand over what one process of a parallel run has found."""
        self.detach()
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_KEY] = self.found

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what another process has found."""
        self.found += [tuple(entry) for entry in getattr(node, "workeroutput", {}).get(_KEY, [])]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the longest."""
        if not self.found:
            return
        terminalreporter.section(f"stalls of event loops: {len(self.found)} lines")
        longest = sorted(self.found, key=lambda entry: -_longest_ms(entry[1]))
        for test, line in longest[:_SHOWN]:
            terminalreporter.line(f"{test}: {line}")


def _longest_ms(line: str) -> int:
    found = _LONGEST.search(line)
    return int(found[1]) if found else 0
