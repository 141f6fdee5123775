"""docs/seeds.md maps each mechanism of the founding articles to code and tests; these tests keep it true.

RULES    1. Each required row exists once, with code and tests, and these exist.
"""

from __future__ import annotations

import re

import pytest

from broker.handlers.router import Route, Router
from protocol.api import ApiKey
from tests.house.sources import ROOT
from tests.house.test_references import names_of

PAGE = (ROOT / "docs" / "seeds.md").read_text()
ROWS = (
    *(f"F{number}" for number in range(1, 12)),
    *(
        "Z1",
        "Z2",
        "Z3",
        "Z4",
        "I1",
        "I2",
        "I3",
        "I4",
        "I5",
        "R1",
        "R2",
        "R3",
        "R4",
        "R5",
        "R6",
        "R7",
        "R8",
        "M1",
        "M2",
        "M3",
        "M4",
        "M5",
    ),
)


def table() -> dict[str, tuple[str, str]]:
    """The code and test cells by row."""
    found: dict[str, tuple[str, str]] = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 4 and re.fullmatch(r"[A-Z]\d+", cells[0]):
            assert cells[0] not in found
            found[cells[0]] = cells[2], cells[3]
    return found


def test_every_promised_row_is_there() -> None:
    assert list(table()) == list(ROWS)


def test_what_the_page_names_exists() -> None:
    """Files and definitions."""
    for path, name in re.findall(r"`([\w/]+\.(?:py|md))(?:::?(\w+))?`", PAGE):
        assert (ROOT / path).exists(), path
        assert not name or name in {known.rpartition(".")[2] for known in names_of(path)}, f"{path} defines no {name}"


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_code_and_tests(row: str) -> None:
    code, cell = table()[row]
    assert re.search(r"`(tests/[\w/]+\.py)::(\w+)`", cell)
    assert re.search(r"`\w+/[\w/]+\.py", code)


def test_requests_are_dispatched_by_a_table_of_their_codes() -> None:
    """R7: one handler per request code, with its versions."""
    row = Route(ApiKey.FETCH, 4, 18, lambda *_: None)
    assert Router([row]).table == {ApiKey.FETCH: row}
    with pytest.raises(AssertionError, match="two handlers"):
        Router([row, row])
