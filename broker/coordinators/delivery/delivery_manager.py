"""Runs a deliverer for each schedule partition that this broker leads.

RULES    1. The deliverers follow from the metadata image: topic, leader epoch and target. A change of one of them ends a
            deliverer and starts another one. A transaction of the one that ended is aborted, unless the broker stops: then
            the next leader, or the timeout, does that.
         2. Every tick the manager wakes the deliverers that wait and have something to do. Without schedule partitions there
            is no tick.
NOT HERE What a deliverer does (`deliverer.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from broker.coordinators.delivery.deliverer import Deliverer, Dependencies
from broker.coordinators.delivery.routine import Routine
from broker.coordinators.delivery.transaction_client import SchedulePartition
from broker.coordinators.transactions.remote_verification import SendToBroker
from protocol.errors import KafkaError
from replication.completion import Completion
from replication.cooperative_tasks import CallSoon
from replication.metadata.image import MetadataDelta, MetadataImage, ResourceType
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import Clock, Timer, TimerQueue
from storage.config.log_config import DELIVER_TO

_TICK_MS: Final = 20
_KEEP_EVERY_TICKS: Final = 250
"""Every five seconds retention may delete what was delivered."""


class _Running(NamedTuple):
    """A deliverer and its steps."""

    leader_epoch: int
    deliverer: Deliverer
    routine: Routine


class DeliveryManager:
    """The deliverers of this broker: starts, wakes and stops them."""

    def __init__(
        self,
        broker_id: int,
        replicas: ReplicaManager,
        timers: TimerQueue,
        clock: Clock,
        call_soon: CallSoon,
        send: SendToBroker,
    ) -> None:
        """`send` sends a request to a broker of the cluster, this one included."""
        self._broker_id = broker_id
        self._replicas = replicas
        self._timers = timers
        self._clock = clock
        self._dependencies = Dependencies(
            broker_id, replicas, clock, send, self._sleep, partial(_completed_soon, call_soon)
        )
        self._running: dict[tuple[str, int], _Running] = {}
        self._topics: set[str] = set()
        self._tick: Timer | None = None
        self._ticks = 0
        self._is_closed = False

    @property
    def deliverers(self) -> list[Deliverer]:
        """Those of the schedule partitions that this broker leads."""
        return [running.deliverer for running in self._running.values()]

    def on_metadata_update(self, changes: MetadataDelta, image: MetadataImage) -> None:
        """Apply a new image; call it after the replica manager has."""
        names = {image.topics_by_id[topic_id].name for topic_id in changes.partitions}
        names.update(name for kind, name in changes.configs if kind == ResourceType.TOPIC)
        names.update(topic.name for topic in changes.removed_topics.values())
        for name in names:
            target = image.topic_config(name).get(DELIVER_TO, "") if name in image.topics_by_name else ""
            if target or name in self._topics:
                self._update(name, target, image)
        if self._running and self._tick is None:
            self._schedule_tick()

    def close(self) -> None:
        """End all deliverers."""
        self._is_closed = True
        for key in list(self._running):
            self._stop(key)
        if self._tick is not None:
            self._tick.cancel()

    def _update(self, name: str, target: str, image: MetadataImage) -> None:
        led: dict[tuple[str, int], int] = {}
        if target and not self._is_closed:
            self._topics.add(name)
            for index, state in image.topics_by_name[name].partitions.items():
                if state.leader == self._broker_id:
                    led[name, index] = state.leader_epoch
        else:
            self._topics.discard(name)
        topic = image.topics_by_name.get(name)
        for key in [key for key in self._running if key[0] == name]:
            running = self._running[key]
            of_same_topic = topic is not None and running.deliverer.partition.topic_id == topic.topic_id
            is_same = led.get(key) == running.leader_epoch and running.deliverer.target == target
            if not (of_same_topic and is_same):
                self._stop(key)
        for key, leader_epoch in led.items():
            if key not in self._running and topic is not None:
                partition = SchedulePartition(name, topic.topic_id, key[1])
                deliverer = Deliverer(partition, target, self._dependencies)
                running = self._running[key] = _Running(leader_epoch, deliverer, Routine(deliverer.run()))
                running.routine.start()

    def _stop(self, key: tuple[str, int]) -> None:
        running = self._running.pop(key)
        running.routine.stop()
        if not self._is_closed:
            Routine(running.deliverer.abandon()).start()
        partition = self._replicas.partitions.get(key)
        if partition is not None:
            partition.log.keep_from = 0

    def _schedule_tick(self) -> None:
        self._tick = self._timers.schedule(self._clock.mono_ms() + _TICK_MS, self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        self._ticks += 1
        wall_ms = self._clock.wall_ms()
        for running in list(self._running.values()):
            try:
                running.deliverer.wake_if_ready(wall_ms)
                if self._ticks % _KEEP_EVERY_TICKS == 0:
                    running.deliverer.release_delivered()
            except KafkaError:
                continue  # offline or just moved: an image will stop the deliverer, and its steps get the same error
        if self._running:
            self._schedule_tick()

    def _sleep(self, delay_ms: int) -> Completion[None]:
        slept: Completion[None] = Completion()
        self._timers.schedule(self._clock.mono_ms() + delay_ms, lambda: slept.complete(None))
        return slept


def _completed_soon(call_soon: Callable[[Callable[[], None]], object]) -> Completion[None]:
    paused: Completion[None] = Completion()
    call_soon(lambda: paused.complete(None))
    return paused
