"""Encoding of the metadata log and its snapshots: framing, batching and decoding of records.

FORMAT   data record     null key; value: uvarint frame version (1), uvarint record type, uvarint record version,
                         the message in its flexible encoding, no trailing bytes
         control record  key: i16 version (0), i16 type; value: the message
         snapshot file   a batch with SnapshotHeader (with dynamic voters followed by KRaftVersion and Voters),
                         batches of data records, a batch with SnapshotFooter; offsets start at 0;
                         name: end offset, 20 digits, dash, leader epoch, 10 digits, ".checkpoint"
RULES    1. An unknown record type or version is refused with a message: this node would misinterpret the cluster.
         2. Reading checks the CRC of every batch; a snapshot is complete only with its footer.
NOT HERE What the records mean (`image.py`), where they are stored (`metadata_log.py`, `snapshot_files.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

from protocol.batch_builder import BatchBuilder
from protocol.codec import Decoder, decoder, encode, encoder
from protocol.control_records import ControlType, control_batch, control_type
from protocol.errors import KafkaError, MalformedRequest
from protocol.messages import stored_records
from protocol.primitives import Buffer, read_uvarint, uvarint
from protocol.records import BATCH_OVERHEAD, BatchHeader, crc_is_valid, headers, records
from protocol.schema import Message

FRAME_VERSION = 1
MAX_BATCH_BYTES = 8 * 1024 * 1024
"""Apache Kafka's limit for a batch of this log."""

SNAPSHOT_BATCH_RECORDS = 64
"""Records in one batch of a snapshot, encoded in one step."""

_MAX_RECORD_OVERHEAD = 32
"""An upper bound for length, attributes, timestamp, offset, key and header count of a record."""
_MAX_PARTITION_BYTES, _MAX_REPLICA_BYTES = 128, 24
"""An upper bound for the size of a new partition, without its replicas and for each replica."""

RECORD_TYPES: dict[int, type[Message]] = {
    message.API_KEY: message
    for name, message in vars(stored_records).items()
    if name.endswith("Record") and message.API_KEY >= 0  # the type of a control record is not in its message
}

CONTROL_MESSAGES: dict[int, type[Message]] = {
    ControlType.LEADER_CHANGE: stored_records.LeaderChangeMessage,
    ControlType.SNAPSHOT_HEADER: stored_records.SnapshotHeaderRecord,
    ControlType.SNAPSHOT_FOOTER: stored_records.SnapshotFooterRecord,
    ControlType.KRAFT_VERSION: stored_records.KRaftVersionRecord,
    ControlType.KRAFT_VOTERS: stored_records.VotersRecord,
}

Versioned = tuple[Message, int]
"""A message and the version in which it is written."""


class UnreadableMetadata(Exception):
    """A metadata log or snapshot that this node cannot apply; the message is a sentence."""


class CorruptMetadata(UnreadableMetadata):
    """Damaged or incompletely written bytes."""


class MetadataBatch(NamedTuple):
    """A decoded batch of either data or control messages."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    is_control: bool
    messages: list[Message]
    timestamp_ms: int
    size: int


def encode_record(message: Message, version: int) -> bytes:
    """The value of a data record."""
    cls = type(message)
    return b"".join((_prefix(cls, version), *encoder(cls, version)(message)))  # type: ignore[arg-type]


@cache
def _prefix(cls: type[Message], version: int) -> bytes:
    assert RECORD_TYPES.get(cls.API_KEY) is cls, f"{cls.__name__} is no metadata record"
    return uvarint(FRAME_VERSION) + uvarint(cls.API_KEY) + uvarint(version)


def decode_record(value: bytes | None) -> Message:
    """The message in a data record's value.

    Raises:
        UnreadableMetadata: unknown frame, type or version, malformed, or trailing bytes.
    """
    if not value:
        raise UnreadableMetadata("a metadata record has no value")
    # All existing frame versions, types and versions are below 128: one byte each.
    if len(value) > 2 and value[0] == FRAME_VERSION and (value[1] | value[2]) < 0x80:
        kind, version, position = value[1], value[2], 3
    else:
        kind, version, position = _read_frame(value)
    read = _reader(kind, version)
    try:
        message, end = read(value, position)
    except MalformedRequest as error:
        raise UnreadableMetadata(f"a metadata record of type {kind}, version {version}, is broken: {error}") from None
    if end != len(value):
        raise UnreadableMetadata(f"{len(value) - end} bytes follow a metadata record of type {kind}")
    return message


def _read_frame(value: bytes) -> tuple[int, int, int]:
    try:
        frame, position = read_uvarint(value, 0)
        kind, position = read_uvarint(value, position)
        version, position = read_uvarint(value, position)
    except MalformedRequest:
        raise UnreadableMetadata("a metadata record ends within its first bytes") from None
    if frame != FRAME_VERSION:
        raise UnreadableMetadata(f"a metadata record has frame version {frame}, not {FRAME_VERSION}")
    return kind, version, position


@cache
def _reader(kind: int, version: int) -> Decoder[Message]:
    cls = RECORD_TYPES.get(kind)
    if cls is None:
        raise UnreadableMetadata(f"a metadata record is of type {kind}, which this broker does not know")
    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        raise UnreadableMetadata(f"a {cls.__name__} has version {version}; this broker knows up to {cls.MAX_VERSION}")
    return decoder(cls, version)


class DataBatches:
    """Data records, collected in as few batches as MAX_BATCH_BYTES allows."""

    def __init__(self, *, base_offset: int, leader_epoch: int, timestamp_ms: int) -> None:
        self._builder = BatchBuilder(base_offset, leader_epoch=leader_epoch)
        self._leader_epoch = leader_epoch
        self._timestamp_ms = timestamp_ms
        self._full: list[bytearray] = []

    def add(self, message: Message, version: int) -> None:
        """Append a record."""
        builder, value = self._builder, encode_record(message, version)
        if builder.count and builder.size + len(value) + _MAX_RECORD_OVERHEAD > MAX_BATCH_BYTES:
            self._full.append(builder.build())
            builder = self._builder = BatchBuilder(builder.next_offset, leader_epoch=self._leader_epoch)
        builder.append(self._timestamp_ms, None, value)

    def finish(self) -> list[bytearray]:
        """All batches; nothing may be added afterwards."""
        return [*self._full, self._builder.build()]


def fits_into_batches(records: Iterable[Versioned], *, is_atomic: bool) -> bool:
    """Whether MAX_BATCH_BYTES is enough for each record, or for all together if they must be in one batch.

    Of partitions only the bound is known, because a request may have thousands.
    """
    size = 0
    for message, version in records:
        if isinstance(message, stored_records.PartitionRecord):
            size += _MAX_PARTITION_BYTES + _MAX_REPLICA_BYTES * len(message.replicas)
        elif not isinstance(message, stored_records.PartitionChangeRecord):
            size += len(encode_record(message, version)) + _MAX_RECORD_OVERHEAD
        if size > MAX_BATCH_BYTES - BATCH_OVERHEAD:
            return False
        size = size if is_atomic else 0
    return True


def control_records(
    messages: Sequence[tuple[ControlType, Message]], *, base_offset: int, leader_epoch: int, timestamp_ms: int
) -> bytearray:
    """A batch of control records in version 0."""
    return control_batch(
        [(kind, encode(message, 0)) for kind, message in messages],
        base_offset=base_offset,
        timestamp_ms=timestamp_ms,
        leader_epoch=leader_epoch,
    )


def read_batches(buffer: Buffer) -> list[MetadataBatch]:
    """All complete batches of a buffer, decoded.

    Raises:
        CorruptMetadata: a batch is corrupt.
        UnreadableMetadata: a batch contains an unknown record.
    """
    try:
        return [_read_checked(buffer, position, header) for position, header in headers(buffer)]
    except KafkaError as error:
        raise CorruptMetadata(f"a batch of the metadata log is corrupt: {error}") from None


def _read_checked(buffer: Buffer, position: int, header: BatchHeader) -> MetadataBatch:
    if not crc_is_valid(buffer, position, header):
        raise CorruptMetadata(f"the batch at offset {header.base_offset} of the metadata log is corrupt")
    return read_batch(buffer, position, header)


def read_batch(buffer: Buffer, position: int, header: BatchHeader) -> MetadataBatch:
    """Decode a batch whose CRC is valid.

    Raises:
        KafkaError: its records are malformed.
        UnreadableMetadata: it contains an unknown record.
    """
    found = records(buffer, position, header, max_bytes=MAX_BATCH_BYTES)
    read: Callable[[bytes | None], Message] = decode_record
    if header.is_control:
        messages = [_control_message(record.key, record.value) for record in found]
    else:
        messages = [read(record.value) for record in found]
    return MetadataBatch(
        header.base_offset,
        header.last_offset,
        header.leader_epoch,
        header.is_control,
        messages,
        header.max_timestamp,
        header.size,
    )


def _control_message(key: bytes | None, value: bytes | None) -> Message:
    kind = control_type(key)
    cls = CONTROL_MESSAGES.get(kind)
    if cls is None or value is None:
        raise UnreadableMetadata(f"a control record of the metadata log is of unknown type {kind}")
    # The message starts with its version; LeaderChange is the only one with two versions.
    version = min(int.from_bytes(value[:2], "big"), cls.MAX_VERSION)
    try:
        return decoder(cls, version)(value, 0)[0]
    except MalformedRequest as error:
        raise UnreadableMetadata(f"a {cls.__name__} of the metadata log is broken: {error}") from None


# ---- snapshots -------------------------------------------------------------------------------------------


class SnapshotName(NamedTuple):
    """The file name of a snapshot, which contains all records below `end_offset`."""

    end_offset: int
    leader_epoch: int

    def __str__(self) -> str:
        return f"{self.end_offset:020d}-{self.leader_epoch:010d}.checkpoint"


ZERO_SNAPSHOT = SnapshotName(0, 0)


def snapshot_name(file_name: str) -> SnapshotName | None:
    """The name if the file is a finished snapshot, else None."""
    stem, dot, suffix = file_name.partition(".")
    offset, dash, epoch = stem.partition("-")
    if not (dot and dash and suffix == "checkpoint" and len(offset) == 20 and len(epoch) == 10):
        return None
    return SnapshotName(int(offset), int(epoch)) if offset.isdigit() and epoch.isdigit() else None


def snapshot_batches(
    control: Sequence[tuple[ControlType, Message]],
    data: Iterable[Versioned],
    *,
    leader_epoch: int,
    timestamp_ms: int,
    last_contained_ms: int,
) -> Iterator[bytearray]:
    """The batches of a snapshot file."""
    header = stored_records.SnapshotHeaderRecord(last_contained_log_timestamp=last_contained_ms)
    first: list[tuple[ControlType, Message]] = [(ControlType.SNAPSHOT_HEADER, header), *control]
    yield control_records(first, base_offset=0, leader_epoch=leader_epoch, timestamp_ms=timestamp_ms)
    offset = len(first)
    records = iter(data)
    while some := list(islice(records, SNAPSHOT_BATCH_RECORDS)):
        batches = DataBatches(base_offset=offset, leader_epoch=leader_epoch, timestamp_ms=timestamp_ms)
        for message, version in some:
            batches.add(message, version)
        yield from batches.finish()
        offset += len(some)
    footer = [(ControlType.SNAPSHOT_FOOTER, stored_records.SnapshotFooterRecord())]
    yield control_records(footer, base_offset=offset, leader_epoch=leader_epoch, timestamp_ms=timestamp_ms)


def snapshot(control: Sequence[tuple[ControlType, Message]], data: Iterable[Versioned], **stamps: int) -> bytes:
    """The bytes of a snapshot file; the keywords are those of `snapshot_batches`."""
    return b"".join(snapshot_batches(control, data, **stamps))


class Snapshot(NamedTuple):
    """The content of a snapshot file."""

    last_contained_ms: int
    """Timestamp of the last record that the snapshot contains."""
    control: list[Message]
    """The control messages between header and footer."""
    data: list[Message]


def read_snapshot(data: Buffer, path: str) -> Snapshot:
    """Decode a snapshot file.

    Raises:
        CorruptMetadata: it is damaged or incomplete.
        UnreadableMetadata: it contains an unknown record.
    """
    try:
        batches = read_batches(data)
    except UnreadableMetadata as error:
        raise type(error)(f"the snapshot {path} cannot be read: {error}") from None
    control = [message for batch in batches if batch.is_control for message in batch.messages]
    first, last = (control[0], control[-1]) if control else (None, None)
    is_all = sum(batch.size for batch in batches) == len(data)
    if not (
        is_all
        and isinstance(first, stored_records.SnapshotHeaderRecord)
        and isinstance(last, stored_records.SnapshotFooterRecord)
    ):
        raise CorruptMetadata(f"the snapshot {path} is incomplete: it lacks its header or its footer")
    found = [message for batch in batches if not batch.is_control for message in batch.messages]
    return Snapshot(first.last_contained_log_timestamp, control[1:-1], found)
