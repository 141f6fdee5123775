"""The error of everything that the user can fix."""

from __future__ import annotations

import re

BAD_EXPRESSION = (re.error, OverflowError, RecursionError)
"""What `re.compile` raises: the last two for a huge repetition, and for thousands of brackets in each other."""


class ClientError(Exception):
    """The cluster, its settings or the arguments do not allow it; the message is one sentence that says what to do."""


class ArgumentError(ClientError):
    """The arguments of the command are wrong, whatever the cluster is."""


def require_text(option: str, text: str) -> str:
    """Returns an argument that is UTF-8; Python marks other bytes of a command line. Raises ArgumentError."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"{option} takes UTF-8, not {text!r}.") from None
    return text
