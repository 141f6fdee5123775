"""A start over a million committed offsets: how long until the coordinator serves their groups.

RULES    1. Each commit names many partitions, so that filling takes seconds; the same offsets are committed again and
            again, as a log holds them between two rounds of compaction.
         2. The clock runs from the start of the process until the group's offsets are told. A start of the same node with
            nothing to load is measured before: the difference is the loading.
"""

from __future__ import annotations

import time
from typing import Final

from protocol.errors import ErrorCode
from protocol.messages.groups import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from tests.benchmark.load.groups import commit_frame, coordinated
from tests.benchmark.load.meter import Outcome, cpu_seconds
from tests.benchmark.load.raw import Peer, create_topic
from tests.benchmark.load.running_broker import Node, Site, start
from tests.support.raw_client import RawClient
from tests.support.waiting import until

PARTITIONS: Final = 1_000
_FETCH = 8
_IN_FLIGHT = 4
_LIMIT_S = 120.0


def reload(name: str, node: Node, commits: int) -> Outcome:
    """Fill a new node with commits, stop it, and start it again."""
    topic = "reloaded"
    site, _ = start(name, node)
    with RawClient(site.bootstrap) as client:
        create_topic(client, topic, PARTITIONS)
    coordinated(site, topic)
    node.stop()
    bare = _served(name, node, topic)
    _fill(Site(name, node.bootstrap, node.pid), topic, commits // PARTITIONS)
    node.stop()
    full = _served(name, node, topic)
    node.stop()
    return Outcome({"s": full["s"], "CPU s": full["CPU s"], "s without any": bare["s"]})


def _served(name: str, node: Node, topic: str) -> dict[str, float]:
    started = time.monotonic()
    site, _ = start(name, node)
    with RawClient(site.bootstrap) as client:
        until(lambda: _tells(client, topic), "offsets that are told", _LIMIT_S)
    return {"s": time.monotonic() - started, "CPU s": cpu_seconds(site.pid)}


def _tells(client: RawClient, group: str) -> bool:
    query = OffsetFetchRequestTopics(name=group, partition_indexes=[PARTITIONS - 1])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[query])])
    error = client.ask(request, _FETCH).groups[0].error_code
    assert error in {0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}, ErrorCode(error).name
    return not error


def _fill(site: Site, group: str, count: int) -> None:
    request = commit_frame(group, group, range(PARTITIONS))
    peer = Peer(site.bootstrap)
    for number in range(count + _IN_FLIGHT):
        if number < count:
            peer.send(request)
        if number >= _IN_FLIGHT:
            peer.discard()
    peer.close()
