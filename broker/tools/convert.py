"""`barnabas convert`: moves the partitions of a stopped node to the other storage engine, in place.

RULES    1. The directories are locked; so a running broker keeps the conversion out.
         2. The plan is made on a disk that keeps all changes in memory. Nothing is changed for `--dry-run`, or if space is
            missing.
         3. Partitions are converted in small groups, each completely or not at all (storage/directories/conversion.py).
            After a stop the same command converts the rest.
         4. Exit status: 0 everything is converted, 1 a partition could not be converted, 2 nothing was begun.
NOT HERE The command line (commands.py), the sentences of the report (convert_report.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker.tools.dry_run import RecoveryRun
from broker.tools.node_identity import CannotCheck, Node, check_user, log_dir_paths, read_identity
from protocol.errors import KafkaError
from replication.metadata.image import MetadataImage
from replication.metadata_log.node_identity import UnusableDirectory
from storage.config.log_config import COMMIT_LOG, STORAGE_ENGINE, log_config
from storage.directories.conversion import GROUP_BYTES, Conversion
from storage.directories.log_directory import LogDirectory, lock_directories
from storage.directories.log_manager import LogManager
from storage.directories.partition_directory import STRAY
from storage.inspection.commit_log_files import partition_text
from storage.inspection.dry_run_disk import DryRunDisk
from storage.io.disk import Disk, StorageError
from storage.log.log import Log

EXIT_CONVERTED, EXIT_FAILURES, EXIT_NOT_BEGUN = 0, 1, 2

_SEGMENT_OVERHEAD: Final = 32 * 1024
"""Bytes of a segment's indexes and snapshot, at most, and of a partition's other files."""

Progress = Callable[[int, int, int, int], None]
"""Called with the numbers of converted partitions and of all, and with their bytes."""


class CannotConvert(Exception):
    """Nothing was begun; the message is a sentence."""


class Order(NamedTuple):
    """What to convert."""

    directories: Sequence[str]
    """All log directories of the node, and that of its metadata log."""
    engine: str
    """`segments` or `commitlog`."""
    topics: Collection[str] = ()
    """Only these; empty: all."""
    settings: Mapping[str, str] = {}  # never modified
    """The broker's own settings as texts, by name."""
    commit_log_file_bytes: int | None = None
    """The size of new files of a commit log; None: the default."""


class PlannedLog(NamedTuple):
    """A partition to convert."""

    directory: str
    topic: str
    partition: int
    size: int
    """Bytes of its batches."""
    segments: int

    @property
    def name(self) -> str:
        """The partition."""
        return f"{self.topic}-{self.partition}"


@dataclass(slots=True)
class Plan:
    """What a conversion will do."""

    engine: str
    logs: list[PlannedLog] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)
    """Name of a partition that stays as it is, and why."""
    remaining: dict[str, int] = field(default_factory=dict)
    """By log directory, the partitions that will still be in its commit log."""
    strays: dict[str, list[str]] = field(default_factory=dict)
    """By log directory, the directories of strays whose records are in its commit log, and the ids of others there."""
    named: list[str] = field(default_factory=list)
    """The topics to convert whose own setting names the other engine: a start of the broker converts them back."""
    missing: dict[str, int] = field(default_factory=dict)
    """By log directory, the bytes of free space that are missing."""

    @property
    def size(self) -> int:
        """The bytes of all batches to convert."""
        return sum([log.size for log in self.logs])


@dataclass(slots=True)
class Outcome:
    """What a conversion did."""

    plan: Plan
    converted: list[PlannedLog] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    """Name of a partition that could not be converted, and the error."""
    cancelled_moves: list[str] = field(default_factory=list)
    """The partitions that were moving to another log directory."""
    is_dry_run: bool = False

    @property
    def status(self) -> int:
        """The exit status."""
        if self.plan.missing:
            return EXIT_NOT_BEGUN
        return EXIT_FAILURES if self.failures else EXIT_CONVERTED


def run_convert(order: Order, *, is_dry_run: bool, progress: Progress, wall_ms: int) -> Outcome:
    """Convert the partitions of a stopped node.

    Raises:
        CannotConvert: these are not log directories, a broker uses them, or they are unreadable.
    """
    disk = Disk()
    try:
        paths = log_dir_paths(disk, order.directories)
        node = read_identity(disk, paths)
        if not is_dry_run:
            check_user(paths)
    except (CannotCheck, UnusableDirectory, StorageError) as error:
        raise CannotConvert(str(error)) from None
    with ExitStack() as stack:
        try:
            for lock in lock_directories(disk, paths):
                stack.callback(lock.release)
        except StorageError as error:
            raise CannotConvert(f"{error} Stop the broker first.") from None
        try:
            return _run_convert(disk, node, order, is_dry_run=is_dry_run, progress=progress, wall_ms=wall_ms)
        except StorageError as error:
            raise CannotConvert(str(error)) from None


def _run_convert(
    disk: Disk, node: Node, order: Order, *, is_dry_run: bool, progress: Progress, wall_ms: int
) -> Outcome:
    image = _read_image(DryRunDisk(), node, order.engine)
    plan = _Node(DryRunDisk(), node, order, image, wall_ms).plan()
    outcome = Outcome(plan, is_dry_run=is_dry_run)
    if not is_dry_run and not plan.missing:
        _read_image(disk, node, order.engine)
        _Node(disk, node, order, image, wall_ms).convert(outcome, progress)
    return outcome


def _read_image(disk: Disk, node: Node, engine: str) -> MetadataImage | None:
    """The metadata, after a recovery of their log: the directories will be marked as shut down cleanly."""
    if not node.has_metadata:
        if engine == COMMIT_LOG:
            raise CannotConvert(
                "The metadata log is in none of these directories: which topics are compacted is unknown."
            )
        return None
    run = RecoveryRun(disk, node)
    if not run.recover_metadata():
        raise CannotConvert(f"The metadata are unreadable: {run.refusals[0].text} Run barnabas doctor.")
    return run.image


class _Node:
    """The logs of the node, on the real disk or on that of a dry run."""

    def __init__(self, disk: Disk, node: Node, order: Order, image: MetadataImage | None, wall_ms: int) -> None:
        self._order = order
        self._image = image
        self._defaults = {**order.settings, **(image.topic_defaults(node.node_id) if image is not None else {})}
        defaults = log_config({}, self._defaults)
        self._manager = LogManager(disk, node.log_directories, defaults, random_bytes=secrets.token_bytes)
        self._manager.load(self._id_of)
        for error in self._manager.offline.values():
            raise error
        if order.commit_log_file_bytes is not None:
            self._manager.commit_logs.file_bytes = order.commit_log_file_bytes
        self._conversion = Conversion(self._manager, order.engine, wall_ms)

    def _id_of(self, topic: str) -> bytes | None:
        known = None if self._image is None else self._image.topics_by_name.get(topic)
        return None if known is None else known.topic_id

    def _topic_config(self, topic: str) -> Mapping[str, str]:
        return {} if self._image is None else self._image.topic_config(topic)

    # ---- the plan ----------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """What will be done; on the disk of a dry run. Raises CannotConvert."""
        order, plan = self._order, Plan(self._order.engine)
        self._check_topics()
        self._conversion.discard_copies()
        for directory, log_dir in self._manager.directories.items():
            for log in log_dir.logs.values():
                self._configure(log)
            due = [log for log in log_dir.logs.values() if self._conversion.is_due(log)]
            chosen = [log for log in due if self._is_chosen(log, plan)]
            usage = self._manager.disk_usage(directory, chosen)
            usage.run()
            logs = [
                PlannedLog(directory, log.topic, log.partition, usage.sizes[log.path], usage.segments[log.path])
                for log in chosen
            ]
            plan.logs += logs
            plan.remaining[directory] = len(due) - len(chosen) if order.engine != COMMIT_LOG else 0
            if order.engine != COMMIT_LOG:
                plan.strays[directory] = self._strays(log_dir)
            needed = self._needed_bytes(logs)
            if needed > usage.usable_bytes:
                plan.missing[directory] = needed - usage.usable_bytes
        topics = {log.topic for log in plan.logs}
        plan.named = sorted(
            topic for topic in topics if self._topic_config(topic).get(STORAGE_ENGINE, order.engine) != order.engine
        )
        plan.logs.sort(key=lambda log: (log.directory, log.topic, log.partition))
        return plan

    def _check_topics(self) -> None:
        known = {topic for topic, _ in self._manager.logs}
        if self._image is not None:
            known.update(self._image.topics_by_name)
        if unknown := sorted(set(self._order.topics) - known):
            raise CannotConvert(f"There is no topic {unknown[0]}.")

    def _configure(self, log: Log) -> None:
        topic_id = self._id_of(log.topic)
        if log.files.topic_id is None and topic_id is not None:
            log.files.assign_topic_id(topic_id)
        log.update_config(log_config(self._topic_config(log.topic), self._defaults))

    def _is_chosen(self, log: Log, plan: Plan) -> bool:
        if self._order.topics and log.topic not in self._order.topics:
            return False
        reason = self._conversion.why_not(log)
        if self._manager.logs[log.topic, log.partition] is not log:
            reason = "is in two log directories, and a start of Barnabas removes the log of the deleted topic"
        if reason is not None:
            plan.left.append((log.name, reason))
        return reason is None

    def _strays(self, log_dir: LogDirectory) -> list[str]:
        """The directories, or else the ids, of partitions in a commit log that are not in service."""
        paths = [f"{log_dir.path}/{name}" for name in log_dir.names if name.endswith(STRAY)]
        names = {slot_id[:2]: path for path in paths if (slot_id := self._manager.engines.slot_id_at(path)) is not None}
        unused = self._manager.engines.unused_slots(log_dir.path, log_dir.logs.values())
        return [names.get(slot_id[:2]) or f"{log_dir.path}: {partition_text(slot_id)}" for slot_id in unused]

    def _needed_bytes(self, logs: Sequence[PlannedLog]) -> int:
        """The free space that the conversion of the logs of one log directory needs."""
        if not logs:
            return 0
        new_files = self._manager.commit_logs.new_files_bytes
        if self._order.engine == COMMIT_LOG:  # the segments of a group are deleted before the next one is converted
            sizes = [log.size for log in logs]
            return min(max(sizes) + GROUP_BYTES, sum(sizes)) + new_files
        return sum([log.size + log.size // 100 + (1 + log.segments) * _SEGMENT_OVERHEAD for log in logs]) + new_files

    # ---- the conversion ----------------------------------------------------------------------------------

    def convert(self, outcome: Outcome, progress: Progress) -> None:
        """Do what is planned, and shut down cleanly; after a failure of the disk nothing more."""
        manager, plan = self._manager, outcome.plan
        epoch = manager.previous_broker_epoch
        outcome.cancelled_moves = self._conversion.discard_copies()
        done, total, copied = 0, plan.size, list[PlannedLog]()
        for number, planned in enumerate(plan.logs):
            log = manager.logs[planned.topic, planned.partition]
            try:
                self._configure(log)
                for size in self._conversion.copy(log):
                    done += size
                    progress(number, len(plan.logs), done, total)
                copied.append(planned)
            except KafkaError as error:
                outcome.failures.append((planned.name, error.message or error.code.name))
            except StorageError as error:
                outcome.failures.append((planned.name, str(error)))
                break
            if self._conversion.has_full_group and not self._replace(copied, outcome):
                break
            progress(number + 1, len(plan.logs), done, total)
        else:
            self._replace(copied, outcome)
        manager.shutdown(epoch)

    def _replace(self, copied: list[PlannedLog], outcome: Outcome) -> bool:
        """Replace the logs that are copied; returns whether the disk has not failed."""
        try:
            self._conversion.replace_copied()
        except StorageError as error:
            outcome.failures += [(planned.name, str(error)) for planned in copied]
            return False
        outcome.converted += copied
        copied.clear()
        return True
