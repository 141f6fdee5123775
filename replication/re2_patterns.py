"""Regular expressions of clients, matched by RE2: the time is linear in the length of the text.

NOT HERE What is matched (`client_metrics.py`, the coordinators and handlers).
"""

from __future__ import annotations

from collections.abc import Callable

Matches = Callable[[str], object]
"""Matches a whole text; returns None if it does not match."""


class BadRegex(ValueError):
    """RE2's error message."""


def compile_regex(text: str) -> Matches:
    """Compile a pattern.

    Raises:
        BadRegex: the pattern is invalid.
    """
    import re2  # noqa: PLC0415  # most brokers never need it

    options = re2.Options()
    options.log_errors = False
    try:
        matches: Matches = re2.compile(text, options).fullmatch
    except re2.error as error:
        raise BadRegex(error.args[0].decode().split(": ")[0]) from None
    return matches
