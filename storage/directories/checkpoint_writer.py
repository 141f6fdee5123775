"""Writes the offset checkpoints of one log directory.

RULES    1. A later update wins: delayed work never overwrites newer contents.
         2. One thread writes at a time; others wait for it. With threads the broker passes a lock. No request handler
            writes here.
         3. Background work may run late or fail, and that of a truncation never runs if its log is deleted before. So the
            file contents are unknown until it has run: an update that must be on disk before another operation is then
            written even if its contents are equal.
NOT HERE The offsets (log_directory.py), the file format (checkpoint_file.py).
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
        "_directory", "_disk", "_lock", "_newest", "_replaced", "_unsure", "_unwritten", "_writes_started", "contents",
        "updates", "written",
    )  # fmt: skip

    def __init__(self, disk: Disk, directory: str, lock: LockContext) -> None:
        self._disk = disk
        self._directory = directory
        self._lock = lock
        self._writes_started = 0
        self.updates = 0
        """The number of calls of `update`."""
        self._newest: dict[str, int] = {}  # by file: the number of its last write
        self.contents: dict[str, Offsets] = {}
        """The contents of each file after all work has run."""
        self.written: dict[str, Offsets] = {}
        """The contents of each file on disk; none while it is being replaced, and after that failed."""
        self._replaced: dict[str, Offsets] = {}  # the contents of each file that is being replaced
        # By number, what pending work writes; none that newer work has replaced.
        self._unwritten: dict[int, Mapping[str, Offsets]] = {}
        self._unsure: set[str] = set()  # files whose contents depend on pending work of rule 3

    def may_contain(self, partition: TopicPartition) -> bool:
        """Whether a file has an offset of this partition now, or after pending work; or the contents are unknown."""
        possible = list(self.contents.values())
        for changed in self._unwritten.copy().values():
            possible += changed.values()
        possible += self.written.copy().values()  # in this order: a thread moves contents from one to the next
        possible += self._replaced.copy().values()
        return not self.contents or any(offsets.get(partition, 0) > 0 for offsets in possible)

    def will_contain(self, partition: TopicPartition) -> bool:
        """Whether a file may have an offset of this partition after the work so far has run; or the contents are unknown."""
        is_unsure = not self.contents or bool(self._unsure)
        return is_unsure or any(offsets.get(partition, 0) > 0 for offsets in self.contents.values())

    def update(
        self, offsets: Mapping[str, Offsets], *, in_background: bool = False, may_be_dropped: bool = False
    ) -> Work | None:
        """Work that writes the changed files; None if nothing changed.

        `in_background`: no other operation depends on it; `may_be_dropped`: it may never run (rule 3).
        """
        self.updates += 1
        changed = {
            name: entries
            for name, entries in offsets.items()
            if entries != self.contents.get(name) or (name in self._unsure and not in_background)
        }
        if not changed:
            return None
        is_unsure = in_background or may_be_dropped
        if is_unsure:
            self._unsure.update(changed)
        else:
            self._unsure.difference_update(changed)
        self.contents.update(changed)
        self._writes_started += 1
        self._unwritten[self._writes_started] = changed
        return partial(self._write, self._writes_started, changed, is_unsure=is_unsure)

    def _write(self, number: int, changed: Mapping[str, Offsets], *, is_unsure: bool) -> None:
        with self._lock:
            try:
                for name, entries in changed.items():
                    if self._newest.get(name, 0) < number:
                        self._replace(name, entries)
                        self._newest[name] = number
                    if is_unsure:
                        self._unsure.discard(name)
            finally:
                self._unwritten.pop(number, None)
            for other, names in self._unwritten.copy().items():
                if all(self._newest.get(name, 0) > other for name in names):
                    self._unwritten.pop(other, None)

    def _replace(self, name: str, entries: Offsets) -> None:
        if name in self.written:
            self._replaced[name] = self.written[name]
            del self.written[name]
        write_offsets(self._disk, f"{self._directory}/{name}", entries)
        self.written[name] = entries
        self._replaced.pop(name, None)
