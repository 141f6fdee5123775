"""Cuts the bytes of an input into records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from barnabas.cli.records.parsed_record import ParsedRecord
from barnabas.client.errors import ArgumentError


class InputParser(Protocol):
    """Takes the bytes of an input as they arrive."""

    def feed(self, data: bytes) -> Iterator[ParsedRecord]:
        """The records that are complete now. Raises MalformedInput."""

    def finish(self) -> Iterator[ParsedRecord]:
        """The record that the end of the input completes. Raises MalformedInput."""


class LineParser:
    """One record in a line. JSON lines that are empty are skipped; an empty line of text is an empty value."""

    def __init__(
        self, parse: Callable[[bytes], ParsedRecord], delimiter: bytes = b"\n", *, skips_empty: bool = True
    ) -> None:
        if not delimiter:
            raise ArgumentError("--delimiter is empty: nothing would end a record.")
        self._parse = parse
        self._delimiter = delimiter
        self._skips_empty = skips_empty
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[ParsedRecord]:
        """The records of the complete lines."""
        searched = max(0, len(self._rest) - len(self._delimiter) + 1)
        self._rest += data
        if self._rest.find(self._delimiter, searched) < 0:
            return
        *lines, rest = bytes(self._rest).split(self._delimiter)
        self._rest = bytearray(rest)
        yield from map(self._parse, self._wanted(lines))

    def finish(self) -> Iterator[ParsedRecord]:
        """The record of a last line without end."""
        rest, self._rest = bytes(self._rest), bytearray()
        if rest:
            yield from map(self._parse, self._wanted([rest]))

    def _wanted(self, lines: list[bytes]) -> Iterable[bytes]:
        return filter(bytes.strip, lines) if self._skips_empty else lines
