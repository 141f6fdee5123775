"""Directories from `kafka-storage format` with various options are served by Barnabas, then Kafka, then Barnabas.

RULES    1. A directory of any release and feature level starts, and Apache Kafka continues with it.
         2. Its feature levels and its other bootstrap records are preserved.
         3. Metadata that no release up to 4.4 writes is refused with an error, and the directory does not change.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from barnabas import Broker
from barnabas.embedded import BrokerError
from protocol.batch_builder import BatchBuilder
from protocol.messages import stored_records
from protocol.records import headers
from protocol.schema import Message
from replication.metadata.metadata_records import encode_record
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.librdkafka import create_topic, read_to_end

pytestmark = pytest.mark.long

WAIT_S = 30
NO_CONTROLLERS = "--no-initial-controllers"
SCRAM = "SCRAM-SHA-256=[name=alice,password=alice-secret,iterations=5000]"


class FormatCase(NamedTuple):
    """The options of a format run."""

    node_id: int
    is_static: bool
    arguments: tuple[str, ...]
    has_own_metadata_directory: bool = False


FORMAT_CASES = {
    "defaults": FormatCase(1, False, ()),
    "of 3.3, static quorum": FormatCase(7, True, ("--release-version", "3.3-IV3"), has_own_metadata_directory=True),
    "of 3.9, with a password": FormatCase(3000, False, ("--release-version", "3.9", "--add-scram", SCRAM)),
    "without groups and shares, for a quorum that is elsewhere": FormatCase(
        1,
        True,
        (NO_CONTROLLERS, *(f"--feature={name}.version=0" for name in ("group", "share", "streams", "transaction"))),
    ),
}


def settings_of(case: FormatCase, path: Path) -> dict[str, object]:
    settings: dict[str, object] = {
        "node.id": case.node_id,
        "offsets.topic.num.partitions": 2,
        "group.initial.rebalance.delay.ms": 0,
    }
    if case.has_own_metadata_directory:
        settings["metadata.log.dir"] = path / "metadata"
    return settings


def visit(bootstrap: str, number: int) -> None:
    """Verifies what earlier visits have left, creates a topic, and produces a record to every topic."""
    client: dict[str, Any] = {"bootstrap.servers": bootstrap}
    admin = AdminClient(client)
    topics = [name for name in admin.list_topics(timeout=WAIT_S).topics if not name.startswith("__")]
    assert sorted(topics) == [f"topic-{n}" for n in range(number)]
    create_topic(bootstrap, f"topic-{number}", 2)
    producer = Producer({**client, "enable.idempotence": True})
    for n in range(number + 1):
        producer.produce(f"topic-{n}", f"visit {number}", partition=number % 2)
    assert producer.flush(WAIT_S) == 0
    for n in range(number + 1):
        values = sorted(message.value() or b"" for message in read_to_end(bootstrap, f"topic-{n}"))
        assert values == [f"visit {v}".encode() for v in range(n, number + 1)]


def iterations_of(user: str, bootstrap: str) -> int:
    """The SCRAM iterations of the user."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found: Any = admin.describe_user_scram_credentials([user])
    credentials = found[user].result(WAIT_S)
    return int(credentials.scram_credential_infos[0].iterations)


@needs_kafka
@pytest.mark.parametrize("name", FORMAT_CASES)
def test_a_formatted_directory_starts_both_brokers(name: str, tmp_path: Path) -> None:
    """Rules 1 and 2.

    A directory for another quorum is served as a static quorum of one if no other controller is configured.
    """
    case = FORMAT_CASES[name]
    settings, directories = settings_of(case, tmp_path), f"{tmp_path / 'a'},{tmp_path / 'b'}"
    kafka_settings = {**settings, "log.dirs": directories}
    first = tmp_path / ("metadata" if case.has_own_metadata_directory else "a")
    kafka_storage = ApacheKafka(
        kafka_settings, data_dir=first, is_static=case.is_static and NO_CONTROLLERS not in case.arguments
    )
    kafka_storage.format(*case.arguments)
    with Broker(data_dir=directories, settings=settings) as ours:
        visit(ours.bootstrap, 0)
    with ApacheKafka(kafka_settings, data_dir=first, is_static=case.is_static) as kafka:
        visit(kafka.bootstrap, 1)
        assert SCRAM not in case.arguments or iterations_of("alice", kafka.bootstrap) == 5000
    with Broker(data_dir=directories, settings=settings) as ours:
        visit(ours.bootstrap, 2)


UNKNOWN_METADATA: dict[str, tuple[Message, int, str]] = {
    "a level": (stored_records.FeatureLevelRecord(name="metadata.version", feature_level=34), 12, "works with 7 to 33"),
    "a feature": (stored_records.FeatureLevelRecord(name="warp.version", feature_level=1), 12, "warp.version 1"),
    "a record": (stored_records.NoOpRecord(), 99, "type 99, which this broker does not know"),
}


@pytest.mark.parametrize("name", UNKNOWN_METADATA)
def test_unknown_metadata_is_refused_and_nothing_changes(name: str, tmp_path: Path) -> None:
    """Rule 3, after a crash that would require recovery: names, contents and times of all files stay."""
    message, kind, sentence = UNKNOWN_METADATA[name]
    directory = tmp_path / "data"

    with Broker(data_dir=directory) as broker:
        visit(broker.bootstrap, 0)
        broker.kill()
    (directory / "topic-0-0" / f"{0:020d}.log").open("ab").write(b"torn")
    (log,) = (directory / "__cluster_metadata-0").glob("*.log")
    end = [header.last_offset for _, header in headers(log.read_bytes())][-1] + 1
    builder = BatchBuilder(end, leader_epoch=1)
    value = encode_record(message, 0)
    builder.append(1, None, value[:1] + bytes([kind]) + value[2:])
    log.open("ab").write(builder.build())
    before = everything(directory)
    with pytest.raises(BrokerError, match=sentence):
        Broker(data_dir=directory).start()
    assert everything(directory) == before


def everything(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Modification time and content of each file, by name."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
