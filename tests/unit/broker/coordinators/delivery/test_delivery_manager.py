"""What a deliverer leaves when it ends (broker/coordinators/delivery/delivery_manager.py)."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.coordinators.delivery.delivery_manager import DeliveryManager
from protocol.batch_builder import BatchBuilder
from protocol.messages.stored_records import ConfigRecord, RemoveTopicRecord
from protocol.schema import Message
from replication.metadata.image import MetadataDelta, ResourceType
from tests.support.delivery_cluster import DeliveryCluster
from tests.support.replica_harness import NOW_MS, SELF, ReplicaHarness


class Managed:
    """The manager of a broker with a schedule topic."""

    def __init__(self, path: Path) -> None:
        self.harness = harness = ReplicaHarness(path)
        self.cluster = DeliveryCluster(random.Random(1), loss=0)
        clock: Any = SimpleNamespace(wall_ms=lambda: harness.wall_ms, mono_ms=lambda: harness.mono_ms)
        self.manager = DeliveryManager(
            SELF, harness.replicas, harness.timers, clock, lambda call: call(), self.cluster.send
        )
        harness.create("target")
        self.topic_id = harness.create("s", barnabas_deliver_to="target")
        self.manager.on_metadata_update(MetadataDelta.from_empty(harness.image), harness.image)

    def change(self, record: Message) -> None:
        """A change of the metadata."""
        harness = self.harness
        harness.image, changes = harness.image.apply([record], offset=harness.image.offset + 1, epoch=1)
        for _ in harness.replicas.apply(harness.image, changes, harness.mono_ms):
            pass
        self.manager.on_metadata_update(changes, harness.image)

    def begin_delivery(self) -> None:
        """Append a record, and stop within the transaction that delivers it."""
        builder = BatchBuilder()
        builder.append(NOW_MS, b"k", b"0")
        assert self.harness.append("s", records=builder.build()).error is None
        while not self.cluster.has_transaction:
            self.cluster.step()
            if self.cluster.is_idle:
                self.harness.pass_time(20)


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_delivery_that_ends_within_a_transaction_aborts_it(tmp_path: Path, *, is_deleted: bool) -> None:
    """An open transaction would hold back the readers of committed records until its timeout."""
    managed = Managed(tmp_path)
    managed.begin_delivery()
    if is_deleted:
        managed.change(RemoveTopicRecord(topic_id=managed.topic_id))
    else:
        managed.change(
            ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="s", name="barnabas.deliver.to", value=None)
        )
    while not managed.cluster.is_idle:
        managed.cluster.step()
    assert not managed.cluster.has_transaction
    assert managed.cluster.committed == []
