"""The admin verbs print the same for Barnabas and for Apache Kafka."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

import barnabas
from tests.cli.running import Ended, Verbs
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.librdkafka import WAIT_S
from tests.support.security_profiles import PROFILES, SecuredNode

SETTINGS = {
    "num.partitions": 3,
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}
LINES = """\
topics create flights planes -p 3 -c retention.ms=3600000000000
topics create flights
topics create bad!name
topics create wide -r 3
topics create typo -c retention.mss=1
topics create flights --if-not-exists --json
topics list
topics list --json fl.*
topics describe flights nope --offsets
topics describe flights --json
topics alter flights -p 2
topics alter planes -p 4 -c cleanup.policy=compact
(produce)
topics describe flights --offsets
topics trim flights:0-1 --offset 4
topics trim flights:0-1 --offset 4 --execute
topics trim flights:2 --time 1000007 --execute
groups reset batch --topic flights --to-offset 6 --execute
groups reset batch --shift-by -3
groups reset batch --to-time 1000008 --execute
groups reset batch --to-latest
groups reset nope --to-latest
groups list
groups list --json --state empty --type classic
groups describe batch nope
groups describe batch --json
groups lag
groups lag batch --partitions --json
groups delete-offsets batch --topic flights:0 --execute
(members)
groups describe live modern
groups describe live modern --members
groups describe live modern --json
groups reset live --to-latest --execute
groups delete live
groups lag --json
(no members)
groups delete batch live nope
configs describe topic planes
configs set topic planes cleanup.policy+=delete segment.ms=600000
configs describe topic planes --json --docs --key segment.ms --key cleanup.policy
configs delete topic planes segment.ms
configs set topic planes nope=1
configs set topic planes retention.ms=x
configs set broker default log.cleaner.threads=2
configs describe broker 1 --key log.cleaner.threads --json
configs delete broker default log.cleaner.threads
configs set group modern consumer.session.timeout.ms=50000
configs describe group modern
configs set client-metrics watched interval.ms=5000
configs list client-metrics
configs describe client-metrics watched
users set alice --mechanism SCRAM-SHA-256
users list alice
users list nope
users delete alice
quotas set producer_byte_rate=1000 request_percentage=50 --user alice --default client-id
quotas set nope=1 --user alice
quotas list
quotas list --json --user alice
quotas delete producer_byte_rate request_percentage --user alice --default client-id
quotas list
acls list
acls add --allow User:alice --topic flights --operation read
nodes list
nodes features
nodes dirs --replicas --topic planes
partitions elect flights
partitions elect --all
partitions reassign flights --to 1
partitions reassign flights --to 7
partitions reassign planes -r 2
partitions reassignments
(transaction)
transactions describe mover nope
transactions list --state ongoing
transactions list --longer-than 1h
transactions producers flights:1
transactions hanging flights
transactions abort mover
topics delete planes nope
"""
MASKS = (
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "(member)"),
    (r"\b[\w-]{22}\b|(?<![\w/+-])[\w/+-]{22}(?=[ \",])", "(id)"),
    (r"\b127\.0\.0\.1 +\d+", "(address)"),
    (r"/tmp/\S+", "(folder)"),
    (r"\b17\d{11}\b|\d{4}-\d\d-\d\dT[\d:.]+\+00:00", "(time)"),
    (r'"documentation": "(?:[^"\\]|\\.)*"', "(documentation)"),
    (r"(?m)^planes +barnabas\.storage\.engine .*\n", ""),  # shown if it is set in the broker's file
    (r" {2,}", "  "),
)
"""What differs between runs; columns are as wide as their cells."""


def masked(ended: Ended) -> str:
    text = f"{ended.out}{ended.err}-> {ended.code}"
    for pattern, replacement in MASKS:
        text = re.sub(pattern, replacement, text)
    return text


class Session:
    """Plays the lines at one cluster; clients that must live longer are closed at its end."""

    def __init__(self, bootstrap: str, closing: ExitStack, verbs: Verbs | None = None) -> None:
        self._verbs = verbs or Verbs(bootstrap)
        self._bootstrap = bootstrap
        """Of the clients; the verbs may connect to another listener."""
        self._closing = closing
        self._members = closing.enter_context(ExitStack())

    def play(self, line: str) -> str:
        events = {
            "(produce)": self._produce,
            "(members)": self._join,
            "(no members)": self._members.close,
            "(transaction)": self._begin,
        }
        if line in events:
            events[line]()
            return line
        return masked(self._verbs.run(line, stdin="secret\n"))

    def _produce(self) -> None:
        producer = KafkaProducer(bootstrap_servers=self._bootstrap, enable_idempotence=False)
        for number in range(30):
            producer.send("flights", b"%d" % number, partition=number % 3, timestamp_ms=1_000_000 + number // 3)
        producer.close()

    def _join(self) -> None:
        classic = KafkaConsumer(
            "flights",
            bootstrap_servers=self._bootstrap,
            group_id="live",
            auto_offset_reset="earliest",
            client_id="reader",
            enable_auto_commit=False,
        )
        self._members.callback(classic.close)
        next(classic)
        classic.commit(
            {TopicPartition("flights", number): OffsetAndMetadata(4 + number, "", -1) for number in range(3)}
        )
        settings = {"group.id": "modern", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
        modern = Consumer({"bootstrap.servers": self._bootstrap, "enable.auto.commit": False, **settings})
        self._members.callback(modern.close)
        modern.subscribe(["flights"])
        assert modern.poll(WAIT_S) is not None

    def _begin(self) -> None:
        producer = KafkaProducer(bootstrap_servers=self._bootstrap, transactional_id="mover")
        self._closing.callback(producer.close, timeout=0)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("flights", b"x", partition=1).get(WAIT_S)


@contextmanager
def both(**more: str) -> Iterator[list[Session]]:
    settings = {**SETTINGS, **{name.replace("_", "."): value for name, value in more.items()}}
    with ExitStack() as closing:
        kafka = closing.enter_context(ApacheKafka(settings))
        broker = closing.enter_context(barnabas.Broker(settings=settings))
        yield [Session(one.bootstrap, closing.enter_context(ExitStack())) for one in (kafka, broker)]


@contextmanager
def both_secured(folder: Path) -> Iterator[list[Session]]:
    """The verbs log in as a super user, through TLS."""
    settings = {**SETTINGS, "super.users": "User:ANONYMOUS;User:alice"}
    with ExitStack() as closing:
        sessions = []
        for is_kafka in (True, False):
            node = closing.enter_context(SecuredNode(PROFILES["SASL_SSL/SCRAM-SHA-512"], settings, kafka=is_kafka))
            config = folder / f"{is_kafka}.properties"
            config.write_text("".join(f"{name}={value}\n" for name, value in node.login("alice").java().items()))
            verbs = Verbs(node.bootstrap, "--command-config", str(config))
            sessions.append(Session(node.inside, closing.enter_context(ExitStack()), verbs))
        yield sessions


ACL_LINES = """\
acls list
topics create flights -p 1
acls add --allow User:alice --topic flights --producer --json
acls add --allow User:bob --allow User:carol --topic fli --group counters --prefixed --consumer
acls add --deny User:* --host 10.0.0.1 --cluster --operation alter --operation describe-configs
acls add --allow User:alice --transactional-id mover --producer
acls add --allow User:alice --delegation-token t --operation describe
acls add --allow User:alice --user bob --operation create-tokens
acls add --allow User:alice --topic * --operation all
acls add --allow User:alice --cluster --operation read
acls list
acls list --json --principal User:alice
acls list --topic flights
acls list --group counters-2
acls list --cluster
acls remove --principal User:carol
acls remove --principal User:carol --execute
acls remove --topic fli --prefixed --execute
acls remove --operation describe --permission allow --execute --json
acls remove --cluster --execute
acls list
"""


@pytest.mark.long
@needs_kafka
def test_verbs_print_the_same_for_apache_kafka() -> None:
    with both() as sessions:
        assert_same(sessions, LINES)


@pytest.mark.long
@needs_kafka
def test_verbs_print_the_same_for_apache_kafka_through_tls_with_a_login(tmp_path: Path) -> None:
    with both_secured(tmp_path) as sessions:
        assert_same(sessions, LINES)


@pytest.mark.long
@needs_kafka
def test_acls_print_the_same_for_apache_kafka() -> None:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with both(authorizer_class_name=authorizer, super_users="User:ANONYMOUS") as sessions:
        assert_same(sessions, ACL_LINES)


@pytest.mark.long
@needs_kafka
def test_bench_and_top_work_with_apache_kafka() -> None:
    with ApacheKafka(SETTINGS) as kafka:
        verbs = Verbs(kafka.bootstrap)
        produced, consumed, latency = verbs.rows("bench -d 1s --rate 1000 -p 2")
        assert 0 < produced["records"] == consumed["records"]
        assert latency["latency_ms"]["p50"] > 0
        [view] = verbs.rows("top --once --interval 100ms --internal")
        assert [row["address"] for row in view["nodes"]] == [kafka.bootstrap]


def assert_same(sessions: list[Session], lines: str) -> None:
    kafka, broker = sessions
    expected, found = [], []
    for line in lines.splitlines():
        expected.append(f"$ {line}\n{kafka.play(line)}")
        found.append(f"$ {line}\n{broker.play(line)}")
    assert found == expected
