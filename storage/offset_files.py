"""The offset checkpoints of one log directory, on disk: written now and then by a thread, and sometimes at once.

RULES    1. What was collected later wins: work that comes late writes nothing over what is newer.
         2. One writes at a time; another waits for it. Where there are threads, they bring the lock. Nobody writes here
            while answering a request.
NOT HERE What the files hold (log_manager.py), their format (checkpoints.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial

from storage.checkpoints import TopicPartition, write_offsets
from storage.disk import Disk

Work = Callable[[], None]
OneAtATime = AbstractContextManager[object]
Offsets = dict[TopicPartition, int]


class OffsetFiles:
    """The checkpoint files of one log directory."""

    __slots__ = ("_collected", "_directory", "_disk", "_newest", "_one_at_a_time", "known")

    def __init__(self, disk: Disk, directory: str, one_at_a_time: OneAtATime) -> None:
        self._disk = disk
        self._directory = directory
        self._one_at_a_time = one_at_a_time
        self._collected = 0
        self._newest: dict[str, int] = {}  # by file: when that was collected which it holds
        self.known: dict[str, Offsets] = {}
        """What each file holds when all work is done."""

    def may_speak_of(self, partition: TopicPartition) -> bool:
        """Whether a file holds a figure of this partition, or nobody knows what it holds."""
        return not self.known or any(offsets.get(partition, 0) > 0 for offsets in self.known.values())

    def update(self, offsets: Mapping[str, Offsets]) -> Work | None:
        """Closed work that writes those files that are to hold something else; None where none is."""
        changed = {name: entries for name, entries in offsets.items() if entries != self.known.get(name)}
        if not changed:
            return None
        self.known.update(changed)
        self._collected += 1
        return partial(self._write, self._collected, changed)

    def _write(self, collected: int, changed: Mapping[str, Offsets]) -> None:
        with self._one_at_a_time:
            for name, entries in changed.items():
                if self._newest.get(name, 0) < collected:
                    write_offsets(self._disk, f"{self._directory}/{name}", entries)
                    self._newest[name] = collected
