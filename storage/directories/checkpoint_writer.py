"""The offset checkpoints of one log directory, on disk: written now and then by a thread, and sometimes at once.

RULES    1. What was collected later wins: work that comes late writes nothing over what is newer.
         2. One writes at a time; another waits for it. Where there are threads, they bring the lock. Nobody writes here
            while answering a request.
         3. Work that may be done at any time, or fail, says nothing of what a file holds until it is done. So what has to
            be on disk before something else is written again, even where such work is to write the same.
NOT HERE What the files hold (log_manager.py), their format (checkpoint_file.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial

from storage.io.checkpoint_file import TopicPartition, write_offsets
from storage.io.disk import Disk

Work = Callable[[], None]
OneAtATime = AbstractContextManager[object]
Offsets = dict[TopicPartition, int]


class OffsetFiles:
    """The checkpoint files of one log directory."""

    __slots__ = ("_collected", "_directory", "_disk", "_newest", "_one_at_a_time", "_until_written", "known")

    def __init__(self, disk: Disk, directory: str, one_at_a_time: OneAtATime) -> None:
        self._disk = disk
        self._directory = directory
        self._one_at_a_time = one_at_a_time
        self._collected = 0
        self._newest: dict[str, int] = {}  # by file: when that was collected which it holds
        self.known: dict[str, Offsets] = {}
        """What each file holds when all work is done."""
        self._until_written: dict[str, Offsets] = {}  # what files may hold until work of rule 3 is done

    def may_speak_of(self, partition: TopicPartition) -> bool:
        """Whether a file holds a figure of this partition, or nobody knows what it holds."""
        contents = [*self.known.values(), *self._until_written.copy().values()]
        return not self.known or any(offsets.get(partition, 0) > 0 for offsets in contents)

    def update(self, offsets: Mapping[str, Offsets], *, whenever: bool = False) -> Work | None:
        """Closed work that writes those files that are to hold something else; None where none is.

        `whenever`: nothing waits for it (rule 3).
        """
        changed = {
            name: entries
            for name, entries in offsets.items()
            if entries != self.known.get(name) or (name in self._until_written and not whenever)
        }
        if not changed:
            return None
        for name in changed:
            if whenever:
                self._until_written.setdefault(name, self.known.get(name, {}))
            else:
                self._until_written.pop(name, None)
        self.known.update(changed)
        self._collected += 1
        return partial(self._write, self._collected, changed, whenever=whenever)

    def _write(self, collected: int, changed: Mapping[str, Offsets], *, whenever: bool) -> None:
        with self._one_at_a_time:
            for name, entries in changed.items():
                if self._newest.get(name, 0) < collected:
                    write_offsets(self._disk, f"{self._directory}/{name}", entries)
                    self._newest[name] = collected
                if whenever:
                    self._until_written.pop(name, None)
