"""What a read-committed reader sees of transactions that were committed and aborted by the same producers, interleaved.

`barnabas transactions hanging` finds what no coordinator will end, and nothing that a producer still works on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from barnabas import Broker
from barnabas.admin import transactions
from barnabas.client.cluster import EARLIEST, LATEST, Cluster
from barnabas.client.errors import ClientError
from barnabas.client.record_reader import RecordReader
from barnabas.client.record_writer import RecordWriter, WriteOptions
from barnabas.client.topic_partition import TopicPartition
from protocol.errors import ErrorCode
from protocol.messages.metadata import FindCoordinatorRequest
from tests.cli.running import Verbs
from tests.support.group_requests import add_request_v3, end_request, init_request
from tests.support.loading import create
from tests.support.raw_client import RawClient
from tests.support.seeds import seed_of
from tests.support.waiting import until

ROUNDS = 25
IDS = ("a", "b", None)
FIRST, SECOND = (TopicPartition("moved", number) for number in range(2))


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


@pytest.fixture(scope="module")
def verbs() -> Iterator[Verbs]:
    """Of a broker that does not verify that partitions are in their transactions, as before KIP-890."""
    with Broker(settings={"transaction.partition.verification.enable": False}) as broker:
        with RawClient(broker.bootstrap) as client:
            create(client, "moved", partitions=2)
        yield Verbs(broker.bootstrap)


@pytest.fixture
def unverified(verbs: Verbs) -> Iterator[Cluster]:
    host, _, port = verbs.bootstrap.partition(":")
    found = Cluster([(host, int(port))], {})
    yield found
    found.close()


def write(writer: RecordWriter, partition: TopicPartition, *, added: bool = True) -> None:
    """Writes a record; without `added` the coordinator does not get to know the partition."""

    def skip(partitions: set[TopicPartition]) -> None:
        del partitions

    before = writer.written
    with mock.patch.object(writer, "_add_to_transaction", writer._add_to_transaction if added else skip):
        writer.append(partition, None, b"x")
        writer.send()
        until(lambda: writer.written > before, "the record is acknowledged")


def hanging(verbs: Verbs, options: str = "") -> list[tuple[str, int]]:
    return [(row["topic"], row["partition"]) for row in verbs.rows(f"transactions hanging moved {options}")]


def test_a_transaction_that_begins_while_the_cluster_is_asked_does_not_hang(verbs: Verbs, unverified: Cluster) -> None:
    """--abort would delete its records, and its producer would not notice."""
    writer = RecordWriter(unverified, WriteOptions(transactional_id="new"))
    ask = transactions.list_transactions

    def list_and_begin(*args: Any, **kwargs: Any) -> Any:
        found = ask(*args, **kwargs)
        write(writer, FIRST)
        return found

    stuck = RecordWriter(unverified, WriteOptions(transactional_id="stuck"))
    write(stuck, SECOND, added=False)
    with mock.patch.object(transactions, "list_transactions", list_and_begin):
        assert hanging(verbs, "--abort") == [SECOND]
    writer.close(commit=True)
    stuck.close()
    assert hanging(verbs) == []


def test_a_transaction_that_ends_while_the_cluster_is_asked_does_not_hang(verbs: Verbs, unverified: Cluster) -> None:
    writer = RecordWriter(unverified, WriteOptions(transactional_id="short"))
    write(writer, FIRST)
    ask = transactions.list_transactions

    def end_and_list(*args: Any, **kwargs: Any) -> Any:
        if writer._in_transaction:
            writer.close(commit=True)
            until(
                lambda: all(row["open_from"] < 0 for row in verbs.rows("transactions producers moved:0")),
                "the marker is written",
            )
        return ask(*args, **kwargs)

    with mock.patch.object(transactions, "list_transactions", end_and_list):
        assert hanging(verbs) == []


def test_a_partition_hangs_while_its_producer_has_a_transaction_without_it(verbs: Verbs, unverified: Cluster) -> None:
    writer = RecordWriter(unverified, WriteOptions(transactional_id="both"))
    write(writer, FIRST, added=False)
    write(writer, SECOND)
    assert hanging(verbs) == [FIRST]
    assert hanging(verbs, "--abort") == [FIRST]
    assert hanging(verbs) == []
    writer.close(commit=True)


def test_a_transaction_is_aborted_where_its_timeout_must_be_short() -> None:
    """transaction.max.timeout.ms is below the default of all clients."""
    with Broker(settings={"transaction.max.timeout.ms": 30_000}) as broker, RawClient(broker.bootstrap) as client:
        create(client, "t")
        begun = until(lambda: begin(client, "short"), "a transaction")
        verbs = Verbs(broker.bootstrap)
        assert verbs.rows("transactions abort short --execute") == [
            {"id": "short", "state": "Ongoing", "result": "aborted"}
        ]
        assert client.ask(end_request("short", begun), 4).error_code == ErrorCode.PRODUCER_FENCED


def begin(client: RawClient, name: str) -> tuple[int, int] | None:
    """Begins a transaction; its producer, or None while there is no coordinator."""
    client.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=[name]), 4)
    found = client.ask(init_request(name, 30_000), 4)
    producer = found.producer_id, found.producer_epoch
    if found.error_code:
        return None
    added = client.ask(add_request_v3(name, producer, 0), 3)
    assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == ErrorCode.NONE
    return producer
