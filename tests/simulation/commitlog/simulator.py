"""The simulation of the storage engine, with most logs in commit logs of small files.

In the histories of every fifth seed a flush is a round of all logs, so that zeros are written ahead of the frames.

NOT HERE The operations and the invariants (tests/simulation/storage). Compaction: such topics stay in segments.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

import storage.commitlog.zeroing
from storage.config.log_config import LogConfig
from storage.directories.log_manager import LogManager
from storage.log.log import Log
from storage.segments.segment_engine import SegmentEngine
from tests.simulation.held_lock import HeldLock
from tests.simulation.runner import Failure
from tests.simulation.simulated_disk import SimulatedDisk
from tests.simulation.storage.operations import Operations
from tests.simulation.storage.simulator import STEPS, Simulation
from tests.simulation.storage.simulator import simulate as simulate_storage

FILE_BYTES = (700, 1200, 4096)
ENGINES = ("commitlog",) * 7 + ("segments",)
MAX_DEAD_MS = 2_000
ZEROING_SEEDS = 5
ZEROS = {"STEP_BYTES": 600, "_PIECE_BYTES": 80, "_SYNCED_BYTES": 200}
"""Small limits for these files."""


class SmallFilesManager(LogManager):
    """A log manager whose commit logs have small files."""

    def __init__(self, disk: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(disk, *args, **kwargs)
        self.locks: list[HeldLock] = []
        self._simulated_disk: SimulatedDisk = disk
        self.commit_logs.new_lock = self.engines.new_lock = self._new_lock
        self.commit_logs.file_bytes = FILE_BYTES[self._random_bytes(1)[0] % len(FILE_BYTES)]

    def _new_lock(self) -> HeldLock:
        self.locks.append(HeldLock(self._simulated_disk))
        return self.locks[-1]


class CommitLogOperations(Operations):
    """Operations that wait for the locks of commit logs: while one is held, the loop does not run."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self._all += [self.clean, self.settle]
        self._all_weights += [8, 6]

    def run_loop_step(self) -> None:
        manager = self._simulation.manager
        assert isinstance(manager, SmallFilesManager)
        if not any(lock.is_held for lock in manager.locks):
            super().run_loop_step()

    def clean(self) -> None:
        """Clean a commit log in the background."""
        simulation = self._simulation
        manager = simulation.manager
        assert isinstance(manager, SmallFilesManager)
        directory = self._random.choice(list(simulation.directories))
        if directory not in manager.directories:
            return
        is_full = self._random.random() < 0.3
        steps = manager.commit_logs.clean(directory, simulation.now_ms, MAX_DEAD_MS, is_full=is_full)
        if steps is None:
            return

        def work() -> None:
            for _ in steps:
                pass

        simulation.queues.push("background", directory, work, simulation.on_result(directory))

    def settle(self) -> None:
        """Settle old files of a commit log in the background, in several jobs: others run between them."""
        simulation = self._simulation
        manager = simulation.manager
        directory = self._random.choice(list(simulation.directories))
        if directory not in manager.directories:
            return
        steps = manager.commit_logs.settle(directory, simulation.now_ms, lambda: False)
        if steps is None:
            return

        def work() -> None:
            if next(steps, None) is not None and simulation.manager is manager:
                push()

        def push() -> None:
            simulation.queues.push("background", directory, work, simulation.on_result(directory))

        push()

    def new_place(self, log: Log) -> tuple[str, LogConfig] | None:
        """Another log directory, or the other engine in the same one."""
        found = super().new_place(log)
        if found is None or self._simulation.random.random() < 0.5:
            engine = "commitlog" if isinstance(log.open().engine, SegmentEngine) else "segments"
            return log.directory, replace(log.config, barnabas_storage_engine=engine)
        return found


class CommitLogSimulation(Simulation):
    """Logs in commit logs over many processes."""

    manager_type = SmallFilesManager
    operations_type = CommitLogOperations

    def __init__(
        self, random: Random, steps: int = STEPS, *, is_compacting: bool | None = None, is_slow: bool = False
    ) -> None:
        del is_compacting
        super().__init__(random, steps, is_compacting=False, is_slow=is_slow)

    def new_config(self) -> LogConfig:
        engine = self.random.choice(ENGINES)
        return replace(super().new_config(), cleanup_policy=frozenset({"delete"}), barnabas_storage_engine=engine)


class ZeroingOperations(CommitLogOperations):
    """Operations with rounds."""

    def flush(self) -> None:
        """Flush a log; a round of each commit log begins."""
        super().flush()
        for commit_log in list(self._simulation.manager.commit_logs.by_directory.values()):
            commit_log.begin_round()


class ZeroingSimulation(CommitLogSimulation):
    """Logs in commit logs that have zeros ahead of their frames."""

    operations_type = ZeroingOperations


def simulate(seed: int, steps: int = STEPS) -> Failure | None:
    """Run the simulation of a seed; None if all invariants hold."""
    simulated = CommitLogSimulation if seed % ZEROING_SEEDS else ZeroingSimulation
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ZEROS.items():
            patch.setattr(storage.commitlog.zeroing, name, value)
        return simulate_storage(seed, steps=steps, simulated=simulated, part="-commitlog")
