"""A start with a million committed offsets: the time until the coordinator serves their groups.

RULES    1. Each commit contains many partitions, so that filling takes seconds; the same offsets are committed repeatedly,
            as in a log between two compactions.
         2. The clock runs from the start of the process until OffsetFetch succeeds. A start of the same node without
            commits is measured before: the difference is the loading.
"""

from __future__ import annotations

import time
from typing import Final

from protocol.errors import ErrorCode
from protocol.messages.groups import OffsetFetchRequest
from tests.benchmark.load.groups import await_coordinator, commit_frame
from tests.benchmark.load.meter import Outcome, cpu_seconds
from tests.benchmark.load.raw import Peer, create_topic
from tests.benchmark.load.running_broker import Node, RunningBroker, start
from tests.support.messages import message
from tests.support.raw_client import RawClient
from tests.support.waiting import until

PARTITIONS: Final = 1_000
_FETCH = 8
_IN_FLIGHT = 4
_LIMIT_S = 120.0


def reload(name: str, node: Node, commits: int) -> Outcome:
    """Fills a new node with commits, stops it, and starts it again."""
    topic = "reloaded"
    broker, _ = start(name, node)
    with RawClient(broker.bootstrap) as client:
        create_topic(client, topic, PARTITIONS)
    await_coordinator(broker, topic)
    node.stop()
    bare = _served(name, node, topic)
    _fill(RunningBroker(name, node.bootstrap, node.pid), topic, commits // PARTITIONS)
    node.stop()
    full = _served(name, node, topic)
    node.stop()
    return Outcome({"s": full["s"], "CPU s": full["CPU s"], "s without any": bare["s"]})


def _served(name: str, node: Node, topic: str) -> dict[str, float]:
    started = time.monotonic()
    broker, _ = start(name, node)
    with RawClient(broker.bootstrap) as client:
        until(lambda: _has_offsets(client, topic), "offsets that are told", _LIMIT_S)
    return {"s": time.monotonic() - started, "CPU s": cpu_seconds(broker.pid)}


def _has_offsets(client: RawClient, group: str) -> bool:
    topics = [{"name": group, "partition_indexes": [PARTITIONS - 1]}]
    request = message(OffsetFetchRequest, groups=[{"group_id": group, "topics": topics}])
    error = client.ask(request, _FETCH).groups[0].error_code
    assert error in {0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}, ErrorCode(error).name
    return not error


def _fill(broker: RunningBroker, group: str, count: int) -> None:
    request = commit_frame(group, group, range(PARTITIONS))
    peer = Peer(broker.bootstrap)
    for number in range(count + _IN_FLIGHT):
        if number < count:
            peer.send(request)
        if number >= _IN_FLIGHT:
            peer.discard()
    peer.close()
