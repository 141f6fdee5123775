"""Due records are delivered exactly once, also with kills, several leaders, lost requests and clocks set back."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.coordinators.delivery.deliverer import Deliverer, Dependencies
from broker.coordinators.delivery.routine import Routine
from broker.coordinators.delivery.transaction_client import SchedulePartition
from protocol.batch_builder import BatchBuilder
from protocol.control_records import ControlType, end_txn_marker
from replication.completion import Completion
from storage.io.disk_lookup import wait_for_disk
from storage.log.log_validator import AppendOrigin
from storage.log.retention import retain
from tests.support.delivery_cluster import DeliveryCluster
from tests.support.replica_harness import NOW_MS, SELF, ReplicaHarness
from tests.support.seeds import seed_of

_HOUR_MS = 3_600_000
_STEPS = 1_500
_FOREIGN_PRODUCER = 99
_MAX_TURNS_IN_FLIGHT = 200


class World:
    """One schedule partition, its deliverers and the rest of the cluster."""

    def __init__(
        self, path: Path, rng: random.Random, *, loss: float, max_queue_bytes: int, **target_config: Any
    ) -> None:
        self.rng = rng
        self.harness = ReplicaHarness(path)
        self.harness.create("target", 3, **{"max_message_bytes": 400, **target_config})
        self.topic_id = self.harness.create("s", barnabas_deliver_to="target", segment_bytes=1 << 20, retention_ms=1)
        self.cluster = DeliveryCluster(rng, loss)
        self.cluster.on_append = self._check_due
        self._soon: deque[Callable[[], None]] = deque()
        self._running: list[tuple[Deliverer, Routine]] = []
        self._max_queue_bytes = max_queue_bytes
        self._greatest_ms = self.harness.wall_ms
        self._sequence = 0
        self.due: dict[int, int] = {}
        """The records that are to be delivered, by offset."""
        self.cancelled: dict[int, int] = {}
        """Offset of a cancelled record, and the turn in which it was cancelled."""
        self._turn = 0
        self._first_appended: dict[int, int] = {}
        self._by_key: dict[bytes, list[int]] = {}
        self.start()

    def wall_ms(self) -> int:
        return self.harness.wall_ms

    def mono_ms(self) -> int:
        return self.harness.mono_ms

    # ---- deliverers

    @property
    def deliverers(self) -> list[Deliverer]:
        """Those that are active."""
        return [deliverer for deliverer, _ in self._running]

    def start(self) -> None:
        """A leader begins; another one may still be active."""
        sleep, pause = self._sleep, self._pause
        dependencies = Dependencies(
            SELF, self.harness.replicas, self, self.cluster.send, sleep, pause, self._max_queue_bytes
        )
        deliverer = Deliverer(SchedulePartition("s", self.topic_id, 0), "target", dependencies)
        routine = Routine(deliverer.run())
        self._running.append((deliverer, routine))
        routine.start()

    def stop(self) -> None:
        """A leader ends at once."""
        if self._running:
            _, routine = self._running.pop(self.rng.randrange(len(self._running)))
            routine.stop()

    def stop_all(self) -> None:
        """No leader is left."""
        while self._running:
            self.stop()

    def _sleep(self, delay_ms: int) -> Completion[None]:
        slept: Completion[None] = Completion()
        self.harness.timers.schedule(self.harness.mono_ms + delay_ms, lambda: slept.complete(None))
        return slept

    def _pause(self) -> Completion[None]:
        paused: Completion[None] = Completion()
        self._soon.append(lambda: paused.complete(None))
        return paused

    def run(self) -> None:
        """One turn of the event loop."""
        self._turn += 1
        for _ in range(len(self._soon)):
            self._soon.popleft()()
        self.cluster.step()
        for deliverer, _ in self._running:
            deliverer.wake_if_ready(self.harness.wall_ms)

    def pass_time(self, milliseconds: int) -> None:
        self.harness.pass_time(milliseconds)
        self._greatest_ms = max(self._greatest_ms, self.harness.wall_ms)

    def keep(self) -> None:
        """Retention runs."""
        if len(self._running) == 1:
            self._running[0][0].release_delivered()
        log = self.harness.partition("s").log
        wait_for_disk(retain, log, self.harness.wall_ms + _HOUR_MS)

    # ---- producers

    def append(self) -> None:
        """A batch of records with different delays, sometimes in a transaction that is aborted."""
        rng, wall_ms = self.rng, self.harness.wall_ms
        is_aborted = rng.random() < 0.15
        options: dict[str, Any] = {}
        if is_aborted:
            options = {"producer_id": _FOREIGN_PRODUCER, "producer_epoch": 0, "base_sequence": self._sequence}
        builder = BatchBuilder(transactional=is_aborted, compression=rng.choice((0, 1)), **options)
        base = self.harness.partition("s").log.log_end_offset
        for number in range(rng.choice((1, 2, 30))):
            offset, key = base + number, b"%d" % rng.randrange(40)
            if rng.random() < 0.1:
                builder.append(wall_ms, key, None)
                if not is_aborted:
                    for older in self._by_key.pop(key, ()):
                        self.cancelled[older] = self._turn
                continue
            due, headers = self._draw_due(wall_ms)
            builder.append(wall_ms, key, b"%d" % offset, headers)
            if not is_aborted:
                self.due[offset] = due
                self._by_key.setdefault(key, []).append(offset)
        self._sequence += builder.count if is_aborted else 0
        origin = AppendOrigin.COORDINATOR
        appended = self.harness.append("s", records=builder.build(), origin=origin)
        assert appended.is_done
        assert appended.error is None
        if is_aborted:
            marker = end_txn_marker(
                ControlType.ABORT,
                producer_id=_FOREIGN_PRODUCER,
                producer_epoch=0,
                coordinator_epoch=0,
                timestamp_ms=wall_ms,
            )
            assert self.harness.append("s", records=marker, origin=origin).error is None

    def _draw_due(self, wall_ms: int) -> tuple[int, tuple[tuple[str, bytes], ...]]:
        delay_ms = self.rng.choice((0, 1, 50, 5_000, 120_000, _HOUR_MS)) + self.rng.randrange(100)
        kind = self.rng.randrange(4)
        if kind == 0:
            return 0, (("other", b"1"),)
        if kind == 1:
            return wall_ms + delay_ms, (("deliver-after", b"%d" % delay_ms),)
        due = wall_ms + self.rng.choice((delay_ms, -delay_ms))
        return due, (("deliver-at", b"%d" % due if kind == 2 else due.to_bytes(8, "big")),)

    # ---- checks

    def _check_due(self, record: object) -> None:
        offset = int(record.value)  # type: ignore[attr-defined]
        assert self.due[offset] <= self._greatest_ms, f"record {offset} is delivered early"
        self._first_appended.setdefault(offset, self._turn)

    def check(self) -> None:
        """At the end, all are delivered exactly once, but cancelled ones at most once."""
        counts = Counter(int(record.value or b"") for _, record in self.cluster.committed)
        assert set(counts) <= set(self.due)
        assert [offset for offset, count in counts.items() if count > 1] == []
        missing = [offset for offset in self.due if not counts[offset] and offset not in self.cancelled]
        assert missing == []
        slow = [self._first_appended.get(offset, 0) - turn for offset, turn in self.cancelled.items()]
        assert max(slow, default=0) < _MAX_TURNS_IN_FLIGHT, "a cancelled record was selected for delivery"


def play(world: World, *, with_faults: bool) -> None:
    rng = world.rng
    for _ in range(_STEPS):
        action = rng.random()
        if action < 0.06:
            world.append()
        elif action < 0.10:
            world.pass_time(rng.choice((1, 20, 300, 7_000, 200_000)))
        elif action < 0.12:
            world.keep()
        elif with_faults and action < 0.13:
            world.start()
        elif with_faults and action < 0.14:
            world.stop()
        elif with_faults and action < 0.145:
            world.harness.wall_ms += rng.choice((-_HOUR_MS, -10_000, 10_000, _HOUR_MS))
            world.pass_time(0)
        else:
            world.run()
    settle(world)


def settle(world: World) -> None:
    """Everything becomes due; one leader remains."""
    world.stop_all()
    world.start()
    for _ in range(40):
        world.pass_time(_HOUR_MS // 4)
        for _ in range(400):
            world.run()
            if world.rng.random() < 0.05:
                world.pass_time(20)
    world.check()


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("max_queue_bytes", [1 << 20, 3_000])
def test_every_due_record_is_delivered_exactly_once_despite_faults(
    tmp_path: Path, number: int, max_queue_bytes: int
) -> None:
    seed = seed_of() + number
    print(f"seed {seed}")
    rng = random.Random(seed)
    play(World(tmp_path, rng, loss=rng.choice((0, 0.02, 0.1)), max_queue_bytes=max_queue_bytes), with_faults=True)


def test_without_faults_records_are_delivered_in_the_order_in_which_they_are_due(tmp_path: Path) -> None:
    seed = seed_of()
    print(f"seed {seed}")
    world = World(tmp_path, random.Random(seed), loss=0, max_queue_bytes=1 << 20)
    for _ in range(50):
        world.append()
    settle(world)
    by_partition: dict[int, list[tuple[int, int]]] = {}
    for partition, record in world.cluster.committed:
        offset = int(record.value or b"")
        by_partition.setdefault(partition, []).append((world.due[offset], offset))
    assert max(world.due.values()) > NOW_MS
    assert all(found == sorted(found) for found in by_partition.values())
