"""Planted bugs of the commit log: the simulator must find each.

NOT HERE The number of seeds (tests/simulation/test_planted_bugs.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from pytest import MonkeyPatch  # noqa: PT013

import storage.commitlog.catalog
import storage.commitlog.commit_log
import storage.commitlog.run_recovery
import storage.commitlog.sealing
from protocol.primitives import Buffer
from storage.commitlog.cleaner import Cleaner
from storage.commitlog.commit_log import CommitLog
from storage.commitlog.commit_log_engine import CommitLogEngine
from storage.commitlog.live_bytes import Extent
from storage.commitlog.log_file import LogFile
from storage.commitlog.queue_file import Row
from storage.commitlog.recovery import _Loader
from storage.commitlog.run_file import RunWriter
from storage.commitlog.slot_append import SlotAppend
from storage.commitlog.slots import Cut, Slot
from storage.commitlog.zeroing import ZeroAhead
from storage.directories.engines import Engines
from storage.directories.partition_directory import FUTURE
from storage.io.deferred_file_ops import FileOp
from storage.io.disk import Disk
from storage.io.disk_lookup import read_waiting
from tests.simulation.simulated_disk import SimulatedFile


def _nothing(*_: object, **__: object) -> None:
    """Do nothing."""


def a_cut_is_not_written(patch: MonkeyPatch) -> None:
    """A truncation changes only the memory."""

    def planted(self: CommitLog, slot: Slot, cut: Cut) -> None:
        slot.cut(self.files[-1], cut)

    patch.setattr(CommitLog, "truncate", planted)


def appends_of_a_partition_are_written_as_they_come(patch: MonkeyPatch) -> None:
    """An append does not wait for the earlier ones of its partition."""

    def planted(writes: Sequence[tuple[SlotAppend, Buffer]]) -> list[SlotAppend]:
        taken = []
        for append, buffer in writes:
            if append in append.unwritten:
                append.buffer = buffer
                append.unwritten.remove(append)
                taken.append(append)
        return taken

    patch.setattr(storage.commitlog.commit_log, "take_writable", planted)


def a_cut_is_not_synced(patch: MonkeyPatch) -> None:
    """Truncated batches may come back."""
    patch.setattr(CommitLog, "sync", _nothing)


def cuts_are_not_remembered(patch: MonkeyPatch) -> None:
    """Readers of earlier files find truncated batches."""
    cut = Slot.cut

    def planted(self: Slot, *args: Any) -> None:
        cut(self, *args)
        self.cuts = ()

    patch.setattr(Slot, "cut", planted)


def the_log_counts_as_flushed_when_the_sync_starts(patch: MonkeyPatch) -> None:
    """The flushed offset moves before the sync returns."""
    collect = CommitLogEngine.collect_sync

    def planted(self: CommitLogEngine, limit: int | None = None) -> Any:
        work = collect(self, limit)
        self.flushed_end_offset = work.end_offset
        return work

    patch.setattr(CommitLogEngine, "collect_sync", planted)


def a_sync_skips_finished_files(patch: MonkeyPatch) -> None:
    """Only the active file is synced."""
    unsynced = CommitLog.unsynced

    def planted(self: CommitLog) -> Any:
        position, files = unsynced(self)
        return position, files[:1]

    patch.setattr(CommitLog, "unsynced", planted)


def zeros_are_written_over_frames(patch: MonkeyPatch) -> None:
    """The end of the frames is that of the moment when the zeros were requested."""
    is_due, write = ZeroAhead.is_due, ZeroAhead._write
    requested: dict[ZeroAhead, int] = {}

    def planted_is_due(self: ZeroAhead, file: LogFile) -> bool:
        due = is_due(self, file)
        if due:
            requested[self] = file.end
        return due

    def planted(self: ZeroAhead, file: LogFile) -> None:
        self._file = LogFile(file.start, b"", file.log, requested[self])
        write(self, self._file)

    patch.setattr(ZeroAhead, "is_due", planted_is_due)
    patch.setattr(ZeroAhead, "_write", planted)


def files_are_sealed_before_they_are_durable(patch: MonkeyPatch) -> None:
    """A queue file exists before its log file is synced."""
    seal = storage.commitlog.sealing.seal

    def planted(disk: Disk, file: LogFile, *args: Any) -> Any:
        with MonkeyPatch.context() as inner:
            inner.setattr(type(file.log.get(read_waiting)), "sync", _nothing)
            return seal(disk, file, *args)

    patch.setattr("storage.commitlog.commit_log.seal", planted)


def the_states_at_the_end_of_a_file_are_those_of_later_ones(patch: MonkeyPatch) -> None:
    """A slot that goes on in the next file does not record its state."""
    patch.setattr(Slot, "record_in", _nothing)


def files_behind_the_end_of_the_log_stay(patch: MonkeyPatch) -> None:
    """Frames after a lost one are applied at the next start."""
    patch.setattr(_Loader, "_remove", _nothing)


def rows_are_short(patch: MonkeyPatch) -> None:
    """A row names one entry less than there are."""

    def planted(end: int, greatest: int, first: int, count: int, size: int) -> Any:
        return Row(end, greatest, first, max(count - 1, 0), size)

    patch.setattr("storage.commitlog.sealing.Row", planted)


# ---- the catalog ---------------------------------------------------------------------------------------------


def the_catalog_counts_for_all_files(patch: MonkeyPatch) -> None:
    """An older catalog is taken for the state at the end of the log: the states in later queue files are not applied."""
    restore = _Loader._restore

    def planted(self: _Loader, *args: Any) -> None:
        if not self._covered:
            restore(self, *args)

    patch.setattr(_Loader, "_restore", planted)


def deleted_partitions_stay_in_the_catalog(patch: MonkeyPatch) -> None:
    """An update of the catalog ignores deletions."""
    merged = storage.commitlog.catalog.merged
    patch.setattr(
        "storage.commitlog.catalog.merged",
        lambda states, changes: merged(states, {number: state for number, state in changes.items() if state}),
    )


# ---- cleaning ------------------------------------------------------------------------------------------------


def a_run_is_used_before_the_deletions_are_durable(patch: MonkeyPatch) -> None:
    """The frames that made batches dead may be lost, but the batches are removed."""
    patch.setattr(CommitLog, "sync_written", _nothing)


def a_run_is_not_synced(patch: MonkeyPatch) -> None:
    """Its sources are removed although a loss of power may take its bytes."""
    steps = RunWriter.steps

    def planted(self: RunWriter) -> Iterator[int]:
        with MonkeyPatch.context() as inner:
            inner.setattr(SimulatedFile, "sync", _nothing)
            yield from steps(self)

    patch.setattr(RunWriter, "steps", planted)


def the_states_of_replaced_files_are_forgotten(patch: MonkeyPatch) -> None:
    """A run contains batches only."""
    read = RunWriter._read_queue

    def planted(self: RunWriter, *args: Any) -> None:
        read(self, *args)
        self._states.clear()

    patch.setattr(RunWriter, "_read_queue", planted)


def a_live_batch_is_left_out_of_a_run(patch: MonkeyPatch) -> None:
    """The last live batch of a slot in a source is not copied."""
    live_range = Extent.live_range

    def planted(self: Extent, *args: Any) -> range:
        live = live_range(self, *args)
        return range(live.start, max(live.stop - 1, live.start))

    patch.setattr(Extent, "live_range", planted)


def an_unfinished_run_replaces_its_sources(patch: MonkeyPatch) -> None:
    """A run counts without its queue file."""
    first_of = storage.commitlog.run_recovery._first_of

    def planted(disk: Disk, path: str, start: int, known: bytes | None) -> int:
        first = first_of(disk, path, start, known)
        return 0 if first is None else first

    patch.setattr("storage.commitlog.run_recovery._first_of", planted)


def files_that_are_being_settled_are_cleaned_too(patch: MonkeyPatch) -> None:
    """Two runs replace the same files."""
    patch.setattr(Cleaner, "_rewriting", lambda *_: nullcontext())


def frames_are_dropped_before_the_copy_replaces_the_log(patch: MonkeyPatch) -> None:
    """After a crash between the two, the log has no records."""
    drop_of = Engines.drop_of

    def planted(self: Engines, path: str, topic_id: bytes | None) -> FileOp:
        drop = drop_of(self, path, topic_id)
        if drop is not None:
            drop()
        return _nothing

    patch.setattr(Engines, "drop_of", planted)


def a_log_takes_the_frames_of_an_interrupted_copy(patch: MonkeyPatch) -> None:
    """Segment files do not show that a log is not in the commit log."""
    patch.setattr(Engines, "_has_segments", lambda *_: False)


def a_copy_has_the_incarnation_of_its_log(patch: MonkeyPatch) -> None:
    """A copy in the other engine uses the frames of its log, which are therefore no reason to draw another name."""
    has_frames = Engines.has_frames
    patch.setattr("storage.directories.engines.incarnation_of", lambda _: None)
    patch.setattr(
        Engines, "has_frames", lambda engines, path, id_: not path.endswith(FUTURE) and has_frames(engines, path, id_)
    )
