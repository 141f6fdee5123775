"""The simulation of the storage engine, with all logs in commit logs: a log manager of the tests chooses that engine.

NOT HERE The operations and the invariants (tests/simulation/storage). Compaction: such topics stay in segments.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

from storage.commitlog.commit_log import CommitLog
from storage.commitlog.commit_log_engine import CommitLogEngine
from storage.commitlog.slots import SlotId
from storage.config.log_config import LogConfig
from storage.directories.log_manager import LogManager
from storage.io.checkpoint_file import PARTITION_METADATA, CorruptCheckpoint, read_topic_id
from storage.log.log import Log
from tests.simulation.storage.operations import Operations
from tests.simulation.storage.simulator import STEPS, Simulation
from tests.simulation.storage.simulator import simulate as simulate_storage

FILE_BYTES = (700, 1200, 4096)


class HeldLock:
    """A lock; while it is held the loop does not run, as it would wait for it."""

    def __init__(self) -> None:
        self.is_held = False

    def __enter__(self) -> None:
        assert not self.is_held, "the lock is not reentrant"
        self.is_held = True

    def __exit__(self, *_: object) -> None:
        self.is_held = False


class CommitLogManager(LogManager):
    """A log manager with a commit log in each log directory."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.commit_logs: dict[str, CommitLog] = {}
        self.locks: list[HeldLock] = []
        self.file_bytes = FILE_BYTES[self._random_bytes(1)[0] % len(FILE_BYTES)]

    def _new_lock(self) -> HeldLock:
        self.locks.append(HeldLock())
        return self.locks[-1]

    def commit_log(self, directory: str) -> CommitLog:
        """The commit log of a log directory."""
        log = self.commit_logs.get(directory)
        if log is None:
            log = self.commit_logs[directory] = CommitLog(
                self._disk,
                directory,
                random_bytes=self._random_bytes,
                new_lock=self._new_lock,
                file_bytes=self.file_bytes,
                open_files=self.file_handles,
            )
            log.submit = lambda op: self.submit(directory, op)
        return log

    def engine_factory(self, directory: str, config: LogConfig) -> CommitLogEngine:
        home, _, name = directory.rpartition("/")
        try:
            topic_id = read_topic_id(self._disk, f"{directory}/{PARTITION_METADATA}") or bytes(16)
        except CorruptCheckpoint:
            topic_id = bytes(
                16
            )  # not durable yet, so nothing was flushed; the topic id is assigned before the first use
        partition = int(name.split(".")[0].rpartition("-")[2])
        return CommitLogEngine(self._disk, self.commit_log(home), SlotId(topic_id, partition), directory, config)

    def _attach(self, log: Log) -> None:
        super()._attach(log)
        if log._is_new:  # frames may have survived a loss of power that took the directory's entry
            self._drop_slot(log)

    def _remove_log(self, log: Log, suffix: str) -> list[str]:
        self._drop_slot(log)
        return super()._remove_log(log, suffix)

    def _drop_slot(self, log: Log) -> None:
        commit_log = self.commit_log(log.directory)
        commit_log.open()
        if log.files.topic_id is not None:
            commit_log.drop(commit_log.slot(SlotId(log.files.topic_id, log.partition)))


class CommitLogOperations(Operations):
    """The operations of logs that stay in their log directory."""

    def run_loop_step(self) -> None:
        manager = self._simulation.manager
        assert isinstance(manager, CommitLogManager)
        if not any(lock.is_held for lock in manager.locks):
            super().run_loop_step()

    def move(self) -> None:
        """Do nothing: a move between log directories needs a SWAP frame (docs/decisions/0093)."""


class CommitLogSimulation(Simulation):
    """Logs in commit logs over many processes."""

    manager_type = CommitLogManager
    operations_type = CommitLogOperations

    def __init__(self, random: Random, steps: int = STEPS, *, is_compacting: bool | None = None) -> None:
        del is_compacting
        super().__init__(random, steps, is_compacting=False)

    def new_config(self) -> LogConfig:
        return replace(super().new_config(), cleanup_policy=frozenset({"delete"}))


simulate = partial(simulate_storage, simulated=CommitLogSimulation, part="-commitlog")
