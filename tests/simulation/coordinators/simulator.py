"""Simulation of group and transaction coordinators with their clients."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import Any

from broker.coordinators.group_config import ConsumerGroupSettings, GroupSettings
from broker.coordinators.group_coordinator import OFFSETS_TOPIC
from broker.coordinators.transactions.transaction_coordinator import TRANSACTIONS_TOPIC
from protocol.errors import ErrorCode
from protocol.messages import groups
from tests.simulation.coordinators.clients import (
    TOPICS,
    Acknowledged,
    ClassicClient,
    Client,
    ConsumerClient,
    Transactor,
)
from tests.simulation.coordinators.invariants import Invariants, check_classic_groups
from tests.simulation.coordinators.journal import Journal
from tests.simulation.runner import Failure, log_level
from tests.support.group_harness import TRANSACTIONS_PARTITIONS, LocalGroupHarness
from tests.support.messages import message

GROUPS = ("g", "h")
OFFSETS_PARTITIONS = 2


class Simulation:
    """Clients act in turn; each batch boundary is checked when it is reached."""

    def __init__(self, random: Random, steps: int) -> None:
        self._random, self._steps = random, steps
        consumer = ConsumerGroupSettings(assignment_interval_ms=random.choice([0, 1_000]))
        self.harness = LocalGroupHarness(
            GroupSettings(initial_rebalance_delay_ms=random.choice([0, 3_000]), consumer=consumer), OFFSETS_PARTITIONS
        )
        self.journal = Journal()
        self.journal.watch(self.harness)
        self.harness.create_topic(OFFSETS_TOPIC, OFFSETS_PARTITIONS)
        self.harness.create_topic(TRANSACTIONS_TOPIC, TRANSACTIONS_PARTITIONS)
        for topic, partitions in TOPICS.items():
            self.harness.create_topic(topic, partitions)
        self.acknowledged = Acknowledged()
        self._invariants = Invariants(self.journal, self.harness)
        self._clients = self._make_clients()

    def _make_clients(self) -> list[Client]:
        harness, random, acknowledged = self.harness, self._random, self.acknowledged
        actors: list[Client] = [Client(harness, random, acknowledged, "admin", group) for group in GROUPS]
        for group in GROUPS:
            for number in range(random.randint(0, 3)):
                instance = f"i{number}" if random.random() < 0.3 else None
                actors.append(ClassicClient(harness, random, acknowledged, f"c{number}{group}", group, instance))
            for number in range(random.randint(0, 3)):
                instance = f"j{number}" if random.random() < 0.3 else None
                actors.append(ConsumerClient(harness, random, acknowledged, f"m{number}{group}", group, instance))
        actors += [
            Transactor(harness, random, acknowledged, f"tx{number}", random.choice(GROUPS))
            for number in range(random.randint(0, 3))
        ]
        return actors

    def run(self) -> None:
        """Run all steps and check the invariants after each."""
        for _ in range(self._steps):
            self._step()
            self.journal.record_boundary()
            self._invariants.check_all()
            self._check_assignments()
            if self.journal.boundaries:
                self._invariants.check_offsets(self.acknowledged.offsets)
                if self._random.random() < 0.2:
                    check_classic_groups(self.harness, self.journal.boundaries[-1], self.journal.entries)

    def _check_assignments(self) -> None:
        """Two consumers of a group never own the same partition."""
        for group in GROUPS:
            held: set[tuple[bytes, int]] = set()
            for item in self._clients:
                if isinstance(item, ConsumerClient) and item.group == group and item.is_member:
                    assert not held & item.held, f"{item.name} works on what another works on: {held & item.held}"
                    held |= item.held

    def _step(self) -> None:
        operations: list[tuple[float, Callable[[], None]]] = [
            (0.03, self._restart),
            (0.02, self._delete_group),
            (0.02, self._delete_offsets),
            (0.04, self._fail),
            (0.07, self._wait),
        ]
        drawn = self._random.random()
        for share, act in operations:
            drawn -= share
            if drawn < 0:
                act()
                return
        self._random.choice(self._clients).act()

    # ---- rare operations

    def _restart(self) -> None:
        self.journal.record_boundary()
        self.harness.restart()

    def _wait(self) -> None:
        self.harness.advance(self._random.choice([1, 500, 500, 5_000, 5_000, 20_000, 50_000]))

    def _fail(self) -> None:
        """A client acts while the logs reject appends."""
        logs = self.harness.logs + self.harness.transaction_logs
        for log in logs:
            log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
        client = self._random.choice(self._clients)
        if not isinstance(client, Transactor):  # a transactional producer would retry forever
            client.act()
        for log in logs:
            log.refusal = None

    def _delete_group(self) -> None:
        group = self._random.choice(GROUPS)
        answer: Any = self.harness.ask(groups.DeleteGroupsRequest(groups_names=[group]), 2)
        if not answer.results[0].error_code:
            self.acknowledged.deleted(group)

    def _delete_offsets(self) -> None:
        group, topic = self._random.choice(GROUPS), self._random.choice(list(TOPICS))
        partitions = [{"partition_index": index} for index in range(TOPICS[topic])]
        topics = [{"name": topic, "partitions": partitions}]
        request = message(groups.OffsetDeleteRequest, group_id=group, topics=topics)
        answer: Any = self.harness.ask(request, 0)
        if not answer.error_code and not answer.topics[0].partitions[0].error_code:
            self.acknowledged.deleted(group, topic)


def simulate(seed: int, steps: int = 120) -> Failure | None:
    """Run the simulation of a seed; None if all invariants hold."""
    simulation = Simulation(Random(seed), steps)
    try:
        with log_level(logging.ERROR):
            simulation.run()
    except AssertionError as error:
        summary = f"seed {seed}, after {len(simulation.journal.entries)} batches: {error}"
        return Failure(f"make sim-coordinators SEED={seed}", summary)
    return None
