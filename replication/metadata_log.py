"""The metadata log `__cluster_metadata-0` of a quorum of one: replay it at the start, lead it from then on.

FORMAT   batches, records and snapshots: `metadata_records.py`; quorum-state and the zero checkpoint: `formatting.py`
RULES    1. Every start begins a new leader epoch: quorum-state is durable before the first record of the epoch, and
            that record is a LeaderChange (in an empty log followed by KRaftVersion and Voters).
         2. One append is one batch, seen whole or not at all. What is larger is split only when it may be. Its bytes
            are written through the Worker: a directory that is slow does not hold up those who ask for nothing here.
            They are encoded in turns (`turns.py`); an append has its offsets at once, and is written behind those before it.
         3. A record is committed when a sync has covered it; the callbacks come in the order of the appends. At
            most one sync is under way: what comes meanwhile is covered by the next (group commit).
         4. A failed write or sync is final: nothing is committed after it, `on_failed` is told, the node must stop.
         5. At the start the log is cut at the first batch that is not whole (whatever was committed had been synced). A log
            that ends before the newest snapshot, for it was lost, begins anew where the snapshot ends.
NOT HERE What stands in it at the start (`metadata_replay.py`), what to write (`controller/`); when a snapshot is taken
         (`metadata_snapshots.py`); other voters and observers.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from protocol.messages import stored
from protocol.records import ControlType
from protocol.schema import Message
from replication.formatting import (
    METADATA_DIRECTORY,
    Identity,
    QuorumState,
    read_quorum_state,
    voter_records,
    write_quorum_state,
)
from replication.image import MetadataImage
from replication.metadata_records import (
    MAX_BATCH_BYTES,
    DataBatches,
    MetadataBatch,
    SnapshotName,
    Versioned,
    control_records,
    read_batches,
)
from replication.metadata_replay import Replayed, read_metadata
from replication.snapshot_files import SnapshotFiles
from replication.turns import Soon, at_once, in_turns
from replication.work import Worker
from storage.changes import Change
from storage.checkpoints import PARTITION_METADATA, write_topic_id
from storage.disk import Disk, StorageError
from storage.engine import EngineFactory
from storage.log import Checkpoint, Log, PreparedAppend
from storage.log_config import LogConfig
from storage.validation import Origin

METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = (1).to_bytes(16, "big")
METADATA_LOG_CONFIG = LogConfig(
    max_message_bytes=MAX_BATCH_BYTES, retention_ms=-1, cleanup_policy=frozenset({"delete"})
)
_READ_BYTES = 1024 * 1024
_log = logging.getLogger("barnabas.metadata")

Committed = Callable[[], None]


class _Unwritten(NamedTuple):
    """An append that is not handed to the disk yet: batches, and in between steps that only encode."""

    steps: Iterator[bytearray | None]
    wall_ms: int


class MetadataLog:
    """The log of which this node is the only voter."""

    def __init__(
        self, log: Log, worker: Worker, *, epoch: int, image: MetadataImage, voter: stored.VotersVoter | None
    ) -> None:
        self._log = log
        self._worker = worker
        log.later = self._change_later
        self._unwritten: deque[_Unwritten] = deque()
        self._waiting: deque[tuple[int, int, Committed]] = deque()
        self._is_syncing = False
        self._next_offset = log.log_end_offset
        self.voter = voter
        self.epoch = epoch
        self.image = image
        """As of the log's end at the start; the controller goes on from here."""
        self.bootstrap: list[Versioned] = []
        """What a new cluster begins with; empty when it has begun."""
        self.is_failed = False
        self.has_open_transaction = False
        """Whether the log ends inside a transaction, which has to be aborted first."""
        self.on_failed: Callable[[StorageError], None] | None = None
        self.snapshots: SnapshotFiles
        self.snapshot_ms = 0
        """Up to when the snapshot goes that was loaded at the start."""
        self.bytes_behind = 0
        """Written since the newest snapshot."""
        self.committed_ms = 0
        """When the last committed record was written."""
        self.soon: Soon = at_once
        """Gives others their turns while many records are encoded."""

    @property
    def kraft_version(self) -> int:
        """1: the voters stand in the log; 0: they are a setting."""
        return 0 if self.voter is None else 1

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return self._next_offset

    def begin_epoch(self, node_id: int, wall_ms: int, committed: Committed) -> int:
        """Write this epoch's LeaderChange; return its last offset."""
        voters = [stored.LeaderChangeVoter(voter_id=node_id)]
        leader = stored.LeaderChangeMessage(leader_id=node_id, voters=voters, granting_voters=voters)
        messages: list[tuple[ControlType, Message]] = [(ControlType.LEADER_CHANGE, leader)]
        if self.next_offset == 0 and self.voter is not None:
            messages += voter_records(self.voter)
        batch = control_records(messages, base_offset=self.next_offset, leader_epoch=self.epoch, timestamp_ms=wall_ms)
        return self._append(len(messages), iter([batch]), wall_ms, committed)

    def append(
        self, records: Sequence[Versioned], *, wall_ms: int, committed: Committed, is_atomic: bool = True
    ) -> int:
        """Write data records; return the last one's offset."""
        batches = DataBatches(
            base_offset=self.next_offset,
            leader_epoch=self.epoch,
            timestamp_ms=wall_ms,
            max_bytes=MAX_BATCH_BYTES,
        )
        return self._append(len(records), _encoded(records, batches, is_atomic=is_atomic), wall_ms, committed)

    @property
    def directory(self) -> str:
        """The log directory that it lies in."""
        return self._log.directory

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return self._log.size_bytes

    def begin_segment(self, wall_ms: int, *, at_least: int) -> None:
        """Go on in a new segment when the present one has so many bytes and nothing is being written."""
        segment = self._log.open().segments()[-1]
        if segment.size < at_least or self._log.log_end_offset < self._next_offset or self.is_failed:
            return
        try:
            self._log.roll(wall_ms)
        except StorageError as error:
            self._fail(error)

    def trim(self, offset: int, wall_ms: int) -> None:
        """Drop the segments wholly before `offset`: a snapshot stands for them."""
        if self.is_failed:
            return
        try:
            self._log.trim(offset, wall_ms)
        except StorageError as error:
            self._fail(error)

    def take_doomed(self, wall_ms: int) -> list[str]:
        """Files of dropped segments that may be removed now."""
        doomed = self._log.doomed
        self._log.doomed = [entry for entry in doomed if entry[0] > wall_ms or self._log.is_changing]
        return [path for due_ms, paths in doomed if due_ms <= wall_ms for path in paths]

    def close(self) -> None:
        """Let the files go; what was committed is durable already."""
        if not self.is_failed:
            self._log.close()

    def _append(self, records: int, steps: Iterator[bytearray | None], wall_ms: int, committed: Committed) -> int:
        """Give so many records their offsets; write the batches among the steps behind those that came before."""
        self._next_offset += records
        self._waiting.append((self._next_offset, wall_ms, committed))
        self._unwritten.append(_Unwritten(steps, wall_ms))
        if len(self._unwritten) == 1:
            in_turns(self._write_all(), self.soon)
        return self._next_offset - 1

    def _write_all(self) -> Iterator[None]:
        unwritten = self._unwritten
        while unwritten:
            steps, wall_ms = unwritten[0]
            for batch in steps:
                if batch is not None and not self.is_failed:
                    self._write(batch, wall_ms)
                yield
            unwritten.popleft()

    def _write(self, batch: bytearray, wall_ms: int) -> None:
        log = self._log
        prepared = log.prepare(batch, leader_epoch=self.epoch, wall_ms=wall_ms, origin=Origin.RAFT_LEADER)
        assert prepared.end_offset <= self._next_offset, "records have the offsets that were promised"
        self.bytes_behind += prepared.size
        self._worker.write(
            log.directory, prepared.size, partial(log.write, prepared), partial(self._written, prepared, wall_ms)
        )

    def _written(self, prepared: PreparedAppend, wall_ms: int, error: StorageError | None) -> None:
        if error is not None:
            self._fail(error)
        if self.is_failed:
            return
        self._log.commit(prepared, wall_ms)
        self._sync_what_is_whole()

    def _sync_what_is_whole(self) -> None:
        """Sync, unless one is under way or nothing that somebody waits for is written."""
        log = self._log
        if self._is_syncing or not self._waiting or self._waiting[0][0] > log.log_end_offset:
            return
        self._is_syncing = True
        try:
            run = log.sync_work()
        except StorageError as error:
            self._fail(error)
            return
        self._worker.sync(log.directory, lambda: run, partial(self._synced, log.log_end_offset))

    def _synced(self, end_offset: int, error: StorageError | None) -> None:
        self._is_syncing = False
        if error is not None:
            self._fail(error)
        if self.is_failed:
            return
        self._log.flushed(end_offset)
        self._log.high_watermark = end_offset
        waiting = self._waiting
        while waiting and waiting[0][0] <= end_offset:
            _, self.committed_ms, committed = waiting.popleft()
            committed()
        self._sync_what_is_whole()

    def _change_later(self, change: Change) -> None:
        """Change files in the order of the writes to their directory, which wait for room on a full disk."""
        self._worker.write(self._log.directory, 0, change, self._changed)

    def _changed(self, error: StorageError | None) -> None:
        if error is not None:
            self._fail(error)

    def _fail(self, error: StorageError) -> None:
        if self.is_failed:
            return
        self.is_failed = True
        if self.on_failed is not None:
            self.on_failed(error)


def _encoded(records: Sequence[Versioned], batches: DataBatches, *, is_atomic: bool) -> Iterator[bytearray | None]:
    """A step for each record, then the batches."""
    for message, version in records:
        batches.add(message, version)
        yield None
    finished = batches.finish()
    assert not is_atomic or len(finished) == 1, "what must be seen whole fits into one batch"
    yield from finished


# ---- the start -------------------------------------------------------------------------------------------


def open_metadata_log(
    disk: Disk,
    engine_factory: EngineFactory,
    identity: Identity,
    worker: Worker,
    config: LogConfig = METADATA_LOG_CONFIG,
    found: Replayed | None = None,
) -> MetadataLog:
    """Recover the log, and make the next leader epoch durable; writes no record yet.

    Args:
        disk: the file system.
        engine_factory: for the log.
        identity: of the node.
        worker: for writing.
        config: how large and how old segments get.
        found: what `read_metadata` found; None: it is read now.

    Raises:
        UnreadableMetadata: somebody wrote what this node does not understand.
        UnusableDirectory: quorum-state is broken.
        StorageError: the disk failed.
    """
    found = found or read_metadata(disk, identity)
    path = f"{identity.metadata_directory}/{METADATA_DIRECTORY}"
    disk.make_dirs(path)
    if not disk.exists(f"{path}/{PARTITION_METADATA}"):
        write_topic_id(disk, f"{path}/{PARTITION_METADATA}", METADATA_TOPIC_ID, sync=False)
    is_new = not any(file.endswith(".log") for file in disk.listdir(path))
    log = _recovered(disk, engine_factory, identity, config, found.start, is_new=is_new)
    if log.log_end_offset != found.end_offset:
        found = found.again(_batches(log, found.start.end_offset))
    image = found.image
    state = read_quorum_state(disk, path)
    epoch = max(image.epoch, 0 if state is None else state.leader_epoch) + 1
    write_quorum_state(disk, path, QuorumState(epoch, identity.node_id), is_static=found.voter is None)
    opened = MetadataLog(log, worker, epoch=epoch, image=image, voter=found.voter)
    found.snapshots.tidy()
    opened.snapshots = found.snapshots
    opened.snapshot_ms = found.snapshot.last_contained_ms
    opened.bytes_behind, opened.committed_ms = found.size, found.timestamp_ms
    opened.has_open_transaction = found.is_in_transaction
    opened.bootstrap = found.bootstrap
    return opened


def _recovered(
    disk: Disk,
    engine_factory: EngineFactory,
    identity: Identity,
    config: LogConfig,
    start: SnapshotName,
    *,
    is_new: bool,
) -> Log:
    """The log, whole to its end, which is not before the snapshot's."""
    log = Log(
        disk,
        engine_factory,
        identity.metadata_directory,
        METADATA_TOPIC,
        0,
        config,
        known=Checkpoint(recovery_point=start.end_offset),
        topic_id=METADATA_TOPIC_ID,
        is_clean=False,
        is_new=is_new,
    )
    log.open()
    if log.log_end_offset < start.end_offset:
        _log.warning("the metadata log is lost from %d on; going on behind %s", log.log_end_offset, start)
        log.truncate_fully(start.end_offset)
    return log


def _batches(log: Log, offset: int) -> Iterable[MetadataBatch]:
    while offset < log.log_end_offset:
        for batch in read_batches(log.read_records(offset, _READ_BYTES)):
            offset = batch.last_offset + 1
            yield batch
