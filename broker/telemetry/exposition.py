"""Writes metric families as Prometheus text 0.0.4 or OpenMetrics 1.0, in slices.

RULES    1. OpenMetrics if the client accepts it and does not prefer text, except with Confluent's names. There a counter whose
            name in a dialect does not end in _total is a gauge: OpenMetrics allows no other names for counters.
         2. A family is written whole before the next one; one without points not at all, and neither one whose lines could have
            the name of an earlier family's: clients choose the names of their metrics.
         3. `slices` yields after `LINES_PER_SLICE` lines, and where a source pauses: the caller lets other work run there.
NOT HERE HTTP (`page.py`), the families (`families.py` and the sources).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

from broker.telemetry.families import Dialect, Family, Kind, Source

LINES_PER_SLICE: Final = 500
TEXT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_VERSIONS: Final = ("", "0.0.4", "1.0.0")
"""Of both formats; Prometheus also asks for older ones, and for text 1.0.0."""
_TOTAL: Final = "_total"
_SUFFIXES: Final = {
    Kind.COUNTER: ("", "_total", "_created"),
    Kind.GAUGE: ("",),
    Kind.SUMMARY: ("", "_count", "_sum", "_created"),
    Kind.HISTOGRAM: ("", "_bucket", "_count", "_sum", "_created"),
}


class Format:
    """One of the two text formats, with the names of a dialect."""

    def __init__(self, accept: str, dialect: Dialect = Dialect.JMX) -> None:
        """`accept` is the client's Accept header."""
        self._dialect = dialect
        self.is_openmetrics = dialect is not Dialect.CONFLUENT and _prefers_openmetrics(accept)

    @property
    def content_type(self) -> str:
        """The Content-Type header."""
        return OPENMETRICS_TYPE if self.is_openmetrics else TEXT_TYPE

    def slices(self, sources: Iterable[Source]) -> Iterator[str]:
        """The text of all families; an empty piece is only a pause."""
        written: set[str] = set()
        for source in sources:
            for family in source.families():
                if family is None:
                    yield ""
                else:
                    name, _ = self._names(family)
                    names = {name + suffix for suffix in _SUFFIXES[family.kind]}
                    if names.isdisjoint(written):
                        written |= names
                        yield from self._family(family)
        if self.is_openmetrics:
            yield "# EOF\n"

    def _family(self, family: Family) -> Iterator[str]:
        name, ending = self._names(family)
        head = name + (ending if not self.is_openmetrics else "")
        kind = family.kind.value
        if self.is_openmetrics and family.kind is Kind.COUNTER and not ending:
            kind = Kind.GAUGE.value
        lines = [f"# HELP {head} {family.help}\n# TYPE {head} {kind}\n"]
        points = iter(family.points)
        while piece := list(islice(points, LINES_PER_SLICE)):
            for suffix, labels, value in piece:
                lines.append(f"{name}{ending if suffix == _TOTAL else suffix}{labels} {number(value)}\n")
            yield "".join(lines)
            lines.clear()

    def _names(self, family: Family) -> tuple[str, str]:
        """The name of a family, and the ending of a counter's points."""
        name, ending = family.name, _TOTAL if family.kind is Kind.COUNTER else ""
        other = family.other_names.get(self._dialect)
        if other is not None:
            name = other.removesuffix(_TOTAL)
            ending = _TOTAL if other.endswith(_TOTAL) else ""
        return name, ending


def _prefers_openmetrics(accept: str) -> bool:
    """Whether an Accept header has OpenMetrics 1.0, with a quality above 0 and at least that of text."""
    qualities = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for one in accept.lower().split(","):
        kind, *parameters = [part.strip() for part in one.split(";")]
        options = dict(part.split("=", 1) for part in parameters if "=" in part)
        if kind in qualities and options.get("version", "").strip('"') in _VERSIONS:
            with suppress(ValueError):
                qualities[kind] = max(qualities[kind], float(options.get("q", "1")))
    openmetrics, text = qualities.values()
    return openmetrics > 0 and openmetrics >= text


def number(value: float) -> str:
    """A value as text."""
    if isinstance(value, int):
        return str(value)
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(repr(value), repr(value))
