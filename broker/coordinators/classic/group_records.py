"""The records of classic groups and committed offsets in `__consumer_offsets`, as Apache Kafka 4.3 writes them.

FORMAT   type 0  LegacyOffsetCommit   read only
         type 1  OffsetCommit         group, topic, partition -> value v4; v1 when the client asked for an expiry
         type 2  GroupMetadata        group -> value v3
RULES    1. Values of every version are read; these versions are written.
         2. A tombstone deletes the entry of its key.
         3. Commits are parsed by hand: a starting broker may have to read a million of them.
         4. A *plain commit* has value version 4, no metadata and a topic id; it is kept as the bytes of its value.
NOT HERE Records of other groups (types 3 and above), when a record is written (`classic_protocol.py`, `offset_manager.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct, error
from typing import Final, NamedTuple

from broker.coordinators.classic.classic_group import ClassicGroup, Member, MemberProtocol, State
from broker.coordinators.runtime.stored_records import StoredRecord, version_of
from protocol.codec import decode, encode
from protocol.errors import MalformedRequest
from protocol.messages.stored_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitValue,
)
from protocol.primitives import ZERO_UUID

GROUP_VALUE_VERSION: Final = 3
COMMIT_VALUE_VERSION: Final = 4
COMMIT_VALUE_VERSION_WITH_EXPIRY: Final = 1
NO_EXPIRY: Final = -1

LEGACY_OFFSET_COMMIT: Final = 0
OFFSET_COMMIT: Final = 1
GROUP_METADATA: Final = 2

_I16 = Struct(">h")
_I32 = Struct(">i")
_KEY_START = Struct(">hh")  # record type, length of the group id
_PLAIN = Struct(">hqixq3x16s")  # version, offset, leader epoch, no metadata, commit time, tag 0 of 16 bytes, topic id
_PLAIN_AS_WRITTEN = Struct(">hqibqbbb16s")


class OffsetAndMetadata(NamedTuple):
    """A committed offset; -1 as leader epoch or expiry: not set."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_wall_ms: int
    expire_wall_ms: int = NO_EXPIRY
    topic_id: bytes = ZERO_UUID


class CommitKey(NamedTuple):
    """Key of a committed offset."""

    group: str
    topic: str
    partition: int


_new_tuple = tuple.__new__


# ---- commits


def commit_records(
    group_id: str, topic: str, commits: Iterable[tuple[int, OffsetAndMetadata | bytes]]
) -> list[StoredRecord]:
    """Commit records for partitions of a topic; bytes are plain commits."""
    records = []
    before_partition = encode_commit_key(group_id, topic, 0)[: -_I32.size]
    for partition, committed in commits:
        value = committed if type(committed) is bytes else encode_commit_value(committed)  # type: ignore[arg-type]
        encoded = before_partition + _I32.pack(partition), value
        key = _new_tuple(CommitKey, (group_id, topic, partition))
        records.append(_new_tuple(StoredRecord, (key, committed, 0, encoded)))
    return records


def encode_plain_commit(offset: int, leader_epoch: int, commit_wall_ms: int, topic_id: bytes) -> bytes:
    """The value of a plain commit (rule 4)."""
    return _PLAIN_AS_WRITTEN.pack(COMMIT_VALUE_VERSION, offset, leader_epoch, 1, commit_wall_ms, 1, 0, 16, topic_id)


def encode_commit_key(group_id: str, topic: str, partition: int) -> bytes:
    """A commit's key as bytes."""
    group_bytes, topic_bytes = group_id.encode(), topic.encode()
    start, topic_length = _KEY_START.pack(OFFSET_COMMIT, len(group_bytes)), _I16.pack(len(topic_bytes))
    return b"".join((start, group_bytes, topic_length, topic_bytes, _I32.pack(partition)))


def encode_commit_value(committed: OffsetAndMetadata) -> bytes:
    """A commit's value as bytes."""
    version = COMMIT_VALUE_VERSION if committed.expire_wall_ms == NO_EXPIRY else COMMIT_VALUE_VERSION_WITH_EXPIRY
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_wall_ms,
        expire_timestamp=committed.expire_wall_ms,
        topic_id=committed.topic_id,
    )
    return _I16.pack(version) + encode(value, version)


def commit_tombstone(group_id: str, topic: str, partition: int) -> StoredRecord:
    """The record that deletes the committed offset of a partition."""
    key = CommitKey(group_id, topic, partition)
    return StoredRecord(key, None, encoded=(encode_commit_key(*key), None))


def read_commit_key(key: bytes) -> CommitKey:
    """Decode a key of type 0 or 1."""
    try:
        (length,) = _I16.unpack_from(key, 2)
        at = 4 + length
        group_id = key[4:at].decode()
        (length,) = _I16.unpack_from(key, at)
        end = at + 2 + length
        topic = key[at + 2 : end].decode()
        if length < 0 or len(key) != end + 4:
            raise MalformedRequest("wrong key length of a committed offset")
        return CommitKey(group_id, topic, _I32.unpack_from(key, end)[0])
    except (ValueError, error):
        raise MalformedRequest("truncated key of a committed offset") from None


def is_plain_commit(value: bytes) -> bool:
    """Whether a value is a plain commit (rule 4)."""
    return len(value) == _PLAIN.size and value[:2] == b"\0\4" and value[14] == 1 and value[23:26] == b"\1\0\x10"


def to_offset_and_metadata(stored: OffsetAndMetadata | bytes) -> OffsetAndMetadata:
    """Decode a stored commit, if it is kept as bytes."""
    if type(stored) is bytes:
        _, offset, leader_epoch, commit_wall_ms, topic_id = _PLAIN.unpack(stored)
        return _new_tuple(OffsetAndMetadata, (offset, leader_epoch, "", commit_wall_ms, NO_EXPIRY, topic_id))
    return stored  # type: ignore[return-value]


def read_commit_value(value: bytes) -> OffsetAndMetadata:
    """Decode a value of any version."""
    found = decode(OffsetCommitValue, version_of(value, OffsetCommitValue.MAX_VERSION), value, 2)
    return OffsetAndMetadata(
        found.offset, found.leader_epoch, found.metadata, found.commit_timestamp, found.expire_timestamp, found.topic_id
    )


# ---- groups


def read_group_key(key: bytes) -> str:
    """The group id of a key of type 2."""
    return decode(GroupMetadataKey, 0, key, 2).group


def read_group(group_id: str, value: bytes) -> ClassicGroup:
    """The group of a record; a group with members is stable."""
    version = version_of(value, GroupMetadataValue.MAX_VERSION)
    stored = decode(GroupMetadataValue, version, value, 2)
    _check_ids(group_id, stored.members)
    group = ClassicGroup(group_id, stored.current_state_timestamp)
    group.state = State.STABLE if stored.members else State.EMPTY
    group.generation = stored.generation
    group.protocol_name = stored.protocol
    for member in stored.members:
        timeout_ms = member.rebalance_timeout if member.rebalance_timeout != -1 else member.session_timeout
        protocols = (MemberProtocol(stored.protocol or "", member.subscription),)
        group.add(
            Member(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                timeout_ms,
                member.session_timeout,
                stored.protocol_type,
                protocols,
                member.assignment,
            ),
            None,
        )
    group.protocol_type = stored.protocol_type or None
    if stored.leader in group.members:  # otherwise the first member
        group.leader_id = stored.leader
    group.subscribed_topics = group.parse_subscriptions()
    return group


def _check_ids(group_id: str, members: list[MemberMetadata]) -> None:
    """Raises MalformedRequest if two members have the same member id or instance id."""
    instance_ids = [one.group_instance_id for one in members if one.group_instance_id is not None]
    for ids in ([one.member_id for one in members], instance_ids):
        if len(set(ids)) < len(ids):
            raise MalformedRequest(f"two stored members of group {group_id} have the same id")


def group_record(group: ClassicGroup, assignments: dict[str, bytes]) -> StoredRecord:
    """The record of a group with these assignments."""
    name = group.protocol_name
    members = [
        MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(name),
            assignment=assignments[member.member_id],
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=name,
        leader=group.leader_id,
        current_state_timestamp=group.current_state_wall_ms,
        members=members,
    )
    return StoredRecord(GroupMetadataKey(group=group.group_id), value, GROUP_VALUE_VERSION)


def empty_group_record(group: ClassicGroup) -> StoredRecord:
    """The record of a new group without a generation."""
    return group_record(ClassicGroup(group.group_id, group.current_state_wall_ms), {})


def group_tombstone(group_id: str) -> StoredRecord:
    """The record that deletes a group."""
    return StoredRecord(GroupMetadataKey(group=group_id), None)
