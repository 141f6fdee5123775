"""What a read-committed reader sees of transactions that were committed and aborted by the same producers, interleaved."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from barnabas import Broker
from barnabas.client.cluster import EARLIEST, LATEST, Cluster
from barnabas.client.errors import ClientError
from barnabas.client.record_reader import RecordReader
from barnabas.client.record_writer import RecordWriter, WriteOptions
from barnabas.client.topic_partition import TopicPartition
from tests.support.loading import create
from tests.support.raw_client import RawClient
from tests.support.seeds import seed_of

ROUNDS = 25
IDS = ("a", "b", None)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Broker() as broker:
        with RawClient(broker.bootstrap) as client:
            create(client, "mixed", partitions=2)
        host, _, port = broker.bootstrap.partition(":")
        found = Cluster([(host, int(port))], {})
        yield found
        found.close()


def visible(cluster: Cluster, *, committed: bool) -> dict[TopicPartition, list[bytes | None]]:
    partitions = [TopicPartition("mixed", number) for number in cluster.leaders("mixed")]
    starts = cluster.offsets(dict.fromkeys(partitions, EARLIEST), committed=committed)
    stops = cluster.offsets(dict.fromkeys(partitions, LATEST), committed=committed)
    found: dict[TopicPartition, list[bytes | None]] = {one: [] for one in partitions}
    for page in RecordReader(
        cluster, {one: (starts[one], stops[one]) for one in partitions}, committed=committed
    ).pages():
        if page is not None:
            found[page.partition] += [record.value for record in page.records]
    return found


def test_a_reader_sees_committed_transactions_in_order(cluster: Cluster) -> None:
    seed = seed_of()
    print(f"seed {seed}")
    dice = random.Random(seed)
    every: dict[TopicPartition, list[bytes | None]] = {TopicPartition("mixed", number): [] for number in range(2)}
    kept: dict[TopicPartition, list[bytes | None]] = {one: [] for one in every}
    for number in range(ROUNDS):
        name = dice.choice(IDS)
        commits = name is None or dice.random() < 0.5
        writer = RecordWriter(cluster, WriteOptions(transactional_id=name))
        for count in range(dice.randrange(1, 4)):
            partition, value = dice.choice(list(every)), b"%d-%d" % (number, count)
            writer.append(partition, None, value)
            writer.send()
            every[partition].append(value)
            if commits:
                kept[partition].append(value)
        writer.close(commit=commits)
    assert visible(cluster, committed=False) == every
    assert visible(cluster, committed=True) == kept


def test_a_producer_with_the_same_id_is_fenced(cluster: Cluster) -> None:
    first = RecordWriter(cluster, WriteOptions(transactional_id="fenced"))
    RecordWriter(cluster, WriteOptions(transactional_id="fenced")).close()
    first.append(TopicPartition("mixed", 0), None, b"x")
    with pytest.raises(ClientError, match="same transactional id"):
        first.close()
