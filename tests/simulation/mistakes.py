"""Mistakes that a storage engine could make, to be planted: the simulation has to find each.

NOT HERE How many histories that may take (test_mistakes.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest import MonkeyPatch  # noqa: PT013

import storage.compaction.cleanable
import storage.directories.log_manager
import storage.log.recovery
import storage.segments.segment
import tests.simulation.compaction
from storage.compaction.cleaner import _Cleaning
from storage.directories.log_directory import LogDirectory
from storage.directories.log_manager import LogManager
from storage.io.disk import Disk
from storage.log.append_pipeline import Appends
from storage.log.leader_epoch_cache import LeaderEpochs
from storage.log.producer_state import ProducerState
from storage.segments.durability import Durability
from storage.segments.indexes import OffsetIndex, SparseIndex, TimeIndex, TransactionIndex
from storage.segments.segment_engine import SegmentEngine
from tests.simulation.simulated_disk import SimulatedDirectory

Plant = Callable[[MonkeyPatch], None]


def _nothing(*_: object, **__: object) -> None:
    """Nothing at all."""


def names_that_are_not_synced(patch: MonkeyPatch) -> None:
    """No directory is."""
    patch.setattr(SimulatedDirectory, "sync", _nothing)


def a_log_that_counts_as_flushed_when_its_sync_begins(patch: MonkeyPatch) -> None:
    """The flushed end moves before the sync has returned."""
    collect = Durability.collect

    def early(self: Durability, directory: str, end_offset: int, unflushed: Any) -> Any:
        work = collect(self, directory, end_offset, unflushed)
        self.flushed_end = max(self.flushed_end, end_offset)
        return work

    patch.setattr(Durability, "collect", early)


def a_sync_that_forgets_the_batches(patch: MonkeyPatch) -> None:
    """Only indexes and names are synced."""
    collect = Durability.collect
    patch.setattr(Durability, "collect", lambda self, path, end, _: collect(self, path, end, []))


def damaged_batches_accepted(patch: MonkeyPatch) -> None:
    """No checksum is compared in a recovery."""
    patch.setattr(storage.segments.segment, "crc_is_valid", lambda *_: True)


def indexes_believed_after_a_crash(patch: MonkeyPatch) -> None:
    """What the files hold is not compared with the batches."""
    put = SparseIndex._put
    patch.setattr(SparseIndex, "_put", lambda self, *args: None if self._is_compared else put(self, *args))


def truncations_that_leave_the_indexes(patch: MonkeyPatch) -> None:
    """The log is cut and they are not."""
    for index in (OffsetIndex, TimeIndex, TransactionIndex):
        patch.setattr(index, "truncate", _nothing)


def truncations_that_are_not_synced(patch: MonkeyPatch) -> None:
    """What was cut off may come back."""
    truncate = SegmentEngine.truncate

    def unsynced(self: SegmentEngine, offset: int) -> None:
        with MonkeyPatch.context() as inner:
            inner.setattr(Disk, "sync_dir", _nothing)
            inner.setattr(type(self._active.file), "sync", _nothing)
            truncate(self, offset)

    patch.setattr(SegmentEngine, "truncate", unsynced)


def truncations_that_leave_the_recovery_point(patch: MonkeyPatch) -> None:
    """What is appended in the place of what was cut is vouched for by it."""
    patch.setattr(LogManager, "_lower_checkpoint", _nothing)


def compaction_that_swaps_without_syncing(patch: MonkeyPatch) -> None:
    """The old segments go before the new one is durable."""

    def complete(self: Any, new: Any, last: Any) -> None:
        new.finish()
        new.release(forget=False)

    patch.setattr(_Cleaning, "_complete", complete)


def tombstones_dropped_too_early(patch: MonkeyPatch) -> None:
    """At the next compaction, whatever `delete.retention.ms` says."""
    job_of = storage.compaction.cleanable.job_of
    patch.setattr(tests.simulation.compaction, "job_of", lambda *args: job_of(*args)._replace(delete_retention_ms=0))


def producers_forgotten_by_compaction(patch: MonkeyPatch) -> None:
    """Their last batches go like any other."""
    patch.setattr(_Cleaning, "_is_last_of_producer", lambda *_: False)


def snapshots_ahead_of_the_log(patch: MonkeyPatch) -> None:
    """They know of the batch behind them."""
    commit = Appends.commit

    def ahead(self: Any, prepared: Any, log_start_offset: int) -> Any:
        info = commit(self, prepared, log_start_offset)
        if prepared.snapshot is not None:
            self._snapshots.take(info.base_offset, self._producers.snapshot())
        return info

    patch.setattr(Appends, "commit", ahead)


def epochs_behind_the_recovery_point(patch: MonkeyPatch) -> None:
    """The table is not written with the flush that covers its batches."""
    patch.setattr(LeaderEpochs, "collect", lambda _: [])


def aborted_transactions_forgotten_in_a_recovery(patch: MonkeyPatch) -> None:
    """Their index is not built anew."""
    replay = storage.log.recovery.replay

    def forgetful(*args: Any) -> None:
        replay(*args)

    patch.setattr(storage.log.recovery, "replay", forgetful)


def duplicates_accepted(patch: MonkeyPatch) -> None:
    """A producer's last batch is taken for the next."""
    patch.setattr(ProducerState, "check", _nothing)


def a_hole_taken_for_compaction(patch: MonkeyPatch) -> None:
    """What lies behind a loss is served."""
    patch.setattr(SegmentEngine, "_is_hole", lambda *_, **__: False)


def a_clean_stop_that_leaves_indexes_to_the_system(patch: MonkeyPatch) -> None:
    """Nobody builds them anew, since the stop was clean."""
    close = SegmentEngine.close
    patch.setattr(SegmentEngine, "close", lambda self, **_: close(self))


def a_marker_that_comes_back(patch: MonkeyPatch) -> None:
    """That of a clean stop is deleted, but not durably."""
    take = LogDirectory._take_marker

    def undurable(self: LogDirectory) -> None:
        with MonkeyPatch.context() as inner:
            inner.setattr(Disk, "sync_dir", _nothing)
            take(self)

    patch.setattr(LogDirectory, "_take_marker", undurable)


def a_topic_that_inherits_checkpoints(patch: MonkeyPatch) -> None:
    """Of the one that had its name before."""
    patch.setattr(LogManager, "_write_checkpoints", _nothing)


def checkpoints_replaced_before_they_are_synced(patch: MonkeyPatch) -> None:
    """The new name may be durable and the contents not."""
    replace = Disk.replace_atomically

    def unsynced(self: Disk, path: str, data: Any, *, sync: bool = True) -> None:
        replace(self, path, data, sync=sync and not path.endswith("-checkpoint"))

    patch.setattr(Disk, "replace_atomically", unsynced)


def a_move_that_is_not_marked(patch: MonkeyPatch) -> None:
    """The log's directory is renamed while nobody could tell that the copy is whole."""

    def take_place(disk: Disk, log: str, doomed: str, copy: str, name: str) -> None:
        disk.rename(log, doomed)
        for _ in range(30):  # the gap is wide, else a crash falls into it in one of two thousand histories
            disk.sync_dir(log.rpartition("/")[0])
        disk.rename(copy, name)
        disk.sync_dir(name.rpartition("/")[0])

    patch.setattr(storage.directories.log_manager, "take_place", take_place)


def cold_look_ups_that_go_too_far(patch: MonkeyPatch) -> None:
    """Where an index lies in a file, the entry behind the right one is taken."""
    floor = SparseIndex._cold_floor
    patch.setattr(SparseIndex, "_cold_floor", lambda self, *args: floor(self, *args) + 1)


def epochs_kept_in_a_truncation(patch: MonkeyPatch) -> None:
    """Those that began behind the new end."""
    patch.setattr(LeaderEpochs, "truncate", _nothing)


MISTAKES: tuple[Plant, ...] = (
    names_that_are_not_synced,
    a_log_that_counts_as_flushed_when_its_sync_begins,
    a_sync_that_forgets_the_batches,
    damaged_batches_accepted,
    indexes_believed_after_a_crash,
    truncations_that_leave_the_indexes,
    truncations_that_are_not_synced,
    truncations_that_leave_the_recovery_point,
    compaction_that_swaps_without_syncing,
    tombstones_dropped_too_early,
    producers_forgotten_by_compaction,
    snapshots_ahead_of_the_log,
    epochs_behind_the_recovery_point,
    aborted_transactions_forgotten_in_a_recovery,
    duplicates_accepted,
    a_hole_taken_for_compaction,
    a_clean_stop_that_leaves_indexes_to_the_system,
    a_marker_that_comes_back,
    a_topic_that_inherits_checkpoints,
    checkpoints_replaced_before_they_are_synced,
    a_move_that_is_not_marked,
    cold_look_ups_that_go_too_far,
    epochs_kept_in_a_truncation,
)

OF_COMPACTION = frozenset(
    {compaction_that_swaps_without_syncing, tombstones_dropped_too_early, producers_forgotten_by_compaction}
)
