"""What a start does to the logs of its directories, done by the parts that a start has, and no broker after it.

RULES    1. On the real disk this is a repair; on a RehearsalDisk it tells what one would do, or what the next start will.
         2. Files that nobody can understand are set aside first, if that is asked for: renamed, with `.corrupt` behind.
         3. A log that is to be checked from an offset on is opened as after a crash, with that offset as its recovery point.
         4. Where the metadata cannot be read a start ends, and so does this: nothing has been changed then.
NOT HERE What is wrong (check.py); recovery itself (storage, replication/metadata_log/metadata_log.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from broker.tools.node_identity import Node
from protocol.errors import KafkaError
from replication.io_executor import InlineWorker
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_records import UnreadableMetadata
from replication.metadata_log.formatting import METADATA_DIRECTORY, Identity, UnusableDirectory
from replication.metadata_log.metadata_log_check import refuse_a_loss
from replication.metadata_log.metadata_log_open import open_metadata_log
from replication.metadata_log.metadata_replay import read_metadata
from storage.config.log_config import LogConfig, log_config
from storage.directories.log_manager import LogManager
from storage.inspection.dry_run_disk import RehearsalDisk
from storage.inspection.issues import Finding, Severity
from storage.io.disk import Disk, StorageError
from storage.log.log import Log

CORRUPT = ".corrupt"


class RecoveryRun:
    """One such start."""

    def __init__(self, disk: Disk, node: Node) -> None:
        self._disk = disk
        self._node = node
        self.refusals: list[Finding] = []
        """Why it ended, or which directories went out of service."""
        self.ends: dict[str, int] = {}
        """Where the logs end that were opened, by their directories."""
        self.image: MetadataImage | None = None

    def run(
        self, *, set_aside: Iterable[str] = (), check_from: Mapping[str, int] | None = None, look_at: Iterable[str] = ()
    ) -> None:
        """Start.

        Args:
            set_aside: paths of files that nobody can understand.
            check_from: by a partition's directory, the offset from which its log is to be checked.
            look_at: directories of partitions to be opened although nothing says that they must be.
        """
        for path in set_aside:
            self._disk.rename(path, path + CORRUPT)
        if self._node.has_metadata and not self._read_metadata():
            return
        try:
            self._recover(check_from or {}, set(look_at))
        except StorageError as error:
            self._refuse(Severity.REFUSED, error.path, str(error))

    def _refuse(self, severity: Severity, path: str, text: str) -> None:
        self.refusals.append(Finding(severity, path, text))

    def _read_metadata(self) -> bool:
        node = self._node
        identity = Identity(node.cluster_id, node.node_id, node.directory_ids, node.metadata_directory)
        path = f"{node.metadata_directory}/{METADATA_DIRECTORY}"
        manager = self._manager()
        try:
            found = read_metadata(self._disk, identity)
            refuse_a_loss(self._disk, identity, found)
            start = open_metadata_log(
                self._disk, manager.engine_factory, identity, InlineWorker(), found=found, may_observe=True
            )
        except (UnreadableMetadata, UnusableDirectory, StorageError) as error:
            self._refuse(Severity.REFUSED, path, str(error))
            return False
        except KafkaError as error:
            self._refuse(Severity.REFUSED, path, error.message or error.code.name)
            return False
        self.image = start.image
        self.ends[path] = start.log.next_offset
        start.log.close()
        return True

    def _manager(self) -> LogManager:
        directories = self._node.directory_ids
        return LogManager(self._disk, directories, log_config({}, {}), random_bytes=secrets.token_bytes)

    # ---- logs --------------------------------------------------------------------------------------------

    def _recover(self, check_from: Mapping[str, int], look_at: set[str]) -> None:
        manager = self._manager()
        manager.load(self._id_of)
        for path, error in manager.offline.items():
            self._refuse(Severity.REFUSED, path, f"It goes out of service: {error}")
        epoch = manager.previous_broker_epoch
        for log in list(manager.logs.values()):
            if log.path in check_from:
                log = _unclean(self._disk, manager, log, check_from[log.path])  # noqa: PLW2901
            if not self._is_stray(manager, log) and (log.needs_recovery or log.path in look_at):
                self._open(manager, log)
        manager.shutdown(epoch)

    def _id_of(self, topic: str) -> bytes | None:
        known = None if self.image is None else self.image.topics_by_name.get(topic)
        return None if known is None else known.topic_id

    def _is_stray(self, manager: LogManager, log: Log) -> bool:
        """Compare with the metadata as a start does; a log of another topic is set aside."""
        if self.image is None:
            return False
        topic = self.image.topics_by_name.get(log.topic)
        if topic is None or log.partition not in topic.partitions:
            manager.set_aside(log)
            return True
        try:
            if log.topic_id is None:
                log.assign_topic_id(topic.topic_id)
            if log.topic_id != topic.topic_id:
                manager.set_aside(log)
                return True
        except StorageError as error:
            self._refuse(Severity.REFUSED, error.path, f"Its log directory goes out of service: {error}")
            return True
        log.update_config(config_of(self.image, log.topic))
        return False

    def _open(self, manager: LogManager, log: Log) -> None:
        try:
            self.ends[log.path] = log.log_end_offset
            log.close()
        except StorageError as error:
            self._refuse(Severity.REFUSED, error.path, f"Its log directory goes out of service: {error}")
            manager.go_offline(log.directory, error)
        except KafkaError as error:
            self._refuse(Severity.REFUSED, log.path, error.message or error.code.name)


def config_of(image: MetadataImage, topic: str) -> LogConfig:
    """What the logs of a topic obey, as far as the topic says."""
    return log_config(image.topic_config(topic), {})


def _unclean(disk: Disk, manager: LogManager, log: Log, offset: int) -> Log:
    """The log as it would be had it not been closed, durable up to an offset."""
    known = log.checkpoint._replace(recovery_point=min(offset, log.checkpoint.recovery_point))
    unclean = Log(
        disk,
        manager.engine_factory,
        log.directory,
        log.topic,
        log.partition,
        log.config,
        known=known,
        is_clean=False,
    )
    key = (log.topic, log.partition)
    manager.logs[key] = manager.directories[log.directory].logs[key] = unclean
    return unclean


def rehearsed(node: Node) -> tuple[RehearsalDisk, RecoveryRun]:
    """A start that changes nothing."""
    disk = RehearsalDisk()
    return disk, RecoveryRun(disk, node)
