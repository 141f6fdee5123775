"""What consume prints, produce takes back, byte for byte: hostile records, copied and compared through raw fetches."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from barnabas import Broker
from protocol.compression import Compression
from tests.cli.running import COMMAND, TIMEOUT_S, barnabas
from tests.support import hostile_records
from tests.support.hostile_records import Sent
from tests.support.hostile_records import hostile_records as some_hostile_records
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.loading import create
from tests.support.raw_client import RawClient
from tests.support.security_profiles import PROFILES, SecuredNode
from tests.support.seeds import seed_of

PARTITIONS = 3
BATCHES = 12
RECORDS_PER_BATCH = 25
SIZED = r"%t %p %d %K{big32}%k%V{big32}%v%H{big32}%h{%K{big32}%k%V{big32}%v}"
KEEP = {"log.retention.ms": "-1"}
"""The records of these tests have old timestamps."""


class Clusters(NamedTuple):
    source: str
    target: str


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    with Broker(settings=KEEP) as source, Broker(settings=KEEP) as target:
        yield Clusters(source.bootstrap, target.bootstrap)


def copy(clusters: Clusters, source: list[str], target: list[str]) -> None:
    """`barnabas consume SOURCE | barnabas produce TARGET`."""
    with subprocess.Popen([*COMMAND, "consume", "-b", clusters.source, *source], stdout=subprocess.PIPE) as consumer:
        done = subprocess.run(
            [*COMMAND, "produce", "-b", clusters.target, *target],
            stdin=consumer.stdout, capture_output=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    assert (consumer.returncode, done.returncode) == (0, 0), done.stderr.decode()


def fill(bootstrap: str, topic: str, seed: int) -> list[list[Sent]]:
    """Writes hostile records with every codec; returns them by partition."""
    dice = random.Random(seed)
    written: list[list[Sent]] = [[] for _ in range(PARTITIONS)]
    with RawClient(bootstrap) as client:
        create(client, topic, partitions=PARTITIONS)
        for number in range(BATCHES):
            sent = some_hostile_records(dice, RECORDS_PER_BATCH)
            hostile_records.write(
                client, topic, number % PARTITIONS, sent, list(Compression)[number % len(Compression)]
            )
            written[number % PARTITIONS] += sent
    return written


def stored(bootstrap: str, topic: str) -> list[list[Sent]]:
    with RawClient(bootstrap) as client:
        return [hostile_records.read(client, topic, partition) for partition in range(PARTITIONS)]


@pytest.mark.parametrize(
    ("name", "consume", "produce"),
    [
        ("json", [], []),
        ("sizes", ["-f", SIZED], ["-f", SIZED]),
        ("transaction", ["--json"], ["--transactional-id", "copy", "-z", "lz4"]),
    ],
)
def test_a_copied_topic_has_the_same_records(
    clusters: Clusters, name: str, consume: list[str], produce: list[str]
) -> None:
    seed = seed_of()
    print(f"seed {seed}")
    written = fill(clusters.source, f"hostile-{name}", seed)
    assert stored(clusters.source, f"hostile-{name}") == written
    with RawClient(clusters.target) as client:
        create(client, f"hostile-{name}", partitions=PARTITIONS)
    copy(clusters, [f"hostile-{name}", *consume], produce)
    assert stored(clusters.target, f"hostile-{name}") == written


@pytest.mark.long
@needs_kafka
def test_topics_are_copied_between_kafka_and_barnabas() -> None:
    """There and back: Barnabas to Apache Kafka to Barnabas."""
    seed = seed_of()
    print(f"seed {seed}")
    with Broker(settings=KEEP) as ours, ApacheKafka(KEEP) as kafka:
        written = fill(ours.bootstrap, "there", seed)
        for bootstrap, topic in ((kafka.bootstrap, "there"), (ours.bootstrap, "back")):
            with RawClient(bootstrap) as client:
                create(client, topic, partitions=PARTITIONS)
        copy(Clusters(ours.bootstrap, kafka.bootstrap), ["there"], [])
        assert stored(kafka.bootstrap, "there") == written
        copy(Clusters(kafka.bootstrap, ours.bootstrap), ["there"], ["back"])
        assert stored(ours.bootstrap, "back") == written


@pytest.mark.long
@needs_kafka
def test_topics_are_copied_through_tls_with_a_login(tmp_path: Path) -> None:
    """The verbs log in; the records are written and compared through a listener without security."""
    seed = seed_of()
    print(f"seed {seed}")
    settings = {**KEEP, "super.users": "User:ANONYMOUS;User:alice"}
    profile = PROFILES["SASL_SSL/SCRAM-SHA-512"]
    with SecuredNode(profile, settings) as ours, SecuredNode(profile, settings, kafka=True) as kafka:
        written = fill(ours.inside, "there", seed)
        logins: list[list[str]] = []
        for node in (ours, kafka):
            config = tmp_path / f"{len(logins)}.properties"
            config.write_text("".join(f"{name}={value}\n" for name, value in node.login("alice").java().items()))
            logins.append(["--command-config", str(config)])
        for node, topic in ((kafka, "there"), (ours, "back")):
            with RawClient(node.inside) as client:
                create(client, topic, partitions=PARTITIONS)
        copy(Clusters(ours.bootstrap, kafka.bootstrap), ["there", *logins[0]], logins[1])
        assert stored(kafka.inside, "there") == written
        copy(Clusters(kafka.bootstrap, ours.bootstrap), ["there", *logins[1]], ["back", *logins[0]])
        assert stored(ours.inside, "back") == written


def test_timestamps_of_the_broker_are_marked(clusters: Clusters) -> None:
    with RawClient(clusters.source) as client:
        create(client, "append-time", message_timestamp_type="LogAppendTime")
        hostile_records.write(client, "append-time", 0, [(1, None, b"x", ())])
        [(timestamp, *_)] = hostile_records.read(client, "append-time", 0)
    printed = barnabas("consume", "-b", clusters.source, "append-time").stdout.decode()
    assert f'"timestamp":{timestamp},"timestamp_type":"log-append"' in printed
