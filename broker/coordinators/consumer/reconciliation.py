"""Reconciles a member's current assignment with its target (Kafka: CurrentAssignmentBuilder).

RULES    1. Revocation first: while the member owns a partition outside its target, it stays in its epoch.
         2. The member acknowledges by a heartbeat without these partitions; then it moves to the target epoch.
         3. A partition is assigned when no other member owns it. Until then the member is in the target epoch with the
            others of its partitions.
         4. Partitions of unsubscribed topics are revoked at once, before the next target.
NOT HERE When a member is reconciled (`consumer_group_heartbeat.py`), targets (`assignors.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from broker.coordinators.consumer.assignors import Partitions
from broker.coordinators.consumer.consumer_group import AssignedPartitions, ConsumerMember, MemberState, Owned

IsFree = Callable[[bytes, int], bool]
"""Whether no other member owns a partition."""

_NO_PARTITIONS: frozenset[int] = frozenset()


def build_current_assignment(
    member: ConsumerMember,
    target_epoch: int,
    target: Partitions,
    subscribed: Collection[bytes],
    is_free: IsFree,
    owned: Owned | None,
    *,
    has_new_subscription: bool,
) -> ConsumerMember:
    """The member after one reconciliation step; `owned` is None if the request has no partitions field."""
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return _revoke_unsubscribed(member, subscribed, owned) if has_new_subscription else member
    if member.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(owned, member.revoking):
        return _revoke_unsubscribed(member, subscribed, owned) if has_new_subscription else member
    target = {topic_id: partitions for topic_id, partitions in target.items() if topic_id in subscribed}
    kept, revoking = _split(member.assigned, target)
    if revoking and _owns_any(owned, revoking):
        return member.with_epoch(member.epoch)._replace(
            state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking
        )
    assigned = {topic_id: dict(partitions) for topic_id, partitions in kept.items()}
    state = MemberState.STABLE
    for topic_id, partitions in target.items():
        for partition in sorted(partitions - kept.get(topic_id, {}).keys()):
            if is_free(topic_id, partition):
                assigned.setdefault(topic_id, {})[partition] = target_epoch
            else:
                state = MemberState.UNRELEASED_PARTITIONS
    return member.with_epoch(target_epoch)._replace(state=state, assigned=assigned, revoking={})


def _split(assigned: AssignedPartitions, target: Partitions) -> tuple[AssignedPartitions, AssignedPartitions]:
    """The assigned partitions inside and outside the target."""
    kept: dict[bytes, dict[int, int]] = {}
    revoked: dict[bytes, dict[int, int]] = {}
    for topic_id, partitions in assigned.items():
        target_partitions = target.get(topic_id, _NO_PARTITIONS)
        for partition, epoch in partitions.items():
            (kept if partition in target_partitions else revoked).setdefault(topic_id, {})[partition] = epoch
    return kept, revoked


def _revoke_unsubscribed(member: ConsumerMember, subscribed: Collection[bytes], owned: Owned | None) -> ConsumerMember:
    """Revoke unsubscribed topics (rule 4)."""
    kept = {topic_id: partitions for topic_id, partitions in member.assigned.items() if topic_id in subscribed}
    if len(kept) == len(member.assigned):
        return member
    revoking = {topic_id: dict(partitions) for topic_id, partitions in member.revoking.items()}
    for topic_id, partitions in member.assigned.items():
        if topic_id not in kept:
            revoking.setdefault(topic_id, {}).update(partitions)
    updated = member.with_epoch(member.epoch)._replace(assigned=kept)
    if not _owns_any(owned, revoking):
        return updated
    return updated._replace(state=MemberState.UNREVOKED_PARTITIONS, revoking=revoking)


def _owns_any(owned: Owned | None, partitions: AssignedPartitions) -> bool:
    """Whether the member still owns one of these partitions; unknown counts as yes."""
    if owned is None:
        return True
    return any(partition in partitions.get(topic_id, ()) for topic_id, has in owned.items() for partition in has)
