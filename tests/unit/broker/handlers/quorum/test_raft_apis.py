"""Raft API responses in every version, and the metrics of Raft's fetches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.handlers.quorum.raft_apis import RaftHandlers
from broker.telemetry.request_metrics import ApiMetrics
from protocol.codec import decode, encode
from protocol.messages.produce_fetch import FetchRequest, FetchResponse, ReplicaState
from protocol.schema import Message
from replication.completion import Completion, completed
from tests.support.messages import message

ALLOWING: Any = SimpleNamespace(authorize=lambda *_, **__: True)


class Quorum:
    """Fills every field in every version."""

    def handle_request(self, _: Message) -> Completion[Message]:
        partition = {
            "partition_index": 0,
            "error_code": 42,
            "high_watermark": 7,
            "diverging_epoch": {"epoch": 1, "end_offset": 2},
            "current_leader": {"leader_id": 3, "leader_epoch": 4},
            "snapshot_id": {"end_offset": 5, "epoch": 6},
            "records": b"",
        }
        responses = [{"topic": "__cluster_metadata", "partitions": [partition]}]
        endpoints = [{"node_id": 3, "host": "h", "port": 9}]
        return completed(message(FetchResponse, responses=responses, node_endpoints=endpoints))


@pytest.mark.parametrize("version", range(4, 19))
def test_fields_unknown_to_the_version_are_cleared(version: int) -> None:
    quorum: Any = Quorum()
    context: Any = SimpleNamespace(connection=SimpleNamespace(principal=None), api_version=version)
    pending: Any = RaftHandlers(quorum, ALLOWING).receive(context, FetchRequest(max_wait_ms=0, min_bytes=0, topics=[]))
    (partition,) = decode(FetchResponse, version, encode(pending.result(), version)).responses[0].partitions
    assert (partition.error_code, partition.high_watermark) == (42, 7)
    assert (partition.current_leader is None) is (version < 12)
    assert (partition.snapshot_id is None) is (version < 12)


@pytest.mark.parametrize(
    ("request_", "is_follower"),
    [
        (FetchRequest(replica_id=2, max_wait_ms=0, min_bytes=0, topics=[]), True),
        (FetchRequest(replica_state=ReplicaState(replica_id=2), max_wait_ms=0, min_bytes=0, topics=[]), True),
        (FetchRequest(max_wait_ms=0, min_bytes=0, topics=[]), False),
    ],
)
def test_a_fetch_of_another_node_is_counted_as_a_followers(request_: FetchRequest, is_follower: bool) -> None:
    metrics = ApiMetrics("Fetch", 17)
    metrics.count = 1  # as the dispatcher has counted it
    context: Any = SimpleNamespace(
        connection=SimpleNamespace(principal=None, metrics=metrics), api_version=17, metrics=metrics
    )
    quorum: Any = Quorum()
    RaftHandlers(quorum, ALLOWING).receive(context, request_)
    assert (context.connection.metrics is metrics.follower) is is_follower
    assert metrics.count == (0 if is_follower else 1)
