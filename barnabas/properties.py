"""Java's properties, as far as settings use the format: the broker's settings file and the client settings of Kafka's tools.

RULES    1. A backslash at the end of a line continues it; two are one. A line ends with a line feed, a carriage return or both.
         2. Lines that begin with # or ! are comments. A line needs = or : (Java takes a blank too).
NOT HERE The broker's own reader, which names the line of an invalid value (`broker/config/config_loader.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE_END = re.compile(r"\r\n|\r|\n")
_PROPERTY = re.compile(r"((?:\\.|[^\\=:])+)[=:](.*)", re.DOTALL)
_CONTINUES = re.compile(r"(?<!\\)(?:\\\\)*\\$")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}


def properties_in(text: str) -> Iterator[tuple[str, str] | None]:
    """The names and values of a file, in its order; None for a line of another form."""
    for line in _joined_lines(text):
        match = _PROPERTY.fullmatch(line)
        if match is None:
            yield None
        else:
            name, value = (_plain(part.strip()) for part in match.groups())
            yield name, value


def _joined_lines(text: str) -> Iterator[str]:
    """The lines without comments and empty ones; those that are continued are one."""
    joined = ""
    for line in map(str.strip, _LINE_END.split(text)):
        if not joined and (not line or line[0] in "#!"):
            continue
        joined += line
        if _CONTINUES.search(line):
            joined = joined[:-1]
        elif joined:
            yield joined
            joined = ""
    if joined:
        yield joined


def _plain(part: str) -> str:
    """A name or value without Java's escapes; two of them may be the halves of one character."""
    units = _ESCAPE.sub(_unescaped, part).encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "surrogatepass")


def _unescaped(escape: re.Match[str]) -> str:
    text = escape[1]
    return chr(int(text[1:], 16)) if len(text) > 1 else _ESCAPES.get(text, text)
