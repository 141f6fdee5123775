"""What the active controller does by itself from time to time: elections, and a sign that time passes.

RULES    1. A task is due when its interval has passed since this controller became the active one, or since it was last done;
            at once again when it has done as much as it may at a time.
         2. Leaders go back to the first replica where they can (`auto.leader.rebalance.enable`). Partitions without a leader
            get one that may have lost records, where their topic allows that.
         3. NoOp records tell who reads the metadata that the controller lives. A node alone writes none (design D2).
NOT HERE What an election makes of a partition (`partition_changes.py`), elections that clients ask for
         (`elect_leaders.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from protocol.messages.stored_records import NoOpRecord
from replication.controller.configs.configs import UNCLEAN_ELECTION, setting_of
from replication.controller.decision_context import Environment
from replication.controller.partitions.elections import election
from replication.metadata.feature_levels import partition_version
from replication.metadata.image import NO_LEADER, MetadataImage
from replication.metadata.metadata_records import Versioned
from replication.timer_queue import Deadline, Deadlines

MOST_AT_A_TIME: Final = 1000
"""Elections of one task at a time, as with Apache Kafka."""

Task = Callable[[MetadataImage, Environment], list[Versioned]]


class Intervals(NamedTuple):
    """How often each task is due; None: never."""

    balance_ms: int | None = 300_000
    unclean_ms: int | None = 300_000
    sign_ms: int | None = 500


DEFAULT_INTERVALS: Final = Intervals()


class Recurring:
    """The tasks of one controller, while it is active."""

    def __init__(self, deadlines: Deadlines, mono_ms: Callable[[], int], intervals: Intervals) -> None:
        self._deadlines = deadlines
        self._mono_ms = mono_ms
        self._tasks: list[tuple[Task, int | None]] = [
            (balance_leaders, intervals.balance_ms),
            (elect_unclean, intervals.unclean_ms),
            (give_sign, intervals.sign_ms),
        ]
        self._waiting: dict[Task, Deadline] = {}
        self.do: Callable[[Task], int] = _nothing
        """Writes down what a task wants; how many records that were."""

    def begin(self) -> None:
        """The controller is active."""
        for task, interval_ms in self._tasks:
            if interval_ms is not None:
                self._wait(task, interval_ms, interval_ms)

    def end(self) -> None:
        """It is not any more."""
        for deadline in self._waiting.values():
            deadline.cancel()
        self._waiting.clear()

    def _wait(self, task: Task, delay_ms: int, interval_ms: int) -> None:
        due = partial(self._due, task, interval_ms)
        self._waiting[task] = self._deadlines.schedule(self._mono_ms() + delay_ms, due)

    def _due(self, task: Task, interval_ms: int) -> None:
        waited = self._waiting[task]
        count = self.do(task)
        if self._waiting.get(task) is waited:  # else this controller was deposed by what it did
            self._wait(task, 0 if count >= MOST_AT_A_TIME else interval_ms, interval_ms)


def balance_leaders(image: MetadataImage, environment: Environment) -> list[Versioned]:
    """Leaders back to the preferred replicas that can lead."""
    version = partition_version(image.metadata_version)
    changes = (
        election(image, environment, topic, index, state, prefers_first=True)
        for topic in image.topics_by_id.values()
        for index, state in topic.partitions.items()
        if state.leader != state.replicas[0]
    )
    return [(change, version) for change in islice(filter(None, changes), MOST_AT_A_TIME)]


def elect_unclean(image: MetadataImage, environment: Environment) -> list[Versioned]:
    """Leaders for partitions that have none, where their topics would rather lose records."""
    version = partition_version(image.metadata_version)
    changes = (
        election(image, environment, topic, index, state, allows_unclean=True)
        for topic in image.topics_by_id.values()
        for index, state in topic.partitions.items()
        if state.leader == NO_LEADER and setting_of(image, environment, topic.name, UNCLEAN_ELECTION) == "true"
    )
    return [(change, version) for change in islice(filter(None, changes), MOST_AT_A_TIME)]


def give_sign(image: MetadataImage, environment: Environment) -> list[Versioned]:
    """A record that says nothing, where other nodes read it (rule 3)."""
    others = {*image.brokers, *image.controllers} - {environment.node_id}
    return [(NoOpRecord(), 0)] if others else []


def _nothing(_task: Task) -> int:
    return 0
