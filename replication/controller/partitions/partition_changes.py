"""What becomes of one partition when its ISR, or who may lead it, changes: the record of the change.

RULES    1. The order and the rules are Apache Kafka 4.3's (PartitionChangeBuilder), so both write the same record.
         2. The leader stays while it may lead. Else the first replica that may and is in the ISR, or, where the ISR is
            empty, an eligible leader replica (KIP-966); else the last known leader; else, where the topic allows
            unclean elections, any. The last two may have lost records: they lead alone and in recovery.
         3. While fewer than min.insync.replicas are in sync, who leaves the ISR becomes an eligible leader, unless its
            records are lost. With eligible leaders an ISR may be empty; without, the last of it stays in it.
         4. A reassignment ends when all who come are in sync; where fewer come than go, all who stay must be. Somebody must
            remain in the ISR. Who comes and shall go again is not waited for: Apache Kafka waits for it, and for ever.
         5. Naming a leader begins a new leader epoch, also when it is the one that led before. In old clusters (before
            3.6) a smaller ISR is reason enough.
NOT HERE Which partitions to look at (`elections.py`), whether a leader may have what it wants (`alter_partition.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from protocol.messages.stored_records import PartitionChangeRecord
from replication.metadata.image import NO_LEADER, UNCHANGED_LEADER, PartitionState

RECOVERED = 0
RECOVERING = 1

MayLead = Callable[[int], bool]
DirectoryOf = Callable[[int], bytes]


class TopicRules(NamedTuple):
    """What a topic's settings and the cluster's features say about a change."""

    min_isr: int = 1
    has_eligible_leaders: bool = True
    allows_unclean: bool = False
    has_epoch_per_shrink: bool = False
    prefers_first: bool = False
    """Whether the first replica shall lead if it can, also when another one could stay."""


class Target(NamedTuple):
    """The replicas that a partition shall have, and which of them come and go meanwhile."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


def change_of(
    topic_id: bytes,
    index: int,
    state: PartitionState,
    isr: tuple[int, ...],
    may_lead: MayLead,
    rules: TopicRules,
    *,
    lost: int = NO_LEADER,
    recovery_state: int | None = None,
    target: Target | None = None,
    directory_of: DirectoryOf | None = None,
) -> PartitionChangeRecord | None:
    """The record that gives a partition another ISR, and a leader where it needs one; None: nothing changes.

    Args:
        topic_id: of its topic.
        index: its number.
        state: as it is.
        isr: the one it shall have; the present one, when only a leader is sought.
        may_lead: which broker can be its leader now.
        rules: of its topic.
        lost: a broker whose records may be gone, so that it is no eligible leader any more.
        recovery_state: what the leader says of itself.
        target: other replicas; None: those it has.
        directory_of: where a broker puts a new replica; needed with a target.
    """
    record = PartitionChangeRecord(partition_id=index, topic_id=topic_id)
    target, isr = _complete(target or Target(state.replicas, state.adding, state.removing), isr)
    eligible = _eligible(state, isr, rules, lost)
    leader, is_unclean = _elect(state, target.replicas, isr, eligible, may_lead, rules)
    if leader != state.leader:
        record.leader = leader
        if is_unclean:
            isr, eligible = (leader,), ()
            if state.leader_recovery_state != RECOVERING:
                record.leader_recovery_state = RECOVERING
        elif leader in eligible:
            isr, eligible = (leader,), tuple(replica for replica in eligible if replica != leader)
    elif not set(state.replicas) <= set(target.replicas):
        record.leader = leader
    if eligible != state.eligible_leaders:
        record.eligible_leader_replicas = list(eligible)
    if isr != state.isr and (isr or rules.has_eligible_leaders):
        record.isr = list(isr)
        if record.leader == UNCHANGED_LEADER and rules.has_epoch_per_shrink and not set(state.isr) <= set(isr):
            record.leader = leader
    if rules.has_eligible_leaders:
        _note_last_leader(record, state)
    _note_replicas(record, state, target, directory_of)
    if recovery_state is not None and recovery_state != state.leader_recovery_state:
        record.leader_recovery_state = recovery_state
    return None if record == PartitionChangeRecord(partition_id=index, topic_id=topic_id) else record


def _complete(target: Target, isr: tuple[int, ...]) -> tuple[Target, tuple[int, ...]]:
    """End a reassignment that can end (rule 4); the ISR without those who leave."""
    if not target.adding and not target.removing:
        return target, isr
    staying = tuple(replica for replica in target.replicas if replica not in target.removing)
    rest = tuple(replica for replica in isr if replica not in target.removing)
    awaited = set(staying) if len(target.adding) < len(target.removing) else set(target.adding) - set(target.removing)
    if target.removing and not (staying and rest):
        return target, isr
    return (Target(staying), rest) if awaited <= set(rest) else (target, isr)


def _note_replicas(
    record: PartitionChangeRecord, state: PartitionState, target: Target, directory_of: DirectoryOf | None
) -> None:
    if target.replicas != state.replicas:
        record.replicas = list(target.replicas)
        if state.directories:
            known = dict(zip(state.replicas, state.directories, strict=True))
            directories = [
                known[replica] if replica in known else _directory(replica, directory_of) for replica in target.replicas
            ]
            record.directories = directories if directories != list(state.directories) else None
    if target.removing != state.removing:
        record.removing_replicas = list(target.removing)
    if target.adding != state.adding:
        record.adding_replicas = list(target.adding)


def _directory(replica: int, directory_of: DirectoryOf | None) -> bytes:
    assert directory_of is not None, f"broker {replica} is new, and nobody says where it puts the replica"
    return directory_of(replica)


def _eligible(state: PartitionState, isr: tuple[int, ...], rules: TopicRules, lost: int) -> tuple[int, ...]:
    if not rules.has_eligible_leaders or len(isr) >= rules.min_isr:
        return ()
    known = {*state.eligible_leaders, *state.isr}
    return tuple(sorted(replica for replica in known if replica not in isr and replica != lost))


def _elect(
    state: PartitionState,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    eligible: tuple[int, ...],
    may_lead: MayLead,
    rules: TopicRules,
) -> tuple[int, bool]:
    """The leader (rule 2), and whether it may have lost records."""
    candidates = isr or eligible
    order = (replicas[0], state.leader, *replicas) if rules.prefers_first else (state.leader, *replicas)
    for replica in order:
        if replica in candidates and may_lead(replica):
            return replica, False
    last = state.last_known_leaders
    if rules.has_eligible_leaders and not candidates and len(last) == 1 and last[0] in replicas and may_lead(last[0]):
        return last[0], True
    if rules.allows_unclean:
        for replica in replicas:
            if may_lead(replica):
                return replica, True
    return NO_LEADER, False


def _note_last_leader(record: PartitionChangeRecord, state: PartitionState) -> None:
    """Remember who led when nobody leads any more; forget it when somebody does."""
    if record.leader == NO_LEADER and not state.last_known_leaders:
        record.last_known_elr = [state.leader]
    elif record.leader not in (NO_LEADER, UNCHANGED_LEADER) and state.last_known_leaders:
        record.last_known_elr = []
