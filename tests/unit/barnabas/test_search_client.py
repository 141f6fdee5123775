"""What a search says when the nodes are no Barnabas, and what it does when a leader moves."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.client.cluster import Cluster, Retriable
from barnabas.client.errors import ClientError
from barnabas.client.search import open_cluster, search
from barnabas.client.wire import Api, Fields

_NO_RECORDS = struct.pack(">qqqqq?i", 0, 1, 1, -1, -1, False, 0)


def response(error: int) -> bytes:
    """Of partition 0, with an error of it."""
    return struct.pack(">ihhiihh", 0, 0, -1, 1, 0, error, -1) + _NO_RECORDS


def cluster_with(monkeypatch: pytest.MonkeyPatch, *answers: bytes | None) -> tuple[Cluster, list[Api]]:
    """A cluster whose node gives these answers; None: it closes the connection."""
    cluster, asked = Cluster([("localhost", 1)], {}), []
    left = list(answers)

    def ask(api: Api, _body: bytes) -> Fields:
        asked.append(api)
        answer = left.pop(0)
        if answer is None:
            raise Retriable("The node stopped answering.")
        return Fields(answer)

    node: Any = SimpleNamespace(ask=ask, close=lambda: None)
    monkeypatch.setattr("barnabas.client.cluster.PAUSE_S", 0)
    monkeypatch.setattr(cluster, "leaders", lambda _topic: {0: 1})
    monkeypatch.setattr(cluster, "connect", lambda _node: node)
    return cluster, asked


def test_a_cluster_that_is_no_barnabas_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, asked = cluster_with(monkeypatch, None, None)
    with pytest.raises(ClientError, match="Node 1 does not know searches: it is no Barnabas"):
        search(cluster, "t", "key", b"k")
    assert asked == [Api.SEARCH_RECORDS] * 2


def test_a_moved_leader_and_a_broken_connection_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, asked = cluster_with(monkeypatch, None, response(6), response(0))
    assert search(cluster, "t", "key", b"k").partitions[0].to_offset == 1
    assert len(asked) == 3


@pytest.mark.parametrize("bootstrap", ["localhost", "localhost:kafka", ":9092", "localhost:9092,other", ""])
def test_an_address_without_host_or_port_is_refused(bootstrap: str) -> None:
    with pytest.raises(ClientError, match="A bootstrap server is HOST:PORT, not"):
        open_cluster(bootstrap)


@pytest.mark.parametrize("limit", [0, 10_001])
def test_a_limit_that_no_node_accepts_is_said_without_asking(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    cluster, asked = cluster_with(monkeypatch)
    with pytest.raises(ClientError, match=f"from 1 to 10000 records, not {limit}"):
        search(cluster, "t", "key", b"k", limit=limit)
    assert asked == []
