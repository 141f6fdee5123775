"""Writes the offset checkpoints of one log directory.

RULES    1. A later update wins: delayed work never overwrites newer contents.
         2. One thread writes at a time; others wait for it. With threads the broker passes a lock. No request handler
            writes here.
         3. Background work may run late or fail, so the file contents are unknown until it has run. An update that must be
            on disk before another operation is then written even if its contents equal the background work's.
NOT HERE The offsets (log_manager.py), the file format (checkpoint_file.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from storage.io.checkpoint_file import TopicPartition, write_offsets
from storage.io.disk import Disk
from storage.io.path_guard import LockContext

Work = Callable[[], None]
Offsets = dict[TopicPartition, int]


class CheckpointWriter:
    """The checkpoint files of one log directory."""

    __slots__ = (
        "_directory",
        "_disk",
        "_lock",
        "_newest",
        "_possible_contents",
        "_writes_started",
        "contents",
        "written",
    )

    def __init__(self, disk: Disk, directory: str, lock: LockContext) -> None:
        self._disk = disk
        self._directory = directory
        self._lock = lock
        self._writes_started = 0
        self._newest: dict[str, int] = {}  # by file: the number of its last write
        self.contents: dict[str, Offsets] = {}
        """The contents of each file after all work has run."""
        self.written: dict[str, Offsets] = {}
        """The contents of each file on disk; none while it is being replaced, and after that failed."""
        self._possible_contents: dict[str, Offsets] = {}  # contents before pending background work (rule 3)

    def may_contain(self, partition: TopicPartition) -> bool:
        """Whether a file has an offset of this partition, or its contents are unknown."""
        possible = [*self.contents.values(), *self._possible_contents.copy().values()]
        return not self.contents or any(offsets.get(partition, 0) > 0 for offsets in possible)

    def update(self, offsets: Mapping[str, Offsets], *, in_background: bool = False) -> Work | None:
        """Work that writes the changed files; None if nothing changed.

        `in_background`: no other operation depends on it (rule 3).
        """
        changed = {
            name: entries
            for name, entries in offsets.items()
            if entries != self.contents.get(name) or (name in self._possible_contents and not in_background)
        }
        if not changed:
            return None
        for name in changed:
            if in_background:
                self._possible_contents.setdefault(name, self.contents.get(name, {}))
            else:
                self._possible_contents.pop(name, None)
        self.contents.update(changed)
        self._writes_started += 1
        return partial(self._write, self._writes_started, changed, in_background=in_background)

    def _write(self, number: int, changed: Mapping[str, Offsets], *, in_background: bool) -> None:
        with self._lock:
            for name, entries in changed.items():
                if self._newest.get(name, 0) < number:
                    self.written.pop(name, None)
                    write_offsets(self._disk, f"{self._directory}/{name}", entries)
                    self.written[name] = entries
                    self._newest[name] = number
                if in_background:
                    self._possible_contents.pop(name, None)
