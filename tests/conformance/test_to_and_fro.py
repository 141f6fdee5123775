"""One data directory, to and fro between Barnabas and Apache Kafka three times, with clients in between (design D1).

RULES    1. Every visit first finds all that the visits before have left, then adds to it; both brokers keep to that.
         2. Offsets are continuous; what was sent is there once, with its time, its key and its headers.
         3. A producer goes on with its id and its sequence numbers under the other broker.
         4. What we do not serve is there again for Kafka: quotas, passwords, access control
            entries, levels of features. Our own snapshots of the metadata hold it too.
         5. Two of the visits end with SIGKILL, one of either broker.
NOT HERE What compaction keeps (`test_compacted_directories.py`), how directories are formatted
         (`test_formatted_directories.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # they are its public names
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from barnabas import Broker
from protocol.errors import ErrorCode
from protocol.messages.metadata import ApiVersionsRequest
from protocol.messages.produce_fetch import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.transactions import InitProducerIdRequest
from protocol.records import BatchBuilder
from tests.support.kafka import ApacheKafka, needs_kafka, run_tool
from tests.support.raw_client import RawClient
from tests.support.timestamps import RECENT_MS
from tests.support.waiting import until

pytestmark = pytest.mark.turn(0)

WAIT_S = 30.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TO_AND_FRO = 6
KILLED = (2, 3)
SMALL_SEGMENTS = {"internal.segment.bytes": "4000"}
SMALL_BATCHES = {"batch.num.messages": 15}
QUICK = {
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 2000,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
}
OURS = {
    **QUICK,
    "offsets.topic.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 0,
    "log.cleaner.backoff.ms": 200,
    "metadata.log.max.record.bytes.between.snapshots": 3000,
    "metadata.max.retention.bytes": 1,
}
KAFKAS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 500,
    **QUICK,
    "log.cleaner.backoff.ms": 200,
    "metadata.log.max.record.bytes.between.snapshots": 20_000,
}

Found = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes]] | None]
"""Offset, time, key, value, headers."""


class Visit:
    """One broker's turn."""

    def __init__(self, bootstrap: str, number: int) -> None:
        self.number = number
        self.is_kafka = number % 2 == 1
        self.bootstrap = bootstrap
        self.client: dict[str, Any] = {"bootstrap.servers": bootstrap}
        self.admin = AdminClient(self.client)

    def create(self, name: str, partitions: int = 1, **settings: str) -> None:
        """A topic; settings have underscores for dots."""
        config = {key.replace("_", "."): value for key, value in settings.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(WAIT_S)

    def read(self, topic: str, partitions: int = 1, isolation: str = "read_uncommitted") -> list[list[Found]]:
        """All that a consumer is given of each partition."""
        settings = {
            "group.id": "reader",
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 20,
        }
        consumer = Consumer({**self.client, **settings})
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        found: list[list[Found]] = [[] for _ in range(partitions)]
        at_end: set[int | None] = set()
        while len(at_end) < partitions:
            message = consumer.poll(WAIT_S)
            assert message is not None, f"{topic}: {found}"
            error, index = message.error(), message.partition()
            assert index is not None
            if error is None:
                time_ms = message.timestamp()[1]
                row = (message.offset(), time_ms, message.key(), message.value(), message.headers())
                found[index].append(row)  # type: ignore[arg-type]
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                at_end.add(index)
        consumer.close()
        return found

    def values(self, topic: str, isolation: str = "read_uncommitted") -> list[bytes | None]:
        """Those of a topic with one partition."""
        return [row[3] for row in self.read(topic, isolation=isolation)[0]]

    def set(self, kind: ResourceType, name: str, key: str, value: str) -> None:
        """Change a setting."""
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(kind, name, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(WAIT_S)

    def setting(self, kind: ResourceType, name: str, key: str) -> str | None:
        """The value in force."""
        resource = ConfigResource(kind, name)
        return self.admin.describe_configs([resource])[resource].result(WAIT_S)[key].value

    def send(self, topic: str, values: Iterable[bytes]) -> None:
        """Values for partition 0."""
        producer = Producer({**self.client, **SMALL_BATCHES})
        for value in values:
            producer.produce(topic, value, partition=0, on_delivery=_arrived)
        assert producer.flush(WAIT_S) == 0


def _arrived(error: KafkaError | None, sent: Message) -> None:
    assert error is None, f"{sent.topic()}: {error}"


class Subject(Protocol):
    """Something that is followed through all visits."""

    def go_on(self, visit: Visit) -> None:
        """Find it as it was left, and add to it; at the first visit, begin it."""


class Records:
    """Rules 1 and 2: three partitions of small segments, every codec, times, headers, nulls."""

    def __init__(self) -> None:
        self._sent: list[list[Found]] = [[], [], []]

    def go_on(self, visit: Visit) -> None:
        if visit.number == 0:
            visit.create("plain", 3, **SMALL_SEGMENTS)
        else:
            self._check(visit)
        for codec in CODECS:
            self._send(visit, codec)
        self._check(visit)

    def _check(self, visit: Visit) -> None:
        assert visit.read("plain", 3) == self._sent
        assert [[row[0] for row in rows] for rows in self._sent] == [list(range(len(rows))) for rows in self._sent]

    def _send(self, visit: Visit, codec: str) -> None:
        is_idempotent = visit.number % 3 == 0
        settings = {**SMALL_BATCHES, "compression.type": codec, "enable.idempotence": is_idempotent}
        producer = Producer({**visit.client, **settings})
        for index in range(60):
            name = f"{visit.number} {codec} {index}".encode()
            headers = [("a", name), ("b", b"")] if index % 3 else None
            key, value = (None if index % 4 == 0 else name), (None if index % 7 == 0 else name * 5)
            time_ms = RECENT_MS + index * 1000

            def told(
                error: KafkaError | None, sent: Any, row: tuple[Any, ...] = (time_ms, key, value, headers)
            ) -> None:
                assert error is None
                self._sent[sent.partition()].append((sent.offset(), *row))

            producer.produce(
                "plain", value, key, partition=index % 3, timestamp=time_ms, headers=headers, on_delivery=told
            )
        assert producer.flush(WAIT_S) == 0


class Sequence:
    """Rule 3: one producer, its sequence over all visits."""

    def __init__(self) -> None:
        self._id = (-1, -1)
        self._sequence = 0
        self._last: tuple[int, bytes] | None = None

    def go_on(self, visit: Visit) -> None:
        with RawClient(visit.bootstrap) as client:
            if visit.number == 0:
                visit.create("sequence")
                self._id = until(lambda: self._new_id(client), "a producer id")
            if self._last is not None:
                sequence, _ = self._last
                assert self._produce(client, sequence) == (ErrorCode.NONE, sequence), "it is known, and where it is"
                assert self._produce(client, self._sequence + 5)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            for _ in range(3):
                assert self._produce(client, self._sequence) == (ErrorCode.NONE, self._sequence)
                self._last = (self._sequence, b"")
                self._sequence += 10

    @staticmethod
    def _new_id(client: RawClient) -> tuple[int, int] | None:
        answer = client.ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=-1), 4)
        return None if answer.error_code else (answer.producer_id, answer.producer_epoch)

    def _produce(self, client: RawClient, sequence: int) -> tuple[int, int]:
        builder = BatchBuilder(producer_id=self._id[0], producer_epoch=self._id[1], base_sequence=sequence)
        for index in range(10):
            builder.append(int(time.time() * 1000), None, b"%d" % (sequence + index))
        data = [PartitionProduceData(index=0, records=builder.build())]
        topics = [TopicProduceData(name="sequence", partition_data=data)]
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)

        def answered() -> Any:
            answer = client.ask(request, 9).responses[0].partition_responses[0]
            return None if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER else answer

        answer = until(answered, "a leader")
        return answer.error_code, answer.base_offset


class Transactions:
    """Rule 1: what is decided counts; what one broker leaves open holds readers back until the other ends it."""

    def __init__(self) -> None:
        self._committed: list[bytes] = []
        self._stable: list[bytes] = []
        self._behind: list[bytes] = []

    def go_on(self, visit: Visit) -> None:
        if visit.number == 0:
            visit.create("transactions")
            visit.create("undecided")
        assert visit.values("transactions", "read_committed") == self._committed
        assert visit.values("undecided", "read_committed") == self._stable
        self._decide(visit)
        self._begin_only(visit)

    def _decide(self, visit: Visit) -> None:
        producer = self._producer(visit, "decided")
        for kept in (True, False, True):
            values = [b"%d %d" % (visit.number, index) for index in range(5)]
            producer.begin_transaction()
            for value in values:
                producer.produce("transactions", value)
            producer.flush(WAIT_S)
            (producer.commit_transaction if kept else producer.abort_transaction)(WAIT_S)
            self._committed += values if kept else []

    def _begin_only(self, visit: Visit) -> None:
        """One that no one decides while this broker is there; what comes behind is not stable."""
        producer = self._producer(visit, "undecided")  # that ends the one of the visit before
        self._stable += self._behind
        assert visit.values("undecided", "read_committed") == self._stable
        before, behind = b"before %d" % visit.number, b"behind %d" % visit.number
        visit.send("undecided", [before])
        producer.begin_transaction()
        producer.produce("undecided", b"perhaps")
        producer.flush(WAIT_S)
        visit.send("undecided", [behind])
        self._stable.append(before)
        self._behind = [behind]

    @staticmethod
    def _producer(visit: Visit, name: str) -> Producer:
        producer = Producer({**visit.client, "transactional.id": name, "transaction.timeout.ms": 600_000})
        producer.init_transactions(WAIT_S)
        return producer


class Groups:
    """Rule 1: commits of a classic group, of a KIP-848 group, and of one that is each in turn."""

    def __init__(self) -> None:
        self._commits = {"classic": -1001, "modern": -1001, "switching": -1001}
        self._left: list[Consumer] = []

    def go_on(self, visit: Visit) -> None:
        for group, offset in self._commits.items():
            assert self._committed(visit, group) == offset, group
        self._commit(visit, "classic")
        if visit.number > 0 and not visit.is_kafka:  # members of both kinds do not live in one group here
            until(lambda: self._is_empty(visit, "switching"), "the end of sessions", WAIT_S)
        self._commit(visit, "switching", {"group.protocol": "consumer"} if visit.is_kafka else None)
        if visit.number > 0:
            told = visit.admin.describe_consumer_groups(["modern"])["modern"].result(WAIT_S)
            assert str(told.type) == "ConsumerGroupType.CONSUMER", told.type
        self._commit(visit, "modern", {"group.protocol": "consumer"})

    @staticmethod
    def _is_empty(visit: Visit, group: str) -> bool:
        told = visit.admin.describe_consumer_groups([group])[group].result(WAIT_S)
        return str(told.state) == "ConsumerGroupState.EMPTY"

    def _committed(self, visit: Visit, group: str) -> int:
        consumer = Consumer({**visit.client, "group.id": group})
        (found,) = consumer.committed([TopicPartition("plain", 0)], WAIT_S)
        return int(found.offset)

    def _commit(self, visit: Visit, group: str, settings: dict[str, str] | None = None) -> None:
        consumer = Consumer({**visit.client, "group.id": group, "enable.auto.commit": False, **(settings or {})})
        consumer.subscribe(["plain"])
        until(lambda: consumer.consume(1, 0.1) is not None and consumer.assignment(), "an assignment", WAIT_S)
        self._commits[group] = 10 * visit.number + len(group)
        consumer.commit(offsets=[TopicPartition("plain", 0, self._commits[group])], asynchronous=False)
        if settings and visit.number in KILLED:
            self._left.append(consumer)  # a member that nobody sees leaving
        else:
            consumer.close()


class Topics:
    """Rule 1: settings, more partitions, deleted topics, a log start; and what the broker was told while it ran."""

    def go_on(self, visit: Visit) -> None:
        number = visit.number
        if number == 0:
            visit.create("growing", cleanup_policy="compact,delete")
            visit.create("trimmed", **SMALL_SEGMENTS)
        else:
            self._check(visit)
        visit.create(f"doomed-{number}", 2)
        visit.set(ResourceType.TOPIC, "growing", "retention.ms", str(10**12 + number))
        visit.set(ResourceType.BROKER, "1", "log.retention.ms", str(10**12 + number))
        visit.admin.create_partitions([NewPartitions("growing", number + 2)])["growing"].result(WAIT_S)
        visit.send("trimmed", [b"%03d" % index * 20 for index in range(100 * number, 100 * number + 100)])
        start = TopicPartition("trimmed", 0, 100 * number + 37)
        assert visit.admin.delete_records([start])[start].result(WAIT_S).low_watermark == start.offset

    @staticmethod
    def _check(visit: Visit) -> None:
        number = visit.number
        topics = visit.admin.list_topics(timeout=WAIT_S).topics
        assert [name for name in topics if name.startswith("doomed")] == [f"doomed-{number - 1}"]
        visit.admin.delete_topics([f"doomed-{number - 1}"])[f"doomed-{number - 1}"].result(WAIT_S)
        assert len(topics["growing"].partitions) == number + 1
        assert visit.setting(ResourceType.TOPIC, "growing", "retention.ms") == str(10**12 + number - 1)
        assert visit.setting(ResourceType.TOPIC, "growing", "cleanup.policy") == "compact,delete"
        assert visit.setting(ResourceType.BROKER, "1", "log.retention.ms") == str(10**12 + number - 1)
        (found,) = visit.read("trimmed")
        start = found[0][0]
        assert start == 100 * number - 63 or (number - 1 in KILLED and start < 100 * number - 63)  # it may come back
        assert [row[3] for row in found] == [b"%03d" % index * 20 for index in range(start, 100 * number)]


class Keys:
    """Rule 1: a topic that both compact, with tombstones."""

    def __init__(self) -> None:
        self._newest: dict[bytes, bytes | None] = {}

    def go_on(self, visit: Visit) -> None:
        if visit.number == 0:
            settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100"}
            visit.create("keys", **settings, **SMALL_SEGMENTS)
        else:
            self._check(visit)
        producer = Producer({**visit.client, **SMALL_BATCHES, "compression.type": CODECS[visit.number % 5]})
        for index in range(300):
            key = b"k%d" % (index * 7 % 31)
            self._newest[key] = None if index % 11 == visit.number else b"%d %d" % (visit.number, index)
            producer.produce("keys", self._newest[key], key, partition=0, on_delivery=_arrived)
        assert producer.flush(WAIT_S) == 0
        self._check(visit)

    def _check(self, visit: Visit) -> None:
        (rows,) = visit.read("keys")
        assert [row[0] for row in rows] == sorted({row[0] for row in rows})
        found = {key: value for _, _, key, value, _ in rows}
        assert {k: v for k, v in found.items() if v is not None} == {
            k: v for k, v in self._newest.items() if v is not None
        }


class NotServed:
    """Rule 4: what is set under Kafka and only kept by us."""

    LEVELS = ("group.version", "share.version", "transaction.version", "eligible.leader.replicas.version")

    def go_on(self, visit: Visit) -> None:
        if not visit.is_kafka:
            return
        if visit.number == 1:
            self._set(visit)
        self._check(visit)

    @staticmethod
    def _set(visit: Visit) -> None:
        password = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        wish = UserScramCredentialUpsertion("alice", password, b"secret")
        visit.admin.alter_user_scram_credentials([wish])["alice"].result(WAIT_S)
        (made,) = visit.admin.create_acls([_entry()]).values()
        made.result(WAIT_S)
        _run(
            "kafka.admin.ConfigCommand",
            visit,
            "--alter",
            "--user",
            "alice",
            "--add-config",
            "request_percentage=12.5",
        )
        _run("org.apache.kafka.tools.FeatureCommand", visit, "downgrade", "--feature", "share.version=0")

    def _check(self, visit: Visit) -> None:
        alice = visit.admin.describe_user_scram_credentials(["alice"])["alice"].result(WAIT_S)
        assert [info.iterations for info in alice.scram_credential_infos] == [4096]
        everything = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )
        assert visit.admin.describe_acls(everything).result(WAIT_S) == [_entry()]
        if visit.number == TO_AND_FRO - 1:
            assert "request_percentage=12.5" in _run(
                "kafka.admin.ConfigCommand", visit, "--describe", "--user", "alice"
            )
        with RawClient(visit.bootstrap) as client:
            asked = ApiVersionsRequest(client_software_name="t", client_software_version="1")
            finalized = client.ask(asked, 3).finalized_features
        levels = {level.name: level.max_version_level for level in finalized}
        assert [levels.get(name, 0) for name in self.LEVELS] == [1, 0, 2, 1]


def _entry() -> AclBinding:
    place = (ResourceType.TOPIC, "plain", ResourcePatternType.LITERAL)
    return AclBinding(*place, "User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)


def _run(tool: str, visit: Visit, *arguments: str) -> str:
    done = run_tool(tool, "--bootstrap-server", visit.bootstrap, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_kafka
def test_both_go_on_with_all_that_the_other_left(tmp_path: Path) -> None:
    """All rules, over six visits."""
    directory = tmp_path / "data"
    subjects: list[Subject] = [Records(), Sequence(), Transactions(), Groups(), Topics(), Keys(), NotServed()]
    for number in range(TO_AND_FRO):
        broker = ApacheKafka(KAFKAS, data_dir=directory) if number % 2 else Broker(data_dir=directory, settings=OURS)
        with broker:
            visit = Visit(broker.bootstrap, number)
            for subject in subjects:
                subject.go_on(visit)
            if number in KILLED:
                broker.kill()
