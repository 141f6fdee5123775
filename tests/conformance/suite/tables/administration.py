"""Administration: topics, partitions, configs, the cluster, DeleteRecords; and refused requests."""

from __future__ import annotations

from functools import partial

from tests.conformance.suite.steps import (
    Matcher,
    Record,
    Scenario,
    containing,
    do,
    including,
    numbered,
    one_of,
    scenario,
    without,
)
from tests.conformance.suite.tables.records import read, topic, write

_administration = partial(scenario, "administration")
_refusal = partial(scenario, "refusals")
SOMETHING = Matcher("something", bool)


def cluster_of(nodes: int) -> Scenario:
    """The nodes of the cluster have the ids 1 to `nodes`, and one of them is the controller."""
    ids = range(1, nodes + 1)
    described = do("describe_cluster").gives(controller=one_of(*ids), brokers=list(ids))
    return _administration("the cluster is described", described)


SCENARIOS = (
    _administration(
        "a topic is created, described and deleted",
        topic(3),
        do("list_topics").becomes(topics=containing("$t")),
        do("describe_topic", topic="$t").becomes(partitions=3),
        do("delete_topic", topic="$t"),
        do("list_topics").becomes(topics=without("$t")),
    ),
    _administration(
        "more partitions",
        topic(1),
        do("create_partitions", topic="$t", count=4),
        do("describe_topic", topic="$t").becomes(partitions=4),
        write(numbered(8, 4)),
        read(8, 4).gives(records=numbered(8, 4)),
    ),
    _administration(
        "topic configs are described",
        topic(cleanup_policy="compact", retention_ms="3600000"),
        do("describe_configs", kind="topic", name="$t").becomes(
            configs=including(cleanup_policy="compact", retention_ms="3600000", max_message_bytes="1048588")
        ),
    ),
    _administration(
        "topic configs are changed and reset",
        topic(),
        do("alter_configs", kind="topic", name="$t", set={"retention.ms": "7200000"}, delete=[]),
        do("describe_configs", kind="topic", name="$t").becomes(configs=including(retention_ms="7200000")),
        do("alter_configs", kind="topic", name="$t", set={}, delete=["retention.ms"]),
        do("describe_configs", kind="topic", name="$t").becomes(configs=including(retention_ms="604800000")),
    ),
    _administration(
        "broker configs are described",
        do("describe_configs", kind="broker", name="1").gives(configs=including(num_io_threads=SOMETHING)),
    ),
    cluster_of(1),
    _administration("the cluster has an id", do("cluster_id").gives(id=SOMETHING)),
    _administration(
        "min.insync.replicas above the replication factor",
        topic(min_insync_replicas="4"),
        write(numbered(1)).gives(offsets=[0]),
    ),
    _administration(
        "records are deleted",
        topic(),
        write(numbered(10)),
        do("delete_records", topic="$t", partition=0, before=6),
        do("list_offsets", topic="$t", partition=0, at="earliest").becomes(offset=6),
        read(4).gives(records=numbered(4, start=6)),
    ),
    _refusal("a topic that exists", topic(), topic().is_refused("TOPIC_ALREADY_EXISTS")),
    _refusal(
        "an invalid topic name",
        do("create_topic", topic="a/b", count=1, configs={}).is_refused("INVALID_TOPIC_EXCEPTION"),
    ),
    _refusal("zero partitions", topic(0).is_refused("INVALID_PARTITIONS")),
    _refusal("an unknown config", topic(no_such_setting="1").is_refused("INVALID_CONFIG")),
    _refusal(
        "an invalid config value",
        topic(),
        do("alter_configs", kind="topic", name="$t", set={"retention.ms": "soon"}, delete=[]).is_refused(
            "INVALID_CONFIG"
        ),
    ),
    _refusal(
        "fewer partitions than before",
        topic(3),
        do("create_partitions", topic="$t", count=2).is_refused("INVALID_PARTITIONS"),
    ),
    _refusal(
        "a topic that does not exist is not deleted",
        do("delete_topic", topic="$nowhere").is_refused("UNKNOWN_TOPIC_OR_PARTITION"),
    ),
    _refusal(
        "a group that does not exist is not deleted",
        do("delete_group", group="$nobody").is_refused("GROUP_ID_NOT_FOUND"),
    ),
    _refusal(
        "records beyond the end are not deleted",
        topic(),
        write(numbered(3)),
        do("delete_records", topic="$t", partition=0, before=10).is_refused("OFFSET_OUT_OF_RANGE"),
    ),
    _refusal(
        "a record above max.message.bytes",
        topic(max_message_bytes="2000"),
        write([Record(0, b"k", bytes(5000))]).is_refused("MESSAGE_TOO_LARGE"),
        write(numbered(1)),
        read(1).gives(records=numbered(1)),
    ),
    _refusal(
        "a timestamp too far in the future",
        topic(message_timestamp_after_max_ms="1000"),
        write([Record(0, b"k", b"v", (), 4_000_000_000_000)]).is_refused("INVALID_TIMESTAMP"),
    ),
    _refusal(
        "a record without a key in a compacted topic",
        topic(cleanup_policy="compact"),
        write([Record(0, None, b"v")]).is_refused("INVALID_RECORD"),
    ),
)
