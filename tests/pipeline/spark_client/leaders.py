"""Three nodes: queries during leader changes."""

from __future__ import annotations

from tests.pipeline.spark_client.rig import Answer, Rig, cluster_scenario, numbered
from tests.pipeline.spark_client.streaming import all_rows, await_rows
from tests.pipeline.topics import send_transaction, transactional


def everywhere(rig: Rig) -> str:
    """A topic with three replicas, two of which must be in sync."""
    return rig.topic(3, numbered(30, 3), replication=3, min_insync_replicas="2")


@cluster_scenario
def a_stream_over_leader_moves(rig: Rig) -> Answer:
    """Each node in turn is stopped and started under a running query: every record once, no data loss."""
    topic = everywhere(rig)
    with rig.running(rig.stream(topic)) as (query, batches):
        await_rows(batches, 30)
        for turn, node in enumerate(rig.node.numbers):
            rig.node.stop(node)
            rig.node.wait_until_away(topic, node)
            rig.send(topic, numbered(30, 3, 30 * (turn + 1)))
            await_rows(batches, 30 * (turn + 2))
            rig.node.start(node)
            rig.node.wait_for_replicas(topic)
        is_active = query.isActive
    return is_active, all_rows(batches)


@cluster_scenario
def checkpoints_over_leader_moves(rig: Rig) -> Answer:
    """The same between runs of one checkpoint, with read_committed and transactions."""
    topic = everywhere(rig)
    frame = rig.stream(topic, maxOffsetsPerTrigger="20", **{"kafka.isolation.level": "read_committed"})
    found = [rig.read_available(frame)]
    for turn, node in enumerate(rig.node.numbers):
        rig.node.stop(node)
        rig.node.wait_until_away(topic, node)
        producer = transactional(rig.bootstrap, f"{topic}-{turn}")
        send_transaction(producer, topic, numbered(9, 3, 1000 * (turn + 1)), commit=False)
        send_transaction(producer, topic, numbered(9, 3, 100 * (turn + 1)), commit=True)
        rig.await_markers(topic)
        found.append(rig.read_available(frame))
        rig.node.start(node)
        rig.node.wait_for_replicas(topic)
    return [all_rows(batches) for batches in found]


@cluster_scenario
def a_sink_over_leader_moves(rig: Rig) -> Answer:
    """From topic to topic while nodes are stopped: no record is lost."""
    source, target = everywhere(rig), rig.topic(3, replication=3, min_insync_replicas="2")
    with rig.copying(source, target) as query:
        for turn, node in enumerate(rig.node.numbers):
            rig.node.stop(node)
            rig.send(source, numbered(30, 3, 30 * (turn + 1)))
            found = rig.await_values(target, 30 * (turn + 2))
            rig.node.start(node)
            rig.node.wait_for_replicas(source)
            rig.node.wait_for_replicas(target)
        is_active = query.isActive
    return is_active, found


@cluster_scenario
def an_unavailable_bootstrap_server(rig: Rig) -> Answer:
    """The first bootstrap server does not answer."""
    topic = everywhere(rig)
    node = rig.node.numbers[0]
    rig.node.stop(node)
    rig.node.wait_until_away(topic, node)
    try:
        rig.write(rig.rows_to_send("value string, partition int", ("v", 1)), topic)
        return rig.rows(topic), rig.read_available(rig.stream(topic))
    finally:
        rig.node.start(node)
        rig.node.wait_for_replicas(topic)
