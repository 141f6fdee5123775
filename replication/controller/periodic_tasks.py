"""Periodic tasks of the active controller: elections, NoOp records, expired tokens (Kafka: PeriodicTask).

RULES    1. A task runs one interval after activation, then at its interval; immediately again if it reached its limit.
         2. Preferred replicas become leaders again (`auto.leader.rebalance.enable`). Leaderless partitions elect a replica that
            may have lost records if the topic allows it.
         3. NoOp records let other nodes see that the controller is alive and advance their metadata offset. A single node
            writes none.
         4. Expired delegation tokens are removed (`delegation.token.expiry.check.interval.ms`).
NOT HERE The resulting partition change (`partition_changes.py`), ElectLeaders requests (`elect_leaders.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from protocol.messages.stored_records import NoOpRecord, PartitionChangeRecord
from replication.controller.configs.configs import UNCLEAN_ELECTION, topic_config_value
from replication.controller.configs.delegation_tokens import remove_expired_tokens
from replication.controller.decision_context import DecisionContext
from replication.controller.partitions.elections import leader_change, partitions_of
from replication.metadata.feature_levels import partition_version
from replication.metadata.image import NO_LEADER, MetadataImage
from replication.metadata.metadata_records import Versioned
from replication.timer_queue import Timer, TimerQueue

MAX_ELECTIONS_PER_RUN: Final = 1000
"""The limit of one task run, as in Apache Kafka."""

Task = Callable[[DecisionContext], list[Versioned]]


class TaskIntervals(NamedTuple):
    """The interval of each task; None disables it."""

    leader_balance_ms: int | None = 300_000
    unclean_election_ms: int | None = 300_000
    no_op_ms: int | None = 500
    token_expiry_ms: int | None = None


DEFAULT_INTERVALS: Final = TaskIntervals()


class PeriodicTasks:
    """The periodic tasks of one controller."""

    def __init__(self, timers: TimerQueue, mono_ms: Callable[[], int], intervals: TaskIntervals) -> None:
        self._timers = timers
        self._mono_ms = mono_ms
        self._tasks: list[tuple[Task, int | None]] = [
            (balance_leaders, intervals.leader_balance_ms),
            (elect_unclean, intervals.unclean_election_ms),
            (append_no_op, intervals.no_op_ms),
            (remove_expired_tokens, intervals.token_expiry_ms),
        ]
        self._scheduled: dict[Task, Timer] = {}
        self.run_task: Callable[[Task], int] = lambda _: 0
        """Runs a task and appends its records; returns their number."""

    def activate(self) -> None:
        """Schedule the tasks: the controller became active."""
        for task, interval_ms in self._tasks:
            if interval_ms is not None:
                self._schedule(task, interval_ms, interval_ms)

    def deactivate(self) -> None:
        """Cancel the tasks: the controller is no longer active."""
        for deadline in self._scheduled.values():
            deadline.cancel()
        self._scheduled.clear()

    def _schedule(self, task: Task, delay_ms: int, interval_ms: int) -> None:
        due = partial(self._run, task, interval_ms)
        self._scheduled[task] = self._timers.schedule(self._mono_ms() + delay_ms, due)

    def _run(self, task: Task, interval_ms: int) -> None:
        timer = self._scheduled[task]
        count = self.run_task(task)
        if self._scheduled.get(task) is timer:  # otherwise the task's append ended the leadership
            self._schedule(task, 0 if count >= MAX_ELECTIONS_PER_RUN else interval_ms, interval_ms)


def balance_leaders(context: DecisionContext) -> list[Versioned]:
    """Elect preferred replicas that can lead."""
    changes = (
        leader_change(context, topic, index, state, prefers_first=True)
        for topic, index, state in partitions_of(context.image)
        if state.leader != state.replicas[0] and (state.leader == NO_LEADER or state.replicas[0] in state.isr)
    )
    return _limited(context.image, changes)


def elect_unclean(context: DecisionContext) -> list[Versioned]:
    """Elect leaders for leaderless partitions of topics that allow unclean elections."""
    changes = (
        leader_change(context, topic, index, state, allows_unclean=True)
        for topic, index, state in partitions_of(context.image)
        if state.leader == NO_LEADER and topic_config_value(context, topic.name, UNCLEAN_ELECTION) == "true"
    )
    return _limited(context.image, changes)


def _limited(image: MetadataImage, changes: Iterator[PartitionChangeRecord | None]) -> list[Versioned]:
    version = partition_version(image.metadata_version)
    return [(change, version) for change in islice(filter(None, changes), MAX_ELECTIONS_PER_RUN)]


def append_no_op(context: DecisionContext) -> list[Versioned]:
    """A NoOp record, if other nodes read the log (rule 3)."""
    others = {*context.image.brokers, *context.image.controllers} - {context.node_id}
    return [(NoOpRecord(), 0)] if others else []
