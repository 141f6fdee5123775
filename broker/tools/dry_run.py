"""Runs the recovery of a start on log directories, without starting a broker.

RULES    1. On the real disk this is a repair; on a dry-run disk it shows what a start or a repair would do.
         2. Corrupt files are renamed to `.corrupt` first, if the caller lists them.
         3. A log with a given recovery point is opened as after a crash, from that offset.
         4. If the metadata are unreadable, a start fails, and so does this, before anything is changed.
NOT HERE Finding issues (check.py); recovery itself (storage, replication/metadata_log/metadata_log.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

from broker.tools.node_identity import Node
from protocol.errors import KafkaError
from replication.io_executor import InlineIoExecutor
from replication.metadata.image import MetadataImage
from replication.metadata.metadata_records import UnreadableMetadata
from replication.metadata_log.metadata_log_check import check_for_loss
from replication.metadata_log.metadata_log_open import open_metadata_log
from replication.metadata_log.metadata_replay import read_metadata
from replication.metadata_log.node_identity import NodeIdentity, UnusableDirectory
from storage.config.log_config import LogConfig, log_config
from storage.directories.log_manager import LogManager
from storage.directories.partition_directory import METADATA_DIRECTORY
from storage.inspection.issues import Issue, Severity
from storage.io.disk import Disk, StorageError
from storage.log.log import Log

CORRUPT = ".corrupt"


class RecoveryRun:
    """One such start."""

    def __init__(self, disk: Disk, node: Node) -> None:
        self._disk = disk
        self._node = node
        self.refusals: list[Issue] = []
        """Why it failed, or which directories went offline."""
        self.ends: dict[str, int] = {}
        """The end offsets of the opened logs by directory."""
        self._configs: dict[str, LogConfig] = {}  # by topic
        self.image: MetadataImage | None = None
        """What the whole local metadata log says: in a quorum of several nodes its end may be uncommitted."""

    def run(
        self,
        *,
        corrupt_files: Iterable[str] = (),
        recovery_points: Mapping[str, int] | None = None,
        directories_to_open: Iterable[str] = (),
    ) -> None:
        """Renames the corrupt files, then recovers the logs.

        `recovery_points` has offsets by partition directory; `directories_to_open` need no recovery, but are opened.
        """
        self.rename_corrupt(corrupt_files)
        if self._node.has_metadata and not self.recover_metadata():
            return
        try:
            self._recover(recovery_points or {}, set(directories_to_open))
        except StorageError as error:
            self._refuse(Severity.REFUSED, error.path, str(error))

    def _refuse(self, severity: Severity, path: str, text: str) -> None:
        self.refusals.append(Issue(severity, path, text))

    def rename_corrupt(self, paths: Iterable[str]) -> None:
        """Renames corrupt files (rule 2)."""
        for path in paths:
            self._disk.rename(path, path + CORRUPT)

    def recover_metadata(self) -> bool:
        """Recovers the metadata log and reads the image; returns whether a start gets that far."""
        node = self._node
        identity = NodeIdentity(node.cluster_id, node.node_id, node.log_directories, node.metadata_directory)
        path = f"{node.metadata_directory}/{METADATA_DIRECTORY}"
        manager = self._manager()
        try:
            found = read_metadata(self._disk, identity)
            check_for_loss(self._disk, identity, found)
            start = open_metadata_log(
                self._disk, manager.engines.create, identity, InlineIoExecutor(), found=found, may_observe=True
            )
        except (UnreadableMetadata, UnusableDirectory, StorageError) as error:
            self._refuse(Severity.REFUSED, path, str(error))
            return False
        except KafkaError as error:
            self._refuse(Severity.REFUSED, path, error.message or error.code.name)
            return False
        self.image = found.image
        self.ends[path] = start.log.next_offset
        start.log.close()
        return True

    def _manager(self) -> LogManager:
        directories = self._node.log_directories
        return LogManager(self._disk, directories, log_config({}, {}), random_bytes=secrets.token_bytes)

    # ---- logs --------------------------------------------------------------------------------------------

    def _recover(self, recovery_points: Mapping[str, int], directories_to_open: set[str]) -> None:
        manager = self._manager()
        manager.load(self._id_of)
        for path, error in manager.offline.items():
            self._refuse(Severity.REFUSED, path, f"It goes offline: {error}")
        epoch = manager.previous_broker_epoch
        for log in list(manager.logs.values()):
            if log.is_offline:  # another log of its directory could not be read
                continue
            if log.path in recovery_points:
                log = _unclean(self._disk, manager, log, recovery_points[log.path])  # noqa: PLW2901
            if not self._is_stray(manager, log) and (log.needs_recovery or log.path in directories_to_open):
                self._open(manager, log)
        manager.shutdown(epoch)

    def _id_of(self, topic: str) -> bytes | None:
        known = None if self.image is None else self.image.topics_by_name.get(topic)
        return None if known is None else known.topic_id

    def _is_stray(self, manager: LogManager, log: Log) -> bool:
        """Compares a log with the metadata as a start does; renames a stray."""
        if self.image is None:
            return False
        topic = self.image.topics_by_name.get(log.topic)
        if topic is None or log.partition not in topic.partitions:
            manager.rename_to_stray(log)
            return True
        try:
            if log.files.topic_id is None:
                log.files.assign_topic_id(topic.topic_id)
            if log.files.topic_id != topic.topic_id:
                manager.rename_to_stray(log)
                return True
        except StorageError as error:
            self._refuse(Severity.REFUSED, error.path, f"Its log directory goes offline: {error}")
            return True
        config = self._configs.get(log.topic)
        if config is None:
            config = self._configs[log.topic] = config_of(self.image, log.topic)
        log.update_config(config)
        return False

    def _open(self, manager: LogManager, log: Log) -> None:
        log.discard_summary()
        try:
            self.ends[log.path] = log.log_end_offset
            log.close()
        except StorageError as error:
            self._refuse(Severity.REFUSED, error.path, f"Its log directory goes offline: {error}")
            manager.go_offline(log.directory, error)
        except KafkaError as error:
            self._refuse(Severity.REFUSED, log.path, error.message or error.code.name)


def config_of(image: MetadataImage, topic: str) -> LogConfig:
    """The config of a topic's logs."""
    return log_config(image.topic_config(topic), {})


def _unclean(disk: Disk, manager: LogManager, log: Log, offset: int) -> Log:
    """The log as if it had not been closed cleanly, with a recovery point."""
    known = log.checkpoint._replace(recovery_point=min(offset, log.checkpoint.recovery_point))
    unclean = Log(
        disk,
        manager.engines.create,
        log.directory,
        log.topic,
        log.partition,
        log.config,
        checkpoint=known,
        is_clean=False,
    )
    key = (log.topic, log.partition)
    manager.logs[key] = manager.directories[log.directory].logs[key] = unclean
    return unclean
