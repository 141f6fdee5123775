"""A cluster's state as its nodes report it, and whether it is healthy.

RULES    1. A cluster is healthy when every broker reports all brokers, a leader and a full ISR for every partition, the same as
            all others, and every node's metadata log has reached the high watermark.
NOT HERE Whether clients make progress (`fault_run.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from protocol.messages.cluster import DescribeQuorumRequest
from protocol.messages.common import PartitionIndex, QuorumTopic
from protocol.messages.metadata import MetadataRequest
from tests.support.raw_client import RawClient

ASK_S = 3.0
NO_LEADER = -1
METADATA_LOG = "__cluster_metadata"


class PartitionState(NamedTuple):
    """A partition's leadership and ISR, as one node reports them."""

    leader: int
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class View(NamedTuple):
    """Brokers and partitions, as one node reports them."""

    brokers: frozenset[int]
    partitions: dict[tuple[str, int], PartitionState]


class Quorum(NamedTuple):
    """The quorum, as one node reports it."""

    leader: int
    high_watermark: int
    voters: dict[int, int]
    """The log end offset of each voter."""
    observers: dict[int, int]


def view_of(bootstrap: str) -> View:
    with RawClient(bootstrap, ASK_S) as client:
        response = client.ask(MetadataRequest(topics=None, allow_auto_topic_creation=False), 12)
    partitions = {
        (topic.name, one.partition_index): PartitionState(
            one.leader_id, one.leader_epoch, tuple(one.replica_nodes), tuple(sorted(one.isr_nodes))
        )
        for topic in response.topics
        for one in topic.partitions
    }
    return View(frozenset(broker.node_id for broker in response.brokers), partitions)


def quorum_of(bootstrap: str) -> Quorum:
    request = [QuorumTopic(topic_name=METADATA_LOG, partitions=[PartitionIndex(partition_index=0)])]
    with RawClient(bootstrap, ASK_S) as client:
        response = client.ask(DescribeQuorumRequest(topics=request), 1)
    if response.error_code or response.topics[0].partitions[0].error_code:
        return Quorum(NO_LEADER, NO_LEADER, {}, {})
    quorum: Any = response.topics[0].partitions[0]
    voters, observers = (
        {one.replica_id: one.log_end_offset for one in some} for some in (quorum.current_voters, quorum.observers)
    )
    return Quorum(quorum.leader_id, quorum.high_watermark, voters, observers)


def why_unhealthy(nodes: dict[int, str], all_nodes: Collection[int]) -> str:
    """What is missing, in a sentence; "" if the cluster is healthy.

    `nodes` are all brokers with their bootstrap addresses; `all_nodes` includes dedicated controllers.
    """
    views: dict[int, View] = {}
    for number, bootstrap in nodes.items():
        try:
            views[number] = view_of(bootstrap)
            quorum = quorum_of(bootstrap)
        except (OSError, EOFError) as error:
            return f"node {number} does not answer: {error!r}"
        if output := why_view_unhealthy(number, views[number], nodes) or why_quorum_unhealthy(
            number, quorum, all_nodes
        ):
            return output
    one, *others = views
    for other in others:
        if views[other] != views[one]:
            topic_partitions = sorted(views[one].partitions.items() ^ views[other].partitions.items())
            return f"nodes {one} and {other} report different states, such as {topic_partitions[:2]}"
    return ""


def why_view_unhealthy(number: int, view: View, nodes: dict[int, str]) -> str:
    """What is missing in one node's view."""
    if view.brokers != nodes.keys():
        return f"node {number} reports only the brokers {sorted(view.brokers)}"
    for (topic, index), state in view.partitions.items():
        if state.leader not in state.isr or state.isr != tuple(sorted(state.replicas)):
            return f"node {number} reports {topic}-{index}: {state}"
    return ""


def why_quorum_unhealthy(number: int, quorum: Quorum, all_nodes: Collection[int]) -> str:
    """What is missing in one node's quorum."""
    ends = {**quorum.observers, **quorum.voters}
    if quorum.leader not in quorum.voters or not set(all_nodes) <= ends.keys():
        return f"node {number} reports the quorum as {quorum}"
    behind = {one: end for one, end in ends.items() if one in all_nodes and end < quorum.high_watermark}
    return (
        f"the quorum's high watermark is {quorum.high_watermark}, but the logs of {behind} end below it"
        if behind
        else ""
    )
