"""Regular expressions that clients send: RE2's, which need no more time than the text is long, whatever they say.

NOT HERE What is matched (`client_metrics.py`, and the broker's coordinators and handlers).
"""

from __future__ import annotations

from collections.abc import Callable

Matches = Callable[[str], object]
"""Whether a text matches as a whole; anything but None: it does."""


class BadRegex(ValueError):
    """What RE2 says is wrong with it."""


def compile_regex(text: str) -> Matches:
    """What tells whether a text matches.

    Raises:
        BadRegex: it is none.
    """
    import re2  # noqa: PLC0415  # most brokers never need it

    options = re2.Options()
    options.log_errors = False
    try:
        matches: Matches = re2.compile(text, options).fullmatch
    except re2.error as error:
        raise BadRegex(error.args[0].decode().split(": ")[0]) from None
    return matches
