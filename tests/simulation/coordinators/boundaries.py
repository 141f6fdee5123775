"""Coordinators that begin with the first so many batches of a journal, and what must hold of them.

RULES    1. What a coordinator reads back is what the one before it knew when it had written that.
         2. A partition of a consumer group has one owner. No epoch and no generation goes back while a group has members.
         3. A transaction that is decided is completed, with all that it committed or without any of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from broker.coordinators.classic.classic_group import ClassicGroup, State
from broker.coordinators.classic.group_records import committed_of
from broker.coordinators.transactions.transaction import PREPARED
from tests.simulation.coordinators.journal import Entry, Journal, Moment, durable
from tests.support.group_harness import ImageHolder, LocalWorld

Offsets = dict[tuple[str, str, int], int]


class Standing(NamedTuple):
    """How far a group has come."""

    number: int
    members: int


def rebuilt(entries: Sequence[Entry], moment: Moment, like: LocalWorld) -> LocalWorld:
    """A world that reads back the first so many batches; decided transactions wait for the log."""
    world = LocalWorld(like.settings, len(like.logs), like.transaction_settings)
    world.clock.now_mono_ms = moment.mono_ms
    world.holder = ImageHolder()
    world.holder.image.topics_by_name = dict(moment.topics)
    world.holder.image.topics_by_id = {topic.topic_id: topic for topic in moment.topics.values()}
    logs = {"groups": world.logs, "transactions": world.transaction_logs}
    for log in world.transaction_logs:
        log.is_holding = True
    for (kind, index), batch in entries[: moment.written]:
        log = logs[kind][index]
        log.batches.append(batch)
        log.end_offset += int.from_bytes(batch[23:27], "big") + 1  # last offset delta
    world.restart()
    return world


class Boundaries:
    """Looks at every boundary of a journal, once."""

    def __init__(self, journal: Journal, world: LocalWorld) -> None:
        self._journal = journal
        self._world = world
        self._looked_at = 0
        self._standings: dict[str, Standing] = {}

    def check_all(self) -> None:
        """Look at those that have not been looked at."""
        for moment in self._journal.moments[self._looked_at :]:
            self._check(moment)
        self._looked_at = len(self._journal.moments)

    def _check(self, moment: Moment) -> None:
        world = rebuilt(self._journal.entries, moment, self._world)
        where = f"after {moment.written} batches"
        found = durable(world)
        differing = {name for name in found.keys() | moment.known.keys() if found.get(name) != moment.known.get(name)}
        assert not differing, f"{where}: {[(name, moment.known.get(name), found.get(name)) for name in differing]}"
        _check_owners(world, where)
        self._check_standings(world, where)
        _check_decided(world, where)

    def _check_standings(self, world: LocalWorld, where: str) -> None:
        standings = _standings(world)
        for group, before in self._standings.items():
            now = standings.get(group)
            if now is not None and before.members:
                assert now.number >= before.number, f"{where}: {group} went from {before} to {now}"
        self._standings = standings

    def check_offsets(self, acknowledged: Offsets) -> None:
        """The last boundary has what was acknowledged, and nothing else."""
        found: Offsets = {}
        for name, committed in self._journal.moments[-1].known.items():
            if name.startswith("offset "):
                _, group, topic, partition = name.split()
                found[group, topic, int(partition)] = committed.offset
        assert found == acknowledged, f"offsets {found} instead of {acknowledged}"


def _standings(world: LocalWorld) -> dict[str, Standing]:
    found = {}
    for shard in world.runtime.shards.values():
        for group_id, group in shard.machine.groups.items():
            found[group_id] = Standing(group.generation, len(group.members))
        for group_id, consumers in shard.machine.consumer_groups.items():
            found[group_id] = Standing(consumers.epoch, len(consumers.members))
    return found


def _check_owners(world: LocalWorld, where: str) -> None:
    for shard in world.runtime.shards.values():
        both = shard.machine.groups.keys() & shard.machine.consumer_groups.keys()
        assert not both, f"{where}: {both} are groups of both kinds"
        for group in shard.machine.consumer_groups.values():
            owned = [one for member in group.members.values() for one in member.partitions()]
            assert len(owned) == len(set(owned)), f"{where}: partitions of {group} have several owners"
            for member in group.members.values():
                assert member.epoch <= group.epoch, f"{where}: {member.member_id} is ahead of {group}"


def _check_decided(world: LocalWorld, where: str) -> None:
    """Let decided transactions go on, and see that each ends as it was decided."""
    machines = [shard.machine for shard in world.transactions.shards.values()]
    decided = [known for machine in machines for known in machine.transactions.values() if known.state in PREPARED]
    if not decided:
        return
    pending = {
        (producer, key): committed
        for shard in world.runtime.shards.values()
        for producer, one in shard.machine.offsets.open_transactions.items()
        for key, committed in one.items()
    }
    for log in world.transaction_logs:
        log.is_holding = False
        log.release()
    world.advance(1_000)
    for known in decided:
        now = next(machine.transactions[known.transactional_id] for machine in machines
                   if known.transactional_id in machine.transactions)  # fmt: skip
        assert now.state not in PREPARED, f"{where}: {known.transactional_id} is decided and does not end"
        assert now.is_commit == known.is_commit, f"{where}: {known.transactional_id} ended the other way"
        for (producer, key), committed in pending.items():
            if producer == known.producer_id and committed is not None and known.is_commit:
                stored = durable(world).get("offset {} {} {}".format(*key))
                assert stored == committed_of(committed), f"{where}: {key} of a committed transaction is {stored}"
    left = {
        producer
        for shard in world.runtime.shards.values()
        for producer, one in shard.machine.offsets.open_transactions.items()
        if one
    }
    assert not left & {known.producer_id for known in decided}, f"{where}: offsets of an ended transaction still wait"


def check_classic_groups(live: LocalWorld, moment: Moment, entries: Sequence[Entry]) -> None:
    """A classic group that has its assignments is read back as it is; no other is read back in a later generation."""
    world = rebuilt(entries, moment, live)
    read = {name: group for shard in world.runtime.shards.values() for name, group in shard.machine.groups.items()}
    for shard in live.runtime.shards.values():
        for name, group in shard.machine.groups.items():
            again = read.get(name)
            if again is None:
                assert group.state is not State.STABLE, f"{group} is not read back"
            elif group.state is State.STABLE:
                assert _said(again) == _said(group), f"{group} is read back as {again}"
            else:
                assert again.generation <= group.generation, f"{group} is read back as {again}"


def _said(group: ClassicGroup) -> tuple[object, ...]:
    members = {member.member_id: (member.instance_id, member.assignment) for member in group.members.values()}
    return group.generation, group.protocol_name, group.leader_id, members
