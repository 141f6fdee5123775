"""The stall lines of a test run are those of the watchdog."""

from __future__ import annotations

from broker.process.watchdog import Stall, StallLog
from tests.support.stall_lines import StallLines, lines_of


def test_stall_lines_are_collected_once_and_without_the_summary() -> None:
    lines: list[str] = []
    stalls = StallLog(lines.append)
    for number, now_s in enumerate((0.0, 1.0, 2.0)):
        stalls.add(Stall(0.030 + number / 100, 0.0, f"call {number}"), now_s)
    stalls.log_summary()
    log = "".join(f"2026-11-21 12:00:00,000 WARNING barnabas.watchdog: {line}\n" for line in lines)
    found = lines_of(log)
    assert [line.rpartition(" in ")[2] for line in found] == ["call 0", "call 2"]

    plugin = StallLines()
    plugin.look("a", log)
    plugin.look("a", log)
    assert [line for _, line in plugin.found] == found
