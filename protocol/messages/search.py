"""Search by key or header: an API of this broker, which Apache Kafka does not have. ApiVersions does not advertise it."""

from __future__ import annotations

from protocol.messages.common import ErrorMessageResponse, PartitionErrorMessage
from protocol.schema import Int32, Int64, Message


class SearchRecordsRequest(Message, api_key=30001, versions=(0, 0)):
    """Search the key indexes of partitions that this broker leads; with null partitions, of all such.

    The field is `key` or `header:<name>`. Timestamps are from from_ms to before to_ms. max_records is for each partition.
    """

    topic: str
    partitions: list[Int32] | None
    field: str
    value: bytes
    from_ms: Int64
    to_ms: Int64
    max_records: Int32


class FoundHeader(Message):
    """A header of a record; its name may be no UTF-8."""

    name: bytes
    value: bytes | None


class FoundRecord(Message):
    """A record that matches."""

    offset: Int64
    timestamp_ms: Int64
    key: bytes | None
    value: bytes | None
    headers: list[FoundHeader]


class SearchedPartition(PartitionErrorMessage):
    """The records of one partition, the newest first.

    All that match from from_offset to before to_offset are here, unless is_cut: then older ones match too. Records from
    to_offset to end_offset are committed and not indexed yet. min_timestamp_ms and max_timestamp_ms are of the indexed
    records, -1 without such.
    """

    from_offset: Int64
    to_offset: Int64
    end_offset: Int64
    min_timestamp_ms: Int64
    max_timestamp_ms: Int64
    is_cut: bool
    records: list[FoundRecord]


class SearchRecordsResponse(ErrorMessageResponse, request=SearchRecordsRequest):
    partitions: list[SearchedPartition]
