"""Planted bugs of the storage engine: the simulator must find each.

NOT HERE The number of seeds (tests/simulation/test_planted_bugs.py).
"""

from __future__ import annotations

from dataclasses import replace
from inspect import isfunction
from typing import Any

from pytest import MonkeyPatch  # noqa: PT013

import storage.directories.future_logs
import storage.directories.summary_file
import storage.log.recovery
import storage.segments.active_segment
import tests.support.compaction
from storage.compaction.cleanable import make_job
from storage.compaction.cleaner import _Cleaner
from storage.compaction.cleaner_job import CleanerJob
from storage.directories.log_directory import LogDirectory
from storage.directories.log_manager import LogManager
from storage.io.deferred_file_ops import FileOp
from storage.io.disk import Disk
from storage.log.append_pipeline import AppendPipeline
from storage.log.leader_epoch_cache import LeaderEpochCache
from storage.log.producer_state import ProducerState
from storage.segments.durability import Durability
from storage.segments.indexes import OffsetIndex, SparseIndex, TimeIndex, TransactionIndex
from storage.segments.recovery import Recovery
from storage.segments.segment_engine import SegmentEngine
from tests.simulation.runner import PlantedBug
from tests.simulation.simulated_disk import SimulatedDirectory


def _nothing(*_: object, **__: object) -> None:
    """Do nothing."""


def the_log_counts_as_flushed_when_the_sync_starts(patch: MonkeyPatch) -> None:
    """The flushed offset moves before the sync returns."""
    collect = Durability.collect

    def planted(self: Durability, directory: str, end_offset: int, *rest: Any) -> Any:
        work = collect(self, directory, end_offset, *rest)
        self.flushed_end = max(self.flushed_end, end_offset)
        return work

    patch.setattr(Durability, "collect", planted)


def a_sync_skips_the_segments(patch: MonkeyPatch) -> None:
    """Only indexes and names are synced."""
    collect = Durability.collect
    patch.setattr(Durability, "collect", lambda self, path, end, segments, *_: collect(self, path, end, segments, []))


def indexes_are_trusted_after_a_crash(patch: MonkeyPatch) -> None:
    """Recovery does not compare the index files with the batches."""
    put = SparseIndex._write_entries
    patch.setattr(SparseIndex, "_write_entries", lambda self, *args: None if self._is_comparing else put(self, *args))


def truncation_keeps_the_indexes(patch: MonkeyPatch) -> None:
    """The log is truncated, the indexes are not."""
    for index in (OffsetIndex, TimeIndex, TransactionIndex):
        patch.setattr(index, "truncate", _nothing)


def truncation_is_not_synced(patch: MonkeyPatch) -> None:
    """Truncated batches may come back."""
    truncate = SegmentEngine.truncate

    def planted(self: SegmentEngine, offset: int) -> None:
        with MonkeyPatch.context() as inner:
            inner.setattr(Disk, "sync_dir", _nothing)
            inner.setattr(type(self._active.file), "sync", _nothing)
            truncate(self, offset)

    patch.setattr(SegmentEngine, "truncate", planted)


def compaction_swaps_unsynced_segments(patch: MonkeyPatch) -> None:
    """The old segments are deleted before the new one is durable."""

    def planted(self: Any, new: Any, last: Any) -> None:
        new.finish()
        new.close_files()

    patch.setattr(_Cleaner, "_complete", planted)


def tombstones_are_removed_too_early(patch: MonkeyPatch) -> None:
    """The next compaction ignores `delete.retention.ms`."""

    def planted(*args: Any) -> CleanerJob:
        job = make_job(*args)
        return job._replace(config=replace(job.config, delete_retention_ms=0))

    patch.setattr(tests.support.compaction, "make_job", planted)


def producer_snapshots_are_ahead_of_the_log(patch: MonkeyPatch) -> None:
    """A snapshot contains the batch after it."""
    commit = AppendPipeline.commit

    def planted(self: Any, prepared: Any, wall_ms: int) -> Any:
        info = commit(self, prepared, wall_ms)
        if prepared.snapshot is not None:
            self._snapshots.write(info.base_offset, self._producers.snapshot())
        return info

    patch.setattr(AppendPipeline, "commit", planted)


def recovery_skips_aborted_transactions(patch: MonkeyPatch) -> None:
    """Recovery does not rebuild the transaction index."""
    replay = storage.log.recovery.replay

    def planted(*args: Any) -> None:
        replay(*args)

    patch.setattr(storage.log.recovery, "replay", planted)


def a_clean_stop_does_not_sync_the_indexes(patch: MonkeyPatch) -> None:
    """After a clean stop, indexes are not rebuilt."""
    close = SegmentEngine.close
    patch.setattr(SegmentEngine, "close", lambda self, **_: close(self))


def the_clean_shutdown_marker_comes_back(patch: MonkeyPatch) -> None:
    """Its deletion is not durable."""
    take = LogDirectory._take_marker

    def planted(self: LogDirectory) -> None:
        with MonkeyPatch.context() as inner:
            inner.setattr(Disk, "sync_dir", _nothing)
            take(self)

    patch.setattr(LogDirectory, "_take_marker", planted)


def checkpoints_are_renamed_before_the_sync(patch: MonkeyPatch) -> None:
    """The new name can be durable without the contents."""
    replace_atomically = Disk.replace_atomically

    def planted(self: Disk, path: str, data: Any, *, sync: bool = True, **options: Any) -> None:
        replace_atomically(self, path, data, sync=sync and not path.endswith("-checkpoint"), **options)

    patch.setattr(Disk, "replace_atomically", planted)


def a_move_has_no_marker(patch: MonkeyPatch) -> None:
    """The log's directory is renamed before the copy is marked as complete."""

    def swap_in_future_log(disk: Disk, log: str, doomed: str, copy: str, name: str, drop: FileOp | None) -> None:
        assert drop is None, "all logs have directories"
        disk.rename(log, doomed)
        for _ in range(30):  # widen the gap: otherwise one of two thousand simulations crashes in it
            disk.sync_dir(log.rpartition("/")[0])
        disk.rename(copy, name)
        disk.sync_dir(name.rpartition("/")[0])

    patch.setattr(storage.directories.future_logs, "swap_in_future_log", swap_in_future_log)


def look_ups_in_index_files_are_off_by_one(patch: MonkeyPatch) -> None:
    """Look-ups in the unloaded part of an index return the next entry."""
    min_end_offset = SparseIndex._cold_floor
    patch.setattr(SparseIndex, "_cold_floor", lambda self, *args: min_end_offset(self, *args) + 1)


def _replaced(name: str, owner: object, attribute: str, returned: object) -> PlantedBug:
    """A bug that replaces a function by one that only returns a value."""

    def plant(patch: MonkeyPatch) -> None:
        patch.setattr(owner, attribute, lambda *_, **__: returned)

    plant.__name__ = name
    return plant


PLANTED_BUGS: tuple[PlantedBug, ...] = (
    _replaced("directories_are_not_synced", SimulatedDirectory, "sync", None),
    _replaced("summaries_are_used_although_files_changed", SegmentEngine, "stamp", "same"),
    _replaced("damaged_summaries_are_accepted", storage.directories.summary_file, "crc32c", 0),
    _replaced("summaries_have_no_producers", ProducerState, "summary", []),
    _replaced("corrupt_batches_are_accepted", storage.segments.active_segment, "crc_is_valid", True),
    _replaced("truncation_keeps_the_recovery_point", LogDirectory, "lower_checkpoint", None),
    _replaced("compaction_removes_producer_state", _Cleaner, "_is_last_of_producer", False),
    _replaced("the_epoch_cache_is_not_flushed", LeaderEpochCache, "take_replacement", []),
    _replaced("duplicate_batches_are_accepted", ProducerState, "check", None),
    _replaced("a_hole_counts_as_compaction", Recovery, "_is_hole", False),
    _replaced("a_new_topic_inherits_checkpoints", LogManager, "write_checkpoints", None),
    _replaced("truncation_keeps_the_epochs", LeaderEpochCache, "truncate", None),
    *(bug for name, bug in list(vars().items()) if isfunction(bug) and bug.__module__ == __name__ and name[0] != "_"),
)
"""With all functions above, which the tests name."""

COMPACTION_BUGS = frozenset(
    {"compaction_swaps_unsynced_segments", "tombstones_are_removed_too_early", "compaction_removes_producer_state"}
)
