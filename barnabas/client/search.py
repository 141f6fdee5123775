"""Searches by key or header in a topic with a key index: asks the leader of each partition (docs/search.md).

    from barnabas.client.search import open_cluster, search
    answer = search(open_cluster("127.0.0.1:9092"), "orders", "key", b"42")

FORMAT   SearchRecords, an API of Barnabas alone (key 30001, version 0), which ApiVersions does not name
RULES    1. A leader that moves is looked up again. A node that twice answers by closing the connection does not know the API.
         2. Records of all partitions are ordered by timestamp, the newest first, and cut to the limit.
NOT HERE The broker's side, what is indexed (topic config `barnabas.index.keys`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from barnabas.client.cluster import Cluster, Node, Retriable
from barnabas.client.error_codes import RETRIABLE, refusal
from barnabas.client.errors import ClientError
from barnabas.client.wire import Api, Fields, array, text

ALL_TIMES = (-(1 << 63), (1 << 63) - 1)
DEFAULT_RECORDS = 64
MAX_RECORDS = 10_000
_DENIED, _INVALID, _TOO_MANY = 29, 42, 89


class FoundRecord(NamedTuple):
    """A record that matches."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Unix milliseconds."""
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]]


class SearchedPartition(NamedTuple):
    """What the answer says about a partition: it is complete from `from_offset` to before `to_offset`, unless `is_cut`."""

    partition: int
    from_offset: int
    to_offset: int
    end_offset: int
    """Records from `to_offset` to here are committed and not indexed yet."""
    from_timestamp: int
    to_timestamp: int
    """The least and the greatest of the indexed records in Unix milliseconds; -1: there are none."""
    is_cut: bool
    """Whether records at lower offsets match too."""


class SearchAnswer(NamedTuple):
    """The result of a search."""

    records: list[FoundRecord]
    partitions: list[SearchedPartition]


def open_cluster(bootstrap: str, settings: Mapping[str, str] | None = None) -> Cluster:
    """The cluster at HOST:PORT[,HOST:PORT...]; `settings` of TLS and SASL have the names of the Java clients.

    Raises:
        ClientError: these are no addresses.
    """
    return Cluster([_address(text.strip()) for text in bootstrap.split(",")], settings or {})


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise ClientError(f"A bootstrap server is HOST:PORT, not {text!r}.")
    return host.strip("[]"), int(port)


def search(
    cluster: Cluster,
    topic: str,
    field: str,
    value: bytes,
    times: tuple[int, int] = ALL_TIMES,
    limit: int = DEFAULT_RECORDS,
) -> SearchAnswer:
    """The newest records of a topic with a value.

    `field` is `key` or `header:<name>`; `times` are the first and the end of the records' timestamps in Unix milliseconds.

    Raises:
        ClientError: the cluster does not answer, denies it, or has no index of the field.
    """
    if not 1 <= limit <= MAX_RECORDS:
        raise ClientError(f"The limit is from 1 to {MAX_RECORDS} records, not {limit}.")
    failures: dict[int, int] = {}
    answer = cluster.retry(lambda: _search(cluster, topic, (field, value, *times, limit), failures))
    records = sorted(answer.records, key=lambda record: (-record.timestamp, record.partition, -record.offset))
    left_out = {record.partition for record in records[limit:]}
    partitions = [part._replace(is_cut=part.is_cut or part.partition in left_out) for part in answer.partitions]
    return SearchAnswer(records[:limit], sorted(partitions))


def _search(
    cluster: Cluster, topic: str, query: tuple[str, bytes, int, int, int], failures: dict[int, int]
) -> SearchAnswer:
    by_leader: dict[int, list[int]] = {}
    for partition, leader in cluster.leaders(topic).items():
        by_leader.setdefault(leader, []).append(partition)
    found = SearchAnswer([], [])
    for leader, partitions in by_leader.items():
        node = cluster.connect(leader)
        try:
            fields = _ask(node, _body(topic, partitions, query), leader, failures)
        finally:
            node.close()
        _read(fields, topic, found)
    return found


def _ask(node: Node, body: bytes, leader: int, failures: dict[int, int]) -> Fields:
    try:
        return node.ask(Api.SEARCH_RECORDS, body)
    except Retriable as failure:
        failures[leader] = failures.get(leader, 0) + 1
        if failures[leader] > 1:
            raise ClientError(f"Node {leader} does not know searches: it is no Barnabas, or an old one.") from failure
        raise


def _body(topic: str, partitions: Sequence[int], query: tuple[str, bytes, int, int, int]) -> bytes:
    field, value, from_ms, to_ms, limit = query
    numbers = array(struct.pack(">i", number) for number in partitions)
    sized = struct.pack(">i", len(value)) + value
    return text(topic) + numbers + text(field) + sized + struct.pack(">qqi", from_ms, to_ms, limit)


def _read(fields: Fields, topic: str, found: SearchAnswer) -> None:
    """Adds a response."""
    fields.number("i")  # how long to wait because of a quota: the connection was closed
    _check(fields.number("h"), fields.text(), topic)

    def header() -> tuple[bytes, bytes | None]:
        return fields.optional_data() or b"", fields.optional_data()

    def partition() -> None:
        number, error = fields.numbers("ih")
        _check(error, fields.text(), f"{topic}-{number}")
        start, to, end, least, greatest, is_cut = fields.numbers("qqqqq?")
        found.partitions.append(SearchedPartition(number, start, to, end, least, greatest, bool(is_cut)))
        for _ in range(fields.number("i")):
            offset, timestamp = fields.numbers("qq")
            key, value = fields.optional_data(), fields.optional_data()
            found.records.append(FoundRecord(topic, number, offset, timestamp, key, value, fields.array(header)))

    fields.array(partition)


def _check(code: int, sentence: str, about: str) -> None:
    if code in RETRIABLE or code == _TOO_MANY:
        raise Retriable(f"{about}: {sentence or RETRIABLE.get(code)}.")
    if code == _INVALID:
        command = "barnabas configs set topic TOPIC barnabas.index.keys=FIELDS"
        raise ClientError(f"{sentence}. {command} sets it; an index takes a while.")
    if code == _DENIED:
        raise ClientError(f"{about}: the cluster denies it: grant Read on the topic with barnabas acls.")
    if code:
        raise refusal(code, about)
