"""The measures of a window, kept as mergeable partial results: `avg(data.delay) as delay`.

RULES    1. A measure is count, sum, min, max or avg of a Spark SQL expression over a record's columns.
         2. Each measure is stored as partials. Partials of the same window are merged, so several rounds give the same result
            as one round.
         3. A column's name is the alias after `as`, or the name of the plain column. Names are unique.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as f

from barnabas.pipeline.errors import JobError

_NAMED = re.compile(r"(.*\S)\s+as\s+(\w+)", re.DOTALL | re.IGNORECASE)
_PLAIN = re.compile(r"(?:\w+\.)*(\w+)")
_CALL = re.compile(r"(\w+)\s*\((.*)\)", re.DOTALL)

Function = Callable[[str], Column]
_PARTS: dict[str, dict[str, tuple[Function, Function]]] = {
    "count": {"count": (f.count, f.sum)},
    "sum": {"sum": (f.sum, f.sum)},
    "min": {"min": (f.min, f.min)},
    "max": {"max": (f.max, f.max)},
    "avg": {"sum": (f.sum, f.sum), "count": (f.count, f.sum)},
}
"""The partials of each kind: the aggregate over records, and the aggregate that merges partials."""


class NamedExpression(NamedTuple):
    """An expression with its column name."""

    name: str
    expression: str


class Measure(NamedTuple):
    """An aggregate of an expression."""

    name: str
    kind: str
    expression: str

    def partials(self, column: str) -> list[Column]:
        """Returns the partials over the values of a column."""
        return [make(column).alias(f"{column}_{part}") for part, (make, _) in _PARTS[self.kind].items()]

    def merge(self, column: str) -> list[Column]:
        """Returns the merged partials of a column."""
        return [join(name).alias(name) for name, (_, join) in self._parts(column)]

    def result(self, column: str) -> Column:
        """Returns the result, computed from the partials of a column."""
        names = [name for name, _ in self._parts(column)]
        if self.kind != "avg":
            return f.col(names[0]).alias(self.name)
        total, count = map(f.col, names)
        return f.when(count > 0, total / count).alias(self.name)

    def _parts(self, column: str) -> list[tuple[str, tuple[Function, Function]]]:
        return [(f"{column}_{part}", functions) for part, functions in _PARTS[self.kind].items()]


def parse_column(option: str, text: str) -> NamedExpression:
    """Parses a column: `data.carrier`, or `hour(timestamp) as hour`. Raises JobError."""
    aliased = _NAMED.fullmatch(text.strip())
    if aliased is not None:
        return NamedExpression(aliased[2], aliased[1])
    plain = _PLAIN.fullmatch(text.strip())
    if plain is None:
        raise JobError(f"{option} {text!r} needs a name for its column: {text.strip()} as NAME.")
    return NamedExpression(plain[1], plain[0])


def parse_measure(text: str) -> Measure:
    """Parses a measure: `avg(data.delay)`, or `max(length(value)) as longest`. Raises JobError."""
    aliased = _NAMED.fullmatch(text.strip())
    call = _CALL.fullmatch(aliased[1] if aliased is not None else text.strip())
    if call is None or call[1].lower() not in _PARTS or not call[2].strip():
        raise JobError(f"--compute takes {', '.join(_PARTS)} of something, such as avg(data.delay), and not {text!r}.")
    kind, inner = call[1].lower(), call[2].strip()
    if aliased is not None:
        return Measure(aliased[2], kind, inner)
    return Measure(f"{kind}_{parse_column(f'--compute {kind} of', inner).name}", kind, inner)


def check_distinct_names(names: Sequence[str], taken: Iterable[str]) -> None:
    """Raises JobError if two columns have the same name (rule 3)."""
    seen = {name.lower() for name in taken}
    for name in names:
        if name.lower() in seen:
            raise JobError(
                f"Two columns of the result would be called {name}: give one of them another name with `as`."
            )
        seen.add(name.lower())
