"""The parts of a log that exist while it is open, and the changes that concern all of them: roll, truncation, replacement.

RULES    1. No append and no file operation is pending during a roll, a truncation or a close.
         2. What is in memory is lowered after the engine, snapshots are deleted before: the engine syncs the directory.
NOT HERE Offsets that outlive a close (log.py), appends, reads, flushes (append_pipeline.py, log_reader.py, log_flush.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from storage.config.log_config import LogConfig
from storage.engine import Compactable, SegmentInfo
from storage.io.deferred_file_ops import run_now
from storage.log.append_pipeline import AppendPipeline
from storage.log.log_files import LogFiles
from storage.log.log_flush import LogFlush
from storage.log.log_offsets import LogOffsets
from storage.log.log_reader import LogReader
from storage.log.recovery import RecoveredLog, restore_producers


class OpenLog:
    """The state of an open log."""

    __slots__ = ("_files", "append_pipeline", "engine", "epochs", "flush", "producers", "reader", "snapshots")

    def __init__(self, parts: RecoveredLog, name: str, config: LogConfig, files: LogFiles, offsets: LogOffsets) -> None:
        self._files = files
        self.engine, self.epochs, self.producers, self.snapshots, *_ = parts
        self.append_pipeline = AppendPipeline(name, parts, config)
        self.reader = LogReader(name, parts.engine, parts.producers, offsets)
        self.flush = LogFlush(parts, self.append_pipeline, files)
        self.defer_file_ops()
        self.engine.register_files()

    def defer_file_ops(self) -> None:
        """Submit the file operations of engine and snapshots."""
        self.engine.submit = self.snapshots.submit = self._files.submit_op

    def run_file_ops(self) -> None:
        """Run the file operations of engine and snapshots at once, for a close."""
        self.engine.submit = self.snapshots.submit = run_now

    def detach(self) -> None:
        """The log is closed or offline: give back files, and discard pending lookups."""
        self.engine.unregister_files()

    def check_idle(self, action: str) -> None:
        """Assert rule 1."""
        assert not self.append_pipeline.has_pending, f"no append is pending during {action}"
        assert not self._files.has_pending_ops, f"no file operation is pending during {action}"

    def roll(self, wall_ms: int) -> bool:
        """Start a new segment; False if the active one is empty."""
        assert not self.append_pipeline.has_pending, "no append is pending during a roll"
        if not self.engine.roll(wall_ms):
            return False
        self.snapshots.write(self.engine.end_offset, self.producers.snapshot())
        self.append_pipeline.has_rolled = True
        return True

    def replace(self, segments: Sequence[SegmentInfo], size: int, *, has_aborted: bool) -> list[str] | None:
        """Replace segments by a compacted one; returns the renamed files, or None if the segments no longer exist."""
        engine = self.engine
        if not isinstance(engine, Compactable) or not set(segments) <= set(engine.segments()[:-1]):
            return None
        bases = [segment.base_offset for segment in segments]
        deleted_files = engine.replace(bases, size, has_aborted=has_aborted)
        self.snapshots.delete(bases[1:])
        return deleted_files

    def truncate(self, offset: int) -> int:
        """Delete all records from `offset` on, which is inside the log; returns the new end."""
        engine = self.engine
        self.snapshots.delete_after(offset)
        engine.truncate(offset)
        self.append_pipeline.next_offset = end_offset = engine.end_offset
        self.flush.truncate(end_offset)
        self.epochs.truncate(end_offset)
        self.snapshots.delete_after(end_offset)
        restore_producers(engine, self.producers, self.snapshots, end_offset, is_clean=False)
        return end_offset

    def reset(self, offset: int) -> None:
        """Delete all records; the log continues empty at `offset`."""
        self.flush.truncate(offset)
        self.snapshots.delete_all()
        self.engine.reset(offset)
        self.append_pipeline.next_offset = offset
        self.epochs.truncate(0)
        self.producers.clear()
