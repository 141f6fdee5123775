"""Issues found by an inspection."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from storage.io.checkpoint_file import CorruptCheckpoint
from storage.io.disk import StorageError


class Severity(IntEnum):
    """The severity of an issue."""

    NOTE = 0
    """Informational."""
    HARMLESS = 1
    """Wrong, but repairable without losing a record."""
    LOSS = 2
    """Records are damaged or missing."""
    REFUSED = 3
    """The broker refuses to start, or takes a log directory offline."""


class Issue(NamedTuple):
    """One issue."""

    severity: Severity
    path: str
    """The file or directory."""
    text: str
    """A sentence that describes it."""


def severity_of(error: StorageError) -> Severity:
    """Of a checkpoint that cannot be read: a start does without an invalid one, but not without its disk."""
    return Severity.HARMLESS if isinstance(error, CorruptCheckpoint) else Severity.REFUSED
