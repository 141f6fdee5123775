"""One data directory, served alternately by Barnabas and by Apache Kafka, three times each, with clients in between.

RULES    1. Every visit first verifies everything that the previous visits have left, then adds to it (`check_and_extend`).
         2. Offsets are continuous; every sent record exists once, with its timestamp, key and headers.
         3. A producer continues with its id and its sequence numbers under the other broker.
         4. Records that Barnabas does not use are preserved for Kafka, also in its own metadata snapshots: quotas, SCRAM
            credentials, ACLs, feature levels.
         5. Two of the visits end with SIGKILL, one of either broker.
NOT HERE What compaction preserves (`test_compacted_directories.py`), how directories are formatted
         (`test_formatted_directories.py`).
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition, admin

from barnabas import Broker
from protocol.batch_builder import BatchBuilder
from protocol.errors import ErrorCode
from protocol.messages.metadata import ApiVersionsRequest
from tests.conformance.brokers import alter_configs, append_when_ready, new_producer
from tests.support import librdkafka
from tests.support.config_cases import BROKER, DELETE_SETTING, SET
from tests.support.kafka import ApacheKafka, needs_kafka, run_tool
from tests.support.raw_client import RawClient
from tests.support.timestamps import RECENT_MS
from tests.support.waiting import until

pytestmark = pytest.mark.long

WAIT_S = 30.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
VISITS = 6
KILLED = (2, 3)
SMALL_SEGMENTS: dict[str, Any] = {"internal.segment.bytes": "4000"}
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
"""Offset, timestamp, key, value, headers."""


class Visit:
    def __init__(self, bootstrap: str, number: int) -> None:
        self.number = number
        self.is_kafka = number % 2 == 1
        self.bootstrap = bootstrap
        self.client: dict[str, Any] = {"bootstrap.servers": bootstrap}
        self.admin = admin.AdminClient(self.client)

    def read(self, topic: str, partitions: int = 1, isolation: str = "read_uncommitted") -> list[list[Found]]:
        """The records of each partition, as a consumer returns them."""
        found: list[list[Found]] = [[] for _ in range(partitions)]
        for record in librdkafka.read_to_end(self.bootstrap, topic, isolation):
            offset, index = record.offset(), record.partition()
            assert offset is not None
            assert index is not None
            row = (offset, record.timestamp()[1], record.key(), record.value(), record.headers())
            found[index].append(row)
        return found

    def values(self, topic: str, isolation: str = "read_uncommitted") -> list[bytes | None]:
        """The values in a topic with one partition."""
        return [row[3] for row in self.read(topic, isolation=isolation)[0]]

    def run(self, tool: str, *arguments: str) -> str:
        """The output of one of Kafka's tools."""
        done = run_tool(tool, "--bootstrap-server", self.bootstrap, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


class Records:
    """Rules 1 and 2: three partitions of small segments, every codec, timestamps, headers, nulls."""

    def __init__(self) -> None:
        self._sent: list[list[Found]] = [[], [], []]

    def check_and_extend(self, visit: Visit) -> None:
        if visit.number == 0:
            librdkafka.create_topic(visit.bootstrap, "plain", 3, **SMALL_SEGMENTS)
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
            headers: list[tuple[str, str | bytes | None]] | None = [("a", name), ("b", b"")] if index % 3 else None
            key, value = (None if index % 4 == 0 else name), (None if index % 7 == 0 else name * 5)
            time_ms = RECENT_MS + index * 1000

            def on_delivery(
                error: KafkaError | None, sent: Any, row: tuple[Any, ...] = (time_ms, key, value, headers)
            ) -> None:
                assert error is None
                self._sent[sent.partition()].append((sent.offset(), *row))

            producer.produce(
                "plain", value, key, partition=index % 3, timestamp=time_ms, headers=headers, on_delivery=on_delivery
            )
        assert producer.flush(WAIT_S) == 0


class Sequence:
    """Rule 3: one producer, its sequence over all visits."""

    def __init__(self) -> None:
        self._id = (-1, -1)
        self._sequence = 0
        self._last: tuple[int, bytes] | None = None

    def check_and_extend(self, visit: Visit) -> None:
        with RawClient(visit.bootstrap) as client:
            if visit.number == 0:
                librdkafka.create_topic(visit.bootstrap, "sequence")
                self._id = until(lambda: new_producer(client), "a producer id")
            if self._last is not None:
                sequence, _ = self._last
                assert self._produce(client, sequence) == (ErrorCode.NONE, sequence), "it is known, and where it is"
                assert self._produce(client, self._sequence + 5)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            for _ in range(3):
                assert self._produce(client, self._sequence) == (ErrorCode.NONE, self._sequence)
                self._last = (self._sequence, b"")
                self._sequence += 10

    def _produce(self, client: RawClient, sequence: int) -> tuple[int, int]:
        builder = BatchBuilder(producer_id=self._id[0], producer_epoch=self._id[1], base_sequence=sequence)
        for index in range(10):
            builder.append(int(time.time() * 1000), None, b"%d" % (sequence + index))
        answer = append_when_ready(client, "sequence", bytes(builder.build()))
        return answer.error_code, answer.base_offset


class Transactions:
    """Rule 1: one broker's open transaction limits read_committed consumers until the other broker ends it."""

    def __init__(self) -> None:
        self._committed: list[bytes] = []
        self._stable: list[bytes] = []
        self._behind: list[bytes] = []

    def check_and_extend(self, visit: Visit) -> None:
        if visit.number == 0:
            librdkafka.create_topic(visit.bootstrap, "transactions")
            librdkafka.create_topic(visit.bootstrap, "undecided")
        assert visit.values("transactions", "read_committed") == self._committed
        assert visit.values("undecided", "read_committed") == self._stable
        self._decide(visit)
        self._leave_open(visit)

    def _decide(self, visit: Visit) -> None:
        producer = librdkafka.transactional_producer(visit.bootstrap, "decided")
        for kept in (True, False, True):
            values = [b"%d %d" % (visit.number, index) for index in range(5)]
            producer.begin_transaction()
            for value in values:
                producer.produce("transactions", value)
            producer.flush(WAIT_S)
            (producer.commit_transaction if kept else producer.abort_transaction)(WAIT_S)
            self._committed += values if kept else []

    def _leave_open(self, visit: Visit) -> None:
        """A transaction that stays open during this visit; later records are not stable."""
        # This aborts the transaction of the previous visit.
        producer = librdkafka.transactional_producer(visit.bootstrap, "undecided", transaction_timeout_ms=600_000)
        self._stable += self._behind
        assert visit.values("undecided", "read_committed") == self._stable
        before, behind = b"before %d" % visit.number, b"behind %d" % visit.number
        librdkafka.produce(visit.bootstrap, "undecided", [before])
        producer.begin_transaction()
        producer.produce("undecided", b"perhaps")
        producer.flush(WAIT_S)
        librdkafka.produce(visit.bootstrap, "undecided", [behind])
        self._stable.append(before)
        self._behind = [behind]


class Groups:
    """Rule 1: commits of a classic group, of a KIP-848 group, and of a group that alternates."""

    def __init__(self) -> None:
        self._commits = {"classic": -1001, "modern": -1001, "switching": -1001}
        self._left: list[Consumer] = []

    def check_and_extend(self, visit: Visit) -> None:
        for group, offset in self._commits.items():
            assert self._committed(visit, group) == offset, group
        self._commit(visit, "classic")
        if visit.number > 0 and not visit.is_kafka:  # members of both protocols cannot share this group
            until(lambda: self._is_empty(visit, "switching"), "the end of sessions", WAIT_S)
        self._commit(visit, "switching", {"group.protocol": "consumer"} if visit.is_kafka else None)
        if visit.number > 0:
            response = visit.admin.describe_consumer_groups(["modern"])["modern"].result(WAIT_S)
            assert str(response.type) == "ConsumerGroupType.CONSUMER", response.type
        self._commit(visit, "modern", {"group.protocol": "consumer"})

    @staticmethod
    def _is_empty(visit: Visit, group: str) -> bool:
        response = visit.admin.describe_consumer_groups([group])[group].result(WAIT_S)
        return str(response.state) == "ConsumerGroupState.EMPTY"

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
            self._left.append(consumer)  # a member that does not leave
        else:
            consumer.close()


class Topics:
    """Rule 1: configs, new partitions, deleted topics, a log start offset, dynamic configs."""

    def check_and_extend(self, visit: Visit) -> None:
        number = visit.number
        if number == 0:
            librdkafka.create_topic(visit.bootstrap, "growing", cleanup_policy="compact,delete")
            librdkafka.create_topic(visit.bootstrap, "trimmed", **SMALL_SEGMENTS)
        else:
            self._check(visit)
        librdkafka.create_topic(visit.bootstrap, f"deleted-{number}", 2)
        retention = str(10**12 + number)
        librdkafka.set_configs(visit.bootstrap, admin.ResourceType.TOPIC, "growing", {"retention.ms": retention})
        librdkafka.set_configs(visit.bootstrap, admin.ResourceType.BROKER, "1", {"log.retention.ms": retention})
        visit.admin.create_partitions([admin.NewPartitions("growing", number + 2)])["growing"].result(WAIT_S)
        values = [b"%03d" % index * 20 for index in range(100 * number, 100 * number + 100)]
        librdkafka.produce(visit.bootstrap, "trimmed", values, batch_num_messages=15)
        start = TopicPartition("trimmed", 0, 100 * number + 37)
        assert visit.admin.delete_records([start])[start].result(WAIT_S).low_watermark == start.offset

    @staticmethod
    def _check(visit: Visit) -> None:
        number = visit.number
        topics = visit.admin.list_topics(timeout=WAIT_S).topics
        assert [name for name in topics if name.startswith("deleted")] == [f"deleted-{number - 1}"]
        visit.admin.delete_topics([f"deleted-{number - 1}"])[f"deleted-{number - 1}"].result(WAIT_S)
        assert len(topics["growing"].partitions) == number + 1
        retention = str(10**12 + number - 1)
        for kind, name, key, value in (
            (admin.ResourceType.TOPIC, "growing", "retention.ms", retention),
            (admin.ResourceType.TOPIC, "growing", "cleanup.policy", "compact,delete"),
            (admin.ResourceType.BROKER, "1", "log.retention.ms", retention),
        ):
            assert librdkafka.config_value(visit.bootstrap, kind, name, key) == value
        (found,) = visit.read("trimmed")
        start = found[0][0]
        assert start == 100 * number - 63 or (
            number - 1 in KILLED and start < 100 * number - 63
        )  # deleted records may return after a kill
        assert [row[3] for row in found] == [b"%03d" % index * 20 for index in range(start, 100 * number)]


class Keys:
    """Rule 1: a topic that both brokers compact, with tombstones."""

    def __init__(self) -> None:
        self._newest: dict[bytes, bytes | None] = {}

    def check_and_extend(self, visit: Visit) -> None:
        if visit.number == 0:
            settings = {**SMALL_SEGMENTS, "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "100"}
            librdkafka.create_topic(visit.bootstrap, "keys", cleanup_policy="compact", **settings)
        else:
            self._check(visit)
        producer = Producer({**visit.client, **SMALL_BATCHES, "compression.type": CODECS[visit.number % 5]})
        for index in range(300):
            key = b"k%d" % (index * 7 % 31)
            self._newest[key] = None if index % 11 == visit.number else b"%d %d" % (visit.number, index)
            producer.produce("keys", self._newest[key], key, partition=0, on_delivery=librdkafka.assert_arrived)
        assert producer.flush(WAIT_S) == 0
        self._check(visit)

    def _check(self, visit: Visit) -> None:
        (rows,) = visit.read("keys")
        assert [row[0] for row in rows] == sorted({row[0] for row in rows})
        found = {key: value for _, _, key, value, _ in rows}
        assert {k: v for k, v in found.items() if v is not None} == {
            k: v for k, v in self._newest.items() if v is not None
        }


class ToolOutput:
    """Rule 1: Kafka's tools print the same of a topic and of a group under both brokers, ids and lags among it."""

    TOOLS = (
        ("org.apache.kafka.tools.TopicCommand", "--describe", "--topic", "shown"),
        ("kafka.admin.ConfigCommand", "--describe", "--entity-type", "topics", "--entity-name", "shown"),
        ("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--describe", "--group", "visitors"),
    )

    def __init__(self) -> None:
        self._before: list[list[list[str]]] = []

    def check_and_extend(self, visit: Visit) -> None:
        consumer = Consumer({**visit.client, "group.id": "visitors"})
        if visit.number == 0:
            librdkafka.create_topic(visit.bootstrap, "shown", 2, retention_ms="-1", segment_bytes="1048576")
            librdkafka.produce(visit.bootstrap, "shown", [b"value"] * 50, 2)
            ends = [TopicPartition("shown", partition, 20) for partition in (0, 1)]
            consumer.committed(ends, WAIT_S)  # waits for a coordinator
            consumer.commit(offsets=ends, asynchronous=False)
        assert consumer.committed([TopicPartition("shown", 0)], WAIT_S)[0].offset == 20
        consumer.close()
        shown = [self._words(visit.run(*tool)) for tool in self.TOOLS]
        assert shown == (self._before or shown)
        self._before = shown
        assert sum("Partition:" in line for line in shown[0]) == 2
        assert any("retention.ms=-1" in line for line in shown[1])
        assert sum({"visitors", "shown"} <= set(line) for line in shown[2]) == 2
        status = visit.run("org.apache.kafka.tools.MetadataQuorumCommand", "describe", "--status")
        assert ["1", "LeaderId:"] in self._words(status)

    @staticmethod
    def _words(output: str) -> list[list[str]]:
        """Lines and configs are in the order of hash maps; `Topics` changes the broker's retention time."""
        output = re.sub(r"log\.retention\.ms=\d+", "", output)
        return sorted(sorted(re.split(r"[\s,]+", line.strip())) for line in output.splitlines())


class PreservedMetadata:
    """Rule 4: metadata that Kafka writes and Barnabas preserves."""

    LEVELS = ("group.version", "share.version", "transaction.version", "eligible.leader.replicas.version")

    def check_and_extend(self, visit: Visit) -> None:
        if not visit.is_kafka:
            return
        if visit.number == 1:
            self._set(visit)
        self._check(visit)

    @staticmethod
    def _set(visit: Visit) -> None:
        password = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_256, 4096)
        upsertion = admin.UserScramCredentialUpsertion("alice", password, b"secret")
        visit.admin.alter_user_scram_credentials([upsertion])["alice"].result(WAIT_S)
        (made,) = visit.admin.create_acls([_entry()]).values()
        made.result(WAIT_S)
        visit.run("kafka.admin.ConfigCommand", "--alter", "--user", "alice", "--add-config", "request_percentage=12.5")
        visit.run("org.apache.kafka.tools.FeatureCommand", "downgrade", "--feature", "share.version=0")

    def _check(self, visit: Visit) -> None:
        described: Any = visit.admin.describe_user_scram_credentials(["alice"])
        alice = described["alice"].result(WAIT_S)
        assert [info.iterations for info in alice.scram_credential_infos] == [4096]
        anything: Any = None
        everything = admin.AclBindingFilter(
            admin.ResourceType.ANY,
            anything,
            admin.ResourcePatternType.ANY,
            anything,
            anything,
            admin.AclOperation.ANY,
            admin.AclPermissionType.ANY,
        )
        assert visit.admin.describe_acls(everything).result(WAIT_S) == [_entry()]
        if visit.number == VISITS - 1:
            quotas = visit.run("kafka.admin.ConfigCommand", "--describe", "--user", "alice")
            assert "request_percentage=12.5" in quotas
        with RawClient(visit.bootstrap) as client:
            request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
            finalized = client.ask(request, 3).finalized_features
        levels = {level.name: level.max_version_level for level in finalized}
        assert [levels.get(name, 0) for name in self.LEVELS] == [1, 0, 2, 1]


def _entry() -> admin.AclBinding:
    topic_partition = (admin.ResourceType.TOPIC, "plain", admin.ResourcePatternType.LITERAL)
    return admin.AclBinding(*topic_partition, "User:alice", "*", admin.AclOperation.READ, admin.AclPermissionType.ALLOW)


def is_deleted_after_a_change(client: RawClient, segment: Path) -> bool:
    """Whether a segment of the metadata log is gone; else new records make the next snapshot due."""
    for how, text in ((SET, "86400001"), (DELETE_SETTING, None)):
        alter_configs(client, BROKER, "", ("producer.id.expiration.ms", how, text))
    return not segment.exists()


@needs_kafka
def test_both_brokers_continue_with_the_data_of_the_other(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    first = directory / "__cluster_metadata-0" / f"{0:020d}.log"
    kinds = (Records, Sequence, Transactions, Groups, Topics, Keys, ToolOutput, PreservedMetadata)
    datasets = [kind() for kind in kinds]
    for number in range(VISITS):
        broker = ApacheKafka(KAFKAS, data_dir=directory) if number % 2 else Broker(data_dir=directory, settings=OURS)
        with broker:
            visit = Visit(broker.bootstrap, number)
            for dataset in datasets:
                dataset.check_and_extend(visit)
            if number == 0:
                with RawClient(broker.bootstrap) as client:
                    until(
                        lambda: is_deleted_after_a_change(client, first),
                        "Kafka can continue only from our metadata snapshot",
                        WAIT_S,
                    )
            if number in KILLED:
                broker.kill()
