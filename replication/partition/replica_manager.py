"""All partitions of this broker: become leader or follower, append, read.

RULES    1. Partitions follow from the metadata image alone. `apply` creates, changes and deletes them step by step; requests
            between two steps see some partitions in the old state and others in the new one.
         2. An append is prepared, written through the IoExecutor, committed, flushed if the topic requires it, and
            acknowledged. Appends to one partition are committed in the order of their preparation. The batches of one
            request share write jobs (docs/decisions/0059-write-jobs-of-a-request.md).
         3. All partitions of a log directory share its flush rounds (group commit): a round covers what is committed when it
            begins, the next round covers the rest. Partitions of a shared log are one flush (shared_flush.py).
         4. A StorageError takes its log directory offline. Its partitions answer KAFKA_STORAGE_ERROR from then on, also to
            waiting requests. Other directories are not affected.
         5. Nothing here waits for the disk. A DiskLookup runs on a reader thread (disk_lookups.py), and its call is repeated
            afterwards (`lookup`, `await_disk`). Appends to one partition keep their order: behind a waiting one, later ones
            queue.
         6. A partition without a local replica is NOT_LEADER_OR_FOLLOWER if the image has it, otherwise
            UNKNOWN_TOPIC_OR_PARTITION.
         7. A full disk is not a failure: pending writes and appends of coordinators wait for space. Appends of clients are
            rejected meanwhile.
         8. A new log with flush.messages is opened and its directory entries are synced before the first append. New logs are
            opened one after the other by a thread, then flushed together.
NOT HERE Waiting for data (`purgatory.py`, fetch handler), decisions of one partition (`partition.py`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from protocol.errors import ErrorCode, KafkaError
from replication.completion import Completion
from replication.cooperative_tasks import no_op
from replication.io_executor import SUCCEEDED, IoExecutor, IoResult, Run
from replication.metadata.image import MetadataDelta, MetadataImage, PartitionState, ResourceType, TopicImage
from replication.partition.append_history import AppendedBytes, AppendHistory
from replication.partition.disk_lookups import DiskLookups
from replication.partition.follower_progress import FetchPosition
from replication.partition.isr_tracker import IsrTracker
from replication.partition.partition import Append, Partition, Reader
from replication.partition.replication_quota import FOLLOWER, LEADER, ReplicationQuotaManager
from replication.partition.shared_flush import OnFlushed, SharedFlushes
from replication.partition.topic_counts import BrokerCounts
from replication.purgatory import Purgatory
from storage.config.config_def import MAX_LONG
from storage.config.log_config import STORAGE_ENGINE, LogConfig, log_config
from storage.directories.log_manager import LogManager
from storage.engine import SharedLog
from storage.io.deferred_file_ops import FileOp
from storage.io.disk import StorageError
from storage.io.disk_lookup import DiskLookup
from storage.io.flush_task import SEGMENTS_AT_A_TIME
from storage.log.append_pipeline import write_together
from storage.log.log import AppendOrigin, ReadInfo
from storage.log.log_flush import LogFlush

T = TypeVar("T")

_log = logging.getLogger("barnabas.replicas")

MAX_LAG_MS: Final = 30_000

_NO_RECORDS: Final = bytearray()
_WRITES_PER_JOB: Final = 64
"""A job in a writer thread takes the interpreter lock again after every write."""
_GATHERED_PER_JOB: Final = 512
"""Appends to a shared log are one write: a head and a payload each, of the buffers that a system call takes."""


@dataclass(eq=False, repr=False)
class ReplicaManager:
    """The partitions of this broker by topic name and index; starts without partitions, `apply` adds them."""

    log_manager: LogManager
    _executor: IoExecutor
    _purgatory: Purgatory
    image: MetadataImage
    """The image that `partitions` follows."""
    broker_id: int
    _settings: Mapping[str, str]
    """The broker's configs, the defaults of topic configs."""
    _max_lag_ms: int = MAX_LAG_MS
    """replica.lag.time.max.ms."""

    def __post_init__(self) -> None:
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.appended_bytes: AppendedBytes | None = None
        """Counts appended bytes for the replica selector, if it needs them; set before the first image."""
        self.counts = BrokerCounts()
        self._offline: set[tuple[str, int]] = set()
        self._has_applied_image = False  # later logs are new
        self._waiting_appends: dict[Partition, deque[Append]] = {}
        self._disk_lookups = DiskLookups(self._executor, self.directory_failed)
        self._shared_flushes = SharedFlushes(self._executor, self._flush_alone)
        self._unprepared: deque[Partition] = deque()  # new logs (rule 8); the first one is being opened
        self._prepared: list[Partition] = []  # opened logs, flushed together
        self._default_configs: dict[tuple[tuple[str, str], ...], LogConfig] = {}
        self.leader_quota = ReplicationQuotaManager(LEADER, self.broker_id, self._topic_config)
        self.follower_quota = ReplicationQuotaManager(FOLLOWER, self.broker_id, self._topic_config)
        self.isrs = IsrTracker(lambda: self.image, self.lookup, self._propose_isr)
        self.log_manager.submit = self._submit_file_op
        self.log_manager.submit_directory_op = self._submit_directory_op
        self.log_manager.submit_reclaim_op = self.log_manager.engines.submit = self._submit_reclaim_op
        # Callbacks, set by the composition root.
        self.on_leadership_changed: Callable[[Partition], None] = no_op
        self.on_partition_changed: Callable[[Partition], None] = no_op
        self.on_isr_proposed: Callable[[Partition, tuple[int, ...]], None] | None = None
        self.on_directory_failed: Callable[[str, StorageError], None] = no_op
        self.on_engine_changed: Callable[[Partition], None] = no_op

    # ------------------------------------------------------------ applying images
    def apply(self, image: MetadataImage, changes: MetadataDelta, mono_ms: int) -> Iterator[None]:
        """Apply an image to this broker's partitions, one step each; `changes` names what differs."""
        self.image = image
        for topic in changes.removed_topics.values():
            yield from self._remove_topic(topic)
        changed = {name for kind, name in changes.configs if kind == ResourceType.TOPIC}
        default_changed = any(kind == ResourceType.BROKER for kind, _ in changes.configs)
        if default_changed:
            self._default_configs.clear()
        for name in changed:
            yield from self._update_configs(name, of_topic=True)
        for name in {partition.topic for partition in self.partitions.values()} if default_changed else ():
            yield from self._update_configs(name, of_topic=False)
        for topic_id, indexes in changes.partitions.items():
            topic = image.topics_by_id[topic_id]
            for index in sorted(indexes):
                self._apply_partition(topic, index, topic.partitions[index], mono_ms)
                yield
        for partition in list(self.partitions.values()) if changes.brokers else ():
            self.isrs.expand_isr(partition, mono_ms, self._max_lag_ms)
            yield
        self._has_applied_image = True

    def _apply_partition(self, topic: TopicImage, index: int, state: PartitionState, mono_ms: int) -> None:
        key = (topic.name, index)
        partition = self.partitions.get(key)
        if self.broker_id not in state.replicas:
            if partition is not None:
                self._remove_partition(key, partition)
            return
        if partition is None:
            partition = self._create(topic, index, state)
            if partition is None:
                return
        if partition.is_offline:
            return
        was_leader, epoch = partition.is_leader, partition.leader_epoch
        if was_leader and state.leader == self.broker_id:
            self.counts.count_isr(len(partition.isr), len(state.isr))
        if state.leader == self.broker_id:
            try:
                partition.make_leader(state, mono_ms)
            except StorageError as error:
                self.directory_failed(partition.log.directory, error)
                return
            if partition.log.is_unused and partition.log.config.flush_messages != MAX_LONG:
                self._unprepared.append(partition)
                if len(self._unprepared) == 1:
                    self._prepare_new_logs()
        else:
            partition.make_follower(state)
        self.isrs.expand_isr(partition, mono_ms, self._max_lag_ms)
        self._notify(partition, role_changed=(was_leader, epoch) != (partition.is_leader, partition.leader_epoch))

    def _notify(self, partition: Partition, *, role_changed: bool) -> None:
        self.on_partition_changed(partition)
        if role_changed:
            self.on_leadership_changed(partition)

    def _create(self, topic: TopicImage, index: int, state: PartitionState) -> Partition | None:
        key = (topic.name, index)
        try:
            log = self.log_manager.get_or_create(
                topic.name,
                index,
                topic.topic_id,
                self.config_of(topic.name),
                directory_id=state.directory_of(self.broker_id),
                is_new=self._has_applied_image and key not in self._offline,
            )
        except StorageError as error:
            self._offline.add(key)
            for directory in list(self.log_manager.directories):
                if error.path.startswith(f"{directory}/"):
                    self.directory_failed(directory, error)
            return None
        if log.is_offline:  # its directory failed while the log was created
            self._offline.add(key)
            return None
        partition = Partition(log, self.broker_id, self._purgatory.wake, self.sync)
        partition.counts = self.counts.of(topic.name)
        if self.appended_bytes is not None:
            partition.history = AppendHistory(self.appended_bytes)
        self._offline.discard(key)
        self.partitions[key] = partition
        return partition

    def _remove_topic(self, topic: TopicImage) -> Iterator[None]:
        for index in topic.partitions:
            key = (topic.name, index)
            self._offline.discard(key)
            partition = self.partitions.get(key)
            if partition is not None and partition.topic_id == topic.topic_id:
                self._remove_partition(key, partition)
            yield
        self.counts.remove(topic.name)

    def _remove_partition(self, key: tuple[str, int], partition: Partition) -> None:
        del self.partitions[key]
        was_leader = partition.is_leader
        partition.remove()
        self._fail_waiting_appends(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._notify(partition, role_changed=was_leader)
        if partition.is_offline:
            return
        try:
            self.log_manager.delete(partition.log)
        except StorageError as error:
            self.directory_failed(partition.log.directory, error)

    def rename_strays(self) -> list[str]:
        """After the first `apply`: rename logs of deleted topics to stray logs; returns their names."""
        strays = [log for key, log in self.log_manager.logs.items() if key not in self.partitions]
        strays += [log for log in self.log_manager.strays if not log.is_offline]
        for log in strays:
            try:
                self.log_manager.rename_to_stray(log)
            except StorageError as error:
                self.directory_failed(log.directory, error)
        return [log.name for log in strays]

    def config_of(self, topic: str) -> LogConfig:
        """The effective config of a topic's logs."""
        topic_config = self.image.topic_config(topic)
        key = tuple(sorted(topic_config.items()))
        config = self._default_configs.get(key)
        if config is None:
            broker = {**self._settings, **self.image.broker_config(self.broker_id)}
            config = self._default_configs[key] = log_config(topic_config, broker)
        return config

    @property
    def has_indexed_topics(self) -> bool:
        """Whether a topic here has a key index, or had one until lately."""
        return any(config.barnabas_index_keys for config in self._default_configs.values())

    def _topic_config(self, topic: str) -> Mapping[str, str]:
        return self.image.topic_config(topic)

    def _update_configs(self, topic: str, *, of_topic: bool) -> Iterator[None]:
        """Apply the config of a topic; `of_topic`: it was changed, else the broker's defaults were, which move no log."""
        known = self.image.topics_by_name.get(topic)
        if known is None:
            return
        config = self.config_of(topic)
        for index in known.partitions:
            partition = self.partitions.get((topic, index))
            if partition is not None:
                engine_changed = config.uses_commit_log != partition.log.config.uses_commit_log
                partition.update_config(config)
                if engine_changed and (of_topic or STORAGE_ENGINE in self.image.topic_config(topic)):
                    self.on_engine_changed(partition)
            yield

    @property
    def offline_partitions(self) -> list[str]:
        """Partitions whose log directory was offline or missing at startup."""
        return [f"{topic}-{index}" for topic, index in sorted(self._offline)]

    # ------------------------------------------------------------ finding
    def find(self, topic: str, index: int) -> Partition:
        """The online partition.

        Raises:
            KafkaError: there is none (rules 4 and 6).
        """
        partition = self.partitions.get((topic, index))
        if partition is None or partition.is_offline:
            raise KafkaError(self._absence_error(topic, index))
        return partition

    def _absence_error(self, topic: str, index: int) -> ErrorCode:
        key = (topic, index)
        if key in self.partitions or key in self._offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        known = self.image.topics_by_name.get(topic)
        if known is not None and index in known.partitions:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def is_in_sync(self, topic: str, index: int, replica_id: int) -> bool:
        """Whether a replica is in the ISR of a local partition."""
        partition = self.partitions.get((topic, index))
        return partition is not None and replica_id in partition.isr

    # ------------------------------------------------------------ appending
    def append(
        self,
        topic: str,
        index: int,
        records: bytearray | memoryview,
        *,
        acks: int,
        wall_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> Append:
        """Append to a partition led by this broker; the result exists when `acks` is satisfied."""
        append = Append(records, acks, wall_ms, origin)
        lookups: list[tuple[Partition, DiskLookup]] = []
        if self._begin_append(append, topic, index, lookups):
            self._acknowledge(self._write(append.partition.log.directory, [append]))
        elif lookups:
            self._disk_lookups.wait_together(lookups, self._resume_all)
        return append

    def append_all(
        self,
        batches: Iterable[tuple[str, int, bytearray | memoryview]],
        *,
        acks: int,
        wall_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> list[Append]:
        """Append to several partitions (topic, index, records), which share the jobs of their directory's writer.

        An acknowledgement may start other appends, so it comes after all of these are published or in a thread.
        """
        appends: list[Append] = []
        lookups: list[tuple[Partition, DiskLookup]] = []
        writes = _SharedWrites(self._write)
        for topic, index, records in batches:
            append = Append(records, acks, wall_ms, origin)
            appends.append(append)
            if self._begin_append(append, topic, index, lookups):
                writes.add(append)
        self._acknowledge(writes.finish())
        if lookups:
            self._disk_lookups.wait_together(lookups, self._resume_all)
        return appends

    def _begin_append(
        self, append: Append, topic: str, index: int, lookups: list[tuple[Partition, DiskLookup]]
    ) -> bool:
        """Find the partition and prepare; False if there is nothing to write, or not yet."""
        partition = self.partitions.get((topic, index))
        if partition is None or partition.is_offline:
            append.fail(KafkaError(self._absence_error(topic, index)))
            return False
        append.partition = partition
        if append.origin.is_client and partition.log.files.disk_space.is_full:
            append.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
            return False
        waiting = self._waiting_appends.get(partition)
        if waiting is not None:
            waiting.append(append)
            return False
        return self._prepare(append, lookups)

    def _prepare(self, append: Append, lookups: list[tuple[Partition, DiskLookup]]) -> bool:
        """Prepare; False if it failed, is a duplicate, or needs the disk: it is the first to wait for one of `lookups` then."""
        partition = append.partition
        try:
            prepared = partition.prepare(append.records, append.acks, append.wall_ms, append.origin)
        except KafkaError as error:
            append.fail(error.with_traceback(None))
            return False
        except StorageError as error:
            append.fail(self.on_storage_error(partition, error))
            return False
        if isinstance(prepared, DiskLookup):
            self._waiting_appends.setdefault(partition, deque()).appendleft(append)
            lookups.append((partition, prepared))
            return False
        append.records = _NO_RECORDS  # large records are not kept while the append waits for its acks
        if prepared.duplicate is not None:
            append.info = prepared.duplicate
            partition.await_acks(append)
            return False
        append.prepared = prepared
        return True

    def resume_appends(self, partition: Partition) -> None:
        """Start the waiting appends in their order, until one needs the disk."""
        self._resume_all((partition,))

    def _resume_all(self, partitions: Sequence[Partition]) -> None:
        """Resume several partitions, whose appends share write jobs; new appends queue behind until these are written."""
        lookups: list[tuple[Partition, DiskLookup]] = []
        committed: list[Append] = []
        resumed = partitions
        while resumed:
            writes = _SharedWrites(self._write)
            for partition in resumed:
                waiting = self._waiting_appends.get(partition, deque())
                while waiting:
                    append = waiting.popleft()
                    if self._prepare(append, lookups):
                        writes.add(append)
                    elif waiting and waiting[0] is append:
                        break
            committed += writes.finish()
            blocked = {partition for partition, _ in lookups}
            resumed = [p for p in resumed if p not in blocked and self._waiting_appends.get(p)]
        for partition in partitions:
            if not self._waiting_appends.get(partition, True):
                del self._waiting_appends[partition]
        self._acknowledge(committed)
        if lookups:
            self._disk_lookups.wait_together(lookups, self._resume_all)

    def pause_appends(self, partition: Partition) -> bool:
        """Queue appends to a partition until `resume_appends`; False if some wait for the disk already."""
        if partition in self._waiting_appends:
            return False
        self._waiting_appends[partition] = deque()
        return True

    def _fail_waiting_appends(self, partition: Partition, code: ErrorCode) -> None:
        for append in self._waiting_appends.pop(partition, ()):
            append.fail(KafkaError(code))

    def _write(self, directory: str, appends: list[Append]) -> list[Append]:
        """Write prepared appends to logs in one directory; returns those that are committed already."""
        if len(appends) == 1:
            run, size = appends[0].prepared.write, appends[0].prepared.size
        else:
            prepared = [append.prepared for append in appends]
            run, size = partial(write_together, prepared[0].shared_log, prepared), sum([one.size for one in prepared])
        written = self._executor.write(directory, size, run)
        if written is SUCCEEDED:
            return self._commit(appends)
        for append in appends:
            append.partition.writes_in_flight += 1
        written.then(partial(self._on_written, appends))
        return []

    def _on_written(self, appends: list[Append], written: IoResult) -> None:
        committable: list[Append] = []
        for append in appends:
            partition, error = append.partition, written.value
            partition.writes_in_flight -= 1
            if error is not None and not partition.log.is_offline:  # otherwise it was deleted
                self.directory_failed(partition.log.directory, error)
            if partition.is_offline:
                append.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
            elif self.partitions.get(partition.key) is not partition:
                append.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            else:
                committable.append(append)
        self._acknowledge(self._commit(committable))

    def _commit(self, appends: list[Append]) -> list[Append]:
        """Publish written records; returns the appends that succeeded."""
        committed: list[Append] = []
        for append in appends:
            partition = append.partition
            try:
                append.info = partition.commit(append.prepared, append.wall_ms)
            except KafkaError as rejection:
                append.fail(rejection.with_traceback(None))
            except StorageError as storage_error:
                append.fail(self.on_storage_error(partition, storage_error))
            else:
                committed.append(append)
                counts, info = partition.counts, append.info
                counts.appends += 1
                counts.bytes_in += append.prepared.size
                counts.messages_in += info.last_offset - info.base_offset + 1
        return committed

    def _acknowledge(self, committed: list[Append]) -> None:
        """Advance the partitions of committed appends, and complete these when their acks are satisfied."""
        for append in committed:
            partition = append.partition
            partition.update_durable_end_offset()
            if partition.is_leader:
                partition.await_acks(append)
            else:
                self._fail_without_leadership(append)

    def _fail_without_leadership(self, append: Append) -> None:
        """Fail an append whose records are in the log: the new leader may truncate them."""
        offline, moved = ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER
        append.fail(KafkaError(offline if append.partition.is_offline else moved))

    def sync(self, partition: Partition) -> None:
        """Flush a partition's log in the next round of its directory (rule 3).

        A round flushes a limited number of segments: if more are unflushed, another round follows.
        """
        if partition.is_syncing or partition.is_offline:
            return
        partition.is_syncing = True
        self.flush(partition, self._on_flushed)

    def _on_flushed(self, partition: Partition, error: StorageError | None) -> None:
        partition.is_syncing = False
        if error is not None:
            self.directory_failed(partition.log.directory, error)
        if not partition.is_offline:
            partition.update_durable_end_offset()  # starts the next sync if enough was appended since

    def flush(self, partition: Partition, on_flushed: OnFlushed) -> None:
        """Flush a log in the next round of its directory, up to its end when that begins; then call `on_flushed`."""
        log = partition.log
        if log.opened is not None and log.opened.flush.is_shared:
            shared_log = log.opened.engine.shared_log
            assert shared_log is not None
            self._shared_flushes.join(shared_log, partition, on_flushed)
        else:
            self._flush_alone(partition, on_flushed)

    def _flush_alone(self, partition: Partition, on_flushed: OnFlushed) -> None:
        log = partition.log
        flush: LogFlush | None = None
        end_offset = 0

        def begin() -> Run:
            nonlocal flush, end_offset
            if log.opened is None:  # deleted, or its directory failed, before the round began
                return no_op
            try:
                task = log.opened.flush.begin(SEGMENTS_AT_A_TIME)
            except StorageError as error:
                self.directory_failed(log.directory, error)
                return no_op
            flush, end_offset = log.opened.flush, task.end_offset
            return task

        def on_synced(synced: IoResult) -> None:
            if synced.value is None and flush is not None and not partition.is_offline:
                flush.complete(end_offset)
            on_flushed(partition, synced.value)

        self._executor.sync(log.directory, begin).then(on_synced)

    def _prepare_new_logs(self) -> None:
        """Open new logs one after the other, continuing after each disk read; then flush all of them (rule 8)."""
        while self._unprepared:
            partition = self._unprepared[0]
            try:
                if partition.is_leader and not self.at_file_limit:
                    lookup = partition.open_leader_log()
                    if lookup is not None:
                        self.await_disk(partition, lookup, self._prepare_new_logs)
                        return
                    self._prepared.append(partition)
            except StorageError as error:
                self.directory_failed(partition.log.directory, error)
            except KafkaError as error:  # every request to the partition gets the same error
                _log.warning("%s cannot be opened: %s", partition.log.name, error.message or error.code.name)
            self._unprepared.popleft()
        opened, self._prepared = self._prepared, []
        for partition in opened:
            self.sync(partition)

    # ------------------------------------------------------------ reading
    @property
    def at_file_limit(self) -> bool:
        """Whether the open-file limit is reached; callers should retry large reads later."""
        return self.log_manager.file_handles.at_file_limit(len(self._disk_lookups))

    def read(
        self,
        topic: str,
        index: int,
        position: FetchPosition,
        max_bytes: int,
        reader: Reader,
        min_one_batch: bool,  # noqa: FBT001
        fetched_mono_ms: int | None = None,
    ) -> ReadInfo | DiskLookup:
        """Batches of one partition as file regions; after a DiskLookup, call `await_disk`, then read again.

        With `min_one_batch`, one whole batch even above `max_bytes`. `fetched_mono_ms` is when a follower's request arrived;
        None when a waiting request is retried.

        Raises:
            KafkaError: for this partition only.
            DivergingEpoch: the follower must truncate first.
        """
        partition = self.find(topic, index)
        partition.counts.reads += 1
        try:
            info = partition.read(position, max_bytes, reader, min_one_batch=min_one_batch)
        except StorageError as error:
            raise self.on_storage_error(partition, error) from error
        if fetched_mono_ms is not None and reader.replica_id >= 0 and not isinstance(info, DiskLookup):
            end, max_lag_ms = info.log_end_offset, self._max_lag_ms
            may_join = self.isrs.may_join(reader.replica_id, reader.broker_epoch)
            partition.update_follower(reader, position, end, fetched_mono_ms, max_lag_ms, may_join=may_join)
            if may_join:
                self.isrs.on_follower_fetch(partition, reader.replica_id)
        return info

    def lookup(self, topic: str, index: int, attempt: Callable[[Partition], T | DiskLookup]) -> Completion[T]:
        """The result of `attempt` on a partition, or the KafkaError for it; `attempt` is repeated after each DiskLookup."""
        completion: Completion[T] = Completion()
        self._attempt(topic, index, attempt, completion)
        return completion

    def _attempt(
        self, topic: str, index: int, attempt: Callable[[Partition], T | DiskLookup], completion: Completion[T]
    ) -> None:
        if completion.is_cancelled:
            return
        try:
            partition = self.find(topic, index)
            try:
                found = attempt(partition)
            except StorageError as error:
                raise self.on_storage_error(partition, error) from error
        except KafkaError as error:
            completion.fail(error)
            return
        if isinstance(found, DiskLookup):
            self.await_disk(partition, found, lambda: self._attempt(topic, index, attempt, completion))
        else:
            completion.complete(found)

    def await_disk(self, partition: Partition, lookup: DiskLookup, then: Callable[[], None]) -> None:
        """Run a lookup on a thread, then call `then` to retry, whatever the outcome.

        `then` may be called before this returns.
        """
        self._disk_lookups.wait(partition.log, lookup, then)

    def check_isrs(self, mono_ms: int) -> None:
        """Remove followers that fell behind from their ISR; call every half of replica.lag.time.max.ms."""
        for partition in list(self.partitions.values()):
            self.isrs.shrink_isr(partition, mono_ms, self._max_lag_ms)

    def _propose_isr(self, partition: Partition, isr: tuple[int, ...]) -> None:
        if self.on_isr_proposed is not None:
            partition.pending_isr = isr
            self.on_isr_proposed(partition, isr)

    # ------------------------------------------------------------ deleting
    def delete_records(self, topic: str, index: int, offset: int, wall_ms: int) -> Completion[int]:
        """Advance the log start offset to `offset`, or to the high watermark (-1); completes with the resulting offset."""
        return self.lookup(topic, index, lambda partition: partition.delete_records(offset, wall_ms))

    def low_watermark(self, topic: str, index: int) -> int:
        """The lowest log start offset among the replicas on alive brokers.

        Raises:
            KafkaError: the partition is not led by this broker, or not available.
        """
        partition = self.find(topic, index)
        if not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        brokers = self.image.brokers
        return partition.low_watermark(lambda replica: replica in brokers and not brokers[replica].is_fenced)

    # ------------------------------------------------------------ file operations of all logs
    def _submit_file_op(self, directory: str, op: FileOp) -> None:
        """Runs in the order of the directory's writes."""
        self._executor.write(directory, 0, op).then(partial(self._on_file_op, directory))

    def _submit_directory_op(self, directory: str, op: FileOp) -> None:
        """Creates or renames partition directories, in a queue of their own."""
        self._executor.directory_op(directory, op).then(partial(self._on_file_op, directory))

    def _submit_reclaim_op(self, directory: str, op: FileOp) -> None:
        """Runs in the background, before writes that wait for space, unless the operation itself needs space."""

        def on_reclaimed(io: IoResult) -> None:
            if io.value is not None and io.value.is_full:
                self._submit_file_op(directory, op)
            else:
                self._on_file_op(directory, io)

        self._executor.background(directory, op).then(on_reclaimed)

    def _on_file_op(self, directory: str, io: IoResult) -> None:
        if io.value is not None:
            self.directory_failed(directory, io.value)

    # ------------------------------------------------------------ events from storage
    def on_space_changed(self, directory: str, has_room: bool) -> None:  # noqa: FBT001
        """A log directory is full, or has space again (rule 7)."""
        disk_space = self.log_manager.disk_space.get(directory)
        if disk_space is not None:  # otherwise it holds only the metadata log
            disk_space.is_full = not has_room
        if has_room:
            _log.warning("log directory %s has space again: appends are accepted", directory)
        else:
            _log.error("log directory %s is full: appends are rejected until space is freed", directory)

    def on_log_start_changed(self, topic: str, index: int) -> None:
        """Wake readers after retention or DeleteRecords advanced a log start offset."""
        partition = self.partitions.get((topic, index))
        if partition is not None:
            self._purgatory.wake(partition.key)

    def on_storage_error(self, partition: Partition, error: StorageError) -> KafkaError:
        """Take a partition's directory offline; returns the error for the client."""
        self.directory_failed(partition.log.directory, error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

    def check_directories(self) -> None:
        """Take over log directories that the log manager has taken offline."""
        for directory, error in self.log_manager.offline.items():
            self.directory_failed(directory, error)

    def directory_failed(self, directory: str, error: StorageError) -> None:
        """Take a log directory offline (rule 4); does nothing the second time."""
        is_new_failure = directory in self.log_manager.directories
        self.log_manager.go_offline(directory, error)
        for partition in self.partitions.values():
            if partition.log.directory == directory and not partition.is_offline:
                is_new_failure = True
                was_leader = partition.is_leader
                partition.go_offline()
                self._fail_waiting_appends(partition, ErrorCode.KAFKA_STORAGE_ERROR)
                self._notify(partition, role_changed=was_leader)
        if is_new_failure:
            self.on_directory_failed(directory, error)


class _SharedWrites:
    """Writes prepared appends in jobs, for each log directory at most _WRITES_PER_JOB in one; those to a shared log apart."""

    __slots__ = ("_committed", "_unwritten", "_write")

    def __init__(self, write: Callable[[str, list[Append]], list[Append]]) -> None:
        self._write = write
        self._committed: list[Append] = []
        self._unwritten: dict[str | SharedLog, list[Append]] = {}

    def add(self, append: Append) -> None:
        """Write it in the next job of its directory, or of its shared log."""
        directory, shared_log = append.partition.log.directory, append.prepared.shared_log
        key = directory if shared_log is None else shared_log
        group = self._unwritten.get(key)
        if group is None:
            group = self._unwritten[key] = []
        group.append(append)
        if len(group) == (_WRITES_PER_JOB if shared_log is None else _GATHERED_PER_JOB):
            self._committed += self._write(directory, self._unwritten.pop(key))

    def finish(self) -> list[Append]:
        """Write the rest; returns the appends that are committed already."""
        for group in self._unwritten.values():
            self._committed += self._write(group[0].partition.log.directory, group)
        return self._committed
