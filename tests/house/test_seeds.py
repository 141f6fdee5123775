"""docs/seeds.md maps each mechanism of the founding articles to code and tests; these tests keep it true.

RULES    1. Each required row exists once; its code and tests exist.
         2. A row without a test is listed here as open.
"""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from broker.handlers.router import Route, Router
from protocol.api import ApiKey
from tests.house.sources import FLOORS, ROOT, Module, modules
from tests.house.test_structure import imported_names

PAGE = (ROOT / "docs" / "seeds.md").read_text()
ROWS = (
    *(f"F{number}" for number in range(1, 12)),
    *("Z1", "Z2", "Z3", "Z4", "I1", "I2", "I3", "I4", "I5", "R4", "R6", "R7", "R8", "M1", "M3", "M4", "M5"),
)
OPEN: set[str] = set()

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def table() -> dict[str, tuple[str, str]]:
    """The code and test cells by row."""
    found: dict[str, tuple[str, str]] = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 4 and re.fullmatch(r"[A-Z]\d+", cells[0]):
            assert cells[0] not in found
            found[cells[0]] = cells[2], cells[3]
    return found


@cache
def definitions(path: str) -> dict[str, Definition]:
    """The functions and classes of a file by name."""
    tree = ast.parse((ROOT / path).read_text(), path)
    return {node.name: node for node in ast.walk(tree) if isinstance(node, Definition)}


def test_every_promised_row_is_there() -> None:
    assert list(table()) == list(ROWS)


def test_what_the_page_names_exists() -> None:
    """Files and definitions."""
    for path, name in re.findall(r"`([\w/]+\.(?:py|md))(?:::?(\w+))?`", PAGE):
        assert (ROOT / path).exists(), path
        assert not name or name in definitions(path), f"{path} defines no {name}"


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_code_and_tests(row: str) -> None:
    code, cell = table()[row]
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", cell)
    assert bool(tests) == (row not in OPEN)
    assert row in OPEN or re.search(r"`\w+/[\w/]+\.py", code)


def floor_of(name: str) -> int | None:
    """The layer of a package or module, from below."""
    first = name.split(".", maxsplit=1)[0].split("/", maxsplit=1)[0]
    return FLOORS.index(first) if first in FLOORS else None


def test_each_floor_imports_only_what_lies_below_it() -> None:
    """R7: access over processing over storage over bytes; import-linter checks more in `make check`."""

    def faults(module: Module) -> list[str]:
        own = floor_of(module.path)
        assert own is not None
        return [f"{module.path} imports {name}" for name in imported_names(module) if (floor_of(name) or 0) > own]

    ours = [module for module in modules() if floor_of(module.path) is not None]
    assert {floor_of(module.path) for module in ours} == {0, 1, 2, 3}
    assert [fault for module in ours for fault in faults(module)] == []


def test_requests_are_dispatched_by_a_table_of_their_codes() -> None:
    """R7: one handler per request code, with its versions."""
    row = Route(ApiKey.FETCH, 4, 18, lambda *_: None)
    assert Router([row]).table == {ApiKey.FETCH: row}
    with pytest.raises(AssertionError, match="two handlers"):
        Router([row, row])
