"""Requests of groups and transactions with defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from protocol.codec import encode
from protocol.errors import ErrorCode
from protocol.messages import consumer_groups, groups, transactions
from tests.support.messages import message

NO_ASSIGNMENTS: Mapping[str, bytes] = MappingProxyType({})


def subscription(version: int, *topics: str, user_data: bytes | None = None) -> bytes:
    """The metadata of a consumer in JoinGroup."""
    subscribed = groups.ConsumerProtocolSubscription(topics=list(topics), user_data=user_data)
    return version.to_bytes(2, "big") + encode(subscribed, version)


# ---- members


def join_request(
    group: str = "g",
    member: str = "",
    *,
    instance: str | None = None,
    session_ms: int = 10_000,
    rebalance_ms: int = 10_000,
    protocols: Sequence[tuple[str, bytes]] = (("range", b""),),
) -> groups.JoinGroupRequest:
    return message(
        groups.JoinGroupRequest,
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[{"name": name, "metadata": metadata} for name, metadata in protocols],
    )


def sync_request(
    member: str,
    group: str = "g",
    generation: int = 1,
    assignments: Mapping[str, bytes] = NO_ASSIGNMENTS,
    *,
    instance: str | None = None,
    protocol: str | None = None,
) -> groups.SyncGroupRequest:
    """`protocol` is required from version 5 on."""
    return message(
        groups.SyncGroupRequest,
        group_id=group,
        generation_id=generation,
        member_id=member,
        group_instance_id=instance,
        protocol_type=None if protocol is None else "consumer",
        protocol_name=protocol,
        assignments=[{"member_id": one, "assignment": assignment} for one, assignment in assignments.items()],
    )


def heartbeat_request(
    member: str, generation: int = 1, group: str = "g", instance: str | None = None
) -> groups.HeartbeatRequest:
    return groups.HeartbeatRequest(
        group_id=group, generation_id=generation, member_id=member, group_instance_id=instance
    )


def leave_request(member: str, group: str = "g", instance: str | None = None) -> groups.LeaveGroupRequest:
    leaving = {"member_id": member, "group_instance_id": instance}
    return message(groups.LeaveGroupRequest, group_id=group, members=[leaving])


def consumer_heartbeat(
    member: str, epoch: int, group: str = "g", *, owned: Mapping[bytes, list[int]] | None = None, **fields: Any
) -> consumer_groups.ConsumerGroupHeartbeatRequest:
    """Without `owned` the request has no partitions field."""
    if owned is not None:
        fields["topic_partitions"] = [{"topic_id": one, "partitions": indexes} for one, indexes in owned.items()]
    return message(
        consumer_groups.ConsumerGroupHeartbeatRequest, group_id=group, member_id=member, member_epoch=epoch, **fields
    )


# ---- offsets


def _committed(topic: str, partition: int, count: int, offset: int, metadata: str | None) -> list[dict[str, Any]]:
    """The same offset for `count` partitions from `partition` on."""
    return [
        {
            "name": topic,
            "partitions": [
                {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata}
                for index in range(partition, partition + count)
            ],
        }
    ]


def commit_request(
    offset: int,
    group: str = "g",
    partition: int = 0,
    member: str = "",
    generation: int = -1,
    count: int = 1,
    *,
    topic: str = "t",
    metadata: str | None = "",
) -> groups.OffsetCommitRequest:
    return message(
        groups.OffsetCommitRequest,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=_committed(topic, partition, count, offset, metadata),
    )


def fetch_request(
    group: str = "g", partition: int = 0, *, topic: str = "t", is_stable: bool = False
) -> groups.OffsetFetchRequest:
    topics = [{"name": topic, "partition_indexes": [partition]}]
    return message(groups.OffsetFetchRequest, groups=[{"group_id": group, "topics": topics}], require_stable=is_stable)


def error_of(answer: Any) -> ErrorCode:
    """The error of the only partition in the response of a commit."""
    return ErrorCode(answer.topics[0].partitions[0].error_code)


# ---- transactions


def _producer(name: str, producer: tuple[int, int]) -> dict[str, Any]:
    return {"transactional_id": name, "producer_id": producer[0], "producer_epoch": producer[1]}


def init_request(
    name: str, timeout_ms: int = 60_000, producer: tuple[int, int] = (-1, -1)
) -> transactions.InitProducerIdRequest:
    return transactions.InitProducerIdRequest(transaction_timeout_ms=timeout_ms, **_producer(name, producer))


def add_offsets_request(name: str, producer: tuple[int, int], group: str = "g") -> transactions.AddOffsetsToTxnRequest:
    return transactions.AddOffsetsToTxnRequest(group_id=group, **_producer(name, producer))


def add_request(
    name: str, producer: tuple[int, int], *partitions: int, verify_only: bool = False
) -> transactions.AddPartitionsToTxnRequest:
    topics = [{"name": "t", "partitions": list(partitions)}]
    added = {**_producer(name, producer), "verify_only": verify_only, "topics": topics}
    return message(transactions.AddPartitionsToTxnRequest, transactions=[added])


def add_request_v3(
    name: str, producer: tuple[int, int], *partitions: int, topic: str = "t"
) -> transactions.AddPartitionsToTxnRequest:
    """AddPartitionsToTxn of a producer, before version 4."""
    values = {f"v3_and_below_{field}": value for field, value in _producer(name, producer).items()}
    topics = [{"name": topic, "partitions": list(partitions)}]
    return message(transactions.AddPartitionsToTxnRequest, v3_and_below_topics=topics, **values)


def txn_commit_request(
    name: str, producer: tuple[int, int], offset: int, group: str = "g", partition: int = 0, *, topic: str = "t"
) -> transactions.TxnOffsetCommitRequest:
    topics = _committed(topic, partition, 1, offset, "")
    return message(transactions.TxnOffsetCommitRequest, group_id=group, topics=topics, **_producer(name, producer))


def end_request(name: str, producer: tuple[int, int], *, commit: bool = True) -> transactions.EndTxnRequest:
    return transactions.EndTxnRequest(committed=commit, **_producer(name, producer))
