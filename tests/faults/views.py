"""What the nodes of a cluster say of it: who leads what, who is in sync, who leads the quorum; and whether it is whole.

RULES    1. A cluster is whole when every broker says so: all brokers are there, every partition has a leader and all its
            replicas in sync, all nodes say the same, and every node has the metadata log up to where it was asked about.
NOT HERE Whether clients get on (`watching.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from protocol.messages.cluster import DescribeQuorumRequest, QuorumPartition, QuorumTopic
from protocol.messages.metadata import MetadataRequest
from tests.support.raw_client import RawClient

ASK_S = 3.0
NOBODY = -1
METADATA_LOG = "__cluster_metadata"


class Led(NamedTuple):
    """A partition, as a node sees it."""

    leader: int
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class View(NamedTuple):
    """What one node says."""

    brokers: frozenset[int]
    partitions: dict[tuple[str, int], Led]


class Quorum(NamedTuple):
    """What a node says of the quorum."""

    leader: int
    high_watermark: int
    voters: dict[int, int]
    """Where the metadata log of each ends."""
    observers: dict[int, int]


def view_of(bootstrap: str) -> View:
    """What a node says of brokers and partitions."""
    with RawClient(bootstrap, ASK_S) as client:
        told = client.ask(MetadataRequest(topics=None, allow_auto_topic_creation=False), 12)
    partitions = {
        (topic.name, one.partition_index): Led(
            one.leader_id, one.leader_epoch, tuple(one.replica_nodes), tuple(sorted(one.isr_nodes))
        )
        for topic in told.topics
        for one in topic.partitions
    }
    return View(frozenset(broker.node_id for broker in told.brokers), partitions)


def quorum_of(bootstrap: str) -> Quorum:
    """What a node says of the quorum."""
    asked = [QuorumTopic(topic_name=METADATA_LOG, partitions=[QuorumPartition(partition_index=0)])]
    with RawClient(bootstrap, ASK_S) as client:
        told = client.ask(DescribeQuorumRequest(topics=asked), 1)
    if told.error_code or told.topics[0].partitions[0].error_code:
        return Quorum(NOBODY, NOBODY, {}, {})
    quorum: Any = told.topics[0].partitions[0]
    voters, observers = (
        {one.replica_id: one.log_end_offset for one in some} for some in (quorum.current_voters, quorum.observers)
    )
    return Quorum(quorum.leader_id, quorum.high_watermark, voters, observers)


def why_not_whole(nodes: dict[int, str], everybody: Collection[int]) -> str:
    """What is missing, in a sentence; nothing where nothing is.

    `nodes` are all brokers, with their bootstrap; controllers that are only that are of `everybody` too.
    """
    views: dict[int, View] = {}
    for number, bootstrap in nodes.items():
        try:
            views[number] = view_of(bootstrap)
            quorum = quorum_of(bootstrap)
        except (OSError, EOFError) as error:
            return f"node {number} does not answer: {error!r}"
        if said := why_not_one(number, views[number], nodes) or why_no_quorum(number, quorum, everybody):
            return said
    one, *others = views
    for other in others:
        if views[other] != views[one]:
            places = sorted(views[one].partitions.items() ^ views[other].partitions.items())
            return f"nodes {one} and {other} do not say the same, such as {places[:2]}"
    return ""


def why_not_one(number: int, view: View, nodes: dict[int, str]) -> str:
    """What is missing in what one node says of brokers and partitions."""
    if view.brokers != nodes.keys():
        return f"node {number} knows of the brokers {sorted(view.brokers)} only"
    for (topic, index), led in view.partitions.items():
        if led.leader not in led.isr or led.isr != tuple(sorted(led.replicas)):
            return f"node {number} says of {topic}-{index}: {led}"
    return ""


def why_no_quorum(number: int, quorum: Quorum, everybody: Collection[int]) -> str:
    """What is missing in what one node says of the quorum."""
    ends = {**quorum.observers, **quorum.voters}
    if quorum.leader not in quorum.voters or not set(everybody) <= ends.keys():
        return f"node {number} says of the quorum: {quorum}"
    behind = {one: end for one, end in ends.items() if one in everybody and end < quorum.high_watermark}
    return f"the quorum's log ends at {quorum.high_watermark} and of some at {behind}" if behind else ""
