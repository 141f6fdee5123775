"""Replicas and leaders of partitions: move replicas, list moves, elect leaders.

RULES    1. A plan of replicas is balanced: each broker gets as many replicas and as many preferred leaders as the others, and
            a partition's replicas are on brokers of different racks while there are any. It only depends on its arguments.
         2. A broker without a replica remembers the log directory that it is asked for, and creates the replica there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kafka.protocol.admin.cluster import AlterReplicaLogDirsRequest
from kafka.protocol.admin.topics import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)

from barnabas.admin.client import Client
from barnabas.admin.errors import Refused, check, refusal
from barnabas.admin.topic_arrays import by_topic, topic_array
from barnabas.client.topic_partition import TopicPartition

PREFERRED, UNCLEAN = 0, 1
"""Kinds of election: the first replica if it is in sync; any live replica, which may lose records."""
NOT_NEEDED = "ELECTION_NOT_NEEDED"
_NOT_NEEDED_CODE = 84
_REPLICA_NOT_AVAILABLE = 9


class Reassignment(NamedTuple):
    """A partition that moves: all its replicas now, those that are added, those that will be removed."""

    topic: str
    partition: int
    replicas: list[int]
    adding: list[int]
    removing: list[int]


class Election(NamedTuple):
    """The result of an election: `elected`, or NOT_NEEDED when the leader is that replica already."""

    topic: str
    partition: int
    result: str


def list_reassignments(client: Client) -> list[Reassignment]:
    """Returns the partitions whose replicas move now. Raises Refused."""
    request = ListPartitionReassignmentsRequest(topics=None, timeout_ms=int(client.timeout_s * 1000))
    response = client.ask_controller(request)
    check(response.error_code, response.error_message, "list reassignments", "Describe on the cluster")
    return sorted(
        Reassignment(
            topic.name,
            part.partition_index,
            list(part.replicas),
            list(part.adding_replicas),
            list(part.removing_replicas),
        )
        for topic in response.topics or ()
        for part in topic.partitions
    )


def reassign(client: Client, wanted: Mapping[TopicPartition, Sequence[int] | None]) -> dict[TopicPartition, Refused]:
    """Starts to move replicas to these brokers; None cancels the move of a partition.

    Returns:
        The partitions that are refused; the others have started.

    Raises:
        Refused: the whole request is.
    """
    kinds: Any = AlterPartitionReassignmentsRequest.ReassignableTopic

    def item(tp: TopicPartition) -> Any:
        return kinds.ReassignablePartition(partition_index=tp.partition, replicas=_listed(wanted[tp]))

    topics = topic_array(kinds, wanted, item)
    request = AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=int(client.timeout_s * 1000))
    response = client.ask_controller(request)
    check(response.error_code, response.error_message, "move replicas", "Alter on the cluster")
    refused = {}
    for topic in response.responses:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if part.error_code:
                action = f"{'cancel the move' if wanted.get(tp) is None else 'move replicas'} of {tp}"
                refused[tp] = refusal(part.error_code, part.error_message, action, "Alter on the cluster")
    return refused


def choose_directories(client: Client, broker: int, wanted: Mapping[TopicPartition, str]) -> None:
    """Starts to move a broker's replicas to these of its log directories (rule 2). Raises Refused: the first error."""
    kinds: Any = AlterReplicaLogDirsRequest.AlterReplicaLogDir
    dirs = []
    for path in sorted(set(wanted.values())):
        found = by_topic(tp for tp, chosen_path in wanted.items() if chosen_path == path)
        topics = [kinds.AlterReplicaLogDirTopic(name=topic, partitions=numbers) for topic, numbers in found.items()]
        dirs.append(kinds(path=path, topics=topics))
    for topic in client.ask(AlterReplicaLogDirsRequest(dirs=dirs), broker).results:
        for part in topic.partitions:
            tp = TopicPartition(topic.topic_name, part.partition_index)
            if part.error_code != _REPLICA_NOT_AVAILABLE:
                action = f"move {tp} to {wanted.get(tp)} of broker {broker}"
                check(part.error_code, None, action, "Alter on the cluster")


def _listed(brokers: Sequence[int] | None) -> list[int] | None:
    return None if brokers is None else list(brokers)


def elect(
    client: Client, partitions: Iterable[TopicPartition] | None, kind: int = PREFERRED
) -> tuple[list[Election], list[Refused]]:
    """Elects leaders of these partitions; None: of all, and rows are only those that changed.

    Returns:
        The rows, and the errors of partitions that are refused.

    Raises:
        Refused: the whole request is.
    """
    topics: Any = None
    if partitions is not None:
        topics = [
            ElectLeadersRequest.TopicPartitions(topic=topic, partitions=numbers)
            for topic, numbers in by_topic(partitions).items()
        ]
    request = ElectLeadersRequest(election_type=kind, topic_partitions=topics, timeout_ms=int(client.timeout_s * 1000))
    response = client.ask_controller(request)
    check(response.error_code, None, "elect leaders", "Alter on the cluster")
    rows, refused = [], []
    for topic in response.replica_election_results:
        for part in topic.partition_result:
            tp = TopicPartition(topic.topic, part.partition_id)
            if part.error_code and part.error_code != _NOT_NEEDED_CODE:
                action = f"elect a leader of {tp}"
                refused.append(refusal(part.error_code, part.error_message, action, "Alter on the cluster"))
            else:
                rows.append(Election(*tp, NOT_NEEDED if part.error_code else "elected"))
    return sorted(rows), refused


def balanced_plan(
    current: Mapping[TopicPartition, Sequence[int]], brokers: Mapping[int, str | None], replicas: int | None = None
) -> dict[TopicPartition, list[int]]:
    """Returns new replicas for these partitions (rule 1), moving as few as it can.

    Args:
        current: The replicas of each partition now.
        brokers: The brokers that may have replicas, with their racks.
        replicas: The replication factor; None: each partition keeps its number.
    """
    counts = {tp: len(held) if replicas is None else replicas for tp, held in current.items()}
    plan = {tp: _kept(current[tp], brokers, counts[tp]) for tp in sorted(current)}
    load = Counter(dict.fromkeys(brokers, 0))
    load.update(broker for kept in plan.values() for broker in kept)
    for tp, kept in plan.items():
        while len(kept) < counts[tp]:
            racks = Counter(brokers[broker] for broker in kept)
            free = [broker for broker in brokers if broker not in kept]
            kept.append(min(free, key=lambda broker: (racks[brokers[broker]], load[broker], broker)))
            load[kept[-1]] += 1
    _level(load, _other_replicas(plan, current, brokers))
    leads = Counter(dict.fromkeys(brokers, 0))
    leads.update(kept[0] for kept in plan.values())
    _level(leads, _other_leaders(plan))
    return plan


def _kept(held: Sequence[int], brokers: Mapping[int, str | None], count: int) -> list[int]:
    """At most `count` replicas that stay, on different racks."""
    kept: list[int] = []
    distinct = min(count, len(set(brokers.values())))
    for broker in held:
        racks = {brokers[other] for other in kept}
        if broker in brokers and len(kept) < count and (brokers[broker] not in racks or len(racks) >= distinct):
            kept.append(broker)
    return kept


_Change = Callable[[int, int], Iterator[None]]
"""Makes one change after the other that takes something from the first broker and gives it to the second."""


def _level(load: Counter[int], changes: _Change) -> None:
    """Takes from brokers with more and gives to those with less, while that is possible and a pair differs by two or more.

    First only down to the share of each broker, so that nothing is moved twice.
    """
    share = -(-load.total() // max(1, len(load)))
    for floor in (share, 0):
        is_changed = True
        while is_changed:
            is_changed = False
            for full in sorted(load, key=lambda broker: -load[broker]):
                for low in sorted(load, key=lambda broker: load[broker]):
                    made = changes(full, low)
                    while load[full] - load[low] >= 2 and load[full] > floor and next(made, made) is None:
                        load[full], load[low], is_changed = load[full] - 1, load[low] + 1, True


def _other_replicas(
    plan: Mapping[TopicPartition, list[int]],
    current: Mapping[TopicPartition, Sequence[int]],
    brokers: Mapping[int, str | None],
) -> _Change:
    """Replaces a replica, as long as no partition is on fewer racks than before; first where nothing more is copied."""

    def changes(full: int, low: int) -> Iterator[None]:
        for copies in (False, True):
            for tp, kept in plan.items():
                if full not in kept or low in kept or copies != (full in current[tp] and low not in current[tp]):
                    continue
                others = {brokers[broker] for broker in kept if broker != full}
                if brokers[full] in others or brokers[low] not in others:
                    kept[kept.index(full)] = low
                    yield

    return changes


def _other_leaders(plan: Mapping[TopicPartition, list[int]]) -> _Change:
    """Makes another replica the first one, which is the preferred leader."""

    def changes(full: int, low: int) -> Iterator[None]:
        for kept in plan.values():
            if kept[0] == full and low in kept:
                kept.insert(0, kept.pop(kept.index(low)))
                yield

    return changes
