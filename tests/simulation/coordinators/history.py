"""One life of groups and transactions, by its seed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import Any

from broker.coordinators.classic.classic_protocol import GroupSettings
from broker.coordinators.consumer_group_config import ConsumerGroupSettings
from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.coordinators.transactions.transaction_coordinator import TRANSACTIONS_TOPIC
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    DeleteGroupsRequest,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.simulation.coordinators.actors import TOPICS, Actor, ClassicClient, ConsumerClient, Told, Transactor
from tests.simulation.coordinators.boundaries import Boundaries, check_classic_groups
from tests.simulation.coordinators.journal import Journal
from tests.simulation.running import Failure
from tests.support.group_harness import TRANSACTIONS_PARTITIONS, LocalWorld

_log = logging.getLogger("barnabas")

GROUPS = ("g", "h")
OFFSETS_PARTITIONS = 2


class History:
    """Some clients, each at its turn; every boundary is looked at when it is reached."""

    def __init__(self, dice: Random, steps: int) -> None:
        self._dice, self._steps = dice, steps
        consumer = ConsumerGroupSettings(assignment_interval_ms=dice.choice([0, 1_000]))
        self.world = LocalWorld(
            GroupSettings(initial_rebalance_delay_ms=dice.choice([0, 3_000]), consumer=consumer), OFFSETS_PARTITIONS
        )
        self.journal = Journal()
        self.journal.watch(self.world)
        self.world.create_topic(OFFSETS_TOPIC, OFFSETS_PARTITIONS)
        self.world.create_topic(TRANSACTIONS_TOPIC, TRANSACTIONS_PARTITIONS)
        for topic, partitions in TOPICS.items():
            self.world.create_topic(topic, partitions)
        self.told = Told()
        self._boundaries = Boundaries(self.journal, self.world)
        self._actors = list(self._make_actors())

    def _make_actors(self) -> list[Actor]:
        world, dice, told = self.world, self._dice, self.told
        actors: list[Actor] = [Actor(world, dice, told, "admin", group) for group in GROUPS]
        for group in GROUPS:
            for number in range(dice.randint(0, 3)):
                instance = f"i{number}" if dice.random() < 0.3 else None
                actors.append(ClassicClient(world, dice, told, f"c{number}{group}", group, instance))
            for number in range(dice.randint(0, 3)):
                instance = f"j{number}" if dice.random() < 0.3 else None
                actors.append(ConsumerClient(world, dice, told, f"m{number}{group}", group, instance))
        count = dice.randint(0, 3)
        return [
            *actors,
            *(Transactor(world, dice, told, f"tx{number}", dice.choice(GROUPS)) for number in range(count)),
        ]

    def run(self) -> None:
        """Live, and look at every boundary."""
        for _ in range(self._steps):
            self._step()
            self.journal.look()
            self._boundaries.check_all()
            self._check_shares()
            if self.journal.moments:
                self._boundaries.check_offsets(self.told.offsets)
                if self._dice.random() < 0.2:
                    check_classic_groups(self.world, self.journal.moments[-1], self.journal.entries)

    def _check_shares(self) -> None:
        """No two consumers of a group work on the same partition."""
        for group in GROUPS:
            held: set[tuple[bytes, int]] = set()
            for one in self._actors:
                if isinstance(one, ConsumerClient) and one.group == group and one.is_member:
                    assert not held & one.held, f"{one.name} works on what another works on: {held & one.held}"
                    held |= one.held

    def _step(self) -> None:
        rare: list[tuple[float, Callable[[], None]]] = [
            (0.03, self._restart),
            (0.02, self._delete_group),
            (0.02, self._delete_offsets),
            (0.04, self._fail),
            (0.07, self._wait),
        ]
        drawn = self._dice.random()
        for share, act in rare:
            drawn -= share
            if drawn < 0:
                act()
                return
        self._dice.choice(self._actors).act()

    # ---- what is rare

    def _restart(self) -> None:
        self.journal.look()
        self.world.restart()

    def _wait(self) -> None:
        self.world.advance(self._dice.choice([1, 500, 500, 5_000, 5_000, 20_000, 50_000]))

    def _fail(self) -> None:
        """A client acts while the logs refuse."""
        logs = self.world.logs + self.world.transaction_logs
        for log in logs:
            log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
        actor = self._dice.choice(self._actors)
        if not isinstance(actor, Transactor):  # what becomes of those is asked for again and again
            actor.act()
        for log in logs:
            log.refusal = None

    def _delete_group(self) -> None:
        group = self._dice.choice(GROUPS)
        answer: Any = self.world.ask(DeleteGroupsRequest(groups_names=[group]), 2)
        if not answer.results[0].error_code:
            self.told.forgotten(group)

    def _delete_offsets(self) -> None:
        group, topic = self._dice.choice(GROUPS), self._dice.choice(list(TOPICS))
        partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in range(TOPICS[topic])]
        request = OffsetDeleteRequest(
            group_id=group, topics=[OffsetDeleteRequestTopic(name=topic, partitions=partitions)]
        )
        answer: Any = self.world.ask(request, 0)
        if not answer.error_code and not answer.topics[0].partitions[0].error_code:
            self.told.forgotten(group, topic)


def play(seed: int, steps: int = 120) -> Failure | None:
    """Why a history fails; None when everything holds."""
    level, _log.level = _log.level, logging.ERROR  # refusals are part of it
    history = History(Random(seed), steps)
    try:
        history.run()
    except AssertionError as error:
        what = f"seed {seed}, after {len(history.journal.entries)} batches: {error}"
        return Failure("sim-coordinators", seed, what)
    finally:
        _log.level = level
    return None
