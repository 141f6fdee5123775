"""DescribeProducers, on real logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from broker.handlers.transactions.txn_markers import TxnMarkersHandler
from protocol.messages.transactions import DescribeProducersRequest, DescribeProducersResponse
from tests.support.messages import message
from tests.support.replica_harness import Answer, HeldIoExecutor, ReplicaHarness, batch


def test_a_described_log_may_be_closed_while_others_are_opened(tmp_path: Path) -> None:
    """At the limit of open files an idle log is closed; here a thread opens it again for a timestamp."""
    worker = HeldIoExecutor()
    harness = ReplicaHarness(tmp_path, worker=worker)
    harness.create(partitions=2)
    harness.append(records=batch(producer_id=5, producer_epoch=0, base_sequence=0), acks=1)
    worker.let_write()
    first, second = harness.partition(), harness.partition(index=1)
    assert first.log.is_open
    assert not second.log.is_open
    worker.holds_reads = True
    handler = TxnMarkersHandler(harness.replicas, cast("Any", None), harness.authorizer)
    request = message(DescribeProducersRequest, topics=[{"name": "t", "partition_indexes": [0, 1]}])
    answer = Answer(handler.describe_producers(harness.context(61, 0), request), DescribeProducersResponse, 0)
    first.log.close()
    harness.replicas.lookup("t", 0, lambda found: found.timestamp_at(0))
    while worker.reads:
        worker.let_read()
    assert answer.is_done
    described = answer.message.topics[0].partitions
    assert [[producer.producer_id for producer in partition.active_producers] for partition in described] == [[5], []]
