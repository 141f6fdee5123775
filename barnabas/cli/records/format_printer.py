"""Prints records in the format dialect.

RULES    1. The size of a null is -1, so a size before the text tells it from an empty text; without one a
            null prints as nothing, or as the text of --null.
         2. A number is decimal; {hex64} to {hex4} have as many digits as bits, {big32}, {little16}, {byte} are binary. A size
            that does not fit is refused: a reader would take what follows for other fields.
         3. A text is printed as it is; {hex}, {base64}, {base64raw} (no padding), {json} (a JSON string), {unpack[>I]}.
NOT HERE The letters (`layout.py`).
"""

from __future__ import annotations

import json
import os
import re
import struct
from base64 import b64encode
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from barnabas.cli.records.kcat_dialect import KCAT_HEADERS, kcat_headers
from barnabas.cli.records.layout import BINARY_NUMBERS, SIZES, Part
from barnabas.client.compression import CODECS
from barnabas.client.errors import ArgumentError, ClientError, require_text
from barnabas.client.record_batches import Record
from barnabas.client.record_reader import Page


class Printed(NamedTuple):
    """What the fields of a format print."""

    record: Record
    ordinal: int
    page: Page


Piece = Callable[[Printed], bytes]
_HEX_DIGITS = {"hex": 0, "hex64": 16, "hex32": 8, "hex16": 4, "hex8": 2, "hex4": 1}
_TEXT_MODIFIERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "hex": lambda data: data.hex().encode(),
    "base64": b64encode,
    "base64raw": lambda data: b64encode(data).rstrip(b"="),
    "json": lambda data: json.dumps(data.decode(errors="replace"), ensure_ascii=False).encode(),
}
_UNPACKED = {"b": "b", "B": "B", "h": "h", "H": "H", "i": "i", "I": "I", "q": "q", "Q": "Q"}
_OWN_TIMES = re.compile(r"\.000|%.")
"""What is not left to strftime; %% is none of it."""
_GO_LAYOUT = (
    *(("2006", "%Y"), ("January", "%B"), ("Jan", "%b"), ("01", "%m"), ("02", "%d"), ("Monday", "%A"), ("Mon", "%a")),
    *(("15", "%H"), ("03", "%I"), ("04", "%M"), ("05", "%S"), ("PM", "%p"), ("Z07:00", "Z"), ("MST", "UTC")),
)


class FormatPrinter:
    """Prints pages of records in one format."""

    def __init__(self, parts: Iterable[Part], null: str = "") -> None:
        self._pieces = _pieces(parts, os.fsencode(null))
        self._count = 0

    def print_page(self, page: Page, records: list[Record]) -> bytes:
        """The bytes of these records."""
        found = []
        for record in records:
            self._count += 1
            printed = Printed(record, self._count, page)
            found += [piece(printed) for piece in self._pieces]
        return b"".join(found)


def _pieces(parts: Iterable[Part], null: bytes) -> list[Piece]:
    return [_piece(part, null) for part in parts]


def _piece(part: Part, null: bytes) -> Piece:
    if not part.letter:
        literal = part.literal
        return lambda _printed: literal
    if part.letter in _TEXT_OF:
        take, render = _TEXT_OF[part.letter], _text_renderer(part)

        def text(printed: Printed) -> bytes:
            found = take(printed.record)
            return null if found is None else render(found)

        return text
    if part.letter == "h":
        return _headers(part, null)
    if part.letter == "a":
        return _attributes(part)
    if part.letter == "d" and part.modifier in {"strftime", "go"}:
        return _moment(part)
    number, show = _NUMBER_OF[part.letter], _number_renderer(part)
    return lambda printed: show(number(printed))


_TEXT_OF: dict[str, Callable[[Record], bytes | None]] = {
    "t": lambda record: record.topic.encode(),
    "k": lambda record: record.key,
    "v": lambda record: record.value,
}


def _size(text: bytes | None) -> int:
    return -1 if text is None else len(text)


_NUMBER_OF: dict[str, Callable[[Printed], int]] = {
    "T": lambda printed: len(printed.record.topic.encode()),
    "K": lambda printed: _size(printed.record.key),
    "V": lambda printed: _size(printed.record.value),
    "H": lambda printed: len(printed.record.headers),
    "p": lambda printed: printed.record.partition,
    "o": lambda printed: printed.record.offset,
    "d": lambda printed: printed.record.timestamp,
    "e": lambda printed: printed.record.batch.leader_epoch,
    "x": lambda printed: printed.record.batch.producer_id,
    "y": lambda printed: printed.record.batch.producer_epoch,
    "i": lambda printed: printed.ordinal,
    "[": lambda printed: printed.page.log_start,
    "|": lambda printed: printed.page.last_stable_offset,
    "]": lambda printed: printed.page.high_watermark,
}


def _number_renderer(part: Part) -> Callable[[int], bytes]:
    modifier = part.modifier
    if modifier in {"", "ascii", "number"}:
        return lambda number: str(number).encode()
    if modifier == "bool":
        return lambda number: b"true" if number else b"false"
    if modifier in _HEX_DIGITS:
        digits = _HEX_DIGITS[modifier]
        mask = (1 << 4 * (digits or 16)) - 1
        return lambda number: f"{number & mask:0{digits}x}".encode()
    if modifier in BINARY_NUMBERS:
        size, order = BINARY_NUMBERS[modifier]
        mask = (1 << 8 * size) - 1
        largest = {"H": mask}.get(part.letter, mask - 1) if part.letter in SIZES | {"H"} else None

        def binary(number: int) -> bytes:
            if largest is not None and number > largest:
                raise ClientError(
                    f"The size {number:,} does not fit into %{part.letter}{{{modifier}}}: take a wider number."
                )
            return (number & mask).to_bytes(size, "big" if order == "big" else "little")

        return binary
    raise ArgumentError(
        f"The format has %{part.letter}{{{modifier}}}; a number takes ascii, hex64 to hex4, big64 to big8, little64."
    )


def _text_renderer(part: Part) -> Callable[[bytes], bytes]:
    if part.modifier == "unpack":
        return _unpacker(part.quoted)
    if part.modifier not in _TEXT_MODIFIERS:
        names = ", ".join(filter(None, _TEXT_MODIFIERS))
        raise ArgumentError(f"The format has %{part.letter}{{{part.modifier}}}; a text takes {names}, unpack[…].")
    return _TEXT_MODIFIERS[part.modifier]


def _unpacker(layout: str) -> Callable[[bytes], bytes]:
    if not layout or set(layout) - {*_UNPACKED, *"<>xc.s$ "}:
        raise ArgumentError(f"The format has unpack[{layout}]; it takes < > b B h H i I q Q x c . s $.")

    def unpack(data: bytes) -> bytes:
        found, at, order = [], 0, ">"
        for letter in layout.replace(" ", ""):
            if letter in "<>":
                order = letter
            elif letter == "s":
                found.append(data[at:])
                at = len(data)
            elif letter == "$":
                if at != len(data):
                    return data
            else:
                size = 1 if letter in "xc." else struct.calcsize(letter)
                if at + size > len(data):
                    return data
                if letter in _UNPACKED:
                    found.append(str(struct.unpack_from(order + letter, data, at)[0]).encode())
                elif letter != "x":
                    found.append(data[at : at + 1])
                at += size
        return b"".join(found)

    return unpack


def _headers(part: Part, null: bytes) -> Piece:
    """Each header is printed as a record with its key and value."""
    if part.modifier == KCAT_HEADERS:
        return lambda printed: kcat_headers(printed.record.headers)
    pieces = _pieces(part.inner, null)

    def headers(printed: Printed) -> bytes:
        found = []
        for name, content in printed.record.headers:
            inner = printed._replace(record=printed.record._replace(key=name, value=content))
            found += [piece(inner) for piece in pieces]
        return b"".join(found)

    return headers


def _attributes(part: Part) -> Piece:
    shown: dict[str, Piece] = {
        "compression": lambda printed: CODECS[printed.record.batch.codec].encode(),
        "timestamp-type": lambda printed: b"LogAppendTime" if printed.record.batch.has_append_time else b"CreateTime",
        "transactional-bit": lambda printed: b"1" if printed.record.batch.is_transactional else b"0",
        "control-bit": lambda printed: b"1" if printed.record.batch.is_control else b"0",
    }
    if part.modifier not in shown:
        raise ArgumentError(f"The format has %a{{{part.modifier}}}; it takes {', '.join(shown)}.")
    return shown[part.modifier]


def _moment(part: Part) -> Piece:
    layout = require_text("--format", part.quoted)
    if part.modifier == "go":
        for go, ours in _GO_LAYOUT:
            layout = layout.replace(go, ours)

    def moment(printed: Printed) -> bytes:
        try:
            found = datetime.fromtimestamp(printed.record.timestamp / 1000, UTC)
        except (ValueError, OverflowError, OSError):
            return str(printed.record.timestamp).encode()  # a year that the calendar does not have
        seconds, milliseconds = divmod(printed.record.timestamp, 1000)
        known = {".000": f".{milliseconds:03}", "%s": str(seconds)}  # %s of strftime is of the machine's time zone
        return found.strftime(_OWN_TIMES.sub(lambda one: known.get(one[0], one[0]), layout)).encode()

    return moment
