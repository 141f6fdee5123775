"""The metadata log `__cluster_metadata-0` of a quorum of one: replay it at the start, lead it from then on.

FORMAT   batches, records and snapshots: `metadata_records.py`; quorum-state and the zero checkpoint: `formatting.py`
RULES    1. Every start begins a new leader epoch: quorum-state is durable before the first record of the epoch, and
            that record is a LeaderChange (in an empty log followed by KRaftVersion and Voters).
         2. One append is one batch, seen whole or not at all. What is larger is split only when it may be. Its bytes
            are written through the Worker: a directory that is slow does not hold up those who ask for nothing here.
         3. A record is committed when a sync has covered it; the callbacks come in the order of the appends. At
            most one sync is under way: what comes meanwhile is covered by the next (group commit).
         4. A failed write or sync is final: nothing is committed after it, `on_failed` is told, the node must stop.
         5. At the start the newest snapshot is loaded, and the log behind it is checked, cut at the first batch that is
            not whole (whatever was committed had been synced), and replayed. A log that ends before the snapshot, for
            it was lost, begins anew where the snapshot ends.
         6. Records of a transaction count when its end is there; one that never ended is void.
NOT HERE What to write (`controller/`); when a snapshot is taken (`metadata_snapshots.py`); other voters and observers.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from protocol.messages import stored
from protocol.records import ControlType
from protocol.schema import Message
from replication.formatting import (
    BOOTSTRAP_CHECKPOINT,
    METADATA_DIRECTORY,
    Identity,
    QuorumState,
    read_quorum_state,
    voter_records,
    write_quorum_state,
)
from replication.image import METADATA_VERSION, MetadataImage
from replication.metadata_records import (
    MAX_BATCH_BYTES,
    MetadataBatch,
    UnreadableMetadata,
    Versioned,
    control_records,
    data_batches,
    read_batches,
    read_snapshot,
)
from replication.snapshot_files import SnapshotFiles
from replication.work import Worker
from storage.checkpoints import PARTITION_METADATA, write_topic_id
from storage.disk import Disk, StorageError
from storage.engine import EngineFactory
from storage.log import Checkpoint, Log, PreparedAppend
from storage.log_config import LogConfig
from storage.validation import Origin

METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = (1).to_bytes(16, "big")
SUPPORTED_METADATA_VERSIONS = (17, 30)
"""From 3.7-IV2, which names log directories by id, to 4.3-IV0."""
METADATA_LOG_CONFIG = LogConfig(
    max_message_bytes=MAX_BATCH_BYTES, retention_ms=-1, cleanup_policy=frozenset({"delete"})
)
_READ_BYTES = 1024 * 1024
_log = logging.getLogger("barnabas.metadata")

Committed = Callable[[], None]


class MetadataLog:
    """The log of which this node is the only voter."""

    def __init__(
        self, log: Log, worker: Worker, *, epoch: int, image: MetadataImage, voter: stored.VotersVoter | None
    ) -> None:
        self._log = log
        self._worker = worker
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
        return self._append([batch], wall_ms, committed)

    def append(
        self, records: Sequence[Versioned], *, wall_ms: int, committed: Committed, is_atomic: bool = True
    ) -> int:
        """Write data records; return the last one's offset."""
        batches = data_batches(
            records,
            base_offset=self.next_offset,
            leader_epoch=self.epoch,
            timestamp_ms=wall_ms,
            max_bytes=MAX_BATCH_BYTES,
        )
        assert not is_atomic or len(batches) == 1, "what must be seen whole fits into one batch"
        return self._append(batches, wall_ms, committed)

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
        self._log.doomed = [entry for entry in doomed if entry[0] > wall_ms]
        return [path for due_ms, paths in doomed if due_ms <= wall_ms for path in paths]

    def close(self) -> None:
        """Let the files go; what was committed is durable already."""
        if not self.is_failed:
            self._log.close()

    def _append(self, batches: Iterable[bytearray], wall_ms: int, committed: Committed) -> int:
        log = self._log
        work = []
        for batch in batches:
            prepared = log.prepare(batch, leader_epoch=self.epoch, wall_ms=wall_ms, origin=Origin.RAFT_LEADER)
            self._next_offset = prepared.end_offset
            self.bytes_behind += prepared.size
            work.append(prepared)
        last_offset = self._next_offset - 1
        self._waiting.append((self._next_offset, wall_ms, committed))
        for prepared in work:
            self._worker.write(
                log.directory,
                prepared.size,
                partial(log.write, prepared),
                partial(self._written, prepared, wall_ms),
            )
        return last_offset

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
        self._worker.sync(log.directory, run, partial(self._synced, log.log_end_offset))

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

    def _fail(self, error: StorageError) -> None:
        if self.is_failed:
            return
        self.is_failed = True
        if self.on_failed is not None:
            self.on_failed(error)


# ---- the start -------------------------------------------------------------------------------------------


def open_metadata_log(
    disk: Disk,
    engine_factory: EngineFactory,
    identity: Identity,
    worker: Worker,
    config: LogConfig = METADATA_LOG_CONFIG,
) -> MetadataLog:
    """Recover and replay the log, and make the next leader epoch durable; writes no record yet.

    `config` says how large and how old segments get.

    Raises:
        UnreadableMetadata: somebody wrote what this node does not understand.
        UnusableDirectory: quorum-state is broken.
        StorageError: the disk failed.
    """
    path = f"{identity.metadata_directory}/{METADATA_DIRECTORY}"
    disk.make_dirs(path)
    if not disk.exists(f"{path}/{PARTITION_METADATA}"):
        write_topic_id(disk, f"{path}/{PARTITION_METADATA}", METADATA_TOPIC_ID, sync=False)
    bases = [int(file[:20]) for file in disk.listdir(path) if file.endswith(".log")]
    log_bytes = sum([disk.size(f"{path}/{base:020d}.log") for base in bases])
    snapshots = SnapshotFiles(disk, path)
    name, snapshot = snapshots.load(min(bases, default=0), log_bytes)
    log = Log(
        disk,
        engine_factory,
        identity.metadata_directory,
        METADATA_TOPIC,
        0,
        config,
        known=Checkpoint(recovery_point=name.end_offset),
        topic_id=METADATA_TOPIC_ID,
        is_clean=False,
        is_new=not bases,
    )
    log.open()
    if log.log_end_offset < name.end_offset:
        _log.warning("the metadata log is lost from %d on; going on behind %s", log.log_end_offset, name)
        log.truncate_fully(name.end_offset)
    image = MetadataImage(identity.cluster_id)
    if snapshot.data or name.end_offset:
        image, _ = image.apply(snapshot.data, offset=name.end_offset - 1, epoch=name.leader_epoch)
    replay = _Replay(image, _voter_in(snapshot.control), snapshot.last_contained_ms)
    for batch in _batches(log, name.end_offset):
        replay.take(batch)
    image = replay.finish()
    bootstrap = [] if image.features else _bootstrap_records(disk, identity.metadata_directory)
    _check_metadata_version(image, bootstrap, path)
    state = read_quorum_state(disk, path)
    epoch = max(image.epoch, 0 if state is None else state.leader_epoch) + 1
    write_quorum_state(disk, path, QuorumState(epoch, identity.node_id))
    opened = MetadataLog(log, worker, epoch=epoch, image=image, voter=replay.voter)
    snapshots.tidy()
    opened.snapshots = snapshots
    opened.snapshot_ms = snapshot.last_contained_ms
    opened.bytes_behind, opened.committed_ms = replay.size, replay.timestamp_ms
    opened.has_open_transaction = replay.is_in_transaction
    opened.bootstrap = bootstrap
    return opened


def _batches(log: Log, offset: int) -> Iterable[MetadataBatch]:
    while offset < log.log_end_offset:
        for batch in read_batches(log.read_records(offset, _READ_BYTES)):
            offset = batch.last_offset + 1
            yield batch


def _bootstrap_records(disk: Disk, directory: str) -> list[Versioned]:
    path = f"{directory}/{BOOTSTRAP_CHECKPOINT}"
    return [(record, 0) for record in read_snapshot(disk.read(path), path).data]


def _voter_in(control: Iterable[Message]) -> stored.VotersVoter | None:
    """The last voter that control records name; more than one is a quorum that this node cannot lead alone."""
    found = None
    for message in control:
        if isinstance(message, stored.VotersRecord):
            if len(message.voters) > 1:
                ids = ", ".join(str(voter.voter_id) for voter in message.voters)
                raise UnreadableMetadata(
                    f"The metadata quorum has several voters ({ids}): this broker leads alone only."
                )
            found = message.voters[0] if message.voters else None
    return found


def _check_metadata_version(image: MetadataImage, bootstrap: Iterable[Versioned], path: str) -> None:
    lowest, highest = SUPPORTED_METADATA_VERSIONS
    version = image.metadata_version
    for record, _ in bootstrap:
        if isinstance(record, stored.FeatureLevelRecord) and record.name == METADATA_VERSION:
            version = record.feature_level
    if not lowest <= version <= highest:
        raise UnreadableMetadata(
            f"The cluster in {path} has metadata.version {version}; this broker works with {lowest} to {highest}."
        )


class _Replay:
    """Batches to an image: all records are applied at once, so that nothing is copied twice."""

    def __init__(self, image: MetadataImage, voter: stored.VotersVoter | None, timestamp_ms: int) -> None:
        self._image = image
        self._records: list[Message] = []
        self._begun_at: int | None = None
        self._last = (image.offset, image.epoch, image.leader_id)
        self.voter = voter
        self.timestamp_ms = timestamp_ms
        self.size = 0

    @property
    def is_in_transaction(self) -> bool:
        return self._begun_at is not None

    def take(self, batch: MetadataBatch) -> None:
        leader_id = self._last[2]
        self.timestamp_ms = batch.timestamp_ms
        self.size += batch.size
        if batch.is_control:
            self.voter = _voter_in(batch.messages) or self.voter
            for message in batch.messages:
                if isinstance(message, stored.LeaderChangeMessage):
                    leader_id = message.leader_id
        else:
            for message in batch.messages:
                self._take_record(message)
        self._last = (batch.last_offset, batch.leader_epoch, leader_id)

    def _take_record(self, message: Message) -> None:
        records = self._records
        if isinstance(message, stored.BeginTransactionRecord):
            self._begun_at = len(records)
        elif isinstance(message, stored.EndTransactionRecord):
            self._begun_at = None
        elif isinstance(message, stored.AbortTransactionRecord):
            del records[self._begun_at :]
            self._begun_at = None
        else:
            records.append(message)

    def finish(self) -> MetadataImage:
        if self._begun_at is not None:
            del self._records[self._begun_at :]
        offset, epoch, leader_id = self._last
        image, _ = self._image.apply(self._records, offset=offset, epoch=epoch)
        return image.led_by(leader_id, offset=offset, epoch=epoch)
