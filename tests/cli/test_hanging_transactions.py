"""`barnabas transactions hanging`: it finds what no coordinator will end, and nothing that a producer still works on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

import barnabas
from barnabas.admin import transactions
from barnabas.client.cluster import Cluster
from barnabas.client.record_writer import RecordWriter, WriteOptions
from barnabas.client.topic_partition import TopicPartition
from tests.cli.running import Verbs
from tests.support.loading import create
from tests.support.raw_client import RawClient
from tests.support.waiting import until

FIRST, SECOND = (TopicPartition("moved", number) for number in range(2))


@pytest.fixture(scope="module")
def verbs() -> Iterator[Verbs]:
    """Of a broker that does not verify that partitions are in their transactions, as before KIP-890."""
    with barnabas.Broker(settings={"transaction.partition.verification.enable": False}) as broker:
        with RawClient(broker.bootstrap) as client:
            create(client, "moved", partitions=2)
        yield Verbs(broker.bootstrap)


@pytest.fixture
def cluster(verbs: Verbs) -> Iterator[Cluster]:
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


def test_a_transaction_that_begins_while_the_cluster_is_asked_does_not_hang(verbs: Verbs, cluster: Cluster) -> None:
    """--abort would delete its records, and its producer would not notice."""
    writer = RecordWriter(cluster, WriteOptions(transactional_id="new"))
    ask = transactions.list_transactions

    def list_and_begin(*args: Any, **kwargs: Any) -> Any:
        found = ask(*args, **kwargs)
        write(writer, FIRST)
        return found

    stuck = RecordWriter(cluster, WriteOptions(transactional_id="stuck"))
    write(stuck, SECOND, added=False)
    with mock.patch.object(transactions, "list_transactions", list_and_begin):
        assert hanging(verbs, "--abort") == [SECOND]
    writer.close(commit=True)
    stuck.close()
    assert hanging(verbs) == []


def test_a_transaction_that_ends_while_the_cluster_is_asked_does_not_hang(verbs: Verbs, cluster: Cluster) -> None:
    writer = RecordWriter(cluster, WriteOptions(transactional_id="short"))
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


def test_a_partition_hangs_while_its_producer_has_a_transaction_without_it(verbs: Verbs, cluster: Cluster) -> None:
    writer = RecordWriter(cluster, WriteOptions(transactional_id="both"))
    write(writer, FIRST, added=False)
    write(writer, SECOND)
    assert hanging(verbs) == [FIRST]
    assert hanging(verbs, "--abort") == [FIRST]
    assert hanging(verbs) == []
    writer.close(commit=True)
