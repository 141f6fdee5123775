"""A machine of the simulated cluster: its disk, its configuration and its process.

RULES    1. A kill keeps what was written. A power loss keeps what was synced, and parts of the rest.
         2. After a crash, a machine may lack records until all its replicas are in sync again (`may_lack_records`).
         3. Followers can keep up: disks and responses are fast enough for the load and for replica.lag.time.max.ms.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from broker.config.broker_config import BrokerConfig
from broker.config.config_loader import load_config
from tests.simulation.cluster.process import CLIENTS_PORT, CONTROLLERS_PORT, DIRECTORY, HOST, Process
from tests.simulation.file_system import FileSystem
from tests.simulation.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from tests.simulation.cluster.simulator import Simulation

QUICK_MS = 100
"""The maximum duration of an operation of a fast disk."""


class Machine:
    """What survives a process."""

    def __init__(self, simulation: Simulation, config: BrokerConfig) -> None:
        self._simulation = simulation
        self.config = config
        self.node_id = config.node_id
        self.file_system = FileSystem(journals=simulation.random.random() < 0.5)
        self.file_system.make_directory(DIRECTORY)
        self.file_system.sync_all()
        self.processes = 0
        """The number of starts."""
        self.process: Process | None = None
        self.may_lack_records = False
        """Whether it crashed and has not caught up since (rule 2)."""

    @property
    def is_up(self) -> bool:
        """Whether a process runs or is paused."""
        return self.process is not None

    @property
    def is_armed(self) -> bool:
        """Whether its process will crash soon."""
        return self.process is not None and self.process.disk.fuse is not None

    @property
    def is_running(self) -> bool:
        """Whether a process runs and is not paused."""
        return self.process is not None and self.process.paused_until_ms <= self._simulation.now_ms

    def start(self, fuse: int | None = None) -> None:
        """Start a process; it ends before its `fuse`-th disk operation.

        Raises:
            ProcessEnded: the process ended during the start.
        """
        self.processes += 1
        disk = SimulatedDisk(self.file_system, self._simulation.random)
        disk.fuse = fuse
        self.process = Process(self._simulation, self.config, disk, self.processes)
        self.process.start()

    def end(self) -> None:
        if self.process is not None:
            self.process.is_alive = False
        self.process = None

    def crash(self, *, loses_power: bool) -> None:
        self.end()
        self.may_lack_records = True
        if loses_power:
            self.file_system.lose_power(self._simulation.random)

    def pause(self, duration_ms: int) -> None:
        if self.process is not None:
            self.process.paused_until_ms = self._simulation.now_ms + duration_ms


def node_config(node_id: int, voters: list[int], common: dict[str, str]) -> BrokerConfig:
    quorum = ",".join(f"{voter}@{HOST}:{CONTROLLERS_PORT + voter}" for voter in voters)
    node_specific = {
        "node.id": str(node_id),
        "process.roles": "broker,controller" if node_id in voters else "broker",
        "controller.quorum.voters": quorum,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{HOST}:{CLIENTS_PORT + node_id}"
        + (f",CONTROLLER://{HOST}:{CONTROLLERS_PORT + node_id}" if node_id in voters else ""),
        "log.dirs": DIRECTORY,
    }
    return load_config(None, {**common, **node_specific})


def random_configs(random: Random, slowest_disk_ms: int) -> dict[str, str]:
    """The configuration that all nodes share, with short timeouts: a simulation takes ten seconds (rule 3)."""
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
