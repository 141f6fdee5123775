"""Brings one member of a consumer group a step nearer to its target.

RULES    1. A member gives up first: as long as it owns something that its target lacks it stays in its epoch.
         2. It confirms by naming what it owns without those partitions; then it comes to the target's epoch.
         3. A partition is given to it only when nobody else owns it any more; until then it waits for it in the
            target's epoch, and is given the rest.
         4. Topics that it does not subscribe to any more are taken back at once, before there is a new target.
NOT HERE When a step is made (`consumer_group_heartbeat.py`), where targets come from (`assignors.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from broker.coordinators.consumer.assignors import Partitions
from broker.coordinators.consumer.consumer_group import AssignedPartitions, ConsumerMember, MemberState

Owned = Mapping[bytes, Collection[int]]
"""What a member says that it owns."""
IsFree = Callable[[bytes, int], bool]
"""Whether nobody else owns a partition."""

_NOTHING: frozenset[int] = frozenset()


def step(
    member: ConsumerMember,
    target_epoch: int,
    target: Partitions,
    subscribed: Collection[bytes],
    is_free: IsFree,
    owned: Owned | None,
    *,
    has_new_subscription: bool,
) -> ConsumerMember:
    """The member after a step, or as it is; `owned` is None where it did not say."""
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return _without_unsubscribed(member, subscribed, owned) if has_new_subscription else member
    if member.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(owned, member.revoking):
        return _without_unsubscribed(member, subscribed, owned) if has_new_subscription else member
    target = {topic_id: partitions for topic_id, partitions in target.items() if topic_id in subscribed}
    kept, revoking = _split(member.assigned, target)
    if revoking and _owns_any(owned, revoking):
        return member.in_epoch(member.epoch)._replace(
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
    return member.in_epoch(target_epoch)._replace(state=state, assigned=assigned, revoking={})


def _split(assigned: AssignedPartitions, target: Partitions) -> tuple[AssignedPartitions, AssignedPartitions]:
    """What of it is in the target, and what is not."""
    kept: dict[bytes, dict[int, int]] = {}
    given_up: dict[bytes, dict[int, int]] = {}
    for topic_id, partitions in assigned.items():
        wanted = target.get(topic_id, _NOTHING)
        for partition, epoch in partitions.items():
            (kept if partition in wanted else given_up).setdefault(topic_id, {})[partition] = epoch
    return kept, given_up


def _without_unsubscribed(member: ConsumerMember, subscribed: Collection[bytes], owned: Owned | None) -> ConsumerMember:
    """Rule 4: what it does not subscribe to is taken back."""
    kept = {topic_id: partitions for topic_id, partitions in member.assigned.items() if topic_id in subscribed}
    if len(kept) == len(member.assigned):
        return member
    revoking = {topic_id: dict(partitions) for topic_id, partitions in member.revoking.items()}
    for topic_id, partitions in member.assigned.items():
        if topic_id not in kept:
            revoking.setdefault(topic_id, {}).update(partitions)
    same = member.in_epoch(member.epoch)._replace(assigned=kept)
    if not _owns_any(owned, revoking):
        return same
    return same._replace(state=MemberState.UNREVOKED_PARTITIONS, revoking=revoking)


def _owns_any(owned: Owned | None, partitions: AssignedPartitions) -> bool:
    """Whether it still has some of these; who did not say may."""
    if owned is None:
        return True
    return any(partition in partitions.get(topic_id, ()) for topic_id, has in owned.items() for partition in has)
