"""Groups with members of both protocols: the records compared with Apache Kafka, and rolling upgrades of stock clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

import barnabas
from broker.coordinators.classic.group_records import GROUP_METADATA, read_group_key
from broker.coordinators.consumer import consumer_group_records
from broker.coordinators.runtime.stored_records import version_of
from broker.tools.message_json import message_json
from protocol.codec import decode
from protocol.messages.stored_records import GroupMetadataValue
from tests.conformance.clients import ALL, PARTITIONS, RECORDS, Member, seen_by, until_balanced
from tests.conformance.test_group_clients import QUICK, consumer_member, fill, write_more
from tests.conformance.test_groups import keys_and_values, log_of
from tests.scenarios.kafka_brokers import PatientGroupHarness
from tests.scenarios.run import SETTINGS, Runner
from tests.support.group_harness import FakeLog, local_world
from tests.support.kafka import ApacheKafka, free_port, needs_kafka, run_tool
from tests.support.waiting import until

pytestmark = pytest.mark.long

SCENARIOS = Path(__file__).parent.parent / "scenarios" / "mixed_groups"
DRAWN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=')[0-9A-Za-z_][0-9A-Za-z_-]{21}(?=')")
"""UUIDs of Java and of topics."""
TIMES_AND_HASHES = re.compile(r"'(metadataHash|assignmentTimestamp|currentStateTimestamp)': '?-?\d+'?")


def group_records(log: FakeLog, group: str) -> list[str]:
    """The records of a group's type and members, in order, without random ids and times.

    Consecutive records of one type are sorted, since Kafka writes members in the order of Java's maps.
    """
    found: list[tuple[int, str]] = []
    for key, value in keys_and_values(log):
        kind = int.from_bytes(key[:2], "big")
        text = _shown(kind, key, value, group)
        if text is not None:
            found.append((kind, TIMES_AND_HASHES.sub(r"'\1'", DRAWN.sub("drawn", text))))
    return [text for _, run in groupby(found, key=lambda entry: entry[0]) for text in sorted(text for _, text in run)]


def _shown(kind: int, key: bytes, value: bytes | None, group: str) -> str | None:
    if kind == GROUP_METADATA:
        if read_group_key(key) != group:
            return None
        if value is None:
            return "no classic group"
        version = version_of(value, GroupMetadataValue.MAX_VERSION)
        stored = decode(GroupMetadataValue, version, value, 2)
        stored.members.sort(key=lambda member: member.client_id)
        stored.leader = None if stored.leader is None else "one of them"
        return str(message_json(stored, version))
    if kind not in consumer_group_records.TYPES:
        return None
    record: Any = consumer_group_records.read(kind, key, value)
    if record.key.group_id != group:
        return None
    name = f"{type(record.key).__name__} {message_json(record.key, 0)}"
    return name if record.value is None else f"{name} {_in_order(message_json(record.value, 0))}"


def _in_order(value: Any) -> Any:
    """Partitions and their epochs in ascending order."""
    if isinstance(value, list):
        return [_in_order(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "assignmentEpochs" in value:
        epochs = sorted(zip(value["partitions"], value["assignmentEpochs"], strict=True))
        return {"topicId": value["topicId"], "partitions": epochs}
    return {name: sorted(one) if name == "partitions" else _in_order(one) for name, one in value.items()}


@needs_kafka
def test_the_same_migrations_leave_the_same_records(tmp_path: Path) -> None:
    """Record for record what Apache Kafka writes, in its order."""
    texts = {name: (SCENARIOS / f"{name}.txt").read_text() for name in ("migrating", "static_members")}
    ours = local_world(SETTINGS)
    with ApacheKafka({**SETTINGS, "auto.create.topics.enable": "false"}, data_dir=tmp_path / "data") as kafka:
        theirs = PatientGroupHarness(kafka.bootstrap)
        theirs.find_coordinator()
        for text in texts.values():
            Runner(ours).run(text)
            assert theirs.play(text) == text
        theirs.close()
    logs = [log_of(tmp_path / "data" / f"__consumer_offsets-{index}") for index in range(5)]
    for group in ("mg-up", "mg-st"):
        wrote = comparable([entry for log in logs for entry in group_records(log, group)])
        assert comparable([entry for log in ours.logs for entry in group_records(log, group)]) == wrote
        assert len(wrote) > 30


def comparable(records_of: list[str]) -> list[str]:
    """Up to the third member: with three members the assignment depends on random ids."""
    return list(takewhile(lambda text: "'memberId': 'm-c'" not in text, records_of))


# ---- stock clients


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[barnabas.Broker]:
    with barnabas.Broker(tmp_path, free_port(), {**QUICK, "group.initial.rebalance.delay.ms": 0}) as started:
        yield started


def kind_of(bootstrap: str, group: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    listed = admin.list_consumer_groups().result(30)
    return next(str(one.type.name) for one in listed.valid if one.group_id == group)


CLASSIC = [  # librdkafka's cooperative-sticky has user data in its assignments, which prevents an upgrade, as in Apache Kafka
    ("confluent-kafka", "range"),
    ("confluent-kafka", "roundrobin"),
    ("kafka-python", "range"),
    ("kafka-python", "cooperative-sticky"),
]


@pytest.mark.parametrize(("client", "assignor"), CLASSIC)
def test_members_are_exchanged_one_by_one_and_back(broker: barnabas.Broker, client: str, assignor: str) -> None:
    """A rolling upgrade and downgrade under load; every record is read, and offsets stay."""
    bootstrap, topic = broker.bootstrap, "rolling"
    fill(bootstrap, topic)

    def old() -> Member:
        return Member(client, bootstrap, topic, assignor=assignor)

    def new() -> Member:
        return consumer_member(bootstrap, topic)

    with ExitStack() as stack:
        members = [stack.enter_context(old()) for _ in range(2)]
        until_balanced(members)
        assert kind_of(bootstrap, topic) == "CLASSIC"
        until(lambda: seen_by(members) >= ALL, "every record read")
        for count, make in enumerate((new, new, old, old)):
            leaving = members.pop(0)
            members.append(stack.enter_context(make()))
            leaving.stop()
            until_balanced(members)
            assert kind_of(bootstrap, topic) == ("CLASSIC" if count == 3 else "CONSUMER")
            write_more(bootstrap, topic)
            newest = {(partition, RECORDS // PARTITIONS + count) for partition in range(PARTITIONS)}
            until(lambda newest=newest: seen_by(members) >= newest, "what was written meanwhile is read")  # type: ignore[misc]
        again = {one for one in members[-1].seen if one[1] < RECORDS // PARTITIONS}
        assert not again, "who came last began where the others had committed"


@needs_kafka
def test_a_java_consumer_upgrades_a_kafka_python_group_and_downgrades_it_when_leaving(broker: barnabas.Broker) -> None:
    """The Java client of either protocol beside a member of the other."""
    bootstrap, topic = broker.bootstrap, "java"
    fill(bootstrap, topic)

    def java(protocol: str) -> list[str]:
        read = run_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", bootstrap, "--topic", topic,
            "--group", topic, "--from-beginning", "--timeout-ms", 2_500,
            "--consumer-property", f"group.protocol={protocol}",
        )  # fmt: skip
        assert "Processed a total of" in read.stderr, read.stderr
        return read.stdout.split()

    with Member("kafka-python", bootstrap, topic) as one:
        until(lambda: one.share == PARTITIONS, "all partitions for the first member")
        java("consumer")
        until(lambda: kind_of(bootstrap, topic) == "CLASSIC", "a classic group again")
        until(lambda: one.share == PARTITIONS, "all partitions for the member that stays")
    with consumer_member(bootstrap, topic) as one:
        until(lambda: one.share == PARTITIONS, "all partitions for a member of the consumer protocol")
        java("classic")
        assert kind_of(bootstrap, topic) == "CONSUMER"
        until(lambda: one.share == PARTITIONS, "all partitions for the member that stays")
