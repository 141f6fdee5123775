"""A pytest plugin that shows, at the end of a run, the event loop stalls of the brokers under test.

RULES    1. The log of every broker that a test starts through `barnabas.Broker` is read when its process ends.
         2. The workers of a parallel run send their lines to the main process.
         3. Stalls fail no test: a busy machine stalls a loop too.
"""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from barnabas.embedded import Broker

_LINE = re.compile(r"barnabas\.watchdog: (the event loop stalled (?:once|\d+ times), (?!.* in total).*)")
_LONGEST = re.compile(r"(\d+) ms")
_KEY = "stall_lines"
_SHOWN = 10


def lines_of(log: str) -> list[str]:
    """The watchdog's stall lines, without its summary."""
    return [found[1] for line in log.splitlines() if (found := _LINE.search(line))]


class StallLines:
    """Collects in every process of the run, prints in the main one."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        """Test and line."""
        self._patch = pytest.MonkeyPatch()
        self._seen: dict[str, int] = {}

    def attach(self) -> None:
        """Reads the log of every broker when its process ends."""
        plugin, end = self, Broker._end_process

        def end_and_look(broker: Broker, *, kill: bool) -> None:
            was_running = broker.is_running
            end(broker, kill=kill)
            if was_running:
                plugin.look(str(broker.log_path), broker.log())

        self._patch.setattr(Broker, "_end_process", end_and_look)

    def detach(self) -> None:
        """Restores `Broker`."""
        self._patch.undo()

    def look(self, path: str, log: str) -> None:
        """Adds the new lines of a broker's log."""
        lines = lines_of(log)
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
        self.found += [(test, line) for line in lines[self._seen.get(path, 0) :]]
        self._seen[path] = len(lines)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Sends the lines of a worker."""
        self.detach()
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_KEY] = self.found

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Receives the lines of a worker."""
        self.found += [tuple(entry) for entry in getattr(node, "workeroutput", {}).get(_KEY, [])]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the longest stalls."""
        if not self.found:
            return
        terminalreporter.section(f"stalls of event loops: {len(self.found)} lines")
        longest = sorted(self.found, key=lambda entry: -_longest_ms(entry[1]))
        for test, line in longest[:_SHOWN]:
            terminalreporter.line(f"{test}: {line}")


def _longest_ms(line: str) -> int:
    found = _LONGEST.search(line)
    return int(found[1]) if found else 0
