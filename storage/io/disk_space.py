"""The disk-full state of a log directory.

RULES    1. Operations that free space do not queue behind those that need it: a full directory has a `Submit` of its own
            for them.
         2. They must not touch files with pending operations: only fully written segments are deleted, and no segment is
            started.
NOT HERE Detection of a full disk (`broker/io/worker_thread.py`). Why: docs/decisions/0024-full-disks.md
"""

from __future__ import annotations

from typing import Final

from storage.io.deferred_file_ops import Submit, run_now


class DiskSpace:
    """The state of one log directory."""

    __slots__ = ("is_full", "submit")

    def __init__(self, submit: Submit = run_now) -> None:
        self.is_full = False
        """While true, client appends are rejected."""
        self.submit = submit
        """Runs operations that free space, while the directory is full."""


UNMONITORED: Final = DiskSpace()
"""For logs without a log manager: never full."""
