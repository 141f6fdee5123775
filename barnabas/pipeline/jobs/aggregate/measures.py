"""What is computed of a window's records, kept in parts that can be taken further: `avg(data.delay) as delay`.

RULES    1. A measure is count, sum, min, max or avg of an expression of Spark's SQL over a record's columns.
         2. Each is kept as parts, and parts of the same window are put together by their own function: so a window can be gone
            on with in another round, and comes to what it would have come to in one.
         3. A column has a name: what is said behind `as`, or that of the plain column; no two have the same.
NOT HERE Windows (`windows.py`).
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
"""The parts of each kind: how one comes from records, and how several become one."""


class Named(NamedTuple):
    """An expression, and the name of its column."""

    name: str
    expression: str


class Measure(NamedTuple):
    """What is computed of an expression."""

    name: str
    kind: str
    expression: str

    def first(self, column: str) -> list[Column]:
        """The parts, from the records' values in a column."""
        return [make(column).alias(f"{column}_{part}") for part, (make, _) in _PARTS[self.kind].items()]

    def again(self, column: str) -> list[Column]:
        """The parts, from parts that were made of the column."""
        return [join(name).alias(name) for name, (_, join) in self._parts(column)]

    def result(self, column: str) -> Column:
        """What the parts of the column come to."""
        names = [name for name, _ in self._parts(column)]
        if self.kind != "avg":
            return f.col(names[0]).alias(self.name)
        total, count = map(f.col, names)
        return f.when(count > 0, total / count).alias(self.name)

    def _parts(self, column: str) -> list[tuple[str, tuple[Function, Function]]]:
        return [(f"{column}_{part}", functions) for part, functions in _PARTS[self.kind].items()]


def named(option: str, text: str) -> Named:
    """A column as it is said: `data.carrier`, or `hour(timestamp) as hour`."""
    said = _NAMED.fullmatch(text.strip())
    if said is not None:
        return Named(said[2], said[1])
    plain = _PLAIN.fullmatch(text.strip())
    if plain is None:
        raise JobError(f"{option} {text!r} needs a name for its column: {text.strip()} as NAME.")
    return Named(plain[1], plain[0])


def measure(text: str) -> Measure:
    """A measure as it is said: `avg(data.delay)`, or `max(length(value)) as longest`."""
    said = _NAMED.fullmatch(text.strip())
    call = _CALL.fullmatch(said[1] if said is not None else text.strip())
    if call is None or call[1].lower() not in _PARTS or not call[2].strip():
        raise JobError(f"--compute takes {', '.join(_PARTS)} of something, such as avg(data.delay), and not {text!r}.")
    kind, inner = call[1].lower(), call[2].strip()
    if said is not None:
        return Measure(said[2], kind, inner)
    return Measure(f"{kind}_{named(f'--compute {kind} of', inner).name}", kind, inner)


def distinct(names: Sequence[str], taken: Iterable[str]) -> None:
    """See that all columns can be told apart (rule 3)."""
    seen = {name.lower() for name in taken}
    for name in names:
        if name.lower() in seen:
            raise JobError(
                f"Two columns of the result would be called {name}: give one of them another name with `as`."
            )
        seen.add(name.lower())
