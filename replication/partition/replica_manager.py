"""All partitions of this broker: become leader or follower, append, read (seam 5).

RULES    1. What is here follows from the metadata image alone: `apply` makes, changes and deletes, step by step; requests
            that come between two steps find some partitions as they were and others as they will be.
         2. An append is prepared, written through the Worker, committed, synced when its topic wants that, and
            acknowledged (design D12a, D12b). Appends to one partition are committed in the order of their
            preparation; `done` is called once, often before `append` returns.
         3. All partitions of a directory that want a sync share its rounds: what is committed until a round begins is
            covered by it, what is committed meanwhile by the next (group commit).
         4. A StorageError takes its log directory offline: all its partitions answer KAFKA_STORAGE_ERROR from
            then on, also to those who wait. Other directories go on.
         5. Nothing here waits for the disk: what a look would wait for is done by a reader thread (`await_disk`), and
            then it is looked again. Appends to one partition keep their order: while one waits, later ones queue.
         6. A partition that is not here is NOT_LEADER_OR_FOLLOWER when the image knows it, else
            UNKNOWN_TOPIC_OR_PARTITION.
         7. A full disk is no failure: what was begun waits for room, and so does what coordinators write; clients'
            appends are refused meanwhile.
         8. A new log of which records are synced before they are acknowledged is opened, and its names are made durable,
            before anybody writes to it; one after the other, behind which nobody waits, and then together.
NOT HERE Waiting for data (`purgatory.py` and the fetch handler), what one partition decides (`partition.py`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from protocol.errors import ErrorCode, KafkaError
from replication.io_executor import Worker
from replication.metadata.image import Changes, MetadataImage, PartitionState, ResourceType, TopicImage
from replication.partition.append_history import AppendHistory, Appends
from replication.partition.file_op_queue import FileChanges
from replication.partition.isr_tracker import IsrWatch
from replication.partition.partition import FetchPosition, Partition, Reader
from replication.partition.partition_flush import PartitionSync
from replication.partition.replication_quota import FOLLOWER, LEADER, ReplicationThrottle
from replication.purgatory import Purgatory
from storage.config.config_def import MAX_LONG
from storage.config.log_config import LogConfig, log_config
from storage.directories.log_manager import LogManager
from storage.io.disk import StorageError
from storage.io.would_block import WouldBlock
from storage.log.log import AppendInfo, Log, Origin, PreparedAppend, ReadInfo

_log = logging.getLogger("barnabas.replicas")

MAX_LAG_MS: Final = 30_000

Done = Callable[[ErrorCode, AppendInfo | None, KafkaError | None], None]
"""Told once how an append ended: where the records are, or else why not; the KafkaError may be a RejectedRecords."""


class Append(NamedTuple):
    """What somebody wants to have appended."""

    records: bytearray | memoryview
    acks: int
    wall_ms: int
    done: Done
    origin: Origin


class ReplicaManager:
    """The partitions that this broker holds, by topic name and index."""

    def __init__(
        self,
        log_manager: LogManager,
        worker: Worker,
        purgatory: Purgatory,
        image: MetadataImage,
        broker_id: int,
        settings: Mapping[str, str],
        max_lag_ms: int = MAX_LAG_MS,
    ) -> None:
        """Hold nothing yet: `apply` brings the partitions.

        `settings` are the broker's own, for what a topic does not say itself; `max_lag_ms`: replica.lag.time.max.ms.
        """
        self._log_manager = log_manager
        self._worker = worker
        self._purgatory = purgatory
        self._settings = settings
        self._max_lag_ms = max_lag_ms
        self.broker_id = broker_id
        self.image = image
        """The cluster as `partitions` follows it."""
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.appends: Appends | None = None
        """Counts what is appended, where somebody wants to know; to be set before the first image."""
        self._failed: set[tuple[str, int]] = set()
        self._has_begun = False  # the first image has been followed: what comes later is new
        self._waiting_appends: dict[Partition, deque[Append]] = {}
        self._reading: dict[WouldBlock[Any], list[Callable[[], None]]] = {}
        self._not_ready: deque[Partition] = deque()  # new ones (rule 8), of which the first is being opened
        self._opened: list[Partition] = []  # those before it, which are synced together
        self._default_configs: dict[tuple[tuple[str, str], ...], LogConfig] = {}
        self.leader_throttle = ReplicationThrottle(LEADER, broker_id, self._topic_config)
        self.follower_throttle = ReplicationThrottle(FOLLOWER, broker_id, self._topic_config)
        self.isrs = IsrWatch(lambda: self.image, self.await_disk, self.guard, self._want_isr)
        FileChanges(log_manager, worker, self.directory_failed)
        # News upward (seam 12), set by the composition root.
        self.on_leadership: Callable[[Partition], None] | None = None
        self.on_following: Callable[[Partition], None] | None = None
        self.on_isr_wanted: Callable[[Partition, tuple[int, ...]], None] | None = None
        self.on_directory_failed: Callable[[str, StorageError], None] | None = None

    # ------------------------------------------------------------ following the image
    def apply(self, image: MetadataImage, changes: Changes, mono_ms: int) -> Iterator[None]:
        """Make this broker's partitions what `image` says, a step for each; `changes` says where to look."""
        self.image = image
        for topic in changes.removed_topics.values():
            yield from self._remove(topic)
        if any(kind == ResourceType.BROKER for kind, _ in changes.configs):
            self._default_configs.clear()
            renewed = {partition.topic for partition in self.partitions.values()}
        else:
            renewed = {name for kind, name in changes.configs if kind == ResourceType.TOPIC}
        for name in renewed:
            yield from self._reconfigure(name)
        for topic_id, indexes in changes.partitions.items():
            topic = image.topics_by_id[topic_id]
            for index in sorted(indexes):
                self._place(topic, index, topic.partitions[index], mono_ms)
                yield
        for partition in list(self.partitions.values()) if changes.brokers else ():
            self.isrs.look_for_joiners(partition, mono_ms, self._max_lag_ms)
            yield
        self._has_begun = True

    def _place(self, topic: TopicImage, index: int, state: PartitionState, mono_ms: int) -> None:
        key = (topic.name, index)
        partition = self.partitions.get(key)
        if self.broker_id not in state.replicas:
            if partition is not None:
                self._forget(key, partition)
            return
        if partition is None:
            partition = self._create(topic, index, state)
            if partition is None:
                return
        if partition.is_offline:
            return
        was_leader, epoch = partition.is_leader, partition.leader_epoch
        if state.leader == self.broker_id:
            try:
                partition.lead(state, mono_ms)
            except StorageError as error:
                self.directory_failed(partition.log.directory, error)
                return
            if partition.log.is_untouched and partition.log.config.flush_messages != MAX_LONG:
                self._not_ready.append(partition)
                if len(self._not_ready) == 1:
                    self._make_ready()
        else:
            partition.follow(state)
        self.isrs.look_for_joiners(partition, mono_ms, self._max_lag_ms)
        if self.on_following is not None:
            self.on_following(partition)
        if self.on_leadership is not None and (was_leader, epoch) != (partition.is_leader, partition.leader_epoch):
            self.on_leadership(partition)

    def _create(self, topic: TopicImage, index: int, state: PartitionState) -> Partition | None:
        key = (topic.name, index)
        try:
            log = self._log_manager.get_or_create(
                topic.name,
                index,
                topic.topic_id,
                self.config_of(topic.name),
                lies_in=state.directory_of(self.broker_id),
                is_new=self._has_begun and key not in self._failed,
            )
        except StorageError as error:
            self._failed.add(key)
            for directory in list(self._log_manager.directories):
                if error.path.startswith(f"{directory}/"):
                    self.directory_failed(directory, error)
            return None
        if log.is_offline:  # making it has failed already
            self._failed.add(key)
            return None
        partition = Partition(log, self.broker_id, self._purgatory.wake, self.sync)
        if self.appends is not None:
            partition.history = AppendHistory(self.appends)
        self._failed.discard(key)
        self.partitions[key] = partition
        return partition

    def _remove(self, topic: TopicImage) -> Iterator[None]:
        for index in topic.partitions:
            key = (topic.name, index)
            self._failed.discard(key)
            partition = self.partitions.get(key)
            if partition is not None and partition.topic_id == topic.topic_id:
                self._forget(key, partition)
            yield

    def _forget(self, key: tuple[str, int], partition: Partition) -> None:
        del self.partitions[key]
        was_leader = partition.is_leader
        partition.vanish()
        self._refuse_waiting(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.on_following is not None:
            self.on_following(partition)
        if was_leader and self.on_leadership is not None:
            self.on_leadership(partition)
        if partition.is_offline:
            return
        try:
            self._log_manager.delete(partition.log)
        except StorageError as error:
            self.directory_failed(partition.log.directory, error)

    def set_strays_aside(self) -> list[str]:
        """After the first `apply`: put away logs of topics that were deleted meanwhile, and name them."""
        strays = [log for key, log in self._log_manager.logs.items() if key not in self.partitions]
        strays += [log for log in self._log_manager.strays if not log.is_offline]
        for log in strays:
            try:
                self._log_manager.set_aside(log)
            except StorageError as error:
                self.directory_failed(log.directory, error)
        return [log.name for log in strays]

    def config_of(self, topic: str) -> LogConfig:
        """What the logs of a topic obey now."""
        own = self.image.topic_config(topic)
        key = tuple(sorted(own.items()))
        config = self._default_configs.get(key)
        if config is None:
            broker = {**self._settings, **self.image.broker_config(self.broker_id)}
            config = self._default_configs[key] = log_config(own, broker)
        return config

    def _topic_config(self, topic: str) -> Mapping[str, str]:
        return self.image.topic_config(topic)

    def _reconfigure(self, topic: str) -> Iterator[None]:
        known = self.image.topics_by_name.get(topic)
        if known is None:
            return
        config = self.config_of(topic)
        for index in known.partitions:
            partition = self.partitions.get((topic, index))
            if partition is not None:
                partition.update_config(config)
            yield

    @property
    def absent(self) -> list[str]:
        """Partitions of this broker whose log directory is offline, or not here, since the start."""
        return [f"{topic}-{index}" for topic, index in sorted(self._failed)]

    # ------------------------------------------------------------ finding
    def find(self, topic: str, index: int) -> Partition:
        """A partition that is here and in order.

        Raises:
            KafkaError: it is not.
        """
        partition = self.partitions.get((topic, index))
        if partition is None or partition.is_offline:
            raise KafkaError(self._why_absent(topic, index))
        return partition

    def _why_absent(self, topic: str, index: int) -> ErrorCode:
        key = (topic, index)
        if key in self.partitions or key in self._failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        known = self.image.topics_by_name.get(topic)
        if known is not None and index in known.partitions:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def is_in_sync(self, topic: str, index: int, replica_id: int) -> bool:
        """Whether a replica is in the ISR of a partition that is here."""
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
        done: Done,
        origin: Origin = Origin.CLIENT,
    ) -> None:
        """Append to a partition led here and call `done` when the records are as safe as `acks` wants."""
        try:
            partition = self.find(topic, index)
        except KafkaError as error:
            done(error.code, None, error)
            return
        append = Append(records, acks, wall_ms, done, origin)
        if origin.is_client and partition.log.room.is_full:
            done(ErrorCode.KAFKA_STORAGE_ERROR, None, None)
            return
        waiting = self._waiting_appends.get(partition)
        if waiting is not None:
            waiting.append(append)
        else:
            self._begin(partition, append)

    def _begin(self, partition: Partition, append: Append) -> bool:
        """Prepare and write; False where the disk comes first, and `append` is at the head of those who wait for it."""
        log = partition.log
        records, acks, wall_ms, done, origin = append
        try:
            prepared = partition.prepare(records, acks, wall_ms, origin, may_block=False)
        except WouldBlock as blocked:
            self._waiting_appends.setdefault(partition, deque()).appendleft(append)
            self.await_disk(partition, blocked, lambda: self._resume(partition))
            return False
        except KafkaError as error:
            done(error.code, None, error)
            return True
        except StorageError as error:
            self.directory_failed(log.directory, error)
            done(ErrorCode.KAFKA_STORAGE_ERROR, None, None)
            return True
        if prepared.duplicate is not None:
            self._acknowledge(partition, prepared.duplicate, acks, done)
            return True
        partition.writes_in_flight += 1
        self._worker.write(
            log.directory,
            prepared.size,
            lambda: log.write(prepared),
            lambda error: self._written(partition, prepared, acks, wall_ms, done, error),
        )
        return True

    def _resume(self, partition: Partition) -> None:
        """The disk has answered: begin the appends that wait, until one has to wait again."""
        waiting = self._waiting_appends.get(partition, deque())
        while waiting:
            if not self._begin(partition, waiting.popleft()):
                return
        self._waiting_appends.pop(partition, None)

    def hold_appends(self, partition: Partition) -> bool:
        """Have appends to a partition wait until `resume_appends`; False while some wait for the disk already."""
        if partition in self._waiting_appends:
            return False
        self._waiting_appends[partition] = deque()
        return True

    def resume_appends(self, partition: Partition) -> None:
        """Go on with the appends that waited."""
        self._resume(partition)

    def _refuse_waiting(self, partition: Partition, code: ErrorCode) -> None:
        """The partition is not to be appended to any more."""
        for append in self._waiting_appends.pop(partition, ()):
            append.done(code, None, None)

    def _written(
        self,
        partition: Partition,
        prepared: PreparedAppend,
        acks: int,
        wall_ms: int,
        done: Done,
        error: StorageError | None,
    ) -> None:
        partition.writes_in_flight -= 1
        if error is not None and not partition.log.is_offline:  # else it was deleted meanwhile
            self.directory_failed(partition.log.directory, error)
        if partition.is_offline:
            done(ErrorCode.KAFKA_STORAGE_ERROR, None, None)
            return
        if self.partitions.get(partition.key) is not partition:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER, None, None)
            return
        try:
            info = partition.commit(prepared, wall_ms)
        except KafkaError as refusal:
            done(refusal.code, None, refusal)
            return
        except StorageError as failure:
            self.directory_failed(partition.log.directory, failure)
            done(ErrorCode.KAFKA_STORAGE_ERROR, None, None)
            return
        self._acknowledge(partition, info, acks, done)

    def _acknowledge(self, partition: Partition, info: AppendInfo, acks: int, done: Done) -> None:
        """The records are in the log: say so when they are as safe as `acks` wants."""
        if not partition.is_leader:  # who leads now may cut them off
            done(
                ErrorCode.KAFKA_STORAGE_ERROR if partition.is_offline else ErrorCode.NOT_LEADER_OR_FOLLOWER, None, None
            )
            return
        end_offset = info.last_offset + 1
        verdict = partition.acknowledged(acks, end_offset)
        if verdict is None:
            partition.await_acknowledgement(acks, end_offset, lambda code: done(code, None if code else info, None))
        else:
            done(verdict, None if verdict else info, None)

    def sync(self, partition: Partition) -> None:
        """Make a partition's log durable: in the next round of its directory, unless it waits for one (rule 3)."""
        if partition.is_syncing or partition.is_offline:
            return
        partition.is_syncing = True
        sync = PartitionSync(partition, self.directory_failed)
        self._worker.sync(partition.log.directory, sync.begin, sync.done)

    def _make_ready(self) -> None:
        """Open the first of the new logs, and go on with the next when the disk has answered; sync all of them then."""
        while self._not_ready:
            partition = self._not_ready[0]
            try:
                if partition.is_leader and not self.is_crowded:
                    partition.settle(may_block=False)
                    self._opened.append(partition)
            except WouldBlock as blocked:
                self.await_disk(partition, blocked, self._make_ready)
                return
            except StorageError as error:
                self.directory_failed(partition.log.directory, error)
            except KafkaError as refusal:  # which whoever uses it is told too
                _log.warning("%s cannot be opened: %s", partition.log.name, refusal.message or refusal.code.name)
            self._not_ready.popleft()
        opened, self._opened = self._opened, []
        for partition in opened:
            self.sync(partition)

    # ------------------------------------------------------------ reading
    @property
    def is_crowded(self) -> bool:
        """Whether so many files are open, or going to be, that who wants many had better come again for the rest."""
        return self._log_manager.open_files.is_crowded(len(self._reading))

    def read(
        self,
        topic: str,
        index: int,
        position: FetchPosition,
        max_bytes: int,
        reader: Reader,
        *,
        min_one_batch: bool,
        fetched_mono_ms: int | None = None,
    ) -> ReadInfo:
        """Batches of one partition as regions.

        Args:
            topic: its name.
            index: its number.
            position: from where, and what the reader believes of the leader.
            max_bytes: the most that the answer has room for.
            reader: who reads, and up to where.
            min_one_batch: one whole batch even where that is more than `max_bytes`.
            fetched_mono_ms: when a follower asked; None when it waits and we look again.

        Raises:
            KafkaError: for this partition only; Diverged: the follower must truncate first.
            WouldBlock: `await_disk`, then read again.
        """
        partition = self.find(topic, index)
        try:
            info = partition.read(position, max_bytes, reader, min_one_batch=min_one_batch, may_block=False)
        except StorageError as error:
            self.directory_failed(partition.log.directory, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR) from error
        if fetched_mono_ms is not None and reader.replica_id >= 0:
            end, max_lag_ms = info.log_end_offset, self._max_lag_ms
            may_join = self.isrs.may_join(reader.replica_id, reader.broker_epoch)
            partition.update_follower(reader, position, end, fetched_mono_ms, max_lag_ms, may_join=may_join)
            if may_join:
                self.isrs.caught_up(partition, reader.replica_id)
        return info

    def await_disk(self, partition: Partition, blocked: WouldBlock[Any], then: Callable[[], None]) -> None:
        """Have a thread do what a look would wait for, and call `then`, whatever came of it: to look again.

        `then` may be called before this returns.
        """
        blocked.__traceback__ = None  # it would keep whoever waits, who keeps it
        waiting = self._reading.get(blocked)
        if waiting is not None:
            waiting.append(then)
            return
        self._reading[blocked] = [then]
        log, worker = partition.log, self._worker

        def read(_: StorageError | None = None) -> None:
            worker.read(
                log.directory, partial(log.visit, blocked.run), lambda error: self._was_read(log, blocked, error)
            )

        if log.is_changing:  # what is to be read may have to be made first
            worker.name(log.directory, _nothing, lambda _: worker.write(log.directory, 0, _nothing, read))
        else:
            read()

    def _was_read(self, log: Log, blocked: WouldBlock[Any], error: StorageError | None) -> None:
        if log.is_offline:
            pass  # it was deleted meanwhile: there is nothing to be found
        elif error is None:
            blocked.finish()
        else:
            self.directory_failed(log.directory, error)
        for then in self._reading.pop(blocked):
            then()
        blocked.forget()

    def check_isrs(self, mono_ms: int) -> None:
        """Have followers that fell behind leave their ISR; to be called every half of replica.lag.time.max.ms."""
        for partition in list(self.partitions.values()):
            self.isrs.look_for_laggards(partition, mono_ms, self._max_lag_ms)

    def _want_isr(self, partition: Partition, isr: tuple[int, ...]) -> None:
        if self.on_isr_wanted is not None:
            partition.wanted_isr = isr
            self.on_isr_wanted(partition, isr)

    # ------------------------------------------------------------ deleting
    def delete_records(self, topic: str, index: int, offset: int, wall_ms: int) -> int:
        """Let a partition led here begin at `offset`, or at its high watermark (-1); the offset that is meant.

        Raises:
            KafkaError: it does not.
            WouldBlock: `await_disk`, then again.
        """
        partition = self.find(topic, index)
        try:
            return partition.delete_records(offset, wall_ms, may_block=False)
        except StorageError as error:
            raise self.guard(partition, error) from error

    def low_watermark(self, topic: str, index: int) -> int:
        """Up to where a partition led here is deleted on all its replicas that live.

        Raises:
            KafkaError: it is not led here, or not in order.
        """
        partition = self.find(topic, index)
        if not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        brokers = self.image.brokers
        return partition.low_watermark(lambda replica: replica in brokers and not brokers[replica].is_fenced)

    # ------------------------------------------------------------ news from storage
    def room_changed(self, directory: str, has_room: bool) -> None:  # noqa: FBT001
        """A log directory is full, or has room again (rule 7)."""
        room = self._log_manager.rooms.get(directory)
        if room is not None:  # else only the metadata log lies there
            room.is_full = not has_room
        if has_room:
            _log.warning("log directory %s has room again", directory)
        else:
            _log.error("log directory %s is full: appends are refused until there is room", directory)

    def log_start_moved(self, topic: str, index: int) -> None:
        """Retention, or somebody's wish, has deleted the oldest records of a partition."""
        partition = self.partitions.get((topic, index))
        if partition is not None:
            self._purgatory.wake(partition.key)

    def guard(self, partition: Partition, error: StorageError) -> KafkaError:
        """What to answer when a look into a partition's log failed; its directory goes offline."""
        self.directory_failed(partition.log.directory, error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)

    def check_directories(self) -> None:
        """Follow the log manager, which takes directories offline too while it looks after them."""
        for directory, error in self._log_manager.offline.items():
            self.directory_failed(directory, error)

    def directory_failed(self, directory: str, error: StorageError) -> None:
        """Give up everything in a log directory (rule 4); harmless when that has happened."""
        is_news = directory in self._log_manager.directories
        self._log_manager.go_offline(directory, error)
        for partition in self.partitions.values():
            if partition.log.directory == directory and not partition.is_offline:
                is_news = True
                was_leader = partition.is_leader
                partition.go_offline()
                self._refuse_waiting(partition, ErrorCode.KAFKA_STORAGE_ERROR)
                if self.on_following is not None:
                    self.on_following(partition)
                if was_leader and self.on_leadership is not None:
                    self.on_leadership(partition)
        if is_news and self.on_directory_failed is not None:
            self.on_directory_failed(directory, error)


def _nothing() -> None:
    pass
