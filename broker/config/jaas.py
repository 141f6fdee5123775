"""Parses the JAAS text of a `sasl.jaas.config` setting (Kafka: JaasConfig).

FORMAT   Module flag key=value … ;     flag: required, requisite, sufficient or optional, in any case
         A value is quoted ("…" or '…', with backslash escapes, on one line) or a word, which begins with a letter, _ or $.
RULES    1. Tokens are those of java.io.StreamTokenizer, which Apache Kafka uses: a bare number is no value, and `//`, `/*…*/`
            and a single `/` begin comments.
         2. Errors contain no part of the text after the module's name: it has passwords.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""
    (?P<skipped> [\x00-\x20]+ | /\*.*?(?:\*/|\Z) | /[^\r\n]* )
  | (?P<word> [A-Za-z_$\xa0-\U0010ffff][A-Za-z0-9_$.\-\xa0-\U0010ffff]* )
  | (?P<quote> ["'] ) (?P<text> (?: \\[^\r\n] | (?!(?P=quote))[^\\\r\n] )* ) (?: (?P=quote) | (?=[\r\n]) | \Z )
  | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_CONTROL: Final = {"n": "\n", "t": "\t", "b": "\b", "r": "\r", "f": "\f", "a": "\a", "v": "\v"}
_FLAGS: Final = frozenset({"REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL"})


class InvalidJaas(ValueError):
    """The text is not one login module; the message contains no secret."""


class LoginModule(NamedTuple):
    """A login module and its options."""

    name: str
    options: Mapping[str, str]


class _Token(NamedTuple):
    """A word or quoted text, or a single other character."""

    value: str
    is_text: bool


def parse_jaas(text: str) -> LoginModule:
    """Parses a text with one login module.

    Raises:
        InvalidJaas: it is malformed, or has another number of modules.
    """
    tokens = _tokens(text)
    modules = [_module(token, tokens) for token in tokens]
    if not modules:
        raise InvalidJaas("Login module not specified in JAAS config")
    if len(modules) > 1:
        raise InvalidJaas(f"JAAS config property contains {len(modules)} login modules, should be 1 module")
    return modules[0]


def _module(name: _Token, tokens: Iterator[_Token]) -> LoginModule:
    if not name.is_text:
        raise InvalidJaas("Login module not specified in JAAS config")
    flag = next(tokens, None)
    if flag is None:
        raise InvalidJaas("Login module control flag not specified in JAAS config")
    if not flag.is_text or flag.value.upper() not in _FLAGS:
        raise InvalidJaas("Invalid login module control flag in JAAS config")
    options: dict[str, str] = {}
    for key in tokens:
        if key == (";", False):
            return LoginModule(name.value, options)
        equals, value = next(tokens, None), next(tokens, None)
        if not key.is_text or equals != ("=", False) or value is None or not value.is_text:
            raise InvalidJaas("Value not specified for a key in JAAS config: values are words or quoted")
        options[key.value] = value.value
    raise InvalidJaas("JAAS config entry not terminated by semi-colon")


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        if match["word"] is not None:
            yield _Token(match["word"], is_text=True)
        elif match["quote"] is not None:
            yield _Token(_ESCAPE.sub(_unescape, match["text"]), is_text=True)
        elif match["other"] is not None:
            yield _Token(match["other"], is_text=False)


def _unescape(match: re.Match[str]) -> str:
    escaped = match[1]
    return chr(int(escaped, 8)) if escaped[0] in "01234567" else _CONTROL.get(escaped, escaped)
