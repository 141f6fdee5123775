"""Schedule topics (`barnabas.deliver.to`): what is pending in them.

RULES    1. A record is pending if the committed progress of the topic's group does not say that it is done, and no later record
            without value has its key. The progress is in the metadata of the committed offset: "1", then for each step
            ";end_offset,due_ms,offset"; all records before an end offset that are due up to there are done.
         2. The topic is read twice, from its start to the last stable offset: cancellations first, then records. So memory
            depends on the cancellations only.
NOT HERE The daemon's delivery; the verb (`cli/admin/schedules.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from kafka.protocol.admin import DescribeConfigsRequest

from barnabas.admin.client import Client
from barnabas.admin.configs import KINDS
from barnabas.admin.errors import Refused, check
from barnabas.admin.groups import committed_offsets
from barnabas.admin.topics import list_topics
from barnabas.client.cluster import EARLIEST, LATEST, Cluster
from barnabas.client.record_batches import Record
from barnabas.client.record_reader import RecordReader
from barnabas.client.topic_partition import TopicPartition

DELIVER_TO: Final = "barnabas.deliver.to"
_AT, _AFTER = b"deliver-at", b"deliver-after"
_LONG_BYTES: Final = 8
_MAX_DIGITS: Final = 18
_NO_TIMESTAMP: Final = -1
_TOPICS_AT_A_TIME: Final = 500
_DENIED: Final = 29
"""TOPIC_AUTHORIZATION_FAILED."""

Step = tuple[int, int, int]
"""End offset, due time and offset (rule 1)."""


class Pending(NamedTuple):
    """A record that waits; `due_ms` 0: at once."""

    topic: str
    partition: int
    offset: int
    due_ms: int
    key: bytes | None
    size: int


def targets(client: Client, topics: Iterable[str]) -> dict[str, str]:
    """The target of each of these schedule topics, by name. Raises Refused, also for another topic."""
    found = {}
    for result in _described(client, sorted(topics)):
        name, target = result.resource_name, _target(result)
        check(result.error_code, result.error_message, f"describe topic {name}", f"DescribeConfigs on topic {name}")
        if target is None:
            raise Refused(f"Topic {name} is no schedule topic: it has no config {DELIVER_TO}.")
        found[name] = target
    return found


def all_targets(client: Client) -> tuple[dict[str, str], list[str]]:
    """The target of each schedule topic, by name, and the topics whose configs this user may not see. Raises Refused."""
    found, denied = {}, []
    for result in _described(client, [row.name for row in list_topics(client) if not row.internal]):
        name, target = result.resource_name, _target(result)
        if result.error_code == _DENIED:
            denied.append(name)
            continue
        check(result.error_code, result.error_message, f"describe topic {name}")
        if target is not None:
            found[name] = target
    return found, denied


def _described(client: Client, names: list[str]) -> Iterator[Any]:
    """The results of DescribeConfigs of topics."""
    for at in range(0, len(names), _TOPICS_AT_A_TIME):
        yield from _describe(client, names[at : at + _TOPICS_AT_A_TIME])


def _describe(client: Client, names: list[str]) -> list[Any]:
    kind: Any = DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        kind(resource_type=KINDS["topic"], resource_name=name, configuration_keys=[DELIVER_TO]) for name in names
    ]
    results: list[Any] = client.ask(DescribeConfigsRequest(resources=resources)).results
    return results


def _target(result: Any) -> str | None:
    """The target that a topic's configs name, if it is a schedule topic."""
    for entry in result.configs:
        if entry.name == DELIVER_TO and entry.value:
            return str(entry.value)
    return None


def pending(client: Client, cluster: Cluster, topic: str) -> Iterator[Pending]:
    """The pending records of a schedule topic, by partition in offset order. Raises ClientError."""
    steps = {
        tp.partition: _steps(tp, position.offset, position.metadata)
        for tp, position in committed_offsets(client, f"schedule-{topic}").items()
        if tp.topic == topic
    }
    partitions = [TopicPartition(topic, number) for number in cluster.leaders(topic)]
    starts = cluster.offsets(dict.fromkeys(partitions, EARLIEST))
    ends = cluster.offsets(dict.fromkeys(partitions, LATEST), committed=True)
    ranges = {partition: (starts[partition], ends[partition]) for partition in partitions}
    cancelled: dict[tuple[int, bytes], int] = {}
    for record in _records(cluster, ranges):
        if record.value is None and record.key is not None:
            cancelled[record.partition, record.key] = record.offset
    for record in _records(cluster, ranges):
        if record.value is None:
            continue
        if record.key is not None and cancelled.get((record.partition, record.key), -1) > record.offset:
            continue
        due = due_ms(record)
        if not _is_done(steps.get(record.partition, []), due, record.offset):
            yield Pending(topic, record.partition, record.offset, due, record.key, len(record.value))


def _records(cluster: Cluster, ranges: dict[TopicPartition, tuple[int, int]]) -> Iterator[Record]:
    for page in RecordReader(cluster, dict(ranges), committed=True).pages():
        if page is not None:
            yield from page.records


def _steps(tp: TopicPartition, offset: int, metadata: str) -> list[Step]:
    version, *texts = metadata.split(";")
    if version != "1":
        return [(offset, 1 << 63, 1 << 63)]  # an operator has set the offset: all before it are done
    try:
        return [(end, due, last) for end, due, last in (map(int, text.split(",")) for text in texts)]
    except ValueError as failure:
        raise Refused(f"The committed offset of {tp} has unknown metadata: {metadata!r}.") from failure


def _is_done(steps: list[Step], due: int, offset: int) -> bool:
    return any(offset < end and (due, offset) <= (last_due, last) for end, last_due, last in steps)


def due_ms(record: Record) -> int:
    """When a record is due, in ms since 1970; 0: at once, also if its headers are invalid, as the daemon decides."""
    found = [(name, value or b"") for name, value in record.headers if name in {_AT, _AFTER}]
    if len(found) != 1:
        return 0
    ((name, value),) = found
    if value.isdigit() and len(value) <= _MAX_DIGITS:
        milliseconds = int(value)
    elif len(value) == _LONG_BYTES and not value[0]:
        milliseconds = int.from_bytes(value, "big")
    else:
        return 0
    if name == _AT:
        return milliseconds
    return 0 if record.timestamp == _NO_TIMESTAMP else max(0, record.timestamp + milliseconds)
