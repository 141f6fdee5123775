"""The metadata log `__cluster_metadata-0` of one replica: a leader appends to it, followers copy it, all make it durable.

FORMAT   batches, records and snapshots: `metadata_records.py`; quorum-state and the zero checkpoint: `formatting.py`
RULES    1. One append is one batch, seen whole or not at all. What is larger is split only when it may be. A leader's append
            has its offsets at once; it is encoded in turns (`cooperative_tasks.py`) and written behind those before it, through the
            Worker: a directory that is slow does not hold up those who ask for nothing here.
         2. At most one sync is under way: what comes meanwhile is covered by the next (group commit). `on_flushed` is told.
         3. An append is committed when the high watermark has passed it; the callbacks come in the order of the appends. Who
            leads no longer calls nobody back.
         4. What a follower appends, cuts or loads is done one after the other, and is durable when `done` is called.
         5. A failed write or sync is final: nothing is committed after it, `on_failed` is told, the node must stop.
NOT HERE What stands in it at the start (`metadata_replay.py`, `metadata_log_open.py`), what to write (`controller/`), who
         leads and what is committed (`raft/`, `kraft_replica.py`); when a snapshot is taken (`metadata_snapshots.py`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from protocol.errors import KafkaError
from protocol.messages import stored_records
from protocol.records import ControlType, headers
from protocol.schema import Message
from replication.cooperative_tasks import Soon, at_once, in_turns
from replication.io_executor import Worker
from replication.metadata.metadata_records import (
    MAX_BATCH_BYTES,
    DataBatches,
    MetadataBatch,
    Snapshot,
    SnapshotName,
    Versioned,
    control_records,
    read_batch,
    read_batches,
)
from replication.metadata_log.formatting import voter_records
from replication.metadata_log.snapshot_files import SnapshotFiles
from replication.raft.control_state_history import History
from replication.raft.raft_log import Append, EpochEnd, KeepSnapshot, Lead, NameVoters
from replication.raft.voters import VoterSet, from_record, to_record
from storage.io.deferred_file_ops import Change
from storage.io.disk import StorageError
from storage.log.log import Log, PreparedAppend
from storage.log.log_validator import Origin

READ_BYTES = 1024 * 1024
_log = logging.getLogger("barnabas.metadata")

Done = Callable[[], None]


class _Unwritten(NamedTuple):
    """An append that is not handed to the disk yet: batches, and in between steps that only encode."""

    steps: Iterator[bytearray | None]
    epoch: int
    wall_ms: int


class MetadataLog:
    """The log of one replica: what Raft sees of it (`ReplicaLog`), and what is done to it."""

    def __init__(
        self,
        log: Log,
        worker: Worker,
        snapshots: SnapshotFiles,
        voters: History[VoterSet],
        kraft_version: History[int],
        *,
        epoch: int,
    ) -> None:
        self._log = log
        self._worker = worker
        log.later = self._change_later
        self._unwritten: deque[_Unwritten] = deque()
        self._in_flight = 0
        self._awaiting_flush: deque[tuple[int, Done]] = deque()
        self._awaiting_commit: deque[tuple[int, int, Done]] = deque()
        self._awaiting_rest: deque[Done] = deque()
        self._is_syncing = False
        self._next_offset = log.log_end_offset
        self._end_epoch = epoch
        self._begun: list[EpochEnd] = []
        """Epochs that the log may not know of yet, because their first records are being written; and where they begin."""
        self.voters = voters
        self.kraft_version = kraft_version
        """1: the voters stand in the log; 0: they are a setting."""
        self.snapshots = snapshots
        self.is_failed = False
        self.on_failed: Callable[[StorageError], None] | None = None
        self.on_written: Done = _nothing
        """More can be read."""
        self.on_flushed: Done = _nothing
        """More is durable."""
        self.on_loaded: Callable[[SnapshotName, Snapshot], None] = _ignore
        """A leader's snapshot stands for all that was here."""
        self.snapshot_ms = 0
        """Up to when the snapshot goes that was loaded at the start."""
        self.bytes_behind = 0
        """Written since the newest snapshot."""
        self.committed_ms = 0
        """When the last committed record was written."""
        self.soon: Soon = at_once
        """Gives others their turns while many records are encoded."""

    # ------------------------------------------------------------ where it stands
    @property
    def directory(self) -> str:
        """The log directory that it lies in."""
        return self._log.directory

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return self._log.size_bytes

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return self._next_offset

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""
        return self._log.log_start_offset

    @property
    def end(self) -> EpochEnd:
        """Where it ends, what is still being written included."""
        return EpochEnd(self._end_epoch, self._next_offset)

    @property
    def flushed_offset(self) -> int:
        """What lies before is durable, in the log or in the snapshot that it begins behind."""
        return max(self._log.flushed_end_offset, self._log.log_start_offset)

    @property
    def oldest_snapshot(self) -> EpochEnd | None:
        """The oldest snapshot behind which the log goes on; one that was loaded may have left older ones."""
        names = (file.name for file in self.snapshots.kept)
        name = next((name for name in names if name.end_offset >= self.start_offset), None)
        return _end_of(name) if name is not None and name.end_offset else None

    @property
    def newest_snapshot(self) -> EpochEnd | None:
        """The one for who is too far behind."""
        newest = self.snapshots.newest
        return _end_of(newest) if newest.end_offset else None

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """The largest epoch up to that one which the log knows, and where it ends."""
        if epoch >= self._end_epoch:
            return self.end
        lowest = self.oldest_snapshot or EpochEnd(0, 0)
        known = self._log.latest_epoch
        if epoch >= known:
            before = max(known, lowest.epoch)
            for begun in self._begun:
                if begun.epoch > epoch:
                    return EpochEnd(before, begun.offset)
                before = max(before, begun.epoch)
        found, offset = self._log.end_offset_for_epoch(epoch)
        return EpochEnd(found, offset) if found >= 0 else lowest

    # ------------------------------------------------------------ reading
    def read(self, offset: int, max_bytes: int) -> Any:
        """Whole batches from an offset on, as they are; empty at the end of what is written."""
        if offset >= self._log.log_end_offset:
            return b""
        return self._log.read_records(offset, max_bytes)

    def read_snapshot(self, snapshot: EpochEnd, position: int, max_bytes: int) -> tuple[Any, int] | None:
        """Bytes of a snapshot and how many it has in all; None: there is no such snapshot."""
        return self.snapshots.piece(SnapshotName(snapshot.offset, snapshot.epoch), position, max_bytes)

    def batches(self, offset: int, end_offset: int) -> Iterator[MetadataBatch]:
        """What lies between two offsets, decoded."""
        while offset < end_offset:
            for batch in read_batches(self._log.read_records(offset, READ_BYTES)):
                if batch.base_offset >= end_offset:
                    return
                offset = batch.last_offset + 1
                yield batch

    def quorum_records(self, end_offset: int) -> list[tuple[ControlType, Message]]:
        """What a snapshot up to an offset says of the quorum: its voters, where they are no setting."""
        return [*voter_records(to_record(self.voters.at(end_offset)))] if self.kraft_version.at(end_offset) else []

    # ------------------------------------------------------------ as leader
    def begin_epoch(self, lead: Lead, node_id: int, wall_ms: int, committed: Done) -> int:
        """Write an epoch's LeaderChange, in the same batch what is to be named of the quorum; return its last offset."""
        voters = [stored_records.LeaderChangeVoter(voter_id=voter) for voter in self.voters.latest.node_ids]
        for_it = [stored_records.LeaderChangeVoter(voter_id=voter) for voter in lead.granting]
        leader = stored_records.LeaderChangeMessage(leader_id=node_id, voters=voters, granting_voters=for_it)
        messages: list[tuple[ControlType, Message]] = [(ControlType.LEADER_CHANGE, leader)]
        messages += [] if lead.naming is None else _named(lead.naming)
        self._begin(lead.epoch, self._next_offset)
        return self._append_control(messages, wall_ms, committed)

    def name_voters(self, naming: NameVoters, wall_ms: int) -> None:
        """Write down other voters."""
        self._append_control(_named(naming), wall_ms, _nothing)

    def _append_control(self, messages: list[tuple[ControlType, Message]], wall_ms: int, committed: Done) -> int:
        first = self.next_offset
        batch = control_records(messages, base_offset=first, leader_epoch=self._end_epoch, timestamp_ms=wall_ms)
        for offset, (_, message) in enumerate(messages, first):
            self._take_control(offset, message)
        return self._append(len(messages), iter([batch]), wall_ms, committed)

    def append(self, records: Sequence[Versioned], *, wall_ms: int, committed: Done, is_atomic: bool = True) -> int:
        """Write data records; return the last one's offset."""
        batches = DataBatches(
            base_offset=self.next_offset,
            leader_epoch=self._end_epoch,
            timestamp_ms=wall_ms,
            max_bytes=MAX_BATCH_BYTES,
        )
        return self._append(len(records), _encoded(records, batches, is_atomic=is_atomic), wall_ms, committed)

    def _append(self, records: int, steps: Iterator[bytearray | None], wall_ms: int, committed: Done) -> int:
        """Give so many records their offsets; write the batches among the steps behind those that came before."""
        self._next_offset += records
        self._awaiting_commit.append((self._next_offset, wall_ms, committed))
        self._awaiting_flush.append((self._next_offset, _nothing))
        self._unwritten.append(_Unwritten(steps, self._end_epoch, wall_ms))
        if len(self._unwritten) == 1:
            in_turns(self._write_all(), self.soon)
        return self._next_offset - 1

    def _write_all(self) -> Iterator[None]:
        unwritten = self._unwritten
        while unwritten:
            steps, epoch, wall_ms = unwritten[0]
            for batch in steps:
                if batch is not None and not self.is_failed:
                    self._write_own(batch, epoch, wall_ms)
                yield
            unwritten.popleft()
        self._rest()

    def _write_own(self, batch: bytearray, epoch: int, wall_ms: int) -> None:
        log = self._log
        prepared = log.prepare(batch, leader_epoch=epoch, wall_ms=wall_ms, origin=Origin.RAFT_LEADER)
        assert prepared.end_offset <= self._next_offset, "records have the offsets that were promised"
        self._write(prepared, wall_ms)

    def committed(self, high_watermark: int) -> None:
        """What lies before is committed (rule 3)."""
        self._log.high_watermark = high_watermark
        waiting = self._awaiting_commit
        while waiting and waiting[0][0] <= high_watermark:
            _, self.committed_ms, committed = waiting.popleft()
            committed()

    def lead_no_longer(self) -> None:
        """Another replica decides from now on what becomes of what is not committed."""
        self._awaiting_commit.clear()

    # ------------------------------------------------------------ as follower
    def append_fetched(self, fetched: Append, wall_ms: int, done: Done) -> None:
        """Take over what was fetched from the leader, byte for byte; what it could not have sent is left out."""
        self._when_at_rest(partial(self._append_fetched, fetched, wall_ms, done))

    def _append_fetched(self, fetched: Append, wall_ms: int, done: Done) -> None:
        records = fetched.records
        try:
            prepared = self._log.prepare_as_follower(records, wall_ms=wall_ms, leader_epoch=fetched.epoch)
        except KafkaError as error:
            _log.warning("the leader of the metadata sent what cannot be appended, it is asked again: %s", error)
            prepared = None
        if prepared is None:
            done()
            return
        for at, header in headers(records):
            if header.base_offset >= prepared.end_offset:
                break  # of a newer epoch than the leader's
            self._begin(header.leader_epoch, header.base_offset)
            if header.is_control:
                batch = read_batch(records, at, header)
                for offset, message in enumerate(batch.messages, batch.base_offset):
                    self._take_control(offset, message)
        self._next_offset = prepared.end_offset
        self._awaiting_flush.append((prepared.end_offset, done))
        self._write(prepared, wall_ms)

    def _begin(self, epoch: int, offset: int) -> None:
        if epoch > self._end_epoch:
            self._begun = [one for one in self._begun if one.epoch > self._log.latest_epoch]
            self._begun.append(EpochEnd(epoch, offset))
            self._end_epoch = epoch

    def _take_control(self, offset: int, message: Message) -> None:
        if isinstance(message, stored_records.VotersRecord):
            self.voters.changed(offset, from_record(message))
        elif isinstance(message, stored_records.KRaftVersionRecord):
            self.kraft_version.changed(offset, message.kraft_version)

    def truncate(self, offset: int, done: Done) -> None:
        """Cut the log at an offset."""

        def cut() -> None:
            try:
                self._log.truncate(offset)
            except StorageError as error:
                self.fail(error)
                return
            self._stands_at_end()
            self.voters.truncated(offset)
            self.kraft_version.truncated(offset)
            done()

        self._when_at_rest(cut)

    def keep_piece(self, kept: KeepSnapshot, wall_ms: int, done: Done) -> None:
        """Write a piece of a snapshot; behind the last one the log begins anew where the snapshot ends."""
        name = SnapshotName(kept.snapshot.offset, kept.snapshot.epoch)
        work = self.snapshots.piece_writing(name, kept.position, kept.piece, is_last=kept.is_last)

        def written(error: StorageError | None) -> None:
            if error is not None:
                self.fail(error)
            elif kept.is_last:
                self._when_at_rest(partial(self._begin_behind, name, wall_ms, done))
            else:
                done()

        self._worker.background(self.directory, work, written)

    def _begin_behind(self, name: SnapshotName, wall_ms: int, done: Done) -> None:
        try:
            snapshot = self.snapshots.received(name, wall_ms)
            self._log.truncate_fully(name.end_offset)
        except StorageError as error:
            self.fail(error)
            return
        self._next_offset, self._end_epoch, self._begun = name.end_offset, name.leader_epoch, []
        self.bytes_behind, self.snapshot_ms = 0, snapshot.last_contained_ms
        for message in snapshot.control:
            if isinstance(message, stored_records.VotersRecord):
                self.voters.begins_with(name.end_offset, from_record(message))
            elif isinstance(message, stored_records.KRaftVersionRecord):
                self.kraft_version.begins_with(name.end_offset, message.kraft_version)
        self.on_loaded(name, snapshot)
        done()

    def _stands_at_end(self) -> None:
        log = self._log
        self._next_offset, self._begun = log.log_end_offset, []
        epoch = log.latest_epoch
        snapshot = self.newest_snapshot
        self._end_epoch = max(epoch, 0 if snapshot is None else snapshot.epoch)

    def _when_at_rest(self, act: Done) -> None:
        """Do something when all that was begun is written (a leader's last appends), and no change of files is to be made."""
        self._awaiting_rest.append(act)
        self._rest()

    def _rest(self) -> None:
        while self._awaiting_rest and not (self._unwritten or self._in_flight or self._is_syncing or self.is_failed):
            if self._log.is_changing:
                self._worker.write(self.directory, 0, _nothing, lambda _: self._rest())  # behind the changes
                return
            self._awaiting_rest.popleft()()

    def make_durable(self) -> None:
        """What stands in it at the start may have been written by a process that ended before it was synced."""
        if self.flushed_offset < self._next_offset:
            self._awaiting_flush.append((self._next_offset, _nothing))
            self._sync_what_is_whole()

    # ------------------------------------------------------------ writing
    def _write(self, prepared: PreparedAppend, wall_ms: int) -> None:
        log = self._log
        self.bytes_behind += prepared.size
        self._in_flight += 1
        self._worker.write(
            log.directory, prepared.size, partial(log.write, prepared), partial(self._written, prepared, wall_ms)
        )

    def _written(self, prepared: PreparedAppend, wall_ms: int, error: StorageError | None) -> None:
        self._in_flight -= 1
        if error is not None:
            self.fail(error)
        if self.is_failed:
            return
        self._log.commit(prepared, wall_ms)
        self._sync_what_is_whole()
        self.on_written()
        self._rest()

    def _sync_what_is_whole(self) -> None:
        """Sync, unless one is under way or nothing that somebody waits for is written."""
        log = self._log
        if self._is_syncing or not self._awaiting_flush or self._awaiting_flush[0][0] > log.log_end_offset:
            return
        self._is_syncing = True
        try:
            run = log.sync_work()
        except StorageError as error:
            self.fail(error)
            return
        self._worker.sync(log.directory, lambda: run, partial(self._synced, log.log_end_offset))

    def _synced(self, end_offset: int, error: StorageError | None) -> None:
        self._is_syncing = False
        if error is not None:
            self.fail(error)
        if self.is_failed:
            return
        self._log.flushed(end_offset)
        waiting = self._awaiting_flush
        while waiting and waiting[0][0] <= end_offset:
            waiting.popleft()[1]()
        self.on_flushed()
        self._sync_what_is_whole()
        self._rest()

    def _change_later(self, change: Change) -> None:
        """Change files in the order of the writes to their directory, which wait for room on a full disk."""
        self._worker.write(self._log.directory, 0, change, self._changed)

    def _changed(self, error: StorageError | None) -> None:
        if error is not None:
            self.fail(error)

    def fail(self, error: StorageError) -> None:
        """The disk failed under it (rule 5)."""
        if self.is_failed:
            return
        self.is_failed = True
        if self.on_failed is not None:
            self.on_failed(error)

    # ------------------------------------------------------------ old segments
    def begin_segment(self, wall_ms: int, *, at_least: int) -> None:
        """Go on in a new segment when the present one has so many bytes and nothing is being written."""
        segment = self._log.open().segments()[-1]
        if segment.size < at_least or self._log.log_end_offset < self._next_offset or self.is_failed:
            return
        try:
            self._log.roll(wall_ms)
        except StorageError as error:
            self.fail(error)

    def trim(self, offset: int, wall_ms: int) -> None:
        """Drop the segments wholly before `offset`: a snapshot stands for them."""
        if self.is_failed:
            return
        try:
            self._log.trim(offset, wall_ms)
        except StorageError as error:
            self.fail(error)

    def take_doomed(self, wall_ms: int) -> list[str]:
        """Files of dropped segments that may be removed now."""
        doomed = self._log.doomed
        self._log.doomed = [entry for entry in doomed if entry[0] > wall_ms or self._log.is_changing]
        return [path for due_ms, paths in doomed if due_ms <= wall_ms for path in paths]

    def close(self) -> None:
        """Let the files go; what was committed is durable already."""
        if not self.is_failed:
            self._log.close()


def _end_of(name: SnapshotName) -> EpochEnd:
    return EpochEnd(name.leader_epoch, name.end_offset)


def _named(naming: NameVoters) -> list[tuple[ControlType, Message]]:
    """The control records that name voters, after the version of the quorum's protocol if there is one."""
    records: list[tuple[ControlType, Message]] = [(ControlType.KRAFT_VOTERS, to_record(naming.voters))]
    if naming.kraft_version is not None:
        version = stored_records.KRaftVersionRecord(kraft_version=naming.kraft_version)
        records.insert(0, (ControlType.KRAFT_VERSION, version))
    return records


def _encoded(records: Sequence[Versioned], batches: DataBatches, *, is_atomic: bool) -> Iterator[bytearray | None]:
    """A step for each record, then the batches."""
    for message, version in records:
        batches.add(message, version)
        yield None
    finished = batches.finish()
    assert not is_atomic or len(finished) == 1, "what must be seen whole fits into one batch"
    yield from finished


def _nothing() -> None:
    pass


def _ignore(_name: SnapshotName, _snapshot: Snapshot) -> None:
    pass
