"""Replicas of one broker under random requests, metadata changes, moves and orders of I/O.

RULES    1. Nothing raises an unexpected exception: in a broker it would end the node.
         2. What was acknowledged with acks=all, or read by a consumer, remains: other leaders have everything that is
            committed, as after a clean election.
         3. At the end each follower has the log of its leader.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from broker.handlers.records.delete_records import DeleteRecordsHandler
from broker.peers.replica_fetchers import ReplicaFetcherManager
from protocol.batch_builder import BatchBuilder
from protocol.errors import ErrorCode
from protocol.messages.common import Topic
from protocol.messages.logs import DeleteRecordsRequest
from protocol.messages.produce_fetch import (
    FetchResponse,
    FetchTopic,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    PartitionData,
)
from protocol.messages.stored_records import ConfigRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from protocol.records import headers
from replication.completion import Completion
from replication.metadata.image import ResourceType
from replication.partition.follower_log import FollowerLog
from replication.partition.partition import Partition
from replication.partition.replica_fetcher import FetchSettings
from storage.directories.log_maintenance import logs_to_flush, retain
from storage.io.disk_lookup import wait_for_disk
from tests.support.messages import message
from tests.support.random_executor import RandomExecutor
from tests.support.replica_harness import NOW_MS, Answer, ReplicaHarness
from tests.support.seeds import seed_of
from tests.support.simulated_leader import Batch, SimulatedLeader

STEPS = 900
LAST_STEPS = 3000
OTHERS = (2, 3)
PartitionId = tuple[bytes, int]
"""Topic id and partition index."""


class Machine:
    """Broker 1, and the simulated leaders on other brokers."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.rng = rng
        self.executor = RandomExecutor(rng)
        self.harness = harness = ReplicaHarness(path, worker=self.executor, directories=2)
        self.replicas = harness.replicas
        self.soon: deque[Callable[[], object]] = deque()
        self.requests: list[tuple[int, Any, Completion[Any]]] = []
        self.leaders: dict[tuple[str, int], SimulatedLeader] = {}
        self.proposed: list[tuple[Partition, tuple[int, ...]]] = []
        self.keys = count()
        self.produces: list[tuple[Answer, list[tuple[PartitionId, bytes]]]] = []
        self.fetches: list[Answer] = []
        self.acknowledged: defaultdict[PartitionId, dict[int, bytes]] = defaultdict(dict)
        self.seen: defaultdict[PartitionId, dict[int, int]] = defaultdict(dict)
        clock: Any = SimpleNamespace(wall_ms=lambda: harness.wall_ms, mono_ms=lambda: harness.mono_ms)
        config: Any = SimpleNamespace(node_id=1, fetch_settings=lambda: FetchSettings(backoff_ms=100))
        lifecycle: Any = SimpleNamespace(epoch=101)
        follower_log = FollowerLog(self.replicas, self.executor)
        self.fetchers = ReplicaFetcherManager(
            self.soon.append, config, lifecycle, self._connect, follower_log, harness.timers, clock
        )
        self.fetchers.resize(1)
        self.replicas.on_partition_changed = self._on_partition_changed
        self.replicas.on_isr_proposed = lambda partition, isr: self.proposed.append((partition, isr))

    def _on_partition_changed(self, partition: Partition) -> None:
        is_here = self.replicas.partitions.get(partition.key) is partition
        (self.fetchers.follow if is_here else self.fetchers.forget)(partition)

    # ------------------------------------------------------------ other brokers
    def _connect(self) -> Any:
        pending: list[Completion[Any]] = []

        def send_request(leader_id: int, request: Any) -> Completion[Any]:
            response: Completion[Any] = Completion()
            pending.append(response)
            self.requests.append((leader_id, request, response))
            return response

        def close() -> None:
            self.requests = [waiting for waiting in self.requests if waiting[2] not in pending]
            for response in pending:
                if not response.is_done:
                    response.complete(None)

        return SimpleNamespace(send_request=send_request, close=close)

    def resize_fetchers(self) -> None:
        """The number of fetchers per leader changes."""
        self.fetchers.resize(self.rng.choice((1, 2, 3)))

    def respond(self) -> None:
        """Another broker answers a request, or its connection is closed."""
        if not self.requests:
            return
        leader_id, request, response = self.requests.pop(self.rng.randrange(len(self.requests)))
        if self.rng.random() < 0.05:
            response.complete(None)
        elif isinstance(request, ListOffsetsRequest):
            topics = [self._list_offsets(leader_id, topic) for topic in request.topics]
            response.complete(ListOffsetsResponse(topics=topics))
        else:
            responses = [self._fetched(leader_id, topic) for topic in request.topics]
            response.complete(FetchResponse(error_code=0, session_id=0, responses=responses))

    def _list_offsets(self, leader_id: int, topic: Any) -> Topic[ListOffsetsPartitionResponse]:
        answers = []
        for requested in topic.partitions:
            leader = self._leader(leader_id, topic.name, requested.partition_index)
            refused = ListOffsetsPartitionResponse(
                partition_index=requested.partition_index, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER
            )
            answers.append(refused if leader is None else leader.list_offsets(requested))
        return Topic(name=topic.name, partitions=answers)

    def _fetched(self, leader_id: int, topic: Any) -> FetchTopic[PartitionData]:
        known = self.harness.image.topics_by_id.get(topic.topic_id)
        answers = []
        for requested in topic.partitions:
            leader = None if known is None else self._leader(leader_id, known.name, requested.partition)
            code = ErrorCode.UNKNOWN_TOPIC_ID if known is None else ErrorCode.NOT_LEADER_OR_FOLLOWER
            refused = PartitionData(
                partition_index=requested.partition, error_code=code, high_watermark=-1, records=b""
            )
            answers.append(refused if leader is None else leader.fetch(requested, self.rng))
        return FetchTopic(topic_id=topic.topic_id, partitions=answers)

    def _leader(self, leader_id: int, topic: str, index: int) -> SimulatedLeader | None:
        leader = self.leaders.get((topic, index))
        return leader if leader is not None and leader.broker_id == leader_id else None

    # ------------------------------------------------------------ topics and leaders
    def any_partition(self, *, is_led: bool = False, has_followers: bool = False) -> Partition | None:
        found = [
            partition
            for partition in self.replicas.partitions.values()
            if (partition.is_leader or not is_led) and (len(partition.replicas) > 1 or not has_followers)
        ]
        return self.rng.choice(found) if found else None

    def create(self) -> None:
        name = self.rng.choice("abcd")
        if name in self.harness.image.topics_by_name:
            return
        config: dict[str, Any] = {
            "flush_messages": self.rng.choice((1, 3, 2**63 - 1)),
            "barnabas_storage_engine": self.rng.choice(("segments", "commitlog")),
            "min_insync_replicas": self.rng.choice((1, 2)),
        }
        if self.rng.random() < 0.3:
            config |= {"internal_segment_bytes": 2000, "retention_bytes": 3000}
        replicas = (1, *self.rng.choice(((), (2,), (2, 3))))
        self.harness.create(name, self.rng.choice((1, 2, 3)), replicas=replicas, **config)

    def recreate(self) -> None:
        """The topic is deleted, and created at once or later."""
        if not self.harness.image.topics_by_name:
            return
        name = self.rng.choice(list(self.harness.image.topics_by_name))
        for key in [key for key in self.leaders if key[0] == name]:
            del self.leaders[key]
        records: list[Any] = [RemoveTopicRecord(topic_id=self.harness.image.topics_by_name[name].topic_id)]
        if self.rng.random() < 0.5:
            topic_id = next(self.harness.topic_numbers).to_bytes(16, "big")
            partition = PartitionRecord(
                partition_id=0,
                topic_id=topic_id,
                replicas=[1, 2],
                isr=[1, 2],
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
            )
            records += [TopicRecord(name=name, topic_id=topic_id), partition]
        self.harness.apply(*records)

    def elect(self) -> None:
        partition = self.any_partition(has_followers=True)
        if partition is None:
            return
        if partition.is_leader or self.rng.random() < 0.3:
            other = self.rng.choice([replica for replica in partition.replicas if replica != 1])
            leader = self._take_over(partition, other)
            if leader is None:
                return
            self.leaders[partition.key] = leader
            self.harness.change(partition.topic, partition.index, leader=other)
            leader.epoch = partition.leader_epoch
        else:
            self.leaders.pop(partition.key, None)
            self.harness.change(partition.topic, partition.index, leader=1)

    def _take_over(self, partition: Partition, broker_id: int) -> SimulatedLeader | None:
        """A leader that has everything that is committed, perhaps more of this replica's log, and perhaps other records."""
        batches = self.batches_of(partition)
        if batches is None:
            return None
        offsets, previous = partition.log.offsets, self.leaders.get(partition.key)
        # Also what the previous leader has committed: its response may not be processed yet.
        high_watermark = max(offsets.high_watermark, 0 if previous is None else previous.high_watermark)
        committed = sum(header.base_offset < high_watermark for _, header in batches)
        kept = batches[: self.rng.randint(committed, len(batches))]
        epoch, start_offset = partition.leader_epoch + 1, offsets.log_start_offset
        leader = SimulatedLeader(broker_id, epoch, kept, start_offset, high_watermark)
        for _ in range(self.rng.choice((0, 0, 1, 3))):
            leader.append(self.rng)
        if self.rng.random() < 0.1:
            leader.start_offset = self.rng.randint(start_offset, max(leader.high_watermark, start_offset))
        return leader

    def batches_of(self, partition: Partition) -> list[Batch] | None:
        """What is in the log; None if it is closed."""
        opened = partition.log.opened
        if opened is None:
            return None
        offset, found = partition.log.offsets.log_start_offset, []
        while offset < opened.engine.end_offset:
            data = bytes(wait_for_disk(opened.reader.read_records, offset, 1 << 20))
            found += [(data[position : position + header.size], header) for position, header in headers(data)]
            offset = found[-1][1].next_offset
        return found

    def append_elsewhere(self) -> None:
        if self.leaders:
            self.leaders[self.rng.choice(list(self.leaders))].append(self.rng)

    def change_isr(self) -> None:
        """The controller decides on a proposal, or a replica leaves or joins."""
        if self.proposed and self.rng.random() < 0.7:
            partition, isr = self.proposed.pop(0)
            is_here = self.replicas.partitions.get(partition.key) is partition
            if is_here and partition.is_leader and partition.pending_isr == isr:
                self.harness.change(partition.topic, partition.index, isr=list(isr))
            return
        found = self.any_partition(is_led=True, has_followers=True)
        if found is not None:
            others = [replica for replica in found.replicas if replica != 1 and self.rng.random() < 0.6]
            self.harness.change(found.topic, found.index, isr=[1, *others])

    def fence(self) -> None:
        self.harness.apply(self.harness._broker(self.rng.choice(OTHERS), fenced=self.rng.random() < 0.4))

    def check_isrs(self) -> None:
        if self.rng.random() < 0.1:
            self.harness.pass_time(31_000)
        self.replicas.check_isrs(self.harness.mono_ms)

    def configure(self) -> None:
        if not self.harness.image.topics_by_name:
            return
        topic = self.rng.choice(list(self.harness.image.topics_by_name))
        name, value = self.rng.choice(
            (
                ("barnabas.storage.engine", self.rng.choice(("segments", "commitlog"))),
                ("flush.messages", self.rng.choice(("1", "9223372036854775807"))),
                ("min.insync.replicas", self.rng.choice(("1", "2"))),
            )
        )
        self.harness.apply(ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=topic, name=name, value=value))

    # ------------------------------------------------------------ clients
    def produce(self) -> None:
        partitions = list(self.replicas.partitions.values())
        chosen = self.rng.sample(partitions, min(len(partitions), self.rng.choice((1, 1, 2, 4))))
        batches, sent = [], []
        for partition in sorted(chosen, key=lambda partition: partition.key):
            key = b"%06d" % next(self.keys)
            producer_id = self.rng.choice((-1, next(self.keys)))
            sequence = -1 if producer_id < 0 else self.rng.choice((0, 0, 5))
            builder = BatchBuilder(producer_id=producer_id, producer_epoch=min(producer_id, 0), base_sequence=sequence)
            for _ in range(self.rng.choice((1, 2, 4))):
                builder.append(NOW_MS, key, bytes(self.rng.choice((10, 100, 400))))
            batches.append((*partition.key, builder.build()))
            sent.append((_id_of(partition), key))
        if batches:
            acks, timeout_ms = self.rng.choice((-1, -1, 1, 0)), self.rng.choice((50, 5000))
            answer = self.harness.produce_all(batches, acks=acks, timeout_ms=timeout_ms, version=13)
            if acks == -1:
                self.produces.append((answer, sent))

    def consume(self) -> None:
        partition = self.any_partition()
        if partition is None:
            return
        offset = self.rng.randint(0, partition.log.offsets.high_watermark)
        wait_ms = self.rng.choice((0, 50, 500))
        self.fetches.append(
            self.harness.fetch(partition.topic, partition.index, offset, version=16, max_wait_ms=wait_ms)
        )

    def fetch_as_follower(self) -> None:
        partition = self.any_partition(is_led=True, has_followers=True)
        if partition is None:
            return
        opened = partition.log.opened
        end_offset = 0 if opened is None else opened.engine.end_offset
        offset = end_offset if self.rng.random() < 0.7 else self.rng.randint(0, end_offset)
        replica = self.rng.choice([replica for replica in partition.replicas if replica != 1])
        self.harness.fetch(
            partition.topic,
            partition.index,
            offset,
            replica=replica,
            leader_epoch=partition.leader_epoch,
            log_start_offset=self.rng.choice((0, offset)),
            max_wait_ms=self.rng.choice((0, 100)),
            version=16,
        )

    def delete_records(self) -> None:
        partition = self.any_partition()
        if partition is None:
            return
        offset = self.rng.choice((-1, self.rng.randint(0, partition.log.offsets.high_watermark)))
        partitions = [{"partition_index": partition.index, "offset": offset}]
        request = message(
            DeleteRecordsRequest, topics=[{"name": partition.topic, "partitions": partitions}], timeout_ms=3000
        )
        handler = DeleteRecordsHandler(self.replicas, self.harness.purgatory, self.harness.authorizer)
        handler.handle(self.harness.context(21, 2), request)

    # ------------------------------------------------------------ this broker
    def move(self) -> None:
        partition = self.any_partition()
        if partition is not None:
            self.harness.moves.alter(*partition.key, self.rng.choice(list(self.harness.log_manager.directories)))

    def release(self) -> None:
        """Close an idle log, as at the limit of open files."""
        partition = self.any_partition()
        if partition is not None and partition.key not in self.harness.moves.active:
            partition.log.release()

    def flush(self) -> None:
        for log in logs_to_flush(self.harness.log_manager, self.harness.wall_ms + 10**9):
            partition = None if log is None else self.replicas.partitions.get((log.topic, log.partition))
            if partition is not None:
                self.replicas.flushes.sync(partition)

    def apply_retention(self) -> None:
        steps = retain(self.harness.log_manager, self.harness.wall_ms)

        def advance(has_space: bool | None = None) -> None:
            try:
                log, lookup = steps.send(has_space)
            except StopIteration:
                return
            if lookup is None:
                self.soon.append(advance)
            else:
                self.replicas.disk_lookups.run_in_background(log, lookup, advance)

        advance()

    def run_io(self) -> None:
        for _ in range(self.rng.choice((1, 2, 5, 20))):
            self.executor.step()

    def run_callbacks(self) -> None:
        for _ in range(len(self.soon)):
            self.soon.popleft()()
        self.harness.purgatory.drain()

    def pass_time(self) -> None:
        self.harness.pass_time(self.rng.choice((1, 10, 100, 1000)))

    # ------------------------------------------------------------ running
    def play(self) -> None:
        """Random steps, then as many as it takes to end everything."""
        actions = {
            self.create: 2, self.recreate: 0.7, self.elect: 3, self.append_elsewhere: 3, self.change_isr: 3, self.fence: 0.5,
            self.check_isrs: 1, self.configure: 0.7, self.produce: 8, self.consume: 5, self.fetch_as_follower: 6,
            self.delete_records: 1.5, self.move: 1, self.release: 2, self.flush: 1, self.apply_retention: 0.7,
            self.run_io: 16, self.run_callbacks: 20, self.respond: 9, self.pass_time: 2, self.resize_fetchers: 0.5,
        }  # fmt: skip
        for _ in range(STEPS):
            self.rng.choices(list(actions), list(actions.values()))[0]()
            self.take_answers()
        for number in range(LAST_STEPS):
            self.executor.step()
            self.run_callbacks()
            self.respond()
            if number % 20 == 0:
                self.harness.pass_time(200)
        self.take_answers()

    def take_answers(self) -> None:
        """Note what was acknowledged and read."""
        for answer, sent in [waiting for waiting in self.produces if waiting[0].is_done]:
            self.produces.remove((answer, sent))
            results = [result for topic in answer.message.responses for result in topic.partition_responses]
            for result, (partition_id, key) in zip(results, sent, strict=True):
                if result.error_code == ErrorCode.NONE:
                    self.acknowledged[partition_id][result.base_offset] = key
        for fetch in [fetch for fetch in self.fetches if fetch.is_done]:
            self.fetches.remove(fetch)
            for topic in fetch.message.responses:
                for data in topic.partitions:
                    for _, header in headers(data.records):
                        known = self.seen[topic.topic_id, data.partition_index]
                        assert known.setdefault(header.base_offset, header.crc) == header.crc

    def verify(self) -> None:
        """Check what was acknowledged and read, and the logs of followers."""
        for partition in self.replicas.partitions.values():
            batches = self.batches_of(partition)
            if batches is None:
                continue
            stored = {header.base_offset: (data, header.crc) for data, header in batches}
            start_offset, partition_id = partition.log.offsets.log_start_offset, _id_of(partition)
            for offset, key in self.acknowledged[partition_id].items():
                assert offset < start_offset or key in stored[offset][0], f"{partition}: {offset} was acknowledged"
            for offset, crc in self.seen[partition_id].items():
                assert offset < start_offset or stored[offset][1] == crc, f"{partition}: {offset} was read"
            leader = self.leaders.get(partition.key)
            if leader is not None and not partition.is_leader:
                assert partition.log.log_end_offset == leader.end_offset, f"{partition} does not follow"
                theirs = {header.base_offset: header.crc for _, header in leader.batches}
                assert {offset: crc for offset, (_, crc) in stored.items()}.items() <= theirs.items(), (
                    f"{partition} differs"
                )


def _id_of(partition: Partition) -> PartitionId:
    assert partition.topic_id is not None
    return partition.topic_id, partition.index


def test_replicas_keep_what_is_committed_in_any_order_of_events(tmp_path: Path) -> None:
    seed = seed_of()
    print("seed", seed)
    machine = Machine(tmp_path, random.Random(seed))
    machine.play()
    machine.verify()
    assert machine.acknowledged
    assert machine.seen
