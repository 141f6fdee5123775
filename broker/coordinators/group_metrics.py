"""The groups that this broker coordinates: states, members, committed offsets and lag.

RULES    1. Names are Apache Kafka's for the coordinator, kafka_exporter's for offsets and lag in records, and
            kafka-lag-exporter's for the lag in seconds.
         2. Unknown values have no point. Sums and labels are made in steps.
NOT HERE The lag (`group_lag.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from broker.coordinators.classic.classic_group import State
from broker.coordinators.group_lag import POSITIONS_PER_STEP, GroupLag, Position, Step
from broker.telemetry.families import PAUSE, Families, Family, gauge, gauges, label_text

MAX_GROUPS: Final = 1_000
_BEAN: Final = "kafka_coordinator_group_groupmetadatamanager"
_STATES: Final = (State.PREPARING_REBALANCE, State.COMPLETING_REBALANCE, State.STABLE, State.DEAD, State.EMPTY)


class GroupMetrics:
    """The families of the groups."""

    def __init__(self, lag: GroupLag, cluster_id: str) -> None:
        self._lag = lag
        self._cluster_id = cluster_id

    def prepare(self) -> Iterator[Step]:
        """What the page waits for before it asks for the families."""
        return self._lag.prepare()

    def families(self) -> Families:
        """Of the coordinator, then of the groups."""
        states: Counter[str] = Counter()
        consumer_states: Counter[str] = Counter()
        members: dict[str, int] = {}
        for coordinator in self._lag.coordinators():
            states.update(group.state.value for group in coordinator.classic_groups.values())
            consumer_states.update(group.state.value for group in coordinator.consumer_groups.values())
            for groups in (coordinator.classic_groups, coordinator.consumer_groups):
                members.update((group_id, len(group.members)) for group_id, group in groups.items())
            yield PAUSE
        yield gauge(f"{_BEAN}_numgroups", "Classic groups coordinated here.", states.total())
        for state in _STATES:
            name = f"{_BEAN}_numgroups{state.value.lower()}"
            yield gauge(name, f"Classic groups in the state {state.value}.", states[state.value])
        yield gauges(
            "kafka_server_group_coordinator_metrics_consumer_group_count",
            "Consumer groups (KIP-848) coordinated here, by state.",
            [(label_text(("state", state)), count) for state, count in sorted(consumer_states.items())],
        )
        shown = list(members.items())[:MAX_GROUPS]
        yield gauges(
            "kafka_consumergroup_members",
            "Members of a group.",
            [(label_text(("consumergroup", group_id)), count) for group_id, count in shown],
        )
        yield gauge("barnabas_groups_without_series", "Groups above the limit of series.", len(members) - len(shown))
        yield gauge(
            "barnabas_group_positions_without_series", "Committed offsets above the limit of series.", self._lag.omitted
        )
        yield from self._of_positions(self._lag.positions)

    def _of_positions(self, positions: list[Position]) -> Families:
        labels: list[str] = []
        offsets: dict[str, int] = defaultdict(int)
        lags: dict[str, int] = defaultdict(int)
        for number, one in enumerate(positions, 1):
            group, topic = ("consumergroup", one.group_id), ("topic", one.topic)
            labels.append(label_text(group, topic, ("partition", str(one.partition))))
            together = label_text(group, topic)
            offsets[together] += one.committed
            lags[together] += max(one.lag, 0)
            if number % POSITIONS_PER_STEP == 0:
                yield PAUSE
        name = "kafka_consumergroup"
        yield gauges(
            f"{name}_current_offset",
            "Committed offset.",
            ((text, one.committed) for text, one in zip(labels, positions, strict=True)),
        )
        yield gauges(
            f"{name}_lag",
            "Records below the high watermark that are not committed.",
            ((text, one.lag) for text, one in zip(labels, positions, strict=True) if one.lag >= 0),
        )
        yield gauges(f"{name}_current_offset_sum", "Sum of the committed offsets.", offsets.items())
        yield gauges(f"{name}_lag_sum", "Sum of the lags.", lags.items())
        yield from self._in_seconds(positions)
        yield gauges(
            "barnabas_consumergroup_catch_up_seconds",
            "Seconds until the lag is gone at the present rates; +Inf: it grows.",
            (
                (label_text(("consumergroup", group), ("topic", topic)), seconds)
                for group, topic, seconds in self._lag.catch_up_s()
            ),
        )

    def _in_seconds(self, positions: list[Position]) -> Iterator[Family]:
        known = [(one, one.behind_s) for one in positions if one.behind_s is not None]
        cluster = ("cluster_name", self._cluster_id)
        yield gauges(
            "kafka_consumergroup_group_lag_seconds",
            "Age of the first record that is not committed.",
            (
                (
                    label_text(
                        cluster, ("group", one.group_id), ("topic", one.topic), ("partition", str(one.partition))
                    ),
                    age,
                )
                for one, age in known
            ),
        )
        longest: dict[str, float] = {}
        for one, age in known:
            longest[one.group_id] = max(longest.get(one.group_id, 0.0), age)
        yield gauges(
            "kafka_consumergroup_group_max_lag_seconds",
            "Age of the oldest record that is not committed.",
            ((label_text(cluster, ("group", group_id)), age) for group_id, age in longest.items()),
        )
