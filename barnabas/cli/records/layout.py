r"""The format dialect of rpk and kcl (franz-go), cut into its parts.

FORMAT   %t topic, %k key, %v value, %T %K %V their sizes, %h{…} headers (inside %k %v %K %V), %H their number, %p partition,
         %o offset, %d timestamp, %e leader epoch, %x producer id, %y its epoch, %a attributes, %i count of records,
         %[ log start, %| last stable offset, %] high watermark, %% %{ %} the characters; \t \n \r \\ \xNN
         a modifier in braces follows: %v{hex}, %K{big32}, %d{strftime[%F]}, %v{re#[0-9]+#}
RULES    1. What is unknown is refused with its place: a format is a program.
         2. Characters are the bytes of the command line.
NOT HERE What parts print (`format_printer.py`) and read (`format_parser.py`), kcat's dialect (`kcat_dialect.py`).
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from barnabas.client.errors import ArgumentError

TEXTS = frozenset("tkv")
SIZES = frozenset("TKV")
NUMBERS = frozenset("poexyidH[|]") | SIZES
_KNOWN = TEXTS | NUMBERS | {"h", "a"}
_ESCAPES = {"t": b"\t", "n": b"\n", "r": b"\r", "\\": b"\\", "0": b"\0"}
_QUOTED = re.compile(r"(re|strftime|go|unpack)(#+|\[+|\(+|\{+|<+)")
_CLOSING = {"#": "#", "[": "]", "(": ")", "{": "}", "<": ">"}

BINARY_NUMBERS = {f"{order}{bits}": (bits // 8, order) for order in ("big", "little") for bits in (64, 32, 16, 8)} | {
    "byte": (1, "big")
}
"""Modifiers of binary numbers: bytes and order."""


class Part(NamedTuple):
    """A literal (letter empty) or a field."""

    letter: str
    modifier: str = ""
    """The text in braces; of a quoted one, such as re#…#, only its name."""
    quoted: str = ""
    """The text inside of the quotes."""
    literal: bytes = b""
    inner: tuple[Part, ...] = ()
    """The format of a header."""


def parse_layout(text: str, known: frozenset[str] = _KNOWN, *, has_modifiers: bool = True) -> list[Part]:
    """Cuts a format into its parts; without modifiers a brace is a character. Raises ArgumentError."""
    parts: list[Part] = []
    literal = bytearray()
    at = 0
    while at < len(text):
        if text[at] == "\\":
            escaped, at = unescape(text, at)
            literal += escaped
        elif text[at] != "%":
            literal += os.fsencode(text[at])
            at += 1
        else:
            letter = text[at + 1 : at + 2]
            if letter in {"%", "{", "}"} and letter:
                literal += letter.encode()
                at += 2
                continue
            if not letter or letter not in known:
                raise ArgumentError(
                    f"The format has %{letter} at character {at + 1}, which is nothing: %% is a percent sign."
                )
            if literal:
                parts.append(Part("", literal=bytes(literal)))
                literal.clear()
            part, at = _field(text, letter, at + 2) if has_modifiers else (Part(letter), at + 2)
            parts.append(part)
    if literal:
        parts.append(Part("", literal=bytes(literal)))
    return parts


def unescape(text: str, at: int = 0) -> tuple[bytes, int]:
    """The bytes of the escape at a position, and the position after it. Raises ArgumentError."""
    letter = text[at + 1 : at + 2]
    if letter == "x" and re.fullmatch("[0-9a-fA-F]{2}", text[at + 2 : at + 4]):
        return bytes.fromhex(text[at + 2 : at + 4]), at + 4
    if letter not in _ESCAPES or not letter:
        raise ArgumentError(rf"The format has \{letter}, and knows \t \n \r \\ \xNN.")
    return _ESCAPES[letter], at + 2


def unescaped(text: str) -> bytes:
    """A whole text with escapes, such as a delimiter. Raises ArgumentError."""
    return b"".join(part.literal for part in parse_layout(text.replace("%", "%%")))


def _field(text: str, letter: str, at: int) -> tuple[Part, int]:
    if text[at : at + 1] != "{":
        if letter in {"h", "a"}:
            raise ArgumentError(
                f"The format has %{letter} without braces: %h{{%k=%v}} and %a{{compression}} have them."
            )
        return Part(letter), at
    quoted = _QUOTED.match(text, at + 1)
    if quoted is not None:
        closing = "".join(_CLOSING[bracket] for bracket in reversed(quoted[2])) + "}"
        end = text.find(closing, quoted.end())
        if end < 0:
            raise ArgumentError(f"The format has {quoted[0]} without {closing}.")
        return Part(letter, quoted[1], text[quoted.end() : end]), end + len(closing)
    end = _closing_brace(text, at)
    modifier = text[at + 1 : end]
    if letter == "h":
        return Part(letter, inner=tuple(parse_layout(modifier, TEXTS | SIZES))), end + 1
    return Part(letter, modifier), end + 1


def _closing_brace(text: str, at: int) -> int:
    """The position of the brace that closes the one at `at`; %{ and %} are characters."""
    depth = 0
    position = at
    while position < len(text):
        if text[position] == "%" and text[position + 1 : position + 2] in {"{", "}"}:
            position += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position
        position += 1
    raise ArgumentError(f"The format has a brace at character {at + 1} that is not closed.")
