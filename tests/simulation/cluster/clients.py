"""Who creates topics and writes to them, as clients of a simulated cluster, and what they were told.

RULES    1. A value is written once, to whoever leads its partition, or says so; acknowledged is what every replica in sync has.
         2. Clients are near their broker: what goes wrong between them is not played.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.admin import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.records import BatchBuilder
from replication.partition.partition import ACKS_ALL, ACKS_LEADER, Partition
from storage.log.log import AppendInfo
from tests.simulation.cluster.process import Process

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

TOPIC = "t"
ATTEMPT_MS = 500
PEACE_PACE_MS = 100


class Clients:
    """All of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._values = count()
        self.partitions = world.random.choice((1, 2, 3))
        self._pace_ms = world.random.choice((20, 100, 300))
        """How much time there is between two batches, at the most."""
        self.is_created = False
        self.is_writing = True
        self.acknowledged = 0

    # ------------------------------------------------------------ topics
    def create(self) -> None:
        """Ask for the topic until it is there."""
        world = self._world
        if self.is_created:
            return
        running = [machine.process for machine in world.machines.values() if machine.process is not None]
        process = world.random.choice(running) if running else None
        if process is not None and process.life.epoch >= 0:
            replicas = min(3, len(world.machines))
            topic = CreatableTopic(
                name=TOPIC, num_partitions=self.partitions, replication_factor=replicas, assignments=[], configs=[]
            )
            request = CreateTopicsRequest(topics=[topic], timeout_ms=ATTEMPT_MS, validate_only=False)
            process.do(lambda: process.channel.submit(request, wall_ms=process.wall_ms(), reply=self._created))
        world.after(ATTEMPT_MS, self.create)

    def _created(self, answer: CreateTopicsResponse) -> None:
        if answer.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self.is_created = True

    # ------------------------------------------------------------ records
    def write(self) -> None:
        """Write something, and again in some time."""
        world = self._world
        if not self.is_writing:
            return
        leaders = self._leaders(world.random.randrange(self.partitions))
        if leaders:  # clients of one that is cut off do not know that there is another
            process, partition = world.random.choice(leaders)
            process.do(lambda: self._append(process, partition))
        world.after(world.random.randrange(1, self._pace_ms), self.write)

    def slow_down(self) -> None:
        """Write no more than a little."""
        self._pace_ms = max(self._pace_ms, PEACE_PACE_MS)

    def _leaders(self, index: int) -> list[tuple[Process, Partition]]:
        found = []
        for machine in self._world.machines.values():
            process = machine.process
            partition = None if process is None else process.replicas.partitions.get((TOPIC, index))
            if process is not None and partition is not None and partition.is_leader:
                found.append((process, partition))
        return found

    def _append(self, process: Process, partition: Partition) -> None:
        random = self._world.random
        acks = ACKS_ALL if random.random() < 0.8 else ACKS_LEADER
        builder = BatchBuilder()
        for _ in range(random.choice((1, 1, 3))):
            builder.append(process.wall_ms(), None, b"%d" % next(self._values))

        def done(code: ErrorCode, info: AppendInfo | None, _: KafkaError | None) -> None:
            if code == ErrorCode.NONE and acks == ACKS_ALL:
                assert info is not None
                self.acknowledged += 1
                self._world.checks.acknowledged(process.node_id, partition.key, info.last_offset)

        process.replicas.append(
            TOPIC, partition.index, builder.build(), acks=acks, wall_ms=process.wall_ms(), done=done
        )
