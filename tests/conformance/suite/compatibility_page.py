"""The table of clients and scenarios, for the terminal and for `docs/compatibility.md`.

RULES    1. A cell contains `yes`, or the number of a footnote with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tests.conformance.suite.matrix import NOT_WRITTEN, Cell
from tests.conformance.suite.player import FAILED, PASSED, Outcome
from tests.conformance.suite.steps import Scenario
from tests.conformance.suite.tables.all_scenarios import CLIENT_FAULTS, FLAKY, KNOWN_FAILURES, SCENARIOS
from tests.conformance.suite.tables.records import CODECS


class Results(NamedTuple):
    versions: Mapping[str, str]
    languages: Mapping[str, str]
    absent: Mapping[str, str]
    outcomes: Mapping[tuple[str, str], Outcome]
    cells: Mapping[tuple[str, str], Cell]

    def failures(self) -> list[str]:
        """Failures that are not known faults of a client, one sentence each."""
        found = [
            f"{client}: {name}: {outcome.reason}"
            for (client, name), outcome in self.outcomes.items()
            if outcome.state == FAILED and (client, name) not in CLIENT_FAULTS
        ]
        found += [
            f"{client}: {name}: it passes, and is listed as the client's own fault: take it from the list"
            for client, name in KNOWN_FAILURES
            if (client, name) in self.outcomes and self.outcomes[client, name].state == PASSED
        ]
        return found + faults_of(self.cells)


def faults_of(cells: Mapping[tuple[str, str], Cell]) -> list[str]:
    """Records that a client read otherwise than another one wrote them."""
    return [
        f"{writer} wrote, {reader} read: {fault}"
        for (writer, reader), cell in cells.items()
        for fault in cell.faults
        if not fault.endswith(NOT_WRITTEN)
    ]


class _Notes:
    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, reason: str) -> str:
        return str(self._numbers.setdefault(reason, len(self._numbers) + 1))

    def lines(self) -> Iterable[str]:
        return (f"{number}. {reason}" for reason, number in self._numbers.items())


def page(results: Results, broker: str) -> str:
    clients = list(results.versions)
    notes = _Notes()
    parts = [INTRODUCTION.format(broker=broker), _versions(results)]
    for subject in dict.fromkeys(one.subject for one in SCENARIOS):
        rows = [one for one in SCENARIOS if one.subject == subject]
        parts.append(f"## {subject.capitalize()}\n\n{_grid(rows, clients, results, notes)}")
    if results.cells:
        parts.append(_matrix(results, clients, notes))
    parts.append("## Reasons\n\n" + ("\n".join(notes.lines()) or "None."))
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """# Compatibility

Which client supports which feature with {broker}. `make conformance` writes this page: every client runs every scenario of
`tests/conformance/suite/tables`, and the suite checks the results. The same scenarios run against any broker
(`make conformance ARGS="--bootstrap HOST:PORT"`) and against Apache Kafka 4.3.1 (`ARGS=--kafka`), which
must pass too; scenarios that fail there because of the client are marked.

`yes`: all expectations were met. A number refers to the reason why the client did not run the scenario, or
after a `yes` why it fails in some runs."""


def _versions(results: Results) -> str:
    rows = ["| client | version | language |", "|---|---|---|"]
    rows += [f"| {name} | {version} | {results.languages[name]} |" for name, version in results.versions.items()]
    rows += [f"| {name} | not here: {reason} | {results.languages[name]} |" for name, reason in results.absent.items()]
    return "## Clients\n\n" + "\n".join(rows)


def _grid(scenarios: Sequence[Scenario], clients: Sequence[str], results: Results, notes: _Notes) -> str:
    rows = [f"| | {' | '.join(clients)} |", "|---" * (len(clients) + 1) + "|"]
    for one in scenarios:
        cells = [_cell(client, one.name, results.outcomes.get((client, one.name)), notes) for client in clients]
        rows.append(f"| {one.name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(client: str, name: str, outcome: Outcome | None, notes: _Notes) -> str:
    if outcome is None:
        return ""
    if (why := FLAKY.get((client, name))) is not None:
        return "yes " + notes.mark(f"{client}, not in every run, with Apache Kafka too: {why}")
    if outcome.state == PASSED:
        return "yes"
    if outcome.state == FAILED:
        known = KNOWN_FAILURES.get((client, name))
        return notes.mark(f"{client}, with Apache Kafka too: {known}") if known else "**fails**"
    return notes.mark(f"{client}: {outcome.reason}")


def _matrix(results: Results, clients: Sequence[str], notes: _Notes) -> str:
    rows = [f"| written by, read by | {' | '.join(clients)} |", "|---" * (len(clients) + 1) + "|"]
    for writer in clients:
        cells = []
        for reader in clients:
            cell = results.cells[writer, reader]
            marks = [notes.mark(f"{writer}: {fault}") for fault in dict.fromkeys(cell.faults)]
            output = "all" if len(cell.whole) == len(CODECS) else " ".join(cell.whole)
            cells.append(" ".join([output, *marks]))
        rows.append(f"| {writer} | {' | '.join(cells)} |")
    return f"## Every codec, across clients\n\n`all` is: {', '.join(CODECS)}.\n\n" + "\n".join(rows)
