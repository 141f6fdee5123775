"""The stall lines that a test run collects are those that the watchdog writes."""

from __future__ import annotations

from broker.process.watchdog import Stall, Stalls
from tests.support.stall_lines import StallLines, lines_of


def test_what_the_watchdog_says_is_collected_without_its_closing_sum() -> None:
    """The two ends of the log agree on the form of a line; a broker that is restarted is not counted twice."""
    said: list[str] = []
    stalls = Stalls(said.append)
    for number, now_s in enumerate((0.0, 1.0, 2.0)):
        stalls.add(Stall(0.030 + number / 100, 0.0, f"call {number}"), now_s)
    stalls.tell_all()
    log = "".join(f"2026-11-21 12:00:00,000 WARNING barnabas.watchdog: {line}\n" for line in said)
    found = lines_of(log)
    assert [line.rpartition(" in ")[2] for line in found] == ["call 0", "call 2"]

    plugin = StallLines()
    plugin.look("a", log)
    plugin.look("a", log)
    assert [line for _, line in plugin.found] == found
