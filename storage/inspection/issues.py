"""What a look at a data directory has found."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Severity(IntEnum):
    """How bad it is."""

    NOTE = 0
    """Worth knowing; nothing has to be done."""
    HARMLESS = 1
    """Wrong, and can be put right without losing a record."""
    LOSS = 2
    """Records are damaged or missing."""
    REFUSED = 3
    """A start refuses, or takes a log directory out of service."""


class Finding(NamedTuple):
    """One thing that was found."""

    severity: Severity
    path: str
    """Of the file or directory."""
    text: str
    """A sentence that says what is the matter."""
