"""The invariants of coordinators that load a prefix of the journal.

RULES    1. A coordinator that loads a prefix has the state that the writing coordinator had after it.
         2. A partition of a consumer group has one owner. Epochs and generations do not decrease while a group has members.
         3. A prepared transaction completes as decided, with all its offsets or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from broker.coordinators.classic.classic_group import ClassicGroup, State
from broker.coordinators.classic.group_records import CommitKey, OffsetAndMetadata, to_offset_and_metadata
from broker.coordinators.transactions.transaction import PREPARED
from tests.simulation.coordinators.journal import Boundary, Entry, Journal, durable_state
from tests.support.group_harness import ImageHolder, LocalGroupHarness

Offsets = dict[tuple[str, str, int], int]


class GroupProgress(NamedTuple):
    """The epoch or generation of a group, and its number of members."""

    number: int
    members: int


def reloaded(entries: Sequence[Entry], boundary: Boundary, like: LocalGroupHarness) -> LocalGroupHarness:
    """A harness that loads the batches before a boundary; prepared transactions wait for the log."""
    harness = LocalGroupHarness(like.settings, len(like.logs), like.transaction_settings)
    harness.clock.now_mono_ms = boundary.mono_ms
    harness.holder = ImageHolder()
    harness.holder.image.topics_by_name = dict(boundary.topics)
    harness.holder.image.topics_by_id = {topic.topic_id: topic for topic in boundary.topics.values()}
    logs = {"groups": harness.logs, "transactions": harness.transaction_logs}
    for log in harness.transaction_logs:
        log.is_holding = True
    for (kind, index), batch in entries[: boundary.written]:
        logs[kind][index].store(bytearray(batch))
    harness.restart()
    return harness


class Invariants:
    """Checks every boundary of a journal once."""

    def __init__(self, journal: Journal, harness: LocalGroupHarness) -> None:
        self._journal = journal
        self._world = harness
        self._checked = 0
        self._progress: dict[str, GroupProgress] = {}

    def check_all(self) -> None:
        for boundary in self._journal.boundaries[self._checked :]:
            self._check(boundary)
        self._checked = len(self._journal.boundaries)

    def _check(self, boundary: Boundary) -> None:
        harness = reloaded(self._journal.entries, boundary, self._world)
        where = f"after {boundary.written} batches"
        found = durable_state(harness)
        differing = {
            name for name in found.keys() | boundary.known.keys() if found.get(name) != boundary.known.get(name)
        }
        assert not differing, f"{where}: {[(name, boundary.known.get(name), found.get(name)) for name in differing]}"
        _check_owners(harness, where)
        self._check_progress(harness, where)
        _check_decided(harness, where)

    def _check_progress(self, harness: LocalGroupHarness, where: str) -> None:
        progress = _progress(harness)
        for group, before in self._progress.items():
            now = progress.get(group)
            if now is not None and before.members:
                assert now.number >= before.number, f"{where}: {group} went from {before} to {now}"
        self._progress = progress

    def check_offsets(self, acknowledged: Offsets) -> None:
        """At the last boundary, the committed offsets are exactly the acknowledged ones."""
        found: Offsets = {}
        for name, committed in self._journal.boundaries[-1].known.items():
            if name.startswith("offset "):
                _, group, topic, partition = name.split()
                found[group, topic, int(partition)] = committed.offset
        assert found == acknowledged, f"offsets {found} instead of {acknowledged}"


def _progress(harness: LocalGroupHarness) -> dict[str, GroupProgress]:
    found = {}
    for shard in harness.runtime.shards.values():
        for group_id, group in shard.coordinator.classic_groups.items():
            found[group_id] = GroupProgress(group.generation, len(group.members))
        for group_id, consumers in shard.coordinator.consumer_groups.items():
            found[group_id] = GroupProgress(consumers.epoch, len(consumers.members))
    return found


def _check_owners(harness: LocalGroupHarness, where: str) -> None:
    for shard in harness.runtime.shards.values():
        both = shard.coordinator.classic_groups.keys() & shard.coordinator.consumer_groups.keys()
        assert not both, f"{where}: {both} are groups of both kinds"
        for group in shard.coordinator.consumer_groups.values():
            owned = [item for member in group.members.values() for item in member.partitions()]
            assert len(owned) == len(set(owned)), f"{where}: partitions of {group} have several owners"
            for member in group.members.values():
                assert member.epoch <= group.epoch, f"{where}: {member.member_id} is ahead of {group}"


def _check_decided(harness: LocalGroupHarness, where: str) -> None:
    """Prepared transactions complete as decided."""
    machines = [shard.coordinator for shard in harness.transactions.shards.values()]
    decided = [one for machine in machines for one in machine.transactions.values() if one.state in PREPARED]
    if not decided:
        return
    pending = _pending_offsets(harness)
    for log in harness.transaction_logs:
        log.is_holding = False
        log.release()
    harness.advance(1_000)
    for transaction in decided:
        now = next(coordinator.transactions[transaction.transactional_id] for coordinator in machines
                   if transaction.transactional_id in coordinator.transactions)  # fmt: skip
        assert now.state not in PREPARED, f"{where}: {transaction.transactional_id} is decided and does not end"
        assert now.is_commit == transaction.is_commit, f"{where}: {transaction.transactional_id} ended the other way"
        for (producer, key), committed in pending.items():
            if producer == transaction.producer_id and committed is not None and transaction.is_commit:
                stored = durable_state(harness).get("offset {} {} {}".format(*key))
                assert stored == to_offset_and_metadata(committed), (
                    f"{where}: {key} of a committed transaction is {stored}"
                )
    remaining = {producer for producer, _ in _pending_offsets(harness)}
    assert not remaining & {transaction.producer_id for transaction in decided}, (
        f"{where}: offsets of an ended transaction still wait"
    )


def _pending_offsets(harness: LocalGroupHarness) -> dict[tuple[int, CommitKey], OffsetAndMetadata | bytes | None]:
    """The offsets of open transactions, by producer id and partition."""
    return {
        (producer, key): committed
        for shard in harness.runtime.shards.values()
        for producer, pending in shard.coordinator.offsets.open_transactions.by_producer.items()
        for key, (_, committed) in pending.items()
    }


def check_classic_groups(live: LocalGroupHarness, boundary: Boundary, entries: Sequence[Entry]) -> None:
    """A stable classic group is loaded unchanged; another one is not loaded with a later generation."""
    harness = reloaded(entries, boundary, live)
    read = {
        name: group
        for shard in harness.runtime.shards.values()
        for name, group in shard.coordinator.classic_groups.items()
    }
    for shard in live.runtime.shards.values():
        for name, group in shard.coordinator.classic_groups.items():
            again = read.get(name)
            if again is None:
                assert group.state is not State.STABLE, f"{group} is not read back"
            elif group.state is State.STABLE:
                assert _generation_and_assignments(again) == _generation_and_assignments(group), (
                    f"{group} is read back as {again}"
                )
            else:
                assert again.generation <= group.generation, f"{group} is read back as {again}"


def _generation_and_assignments(group: ClassicGroup) -> tuple[object, ...]:
    members = {member.member_id: (member.instance_id, member.assignment) for member in group.members.values()}
    return group.generation, group.protocol_name, group.leader_id, members
