"""Metrics of delayed delivery (broker/coordinators/delivery/delivery_metrics.py)."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from broker.coordinators.delivery.deliverer import Deliverer, Dependencies
from broker.coordinators.delivery.delivery_metrics import DeliveryMetrics
from broker.coordinators.delivery.routine import Routine
from broker.coordinators.delivery.transaction_client import SchedulePartition
from broker.telemetry.exposition import Format
from protocol.batch_builder import BatchBuilder
from replication.completion import Completion, completed
from tests.support.delivery_cluster import DeliveryCluster
from tests.support.replica_harness import NOW_MS, SELF, ReplicaHarness


def test_pending_delivered_and_cancelled_records_and_their_lateness_are_shown(tmp_path: Path) -> None:
    harness = ReplicaHarness(tmp_path)
    harness.create("target")
    topic_id = harness.create("s", barnabas_deliver_to="target")
    cluster = DeliveryCluster(random.Random(1), loss=0)
    clock: Any = SimpleNamespace(wall_ms=lambda: harness.wall_ms, mono_ms=lambda: harness.mono_ms)

    def sleep(_delay_ms: int) -> Completion[None]:
        raise AssertionError("there is no error")

    dependencies = Dependencies(SELF, harness.replicas, clock, cluster.send, sleep, lambda: completed(None))
    deliverer = Deliverer(SchedulePartition("s", topic_id, 0), "target", dependencies)
    builder = BatchBuilder()
    for key, delay_ms in ((b"a", 50), (b"b", 50), (b"c", 10_000)):
        builder.append(NOW_MS, key, b"", [("deliver-after", b"%d" % delay_ms)])
    builder.append(NOW_MS, b"b", None)
    assert harness.append("s", records=builder.build()).error is None
    harness.pass_time(100)
    Routine(deliverer.run()).start()
    while not cluster.is_idle:
        cluster.step()
    manager: Any = SimpleNamespace(deliverers=[deliverer])
    text = "".join(Format("").slices([DeliveryMetrics(manager, lambda: harness.wall_ms)]))
    assert 'barnabas_schedule_pending{topic="s",partition="0"} 1\n' in text
    assert 'barnabas_schedule_delivered_total{topic="s",partition="0"} 1\n' in text
    assert 'barnabas_schedule_cancelled_total{topic="s",partition="0"} 1\n' in text
    assert 'barnabas_schedule_overdue_seconds{topic="s",partition="0"} 0.0\n' in text
    (lateness,) = (
        line for line in text.splitlines() if line.startswith('barnabas_schedule_lateness_seconds{quantile="0.5"}')
    )
    assert 0.02 < float(lateness.split()[1]) < 0.1
