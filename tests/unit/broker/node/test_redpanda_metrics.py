"""Redpanda's names on the metrics page (broker/node/redpanda_metrics.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from broker.coordinators.group_metrics import MAX_GROUPS
from broker.node.redpanda_metrics import RedpandaMetrics
from broker.telemetry.exposition import Format
from broker.telemetry.request_metrics import RequestMetrics
from replication.metadata.image import MetadataImage
from replication.partition.topic_counts import BrokerCounts


def test_groups_above_the_limit_have_no_series() -> None:
    groups = {f"g{number}": SimpleNamespace(members={}) for number in range(MAX_GROUPS + 1)}
    coordinator = SimpleNamespace(classic_groups=groups, consumer_groups={"other": SimpleNamespace(members={})})
    lag: Any = SimpleNamespace(positions=[], coordinators=lambda: [coordinator])
    replicas: Any = SimpleNamespace(counts=BrokerCounts(), partitions={}, image=MetadataImage("cluster"))
    log_dirs: Any = SimpleNamespace(spaces={})
    page = "".join(Format("").slices([RedpandaMetrics(replicas, RequestMetrics(), lag, log_dirs)]))
    assert page.count("redpanda_kafka_consumer_group_consumers{") == MAX_GROUPS
