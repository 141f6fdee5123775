"""What verbs print: a table for people, or with --json one object in a line for programs.

RULES    1. A column's name has no spaces, so `awk '{print $3}'` finds it; a cell that would be empty is `-`.
            Control characters in a cell are escaped: clients choose the names of groups, and a terminal would execute them.
         2. Numbers are aligned to the right. A table is as wide as its cells: programs may cut it, we do not.
         3. In JSON a name is the column's in lower case, and values keep their types.
         4. Rows are on standard output; notes are on standard error, with control characters escaped too.
NOT HERE Records (`records/`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

_EMPTY = "-"
_GAP = "  "


def json_option(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a verb with --json; the verb gets `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object in a line.")(verb)


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, as_json: bool = False) -> None:
    """Prints rows with these column names."""
    assert not any(" " in name for name in columns), columns
    if as_json:
        for row in rows:
            print_json(dict(zip(columns, row, strict=True)))
        return
    sys.stdout.write(table(columns, rows))


def print_json(fields: Mapping[str, Any]) -> None:
    """Prints one object in a line; names become lower case."""
    lower = {name.lower(): value for name, value in fields.items()}
    sys.stdout.write(json.dumps(lower, ensure_ascii=False, default=str) + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """The text of a table, its heading in upper case."""
    cells = [[_cell(value) for value in row] for row in rows]
    is_number = [_all_numbers(column) for column in zip(*cells, strict=True)] if cells else [False] * len(columns)
    lines = [[name.upper() for name in columns], *cells]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    return "".join(
        _GAP.join(
            text.rjust(width) if numeric else text.ljust(width)
            for text, width, numeric in zip(line, widths, is_number, strict=True)
        ).rstrip()
        + "\n"
        for line in lines
    )


def note(text: str) -> None:
    """Prints a line for people on standard error."""
    sys.stderr.write(f"{visible(text)}\n")


def _cell(value: Any) -> str:
    if value is None or value == "":
        return _EMPTY
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple | set | frozenset):
        return visible(",".join(map(str, value))) or _EMPTY
    return visible(str(value))


def visible(text: str) -> str:
    """The text, with control characters escaped."""
    return text if text.isprintable() else "".join(map(_visible_char, text))


def _visible_char(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()


def _all_numbers(texts: Iterable[str]) -> bool:
    found = list(texts)
    return all(text == _EMPTY or text.lstrip("-").replace(".", "", 1).isdecimal() for text in found)
