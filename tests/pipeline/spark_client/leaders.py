"""Three nodes: queries go on while leaders move."""

from __future__ import annotations

from tests.pipeline.spark_client.rig import Answer, Rig, cluster_scenario, numbered
from tests.pipeline.spark_client.streaming import flat, holds
from tests.pipeline.topics import send_transaction, transactional


def everywhere(rig: Rig) -> str:
    """A topic on all three nodes, of which two must agree."""
    return rig.topic(3, numbered(30, 3), replication=3, min_insync_replicas="2")


@cluster_scenario
def a_stream_over_leader_moves(rig: Rig) -> Answer:
    """Each node in turn is stopped and started under a running query: every record once, and no loss is seen."""
    topic = everywhere(rig)
    with rig.running(rig.stream(topic)) as (query, batches):
        holds(batches, 30)
        for turn, node in enumerate(rig.node.numbers):
            rig.node.stop(node)
            rig.node.wait_until_away(topic, node)
            rig.send(topic, numbered(30, 3, 30 * (turn + 1)))
            holds(batches, 30 * (turn + 2))
            rig.node.start(node)
            rig.node.wait_for_replicas(topic)
        is_active = query.isActive
    return is_active, flat(batches)


@cluster_scenario
def checkpoints_over_leader_moves(rig: Rig) -> Answer:
    """The same between runs of one checkpoint, read_committed over transactions."""
    topic = everywhere(rig)
    frame = rig.stream(topic, maxOffsetsPerTrigger="20", **{"kafka.isolation.level": "read_committed"})
    found = [rig.drain(frame)]
    for turn, node in enumerate(rig.node.numbers):
        rig.node.stop(node)
        rig.node.wait_until_away(topic, node)
        producer = transactional(rig.bootstrap, f"{topic}-{turn}")
        send_transaction(producer, topic, numbered(9, 3, 1000 * (turn + 1)), commit=False)
        send_transaction(producer, topic, numbered(9, 3, 100 * (turn + 1)), commit=True)
        rig.settle(topic)
        found.append(rig.drain(frame))
        rig.node.start(node)
        rig.node.wait_for_replicas(topic)
    return [flat(batches) for batches in found]


@cluster_scenario
def a_sink_over_leader_moves(rig: Rig) -> Answer:
    """From topic to topic while nodes are stopped: nothing is lost."""
    source, target = everywhere(rig), rig.topic(3, replication=3, min_insync_replicas="2")
    with rig.copying(source, target) as query:
        for turn, node in enumerate(rig.node.numbers):
            rig.node.stop(node)
            rig.send(source, numbered(30, 3, 30 * (turn + 1)))
            found = rig.different(target, 30 * (turn + 2))
            rig.node.start(node)
            rig.node.wait_for_replicas(source)
            rig.node.wait_for_replicas(target)
        is_active = query.isActive
    return is_active, found


@cluster_scenario
def a_bootstrap_server_that_is_away(rig: Rig) -> Answer:
    """The first of the servers that are named does not answer."""
    topic = everywhere(rig)
    node = rig.node.numbers[0]
    rig.node.stop(node)
    rig.node.wait_until_away(topic, node)
    try:
        rig.write(rig.rows_to_send("value string, partition int", ("v", 1)), topic)
        return rig.rows(topic), rig.drain(rig.stream(topic))
    finally:
        rig.node.start(node)
        rig.node.wait_for_replicas(topic)
