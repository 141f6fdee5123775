"""Broker restarts under running queries, and between two runs of one checkpoint."""

from __future__ import annotations

from tests.pipeline.spark_client.rig import Answer, Rig, failure_of, numbered, scenario
from tests.pipeline.spark_client.streaming import all_rows, await_rows

HASTY = {"kafka.default.api.timeout.ms": "3000", "kafka.request.timeout.ms": "2000"}


@scenario
def a_checkpoint_over_restarts(rig: Rig) -> Answer:
    """The broker is stopped, then killed, while no query runs."""
    topic = rig.topic(2, numbered(10, 2))
    found = [rig.read_available(rig.stream(topic, maxOffsetsPerTrigger="4"))]
    for start, end in ((10, rig.node.stop), (20, rig.node.kill)):
        rig.send(topic, numbered(10, 2, start))
        end()
        rig.node.start()
        found.append(rig.read_available(rig.stream(topic, maxOffsetsPerTrigger="4")))
    return found, rig.rows(topic)


@scenario
def a_stream_over_restarts(rig: Rig) -> Answer:
    """The broker is stopped, then killed, under a running query: every record once."""
    topic = rig.topic(2, numbered(10, 2))
    with rig.running(rig.stream(topic)) as (query, batches):
        await_rows(batches, 10)
        for start, end in ((10, rig.node.stop), (20, rig.node.kill)):
            end()
            rig.node.start()
            rig.send(topic, numbered(10, 2, start))
            await_rows(batches, start + 10)
        is_active = query.isActive
    return is_active, all_rows(batches)


@scenario
def a_sink_over_restarts(rig: Rig) -> Answer:
    """The same from topic to topic: no record is lost; the sink may write duplicates (at least once)."""
    source, target = rig.topic(2, numbered(10, 2)), rig.topic(1)
    with rig.copying(source, target) as query:
        for start, end in ((10, rig.node.stop), (20, rig.node.kill)):
            rig.await_values(target, start)
            end()
            rig.node.start()
            rig.send(source, numbered(10, 2, start))
        found = rig.await_values(target, 30)
        is_active = query.isActive
    return is_active, found


@scenario
def an_unavailable_broker(rig: Rig) -> Answer:
    """A batch, the sink and a stream while the broker is down; then all three again."""
    topic = rig.topic(1, numbered(5))
    rig.node.stop()
    sink = {"kafka.max.block.ms": "2000"}
    try:
        away = [
            failure_of(rig.rows, topic, **HASTY),
            failure_of(rig.write, rig.rows_to_send("value string", ("v",)), topic, **sink),
            failure_of(rig.read_available, rig.stream(topic, **HASTY)),
        ]
    finally:
        rig.node.start()
    rig.write(rig.rows_to_send("value string", ("v",)), topic)
    return away, rig.values(topic), [[row[4] for row in batch] for batch in rig.read_available(rig.stream(topic))]
