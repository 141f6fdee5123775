"""Reads records in the format dialect.

RULES    1. A text ends where its size says (%K before %k, or %K{3} for a fixed one), else before the next literal, else with
            the input. A size of -1 is null; other binary sizes have no sign: a byte is at most 254.
         2. %h{…} needs the number of headers before it: %H, or %H{2} for a fixed one.
         3. A text modifier decodes: {hex}, {base64}, {base64raw}; {json} reads one JSON value and keeps its bytes;
            {re#…#} reads what the expression matches.
         4. %o, %e, %x, %y are read and ignored. A literal at the very end may be missing.
NOT HERE The letters (`layout.py`).
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64decode
from binascii import Error as DecodingError
from collections.abc import Callable, Iterable, Iterator

from barnabas.cli.number_options import whole_number
from barnabas.cli.records.layout import BINARY_NUMBERS, SIZES, Part
from barnabas.cli.records.parsed_record import MalformedInput, ParsedRecord, check_place
from barnabas.client.errors import BAD_EXPRESSION, ArgumentError
from barnabas.client.record_batches import Header

_READ = frozenset("tkvTKVhHpodexy")
_NUMBER = re.compile(rb"-?[0-9]{1,19}(?![0-9])")
_NO_NUMBER = re.compile(rb"[^\d-]")


class _Incomplete(Exception):
    """The record needs more input."""


class _Reading:
    """The state of one record."""

    def __init__(self, data: bytes, at: int, *, is_end: bool) -> None:
        self.data = data
        self.at = at
        self.is_end = is_end
        self.numbers: dict[str, int] = {}
        self.texts: dict[str, bytes | None] = {}
        self.headers: list[Header] = []

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise self.incomplete()
        found = self.data[self.at : self.at + size]
        self.at += size
        return found

    def incomplete(self) -> Exception:
        """Why reading cannot go on."""
        return MalformedInput("the input ends in the middle of it") if self.is_end else _Incomplete()


_Step = Callable[[_Reading], None]


class FormatParser:
    """Cuts an input into records by a format."""

    def __init__(self, parts: Iterable[Part]) -> None:
        found = list(parts)
        letters = {part.letter for part in found}
        if not letters & {"k", "v"}:
            raise ArgumentError("The format reads neither a key (%k) nor a value (%v).")
        self._last = found[-1].literal
        self._steps = _steps(found)
        self._buffer = b""
        self._added = bytearray()
        """Input that was not looked at: a large record is not read from its start with each piece of it."""

    def feed(self, data: bytes) -> Iterator[ParsedRecord]:
        """The records that are complete now; empty data when the input pauses."""
        self._added += data
        if data and len(self._added) < len(self._buffer) >> 2:
            return
        self._take_added()
        yield from self._records(is_end=False)

    def finish(self) -> Iterator[ParsedRecord]:
        """The records that the end completes."""
        self._take_added()
        if self._buffer and self._last and not self._buffer.endswith(self._last):
            self._buffer += self._last
        yield from self._records(is_end=True)

    def _take_added(self) -> None:
        self._buffer += self._added
        self._added.clear()

    def _records(self, *, is_end: bool) -> Iterator[ParsedRecord]:
        reading = _Reading(self._buffer, 0, is_end=is_end)
        done = 0
        try:
            while reading.at < len(self._buffer):
                for step in self._steps:
                    step(reading)
                if reading.at == done:
                    raise MalformedInput("the format reads nothing of it")
                done = reading.at
                yield _record(reading)
                reading = _Reading(self._buffer, done, is_end=is_end)
        except _Incomplete:
            pass  # the rest stays in the buffer
        finally:
            self._buffer = self._buffer[done:]


def _record(reading: _Reading) -> ParsedRecord:
    texts, numbers = reading.texts, reading.numbers
    topic = texts.get("t")
    place = None if topic is None else topic.decode(errors="replace"), numbers.get("p"), numbers.get("d")
    check_place(*place)
    return ParsedRecord(texts.get("v"), texts.get("k"), reading.headers, *place)


def _steps(parts: list[Part]) -> list[_Step]:
    sized: set[str] = set()
    steps: list[_Step] = []
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        if not part.letter:
            steps.append(_literal(part.literal))
        elif part.letter not in _READ:
            raise ArgumentError(f"The format has %{part.letter}, which can be printed and not read.")
        elif part.letter == "h":
            if "H" not in sized:
                raise ArgumentError("The format has %h without the number of headers before it: %H %h{%K%k%V%v}.")
            steps.append(_headers(part))
        elif part.letter in {"t", "k", "v"}:
            size = part.letter.upper() if part.letter.upper() in sized else None
            steps.append(_text(part, size, following))
        else:
            steps.append(_number(part))
            sized.add(part.letter)
    return steps


def _literal(literal: bytes) -> _Step:
    def step(reading: _Reading) -> None:
        if reading.take(len(literal)) != literal:
            raise MalformedInput(f"{literal!r} is not where the format has it")

    return step


def _number(part: Part) -> _Step:
    letter, modifier = part.letter, part.modifier
    fixed = whole_number(modifier)
    if fixed is not None and letter in SIZES | {"H"}:
        return lambda reading: reading.numbers.__setitem__(letter, fixed)
    if modifier in BINARY_NUMBERS:
        size, order = BINARY_NUMBERS[modifier]
        is_signed = letter not in SIZES | {"H"}
        null = (1 << 8 * size) - 1 if letter in SIZES else None

        def binary(reading: _Reading) -> None:
            found = int.from_bytes(reading.take(size), "big" if order == "big" else "little", signed=is_signed)
            reading.numbers[letter] = -1 if found == null else found

        return binary
    if modifier not in {"", "ascii", "number"}:
        raise ArgumentError(
            f"The format has %{letter}{{{modifier}}}; a number is read as ascii, big64 to big8, little64."
        )

    def ascii_number(reading: _Reading) -> None:
        end = _NO_NUMBER.search(reading.data, reading.at)
        if end is None and not reading.is_end:
            raise _Incomplete
        found = _NUMBER.match(reading.data, reading.at)
        if found is None:
            raise MalformedInput(f"there is no number for %{letter}")
        reading.at = found.end()
        reading.numbers[letter] = int(found[0])

    return ascii_number


def _text(part: Part, size: str | None, following: Part | None) -> _Step:
    letter, decode = part.letter, _decoder(part)
    take = _taker(part, size, following)

    def step(reading: _Reading) -> None:
        found = take(reading)
        reading.texts[letter] = None if found is None else decode(found)

    return step


def _taker(part: Part, size: str | None, following: Part | None) -> Callable[[_Reading], bytes | None]:
    if part.modifier == "re":
        return _matched(part.quoted)
    if part.modifier == "json":
        return _json_value
    if size is not None:
        return lambda reading: None if reading.numbers[size] < 0 else reading.take(reading.numbers[size])
    if following is None:
        return _rest
    if following.letter:
        raise ArgumentError(
            f"The format has nothing that ends %{part.letter}: a literal after it, or %{part.letter.upper()} before it."
        )
    delimiter = following.literal

    def delimited(reading: _Reading) -> bytes:
        end = reading.data.find(delimiter, reading.at)
        if end < 0:
            raise reading.incomplete()
        found = reading.data[reading.at : end]
        reading.at = end
        return found

    return delimited


def _rest(reading: _Reading) -> bytes:
    if not reading.is_end:
        raise _Incomplete
    return reading.take(len(reading.data) - reading.at)


def _matched(pattern: str) -> Callable[[_Reading], bytes]:
    try:
        expression = re.compile(os.fsencode(pattern))
    except BAD_EXPRESSION as failure:
        raise ArgumentError(f"The format has re#{pattern}#, which is not a regular expression: {failure}.") from failure

    def matched(reading: _Reading) -> bytes:
        found = expression.match(reading.data, reading.at)
        if (found is None or found.end() == len(reading.data)) and not reading.is_end:
            raise _Incomplete  # more input may match, or match more
        if found is None:
            raise MalformedInput(f"{pattern} does not match")
        reading.at = found.end()
        return found[0]

    return matched


def _json_value(reading: _Reading) -> bytes:
    text = reading.data[reading.at :].decode(errors="surrogateescape")
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except RecursionError as failure:
        raise MalformedInput("its JSON value has too many brackets in each other") from failure
    except ValueError as failure:
        if reading.is_end:
            raise MalformedInput(f"there is no JSON value: {failure}") from failure
        raise _Incomplete from failure
    if end == len(text) and not reading.is_end:
        raise _Incomplete
    return reading.take(len(text[:end].encode(errors="surrogateescape")))


def _decoder(part: Part) -> Callable[[bytes], bytes]:
    decoders: dict[str, Callable[[bytes], bytes]] = {
        "hex": lambda text: bytes.fromhex(text.decode()),
        "base64": lambda text: b64decode(text, validate=True),
        "base64raw": lambda text: b64decode(text + b"=" * (-len(text) % 4), validate=True),
    }
    if part.modifier in {"", "json", "re"}:
        return bytes
    if part.modifier not in decoders:
        raise ArgumentError(
            f"The format has %{part.letter}{{{part.modifier}}}; a text is read with hex, base64, base64raw, json, re#…#."
        )
    decode = decoders[part.modifier]

    def decoded(text: bytes) -> bytes:
        try:
            return decode(text)
        except (ValueError, DecodingError) as failure:
            raise MalformedInput(f"%{part.letter} is not {part.modifier}: {failure}") from failure

    return decoded


def _headers(part: Part) -> _Step:
    steps = _steps(list(part.inner))

    def step(reading: _Reading) -> None:
        for _ in range(reading.numbers["H"]):
            inner = _Reading(reading.data, reading.at, is_end=reading.is_end)
            for inner_step in steps:
                inner_step(inner)
            reading.at = inner.at
            name = inner.texts.get("k")
            if name is None:
                raise MalformedInput("a header has no key")
            reading.headers.append((name, inner.texts.get("v")))

    return step
