"""All partitions of this broker: become leader or follower, append, read.

RULES    1. Partitions follow from the metadata image alone. `apply` creates, changes and deletes them step by step; requests
            between two steps see some partitions in the old state and others in the new one.
         2. A StorageError takes its log directory offline. Its partitions answer KAFKA_STORAGE_ERROR from then on, also to
            waiting requests. Other directories are not affected.
         3. Nothing here waits for the disk. A DiskLookup runs on a reader thread (disk_lookups.py), and its call is repeated
            afterwards (`lookup`, `await_disk`).
         4. A partition without a local replica is NOT_LEADER_OR_FOLLOWER if the image has it, otherwise
            UNKNOWN_TOPIC_OR_PARTITION.
         5. A full disk is not a failure: pending writes wait for space (appender.py).
         6. A new log with flush.messages is opened and its directory entries are synced before the first append. New logs are
            opened one after the other by a thread, then flushed together.
NOT HERE Appends (`appender.py`), flushes (`flushes.py`), waiting for data (`purgatory.py`, fetch handler), decisions of one
         partition (`partition.py`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from protocol.errors import ErrorCode, KafkaError, without_frames
from replication.completion import Completion
from replication.cooperative_tasks import no_op
from replication.io_executor import IoExecutor, IoResult
from replication.metadata.image import MetadataDelta, MetadataImage, PartitionState, ResourceType, TopicImage
from replication.partition.append_history import AppendedBytes, AppendHistory
from replication.partition.appender import Appender
from replication.partition.disk_lookups import DiskLookups
from replication.partition.flushes import Flushes
from replication.partition.follower_progress import FetchPosition
from replication.partition.isr_tracker import IsrTracker
from replication.partition.partition import Partition, Reader
from replication.partition.replication_quota import FOLLOWER, LEADER, ReplicationQuotaManager
from replication.partition.topic_counts import BrokerCounts
from replication.purgatory import Purgatory
from storage.config.config_def import MAX_LONG
from storage.config.log_config import STORAGE_ENGINE, LogConfig, log_config
from storage.directories.log_manager import LogManager
from storage.io.deferred_file_ops import FileOp
from storage.io.disk import StorageError
from storage.io.disk_lookup import DiskLookup
from storage.log.log_reader import ReadInfo

T = TypeVar("T")

_log = logging.getLogger("barnabas.replicas")

MAX_LAG_MS: Final = 30_000


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
        self.disk_lookups = DiskLookups(
            self._executor, self.directory_failed, lambda: self.on_log_opened(len(self.log_manager.file_handles))
        )
        self.appender = Appender(
            self.partitions, self._executor, self.disk_lookups, self._absence_error, self.directory_failed
        )
        self.flushes = Flushes(self._executor, self.directory_failed)
        self._callbacks = self._purgatory.wake, self.flushes.sync  # bound once, not for each partition
        self._unprepared: deque[Partition] = deque()  # new logs (rule 6); the first one is being opened
        self._prepared: list[Partition] = []  # opened logs, flushed together
        self._configs_by_override: WeakValueDictionary[tuple[tuple[str, str], ...], LogConfig] = WeakValueDictionary()
        """Of the logs here: equal ones are one object."""
        self.leader_quota = ReplicationQuotaManager(LEADER, self.broker_id, self._topic_config)
        self.follower_quota = ReplicationQuotaManager(FOLLOWER, self.broker_id, self._topic_config)
        self.isrs = IsrTracker(lambda: self.image, self.lookup, self._propose_isr)
        self.log_manager.submit = self._submit_file_op
        self.log_manager.submit_directory_op = self._submit_directory_op
        self.log_manager.submit_reclaim_op = self.log_manager.commit_logs.submit = self._submit_reclaim_op
        # Callbacks, set by the composition root.
        self.on_leadership_changed: Callable[[Partition], None] = no_op
        self.on_partition_changed: Callable[[Partition], None] = no_op
        self.on_isr_proposed: Callable[[Partition, tuple[int, ...]], None] | None = None
        self.on_directory_failed: Callable[[str, StorageError], None] = no_op
        self.on_engine_changed: Callable[[Partition], None] = no_op
        self.on_log_opened: Callable[[int], None] = no_op
        """With the number of segments and logs whose files are open, after each disk lookup."""

    # ------------------------------------------------------------ applying images
    def apply(self, image: MetadataImage, changes: MetadataDelta, mono_ms: int) -> Iterator[None]:
        """Apply an image to this broker's partitions, one step each; `changes` names what differs."""
        for topic in changes.removed_topics.values():
            yield from self._remove_topic(topic)
        self.image = image  # a new topic of the same name is unknown while partitions of the old one remain
        changed = {name for kind, name in changes.configs if kind == ResourceType.TOPIC}
        default_changed = any(kind == ResourceType.BROKER for kind, _ in changes.configs)
        if default_changed:
            self._configs_by_override.clear()
        for name in changed:
            yield from self._update_configs(name, of_topic=True)
        if default_changed:
            for name in {partition.topic for partition in self.partitions.values()}:
                yield from self._update_configs(name, of_topic=False)
        for topic_id, indexes in changes.partitions.items():
            topic = image.topics_by_id[topic_id]
            for index in sorted(indexes):
                self._apply_partition(topic, index, topic.partitions[index], mono_ms)
                yield
            if topic.name in self.counts.topics and not self._has_partition_of(topic):  # its replicas have moved away
                self.counts.remove(topic.name)
        if changes.brokers:
            for partition in list(self.partitions.values()):
                self.isrs.expand_isr(partition, mono_ms, self._max_lag_ms)
                yield
        self._has_applied_image = True

    def _has_partition_of(self, topic: TopicImage) -> bool:
        return any((topic.name, index) in self.partitions for index in topic.partitions)

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
        needed_ids = (*state.isr, *state.eligible_leaders, *state.last_known_leaders)
        try:
            log = self.log_manager.get_or_create(
                topic.name,
                index,
                topic.topic_id,
                self.config_of(topic.name),
                directory_id=state.directory_of(self.broker_id),
                is_new=self._has_applied_image and key not in self._offline,
                has_copies=self.broker_id not in needed_ids,
            )
        except StorageError as error:
            self._offline.add(key)
            if self._has_applied_image:  # those of the first image are logged together
                _log.error("this broker has no replica of %s-%d: %s", topic.name, index, error)
            for directory in list(self.log_manager.directories):
                if error.path.startswith(f"{directory}/"):
                    self.directory_failed(directory, error)
            return None
        if log.is_offline:  # its directory failed while the log was created
            self._offline.add(key)
            return None
        partition = Partition(log, self.broker_id, *self._callbacks)
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
        self.appender.fail_waiting(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._notify(partition, role_changed=was_leader)
        if partition.is_offline:
            return
        try:
            self.log_manager.delete(partition.log)
        except StorageError as error:
            self.directory_failed(partition.log.directory, error)

    def rename_strays(self) -> list[str]:
        """After the first `apply`: take logs without a replica here out of service as strays; returns their names."""
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
        config = self._configs_by_override.get(key)
        if config is None:
            broker = {**self._settings, **self.image.topic_defaults(self.broker_id)}
            config = self._configs_by_override[key] = log_config(topic_config, broker)
        return config

    @property
    def has_indexed_topics(self) -> bool:
        """Whether a topic here has a key index, or had one recently."""
        return any(config.barnabas_index_keys for config in self._configs_by_override.values())

    def _topic_config(self, topic: str) -> Mapping[str, str]:
        return self.image.topic_config(topic)

    def _update_configs(self, topic: str, *, of_topic: bool) -> Iterator[None]:
        """Apply the config of a topic; `of_topic`: its own config was changed, not a broker default, which moves no log but
        those that become compacted.
        """
        known = self.image.topics_by_name.get(topic)
        if known is None:
            return
        config, names_engine = self.config_of(topic), STORAGE_ENGINE in self.image.topic_config(topic)
        for index in known.partitions:
            partition = self.partitions.get((topic, index))
            if partition is not None:
                engine_changed = config.uses_commit_log != partition.log.config.uses_commit_log
                partition.update_config(config)
                # A default may have been the named engine before.
                if names_engine or config.is_compacted or (engine_changed and of_topic):
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
            KafkaError: there is none (rules 2 and 4).
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

    # ------------------------------------------------------------ new logs
    def _prepare_new_logs(self) -> None:
        """Open new logs one after the other, continuing after each disk read; then flush all of them (rule 6)."""
        while self._unprepared:
            partition = self._unprepared[0]
            try:
                if partition.is_leader and not self.at_file_limit():
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
            self.flushes.sync(partition)

    # ------------------------------------------------------------ reading
    def at_file_limit(self, wanted: int = 0) -> bool:
        """Whether the pending lookups and `wanted` further ones reach the open-file limit.

        Each lookup may open files. If it returns True, the caller should not start further lookups now, but retry later.
        """
        return self.log_manager.file_handles.at_file_limit(len(self.disk_lookups) + wanted)

    def read(
        self,
        partition: Partition,
        position: FetchPosition,
        max_bytes: int,
        reader: Reader,
        min_one_batch: bool,  # noqa: FBT001
        fetched_mono_ms: int | None = None,
    ) -> ReadInfo | DiskLookup:
        """Batches of an online partition as file regions; after a DiskLookup, call `await_disk`, then read again.

        With `min_one_batch`, one whole batch even above `max_bytes`. `fetched_mono_ms` is when a follower's request arrived;
        None when a waiting request is retried.

        Raises:
            KafkaError: for this partition only.
            DivergingEpoch: the follower must truncate first.
        """
        partition.counts.reads += 1
        try:
            info = partition.read(position, max_bytes, reader, min_one_batch=min_one_batch)
        except StorageError as error:
            raise self.on_storage_error(partition, error) from error
        if fetched_mono_ms is not None and reader.replica_id >= 0 and not isinstance(info, DiskLookup):
            end, max_lag_ms = info.log_end_offset, self._max_lag_ms
            may_join = self.isrs.may_join(partition, reader.replica_id, reader.broker_epoch)
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
            completion.fail(without_frames(error))  # one refers to the completion
            return
        if isinstance(found, DiskLookup):
            self.await_disk(partition, found, lambda: self._attempt(topic, index, attempt, completion))
        else:
            completion.complete(found)

    def await_disk(self, partition: Partition, lookup: DiskLookup, then: Callable[[], None]) -> bool:
        """Run a lookup on a thread, then call `then`, also after a failure; the lookup's result is valid until `then` returns.

        `then` repeats the call that returned the lookup. Returns whether it was called already, as without threads.
        """
        return self.disk_lookups.wait(partition.log, lookup, then)

    def await_disk_together(
        self, lookups: Mapping[Partition, DiskLookup], then: Callable[[Sequence[Partition]], None]
    ) -> None:
        """As `await_disk` for several partitions: `then` is called with some of them at a time, until it was with all."""
        if len(lookups) > 1:
            self.disk_lookups.wait_together(lookups.items(), then)
        else:  # it shares no group with other requests, so it is not limited like groups
            for partition, lookup in lookups.items():
                self.await_disk(partition, lookup, partial(then, (partition,)))

    def check_isrs(self, mono_ms: int) -> None:
        """Remove followers that fell behind from their ISR, add others; call every half of replica.lag.time.max.ms."""
        for partition in list(self.partitions.values()):
            if partition.followers:
                self.isrs.shrink_isr(partition, mono_ms, self._max_lag_ms)
            if len(partition.isr) < len(partition.replicas):
                self.isrs.expand_isr(partition, mono_ms, self._max_lag_ms)

    def _propose_isr(self, partition: Partition, isr: tuple[int, ...]) -> None:
        if self.on_isr_proposed is not None:
            partition.pending_isr = isr
            self.on_isr_proposed(partition, isr)

    # ------------------------------------------------------------ deleting
    def delete_records(self, topic: str, index: int, offset: int, wall_ms: int) -> Completion[int]:
        """Advance the log start offset to `offset`, or to the high watermark (-1); completes with the resulting offset."""

        def delete(partition: Partition) -> int | DiskLookup:
            deleted = partition.delete_records(offset, wall_ms)
            if not isinstance(deleted, DiskLookup):
                self._delete_segments(partition, wall_ms)
            return deleted

        return self.lookup(topic, index, delete)

    def _delete_segments(self, partition: Partition, wall_ms: int) -> None:
        """Delete the segments below the log start offset in later turns of the loop; what is left, retention deletes."""
        if partition.log.open().has_deletable_segments:
            in_next_turn = partial(self._delete_some_segments, partition.key, wall_ms)
            self._executor.background(partition.log.directory, no_op).then(in_next_turn)

    def _delete_some_segments(self, key: tuple[str, int], wall_ms: int, _: IoResult) -> None:
        def delete(partition: Partition) -> None:
            opened = partition.log.opened
            if opened is not None:
                start_offset = opened.engine.start_offset
                opened.trim(partition.log.log_start_offset, wall_ms)
                if opened.engine.start_offset > start_offset:
                    self._delete_segments(partition, wall_ms)

        self.lookup(*key, delete)

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
        """A log directory is full, or has space again (rule 5)."""
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
        """Take a log directory offline (rule 2); does nothing the second time."""
        is_new_failure = directory in self.log_manager.directories
        self.log_manager.go_offline(directory, error)
        for partition in self.partitions.values():
            if partition.log.directory == directory and not partition.is_offline:
                is_new_failure = True
                was_leader = partition.is_leader
                partition.go_offline()
                self.appender.fail_waiting(partition, ErrorCode.KAFKA_STORAGE_ERROR)
                self._notify(partition, role_changed=was_leader)
        if is_new_failure:
            self.on_directory_failed(directory, error)
