"""A broker's partitions and handlers without sockets, threads or clocks."""

from __future__ import annotations

import itertools
import os
import random
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from broker.coordinators.transactions.transaction_verification import TransactionVerification
from broker.handlers.records.fetch import FetchHandler
from broker.handlers.records.fetch_services import FetchServices
from broker.handlers.records.fetch_sessions import FetchSessions
from broker.handlers.records.list_offsets import ListOffsetsHandler
from broker.handlers.records.produce import ProduceHandler
from broker.handlers.records.produce_services import ProduceServices
from broker.handlers.router import RequestContext
from broker.network.exchange import CloseConnection, ConnectionInfo
from broker.security.authorizer import AllowAll, Authorizer
from protocol.batch_builder import BatchBuilder
from protocol.codec import decode, encode
from protocol.errors import ErrorCode, KafkaError
from protocol.file_region import file_regions
from protocol.messages import produce_fetch, stored_records
from protocol.messages.produce_fetch import FetchRequest, PartitionData, PartitionProduceResponse, ProduceRequest
from protocol.primitives import ZERO_UUID
from protocol.records import headers
from protocol.schema import Message
from replication.completion import Completion, completed
from replication.io_executor import Begin, InlineIoExecutor, IoExecutor, IoResult, Run
from replication.metadata.image import MetadataImage, ResourceType
from replication.partition.follower_progress import FetchPosition
from replication.partition.log_dir_moves import LogDirMoves
from replication.partition.partition import Append, Partition, Reader
from replication.partition.replica_manager import ReplicaManager
from replication.purgatory import Purgatory
from replication.timer_queue import TimerQueue
from storage.config.log_config import LogConfig
from storage.directories.log_manager import LogManager
from storage.io.disk import Disk, StorageError
from storage.io.disk_lookup import wait_for_disk
from storage.log.log_reader import ReadInfo
from tests.support.loading import Place, fetch_request
from tests.support.logs import SMALL_FILE_BYTES
from tests.support.partition_rig import code_of

SELF = 1
T = TypeVar("T")
NOW_MS = 1_700_000_000_000
_PARTITION_FIELDS = ("partition_max_bytes", "last_fetched_epoch", "log_start_offset")
"""Fields of a partition in a Fetch request; further keywords are fields of the request."""


class HeldWork:
    """Work of an executor: what kind, in which log directory; and its result."""

    def __init__(self, run: Run, kind: str = "", directory: str = "") -> None:
        self.result: IoResult = Completion()
        self.run = run
        self.kind = kind
        self.directory = directory

    def finish(self, error: StorageError | None = None) -> None:
        """Run it, unless it fails with `error`, and report the result."""
        try:
            if error is None:
                self.run()
        except StorageError as failure:
            error = failure
        self.result.complete(error)


class HeldIoExecutor(InlineIoExecutor):
    """Holds writes and flushes until the test releases them, and reads if it says so."""

    def __init__(self) -> None:
        self.writes: list[HeldWork] = []
        self.syncs: list[HeldWork] = []
        self.reads: list[HeldWork] = []
        self.holds_reads = False
        self.holds_work = False
        """Also hold writes of size 0, which are not records."""

    def write(self, directory: str, size: int, run: Run, calls: int = 1) -> IoResult:
        return _hold(self.writes, run) if size or self.holds_work else super().write(directory, size, run)

    def sync(self, directory: str, begin: Begin) -> IoResult:
        return _hold(self.syncs, begin())

    def read(self, directory: str, run: Run) -> IoResult:
        return _hold(self.reads, run) if self.holds_reads else super().read(directory, run)

    def let_write(self, error: StorageError | None = None) -> None:
        self.writes.pop(0).finish(error)

    def let_read(self, error: StorageError | None = None) -> None:
        self.reads.pop(0).finish(error)

    def let_sync(self, error: StorageError | None = None) -> None:
        self.syncs.pop(0).finish(error)


def _hold(works: list[HeldWork], run: Run) -> IoResult:
    works.append(HeldWork(run))
    return works[-1].result


class QueuedIoExecutor:
    """Queues everything; a subclass runs it."""

    def __init__(self) -> None:
        self.work: deque[HeldWork] = deque()

    def write(self, directory: str, size: int, run: Run, calls: int = 1) -> IoResult:
        return self._push("write", directory, run)

    def sync(self, directory: str, begin: Begin) -> IoResult:
        return self._push("sync", directory, begin())

    def join_sync(self, directory: str) -> None:
        """Do nothing: a flush begins when it is submitted."""

    def read(self, directory: str, run: Run) -> IoResult:
        return self._push("read", directory, run)

    def directory_op(self, directory: str, run: Run) -> IoResult:
        return self._push("name", directory, run)

    def background(self, directory: str, run: Run) -> IoResult:
        return self._push("background", directory, run)

    def _push(self, kind: str, directory: str, run: Run) -> IoResult:
        self.work.append(HeldWork(run, kind, directory))
        return self.work[-1].result


class AppendResults(list[tuple[ErrorCode, int | None]]):
    """Error code and base offset of every finished append."""

    def add(self, append: Append) -> None:
        """Add the result of an append when it exists."""
        append.then(
            lambda _: self.append((code_of(append), append.value.base_offset if append.error is None else None))
        )


class NoTransactions:
    """Rejects all transactional records: no transaction is known."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.refusal: KafkaError | None = KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        """None: accept all records."""

    def verify(self, transactional_id: str, producer: Any, partitions: Any, support: Any) -> Completion[Any]:
        """As `TransactionVerification.verify`."""
        self.asked.append((transactional_id, tuple(producer), list(partitions), support))
        return completed({} if self.refusal is None else dict.fromkeys(partitions, self.refusal))


class Answer:
    """The response of a handler, perhaps pending."""

    def __init__(self, answer: Message | Completion[Any] | None, response: type[Message], version: int) -> None:
        self._response = response
        self._version = version
        self.is_done = False
        self.message: Any = None
        self.closed: Any = None
        """The reason why the connection is closed."""
        self.pending: Any
        if isinstance(answer, Completion):
            self.pending = answer
            answer.then(self._on_done)
        else:
            self.pending = None
            self._take(answer)

    def _on_done(self, done: Completion[Any]) -> None:
        if done.error is None:
            self._take(done.value)
        else:
            assert isinstance(done.error, CloseConnection)
            self.is_done, self.closed = True, str(done.error)

    def _take(self, message: Message | None) -> None:
        assert not self.is_done
        self.is_done = True
        if message is not None:
            encodable(message, self._response, self._version)
        self.message = message


def encodable(message: Message, response: type[Message], version: int) -> None:
    """Check that the response can be encoded and decoded; file regions become bytes."""
    assert isinstance(message, response)
    for topic in getattr(message, "responses", None) or []:
        for partition in getattr(topic, "partitions", ()):
            partition.records = read_regions(partition.records)
    decode(response, version, bytes(encode(message, version)))


def read_regions(records: Any) -> bytes:
    """The bytes that sendfile would send."""
    if isinstance(records, bytes | bytearray | memoryview):
        return bytes(records)
    return b"".join(os.pread(region.file.fileno(), region.length, region.position) for region in file_regions(records))


class ReplicaHarness:
    """Broker 1; brokers 2 and 3 are registered too."""

    def __init__(
        self,
        path: Any,
        *,
        worker: IoExecutor | None = None,
        authorizer: Authorizer | None = None,
        settings: dict[str, str] | None = None,
        disk: Disk | None = None,
        directories: int = 1,
    ) -> None:
        self.worker = worker or InlineIoExecutor()
        self.authorizer = authorizer or AllowAll()
        self.mono_ms = 0
        self.wall_ms = NOW_MS
        self.timers = TimerQueue()
        self.purgatory = Purgatory(self.timers)
        self.image = MetadataImage("cluster")
        paths = [str(path / f"logs-{number}") for number in range(directories)]
        for directory in paths:
            os.makedirs(directory, exist_ok=True)
        ids = {directory: bytes([number]) * 16 for number, directory in enumerate(paths)}
        self.log_manager = LogManager(disk or Disk(), ids, LogConfig(), random_bytes=random.Random(1).randbytes)
        self.log_manager.commit_logs.file_bytes = SMALL_FILE_BYTES
        self.log_manager.load()
        self.replicas = ReplicaManager(self.log_manager, self.worker, self.purgatory, self.image, SELF, settings or {})
        clock: Any = SimpleNamespace(wall_ms=lambda: self.wall_ms, mono_ms=lambda: self.mono_ms)
        self.moves = LogDirMoves(self.replicas, self.worker, self.timers, clock)
        session_ids = itertools.count(1001)
        self.sessions = FetchSessions(self.purgatory, lambda: next(session_ids))
        self.fetching = FetchHandler(FetchServices(self.replicas, self.sessions, self.purgatory, self.authorizer))
        self.verification = NoTransactions()
        verification = cast("TransactionVerification", self.verification)
        self.producing = ProduceHandler(ProduceServices(self.replicas, self.timers, verification, self.authorizer))
        self.offsets = ListOffsetsHandler(self.replicas, self.authorizer)
        self.topic_numbers: Iterator[int] = itertools.count(1)
        self.apply(*(self._broker(number) for number in (1, 2, 3)))

    # ------------------------------------------------------------ the cluster
    def _broker(self, number: int, *, fenced: bool = False) -> Message:
        return stored_records.RegisterBrokerRecord(
            broker_id=number,
            incarnation_id=bytes([number]) * 16,
            broker_epoch=100 + number,
            end_points=[
                stored_records.BrokerEndpoint(
                    name="PLAINTEXT", host=f"host{number}", port=9000 + number, security_protocol=0
                )
            ],
            features=[],
            rack=f"rack{number}",
            fenced=fenced,
        )

    def apply(self, *records: Message) -> None:
        self.image, changes = self.image.apply(records, offset=self.image.offset + len(records), epoch=1)
        for _ in self.replicas.apply(self.image, changes, self.mono_ms):
            pass

    def create(
        self,
        name: str = "t",
        partitions: int = 1,
        *,
        replicas: tuple[int, ...] = (1,),
        isr: tuple[int, ...] | None = None,
        leader: int = SELF,
        epoch: int = 0,
        **config: Any,
    ) -> bytes:
        topic_id = next(self.topic_numbers).to_bytes(16, "big")
        records: list[Message] = [stored_records.TopicRecord(name=name, topic_id=topic_id)]
        records += [
            stored_records.ConfigRecord(
                resource_type=ResourceType.TOPIC, resource_name=name, name=key.replace("_", "."), value=str(value)
            )
            for key, value in config.items()
        ]
        records += [
            stored_records.PartitionRecord(
                partition_id=index, topic_id=topic_id, replicas=list(replicas), isr=list(isr or replicas),
                leader=leader, leader_epoch=epoch, partition_epoch=0,
            )
            for index in range(partitions)
        ]  # fmt: skip
        self.apply(*records)
        return topic_id

    def delete(self, name: str = "t") -> None:
        self.apply(stored_records.RemoveTopicRecord(topic_id=self.image.topics_by_name[name].topic_id))

    def change(self, name: str = "t", index: int = 0, **fields: Any) -> None:
        topic_id = self.image.topics_by_name[name].topic_id
        self.apply(stored_records.PartitionChangeRecord(partition_id=index, topic_id=topic_id, **fields))

    def partition(self, name: str = "t", index: int = 0) -> Partition:
        return self.replicas.partitions[name, index]

    def append(self, name: str = "t", index: int = 0, records: Any = None, **options: Any) -> Append:
        """Append a batch. The default is acks=all."""
        made = batch() if records is None else records
        options = {"acks": -1, "wall_ms": self.wall_ms, **options}
        return self.replicas.appender.append(name, index, made, **options)

    def read(
        self, reader: Reader, name: str = "t", offset: int = 0, epoch: int = -1, fetched_mono_ms: int | None = None
    ) -> ReadInfo:
        """Read partition 0, waiting for the disk."""
        partition, position = self.replicas.find(name, 0), FetchPosition(offset, epoch)
        return wait_for_disk(
            self.replicas.read,
            partition,
            position,
            1 << 20,
            reader,
            min_one_batch=True,
            fetched_mono_ms=fetched_mono_ms,
        )

    # ------------------------------------------------------------ time
    def pass_time(self, milliseconds: int) -> None:
        self.mono_ms += milliseconds
        self.wall_ms += milliseconds
        self.timers.run_due(self.mono_ms)

    def drain_purgatory(self) -> None:
        while self.purgatory.drain():
            pass

    # ------------------------------------------------------------ requests
    def context(self, api_key: int, version: int, client_id: str = "test") -> RequestContext:
        connection = ConnectionInfo(1, "PLAINTEXT", ("127.0.0.1", 9092), ("127.0.0.1", 40000), "User:ANONYMOUS")
        return RequestContext(api_key, version, 1, client_id, connection, self.mono_ms, self.wall_ms)

    def produce_request(
        self, batches: list[tuple[str, int, Any]], *, acks: int = -1, timeout_ms: int = 1000,
        transactional_id: str | None = None, version: int = 12,
    ) -> ProduceRequest:  # fmt: skip
        topics: list[produce_fetch.TopicProduceData] = []
        for name, index, records in batches:
            data = produce_fetch.PartitionProduceData(index=index, records=records)
            if not topics or topics[-1].name != name:
                known = self.image.topics_by_name.get(name)
                topic_id = known.topic_id if known is not None and version >= 13 else ZERO_UUID
                topics.append(produce_fetch.TopicProduceData(name=name, topic_id=topic_id, partition_data=[]))
            topics[-1].partition_data.append(data)
        return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=topics)

    def produce_all(
        self, batches: list[tuple[str, int, Any]], *, version: int = 12, client_id: str = "test", **request: Any
    ) -> Answer:
        made = self.produce_request(batches, version=version, **request)
        ctx = self.context(0, version, client_id)
        try:
            answer = self.producing.handle(ctx, made)
        except CloseConnection as close:
            closed = Answer(None, produce_fetch.ProduceResponse, version)
            closed.closed = str(close)
            return closed
        return Answer(answer, produce_fetch.ProduceResponse, version)

    def produce(self, name: str = "t", index: int = 0, records: Any = None, **request: Any) -> Answer:
        return self.produce_all([(name, index, batch() if records is None else records)], **request)

    def load(self, name: str = "t", index: int = 0, batches: int = 1, size: int = 10, acks: int = 1) -> None:
        """Append batches of one record."""
        for _ in range(batches):
            answer = produced(self.produce(name, index, batch(size=size), acks=acks))
            assert answer.error_code == 0, ErrorCode(answer.error_code)

    def fetch_request(
        self,
        positions: dict[tuple[str, int], int],
        *,
        version: int = 12,
        isolation: int = 0,
        replica: int = -1,
        leader_epoch: int = -1,
        session: tuple[int, int] = (0, -1),
        rack: str = "",
        forgotten: tuple[tuple[str, int], ...] = (),
        **fields: Any,
    ) -> FetchRequest:
        partition = {name: fields.pop(name) for name in _PARTITION_FIELDS if name in fields}
        places: dict[Place, int] = {}
        for (name, index), offset in positions.items():
            known = self.image.topics_by_name.get(name)
            topic_id = b"?" * 16 if known is None else known.topic_id
            places["" if version >= 13 else name, topic_id if version >= 13 else ZERO_UUID, index] = offset
        return fetch_request(
            version,
            places,
            replica_id=replica,
            replica_epoch=-1 if replica < 0 else 100 + replica,
            partition={"partition_max_bytes": 1 << 20, "current_leader_epoch": leader_epoch, **partition},
            isolation_level=isolation,
            session_id=session[0],
            session_epoch=session[1],
            rack_id=rack,
            forgotten_topics_data=[
                produce_fetch.FetchTopic(topic=name, partitions=[index]) for name, index in forgotten
            ],
            **{"max_wait_ms": 500, "max_bytes": 2**31 - 1, **fields},
        )

    def fetch_all(self, positions: dict[tuple[str, int], int], *, version: int = 12, **request: Any) -> Answer:
        made = self.fetch_request(positions, version=version, **request)
        return Answer(self.fetching.handle(self.context(1, version), made), produce_fetch.FetchResponse, version)

    def fetch(self, name: str = "t", index: int = 0, offset: int = 0, **request: Any) -> Answer:
        return self.fetch_all({(name, index): offset}, **request)


class HeldReplicaHarness(ReplicaHarness):
    """Holds writes and flushes, and reads if the test says so."""

    worker: HeldIoExecutor

    def __init__(self, path: Any, **options: Any) -> None:
        super().__init__(path, worker=HeldIoExecutor(), **options)


def batch(count: int = 1, size: int = 10, **builder: Any) -> bytearray:
    """A producer's batch."""
    made = BatchBuilder(**builder)
    for number in range(count):
        made.append(NOW_MS + number, b"key", bytes(size))
    return made.build()


def produced(answer: Answer, topic: int = 0, partition: int = 0) -> Any:
    """A partition of a Produce response: a PartitionProduceResponse."""
    assert answer.is_done, "not answered yet"
    found = answer.message.responses[topic].partition_responses[partition]
    assert isinstance(found, PartitionProduceResponse)
    return found


def fetched(answer: Answer, topic: int = 0, partition: int = 0) -> Any:
    """A partition of a Fetch response: PartitionData."""
    assert answer.is_done, "not answered yet"
    found = answer.message.responses[topic].partitions[partition]
    assert isinstance(found, PartitionData)
    return found


def named(answer: Answer) -> list[tuple[str, int]]:
    """The partitions of a Fetch response, in its order."""
    assert answer.is_done, "not answered yet"
    return [
        (topic.topic, partition.partition_index) for topic in answer.message.responses for partition in topic.partitions
    ]


def offsets(data: PartitionData) -> list[int]:
    """Base offsets of the fetched batches."""
    assert isinstance(data.records, bytes)
    return [header.base_offset for _, header in headers(data.records)]


def note_looks(harness: ReplicaHarness, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the partitions that are read from now on."""
    looked: list[int] = []
    read = harness.replicas.read

    def note(partition: Partition, *rest: Any, **more: Any) -> Any:
        looked.append(partition.index)
        return read(partition, *rest, **more)

    monkeypatch.setattr(harness.replicas, "read", note)
    return looked


class Client:
    """A client with an incremental fetch session."""

    def __init__(self, harness: ReplicaHarness, version: int = 12, **request: Any) -> None:
        self.harness, self.version, self.request = harness, version, request
        self.session = (0, 0)

    def fetch(self, positions: dict[tuple[str, int], int] | None = None, **request: Any) -> Answer:
        """Fetch these positions and the session's others."""
        answer = self.harness.fetch_all(
            positions or {}, version=self.version, session=self.session, **{**self.request, **request}
        )
        self.session = (self.session[0], self.session[1] + 1)
        if answer.is_done and answer.message.session_id:
            self.session = (answer.message.session_id, self.session[1])
        return answer
