"""Clients of the simulated cluster: they create the topic and write to it.

RULES    1. Each value is written once, to a node that considers itself the leader. Acknowledged records are on all replicas in
            the ISR.
         2. Faults between clients and their broker are not simulated.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from protocol.batch_builder import BatchBuilder
from protocol.errors import ErrorCode
from protocol.messages.admin import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from replication.completion import Completion
from replication.partition.partition import ACKS_ALL, ACKS_LEADER, Partition
from storage.log.append_pipeline import AppendInfo
from tests.simulation.cluster.process import Process

if TYPE_CHECKING:
    from tests.simulation.cluster.simulator import Simulation

TOPIC = "t"
ATTEMPT_MS = 500
RECOVERY_PACE_MS = 100


class Clients:
    """All clients."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._values = count()
        self.partitions = simulation.random.choice((1, 2, 3))
        self._max_pause_ms = simulation.random.choice((20, 100, 300))
        """The maximum time between two batches."""
        self.is_created = False
        self.is_writing = True
        self.acknowledged = 0

    # ------------------------------------------------------------ topics
    def create(self) -> None:
        """Create the topic; retry until it exists."""
        simulation = self._simulation
        if self.is_created:
            return
        running = [machine.process for machine in simulation.machines.values() if machine.process is not None]
        process = simulation.random.choice(running) if running else None
        if process is not None and process.lifecycle.epoch >= 0:
            replicas = min(3, len(simulation.machines))
            topic = CreatableTopic(
                name=TOPIC, num_partitions=self.partitions, replication_factor=replicas, assignments=[], configs=[]
            )
            request = CreateTopicsRequest(topics=[topic], timeout_ms=ATTEMPT_MS, validate_only=False)
            process.do(lambda: process.channel.submit(request).then(self._created))
        simulation.after(ATTEMPT_MS, self.create)

    def _created(self, created: Completion[CreateTopicsResponse]) -> None:
        if created.result().topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self.is_created = True

    # ------------------------------------------------------------ records
    def write(self) -> None:
        """Write a batch, and schedule the next one."""
        simulation = self._simulation
        if not self.is_writing:
            return
        leaders = self._leaders(simulation.random.randrange(self.partitions))
        if leaders:  # clients of an isolated leader do not know the new one
            process, partition = simulation.random.choice(leaders)
            process.do(lambda: self._append(process, partition))
        simulation.after(simulation.random.randrange(1, self._max_pause_ms), self.write)

    def reduce_load(self) -> None:
        self._max_pause_ms = max(self._max_pause_ms, RECOVERY_PACE_MS)

    def _leaders(self, index: int) -> list[tuple[Process, Partition]]:
        found = []
        for machine in self._simulation.machines.values():
            process = machine.process
            partition = None if process is None else process.replicas.partitions.get((TOPIC, index))
            if process is not None and partition is not None and partition.is_leader:
                found.append((process, partition))
        return found

    def _append(self, process: Process, partition: Partition) -> None:
        random = self._simulation.random
        acks = ACKS_ALL if random.random() < 0.8 else ACKS_LEADER
        builder = BatchBuilder()
        for _ in range(random.choice((1, 1, 3))):
            builder.append(process.wall_ms(), None, b"%d" % next(self._values))

        def on_append(append: Completion[AppendInfo]) -> None:
            if append.error is None and acks == ACKS_ALL:
                self.acknowledged += 1
                self._simulation.invariants.acknowledged(process.node_id, partition.key, append.value.last_offset)

        append = process.replicas.appender.append(
            TOPIC, partition.index, builder.build(), acks=acks, wall_ms=process.wall_ms()
        )
        append.then(on_append)
