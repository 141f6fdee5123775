"""What the coordinators of groups and transactions do: commits, rebalances, loads (Kafka: GroupCoordinatorMetrics).

RULES    1. Names are those of Apache Kafka's MBeans, with "_" for "-". Rates are of the last minute of scrapes; times are in
            milliseconds, since the start of the node.
         2. Apache Kafka's event queue, its batches and its threads have no counterpart: a decision runs at once, on the event
            loop.
NOT HERE The groups themselves (`group_metrics.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from broker.coordinators.factory import Coordinators
from broker.coordinators.runtime.coordinator_runtime import CoordinatorRuntime, ShardState
from broker.process.histograms import Distribution
from broker.telemetry.families import PAUSE, Families, Family, gauge, gauges, label_text
from broker.telemetry.rates import Rate

_GROUPS: Final = "kafka_server_group_coordinator_metrics"
_TRANSACTIONS: Final = "kafka_server_transaction_coordinator_metrics"
_COUNTS: Final = {
    "offset_commit": ("offset_commits", "Committed offsets"),
    "offset_expiration": ("offset_expirations", "Offsets deleted after their retention"),
    "offset_deletion": ("offset_deletions", "Offsets deleted by OffsetDelete"),
    "group_completed_rebalance": ("classic_rebalances", "Completed rebalances of classic groups"),
    "consumer_group_rebalance": ("consumer_rebalances", "New epochs of consumer groups (KIP-848)"),
}
"""The name; the attribute of the counts; the meaning."""
_COMMIT_QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999}


class CoordinatorMetrics:
    """The families of the coordinators."""

    def __init__(self, coordinators: Coordinators, mono_ms: Callable[[], int]) -> None:
        self._coordinators = coordinators
        self._rates = {name: Rate(mono_ms) for name in _COUNTS}

    def families(self) -> Families:
        """Of groups, then of transactions."""
        groups, counts = self._coordinators.groups, self._coordinators.group_counts
        for name, (attribute, meaning) in _COUNTS.items():
            count = getattr(counts, attribute)
            yield gauge(f"{_GROUPS}_{name}_count", f"{meaning}, since the start.", count)
            yield gauge(f"{_GROUPS}_{name}_rate", f"{meaning}, per second.", self._rates[name].per_second(count))
        yield from _of_runtime(_GROUPS, groups)
        yield from _of_runtime(_TRANSACTIONS, self._coordinators.transactions)
        offsets, by_protocol = 0, Counter[str](classic=0, consumer=0)
        for shard in list(groups.shards.values()):
            if shard.state is ShardState.ACTIVE:
                coordinator = shard.coordinator
                by_protocol.update(classic=len(coordinator.classic_groups), consumer=len(coordinator.consumer_groups))
                for topics in list(coordinator.offsets.by_group.values()):
                    offsets += sum(map(len, topics.values()))
                yield PAUSE
        yield gauges(
            f"{_GROUPS}_group_count",
            "Groups coordinated here, by protocol.",
            [(label_text(("protocol", protocol)), count) for protocol, count in by_protocol.items()],
        )
        yield gauge("kafka_coordinator_group_groupmetadatamanager_numoffsets", "Committed offsets.", offsets)


def _of_runtime(bean: str, runtime: CoordinatorRuntime[Any]) -> Iterator[Family]:
    times = runtime.times
    average = times.sum_load_ms / times.loads if times.loads else 0
    yield gauge(f"{bean}_partition_load_time_avg", "Milliseconds to load a partition.", average)
    yield gauge(f"{bean}_partition_load_time_max", "Milliseconds of the slowest load.", times.longest_load_ms)
    states = Counter(shard.state for shard in runtime.shards.values())
    found = {
        "active": states[ShardState.ACTIVE],
        "loading": states[ShardState.LOADING],
        "failed": states[ShardState.CLOSED],
    }
    yield gauges(
        f"{bean}_num_partitions",
        "Partitions coordinated here, by state.",
        [(label_text(("state", state)), count) for state, count in found.items()],
    )
    commits = Distribution([times.commits])
    for suffix, quantile in _COMMIT_QUANTILES.items():
        yield gauge(
            f"{bean}_event_purgatory_time_ms_{suffix}",
            "Milliseconds from the append of a coordinator's records to their commit.",
            commits.quantile_ms(quantile),
        )
