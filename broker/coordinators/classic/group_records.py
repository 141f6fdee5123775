"""The records of groups and committed offsets in `__consumer_offsets`, as Apache Kafka 4.3 writes them.

FORMAT   type 0  LegacyOffsetCommit   read only
         type 1  OffsetCommit         group, topic, partition -> value v4; v1 when the client asked for an expiry
         type 2  GroupMetadata        group -> value v3
RULES    1. Values are read in every version, written in these.
         2. A tombstone deletes what its key names.
         3. Commits are read by hand: a broker that starts may have a million of them before it.
NOT HERE Records of other kinds of groups (types 3 and above), when a record is written (`classic_protocol.py`, `offset_manager.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct, error
from typing import Final, NamedTuple

from broker.coordinators.classic.classic_group import ClassicGroup, Member, State
from broker.coordinators.runtime.coordinator_runtime import StoredRecord
from protocol.codec import decode, encode
from protocol.errors import MalformedRequest
from protocol.messages.stored_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
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
_USUAL = Struct(">hqixq3x16s")  # version, offset, leader epoch, no metadata, commit time, tag 0 of 16 bytes, topic id
_USUAL_AS_WRITTEN = Struct(">hqibqbbb16s")


class Committed(NamedTuple):
    """A committed offset; -1 as leader epoch or expiry: not given."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_wall_ms: int
    expire_wall_ms: int = NO_EXPIRY
    topic_id: bytes = ZERO_UUID


class CommitKey(NamedTuple):
    """Whose committed offset."""

    group: str
    topic: str
    partition: int


_new_tuple = tuple.__new__


# ---- commits


def commit_records(group_id: str, topic: str, commits: Iterable[tuple[int, Committed | bytes]]) -> list[StoredRecord]:
    """Commits for partitions of a topic; those that are bytes are values of the usual form."""
    records = []
    before_partition = encode_commit_key(group_id, topic, 0)[: -_I32.size]
    for partition, committed in commits:
        value = committed if type(committed) is bytes else encode_commit_value(committed)  # type: ignore[arg-type]
        encoded = before_partition + _I32.pack(partition), value
        key = _new_tuple(CommitKey, (group_id, topic, partition))
        records.append(_new_tuple(StoredRecord, (key, committed, 0, encoded)))
    return records


def usual_commit(offset: int, leader_epoch: int, commit_wall_ms: int, topic_id: bytes) -> bytes:
    """The value of a commit as most are: no note, no expiry, a topic whose id is known; by hand, for there may be many."""
    return _USUAL_AS_WRITTEN.pack(COMMIT_VALUE_VERSION, offset, leader_epoch, 1, commit_wall_ms, 1, 0, 16, topic_id)


def encode_commit_key(group_id: str, topic: str, partition: int) -> bytes:
    """A commit's key as it stands in the topic."""
    return _I16.pack(OFFSET_COMMIT) + encode(OffsetCommitKey(group=group_id, topic=topic, partition=partition), 0)


def encode_commit_value(committed: Committed) -> bytes:
    """A commit's value as it stands in the topic."""
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
    """The group has no offset for the partition any more."""
    key = CommitKey(group_id, topic, partition)
    return StoredRecord(key, None, encoded=(encode_commit_key(*key), None))


def read_commit_key(key: bytes) -> CommitKey:
    """Group, topic and partition of a key of type 0 or 1."""
    try:
        (length,) = _I16.unpack_from(key, 2)
        at = 4 + length
        group_id = key[4:at].decode()
        (length,) = _I16.unpack_from(key, at)
        end = at + 2 + length
        topic = key[at + 2 : end].decode()
        if length < 0 or len(key) != end + 4:
            raise MalformedRequest("the key of a committed offset has a wrong length")
        return CommitKey(group_id, topic, _I32.unpack_from(key, end)[0])
    except (ValueError, error):
        raise MalformedRequest("the key of a committed offset is cut off") from None


def is_usual_commit(value: bytes) -> bool:
    """Whether a commit's value looks as most do: version 4, no note, a topic id; such a one can be kept as it is."""
    return len(value) == _USUAL.size and value[:2] == b"\0\4" and value[14] == 1 and value[23:26] == b"\1\0\x10"


def committed_of(stored: Committed | bytes) -> Committed:
    """A commit that is perhaps kept as its usual bytes."""
    if type(stored) is bytes:
        _, offset, leader_epoch, commit_wall_ms, topic_id = _USUAL.unpack(stored)
        return _new_tuple(Committed, (offset, leader_epoch, "", commit_wall_ms, NO_EXPIRY, topic_id))
    return stored  # type: ignore[return-value]  # it is no bytes


def read_commit_value(value: bytes) -> Committed:
    """A commit's value in any version."""
    found = decode(OffsetCommitValue, version_of(value, OffsetCommitValue.MAX_VERSION), value, 2)
    return Committed(
        found.offset,
        found.leader_epoch,
        found.metadata,
        found.commit_timestamp,
        found.expire_timestamp,
        found.topic_id,
    )


def version_of(value: bytes, highest: int) -> int:
    """The version that a stored value begins with."""
    if len(value) < 2:
        raise MalformedRequest("a stored value has no version")
    (version,) = _I16.unpack_from(value)
    if not 0 <= version <= highest:
        raise MalformedRequest(f"a stored value has version {version}; the highest known is {highest}")
    return int(version)


# ---- groups


def read_group_key(key: bytes) -> str:
    """The group of a key of type 2."""
    return decode(GroupMetadataKey, 0, key, 2).group


def read_group(group_id: str, value: bytes) -> ClassicGroup:
    """The group that a record tells of; one with members is stable."""
    version = version_of(value, GroupMetadataValue.MAX_VERSION)
    stored = decode(GroupMetadataValue, version, value, 2)
    group = ClassicGroup(group_id, stored.current_state_timestamp)
    group.state = State.STABLE if stored.members else State.EMPTY
    group.generation = stored.generation
    group.protocol_name = stored.protocol
    for member in stored.members:
        timeout_ms = member.rebalance_timeout if member.rebalance_timeout != -1 else member.session_timeout
        protocols = ((stored.protocol or "", member.subscription),)
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
    group.leader_id = stored.leader
    group.subscribed_topics = group.parse_subscriptions()
    return group


def group_record(group: ClassicGroup, assignments: dict[str, bytes]) -> StoredRecord:
    """The group as it stands, with these assignments."""
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
        current_state_timestamp=group.state_since_wall_ms,
        members=members,
    )
    return StoredRecord(GroupMetadataKey(group=group.group_id), value, GROUP_VALUE_VERSION)


def empty_group_record(group: ClassicGroup) -> StoredRecord:
    """A group that has just been made and has no generation yet."""
    value = GroupMetadataValue(
        protocol_type="",
        generation=0,
        protocol=None,
        leader=None,
        current_state_timestamp=group.state_since_wall_ms,
        members=[],
    )
    return StoredRecord(GroupMetadataKey(group=group.group_id), value, GROUP_VALUE_VERSION)


def group_tombstone(group_id: str) -> StoredRecord:
    """The group is no more."""
    return StoredRecord(GroupMetadataKey(group=group_id), None)
