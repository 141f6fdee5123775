"""A machine of the simulated cluster: its disk, its settings, and the process that runs there or does not.

RULES    1. A kill leaves what was written; a loss of power leaves what was synced, and of the rest what a disk may keep.
         2. A machine that crashed owes what it may have lost until it is in sync again everywhere (`owes`).
         3. A follower can keep up: its disk and its answers are not slower than what is written, and than the lag allows.
"""

from __future__ import annotations

from random import Random

from broker.config.broker_config import BrokerConfig, load_config
from tests.simulation.cluster.process import CLIENTS_PORT, CONTROLLERS_PORT, DIRECTORY, HOST, Around, Process
from tests.simulation.file_system import FileSystem
from tests.simulation.simulated_disk import SimulatedDisk

QUICK_MS = 100
"""What the slowest change of a disk takes that keeps up with anything."""


class Machine:
    """What outlives a process."""

    def __init__(self, around: Around, config: BrokerConfig) -> None:
        self._around = around
        self.config = config
        self.node_id = config.node_id
        self.file_system = FileSystem(journals=around.random.random() < 0.5)
        self.file_system.make_directory(DIRECTORY)
        self.file_system.sync_all()
        self.processes = 0
        """Counts starts."""
        self.process: Process | None = None
        self.owes = False
        """Rule 2."""

    @property
    def is_up(self) -> bool:
        """Whether a process runs, or stands still."""
        return self.process is not None

    @property
    def is_armed(self) -> bool:
        """Whether its process is about to crash."""
        return self.process is not None and self.process.disk.fuse is not None

    @property
    def is_running(self) -> bool:
        """Whether it does something now."""
        return self.process is not None and self.process.paused_until_ms <= self._around.now_ms

    def start(self, fuse: int | None = None) -> None:
        """A process begins; before its `fuse`-th change of the disk from now it ends.

        Raises:
            Ended: that was in the start.
        """
        self.processes += 1
        disk = SimulatedDisk(self.file_system, self._around.random)
        disk.fuse = fuse
        self.process = Process(self._around, self.config, disk, self.processes)
        self.process.start()

    def end(self) -> None:
        """The process is gone."""
        if self.process is not None:
            self.process.is_alive = False
        self.process = None

    def crash(self, *, loses_power: bool) -> None:
        """Rule 1."""
        self.end()
        self.owes = True
        if loses_power:
            self.file_system.lose_power(self._around.random)

    def pause(self, duration_ms: int) -> None:
        """The process stands still, and knows nothing of it."""
        if self.process is not None:
            self.process.paused_until_ms = self._around.now_ms + duration_ms


def settings(node_id: int, voters: list[int], given: dict[str, str]) -> BrokerConfig:
    """Of one node."""
    quorum = ",".join(f"{voter}@{HOST}:{CONTROLLERS_PORT + voter}" for voter in voters)
    own = {
        "node.id": str(node_id),
        "process.roles": "broker,controller" if node_id in voters else "broker",
        "controller.quorum.voters": quorum,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{HOST}:{CLIENTS_PORT + node_id}"
        + (f",CONTROLLER://{HOST}:{CONTROLLERS_PORT + node_id}" if node_id in voters else ""),
        "log.dirs": DIRECTORY,
    }
    return load_config(None, {**given, **own})


def drawn(random: Random, slowest_disk_ms: int) -> dict[str, str]:
    """Settings of all nodes of a cluster, short times among them: a history has ten seconds (rule 3)."""
    is_quick = slowest_disk_ms <= QUICK_MS
    return {
        "min.insync.replicas": "2",
        "default.replication.factor": "3",
        "broker.heartbeat.interval.ms": "200",
        "broker.session.timeout.ms": random.choice(("600", "1500")),
        "replica.lag.time.max.ms": random.choice(("400", "1500")) if is_quick else "1500",
        "replica.fetch.wait.max.ms": "300",
        "replica.fetch.backoff.ms": "100",
        "replica.socket.timeout.ms": "600",
        "replica.fetch.response.max.bytes": random.choice(("300", "100000")) if is_quick else "100000",
        "replica.high.watermark.checkpoint.interval.ms": random.choice(("300", "5000")),
        "controller.quorum.election.timeout.ms": "300",
        "controller.quorum.election.backoff.max.ms": "300",
        "controller.quorum.fetch.timeout.ms": "600",
        "controller.quorum.request.timeout.ms": "600",
        "log.flush.scheduler.interval.ms": "1000",
        "metadata.log.max.record.bytes.between.snapshots": random.choice(("1500", "20000000")),
        "metadata.max.retention.bytes": random.choice(("3000", "100000000")),
    }
