"""The change of one partition after a change of its ISR, replicas or possible leaders (Kafka: PartitionChangeBuilder).

RULES    1. The rules and their order are Apache Kafka 4.3's, so both write the same records.
         2. The leader stays while it can. Otherwise the first possible replica in the ISR is elected; if the ISR is empty, an
            eligible leader replica (KIP-966), then the last known leader; then, if the topic allows unclean elections, any
            replica. The last two may have lost records: the leader is alone in the ISR and in recovery.
         3. While the ISR is smaller than min.insync.replicas, replicas that leave it become eligible leader replicas, unless
            their records may be lost. One that a reassignment removes deletes them; Apache Kafka keeps it eligible, and could
            elect it after a second reassignment. With ELR the ISR can be empty; without, its last member stays.
         4. A reassignment completes when all added replicas are in sync, or all remaining ones if more are removed than added.
            At least one replica must remain in the ISR. A replica that is both added and removed is not waited for; Apache
            Kafka waits for it forever.
         5. A record with a leader starts a new leader epoch, also if the leader stays. Before metadata.version 3.6, so does
            a smaller ISR.
NOT HERE The selection of partitions (`elections.py`), the validation of ISRs (`alter_partition.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from protocol.messages.stored_records import PartitionChangeRecord
from protocol.schema import Message
from replication.metadata.image import NO_LEADER, UNASSIGNED_DIRECTORY, UNCHANGED_LEADER, PartitionState

RECOVERED = 0
RECOVERING = 1

LeaderFilter = Callable[[int], bool]


class TopicRules(NamedTuple):
    """The topic configuration and features that matter for a change."""

    min_isr: int = 1
    has_eligible_leaders: bool = True
    allows_unclean: bool = False
    has_epoch_per_shrink: bool = False
    prefers_first: bool = False
    """Whether the preferred replica is elected even if the current leader could stay."""
    new_log_dir: Callable[[int], bytes] = lambda _: UNASSIGNED_DIRECTORY
    """Returns the log directory for a new replica on a broker."""


class TargetReplicas(NamedTuple):
    """The replicas of a partition and the ongoing reassignment."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


def build_partition_change(
    topic_id: bytes,
    index: int,
    state: PartitionState,
    isr: tuple[int, ...],
    can_be_leader: LeaderFilter,
    rules: TopicRules,
    *,
    unclean_shutdown_id: int = NO_LEADER,
    recovery_state: int | None = None,
    target: TargetReplicas | None = None,
) -> PartitionChangeRecord | None:
    """Return the record that applies a new ISR and elects a leader if needed; None if nothing changes.

    `isr` is the current one for an election; `unclean_shutdown_id`: a broker that may have lost records and is no eligible
    leader replica; `recovery_state`: the one that the leader reports; `target`: None keeps the current replicas.
    """
    record = PartitionChangeRecord(partition_id=index, topic_id=topic_id)
    target, isr = _complete_reassignment(target or TargetReplicas(state.replicas, state.adding, state.removing), isr)
    eligible = _eligible_leaders(state, target.replicas, isr, rules, unclean_shutdown_id)
    leader, is_unclean = _elect(state, target.replicas, isr, eligible, can_be_leader, rules)
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
        _set_last_known_leader(record, state)
    _set_replicas(record, state, target, rules)
    if recovery_state is not None and recovery_state != state.leader_recovery_state:
        record.leader_recovery_state = recovery_state
    return None if record == PartitionChangeRecord(partition_id=index, topic_id=topic_id) else record


def _complete_reassignment(target: TargetReplicas, isr: tuple[int, ...]) -> tuple[TargetReplicas, tuple[int, ...]]:
    """Complete a reassignment if possible (rule 4); returns the target and the ISR."""
    if not target.adding and not target.removing:
        return target, isr
    staying = tuple(replica for replica in target.replicas if replica not in target.removing)
    staying_isr = tuple(replica for replica in isr if replica not in target.removing)
    required = set(staying) if len(target.adding) < len(target.removing) else set(target.adding) - set(target.removing)
    if target.removing and not (staying and staying_isr):
        return target, isr
    return (TargetReplicas(staying), staying_isr) if required <= set(staying_isr) else (target, isr)


def _set_replicas(
    record: PartitionChangeRecord, state: PartitionState, target: TargetReplicas, rules: TopicRules
) -> None:
    if target.replicas != state.replicas:
        record.replicas = list(target.replicas)
        if state.directories:
            known = dict(zip(state.replicas, state.directories, strict=True))
            directories = [known.get(replica) or rules.new_log_dir(replica) for replica in target.replicas]
            record.directories = directories if directories != list(state.directories) else None
    if target.removing != state.removing:
        record.removing_replicas = list(target.removing)
    if target.adding != state.adding:
        record.adding_replicas = list(target.adding)


def _eligible_leaders(
    state: PartitionState, replicas: tuple[int, ...], isr: tuple[int, ...], rules: TopicRules, unclean_shutdown_id: int
) -> tuple[int, ...]:
    if not rules.has_eligible_leaders or len(isr) >= rules.min_isr:
        return ()
    known = {*state.eligible_leaders, *state.isr} & {*state.replicas} & {*replicas}
    return tuple(sorted(replica for replica in known if replica not in isr and replica != unclean_shutdown_id))


def _elect(
    state: PartitionState,
    replicas: tuple[int, ...],
    isr: tuple[int, ...],
    eligible: tuple[int, ...],
    can_be_leader: LeaderFilter,
    rules: TopicRules,
) -> tuple[int, bool]:
    """The leader (rule 2), and whether the election is unclean."""
    candidates = isr or eligible
    order = (replicas[0], state.leader, *replicas) if rules.prefers_first else (state.leader, *replicas)
    for replica in order:
        if replica in candidates and can_be_leader(replica):
            return replica, False
    last = state.last_known_leaders
    if (
        rules.has_eligible_leaders
        and not candidates
        and len(last) == 1
        and last[0] in replicas
        and can_be_leader(last[0])
    ):
        return last[0], True
    if rules.allows_unclean:
        for replica in replicas:
            if can_be_leader(replica):
                return replica, True
    return NO_LEADER, False


def _set_last_known_leader(record: PartitionChangeRecord, state: PartitionState) -> None:
    """Store the last leader of a leaderless partition; clear it when a leader is elected."""
    if record.leader == NO_LEADER and not state.last_known_leaders:
        record.last_known_elr = [state.leader]
    elif record.leader not in (NO_LEADER, UNCHANGED_LEADER) and state.last_known_leaders:
        record.last_known_elr = []


def is_unclean_election(record: Message) -> bool:
    """Whether a metadata record elects a leader that was not in sync."""
    return isinstance(record, PartitionChangeRecord) and record.leader_recovery_state == RECOVERING
