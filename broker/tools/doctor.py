"""`barnabas doctor`: checks the log directories of a stopped node, shows what a start would do, and repairs.

RULES    1. The directories are locked, except with --read-only; so a running broker keeps the doctor out.
         2. The next start is predicted by a dry run of it; a repair is a start that checks more.
         3. A repair does not run if the start after it would fail. After a repair everything is checked again.
         4. Exit status: 0 only notes, 1 issues (also if they were repaired and a loss remains visible), 2 nothing could be
            checked.
NOT HERE Checks (check.py), starts (dry_run.py), the report (doctor_report.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from broker.tools.check import DirectoryCheck, Progress
from broker.tools.dry_run import RecoveryRun
from broker.tools.node_identity import CannotCheck, Node, check_user, log_dir_paths, read_identity
from broker.tools.recovery_summary import describe_changes
from replication.metadata.image import MetadataImage
from replication.metadata_log.node_identity import UnusableDirectory
from storage.directories.log_directory import lock_directories
from storage.directories.partition_directory import parse_partition_dir_name
from storage.inspection.dry_run_disk import DryRunDisk, FileChange
from storage.inspection.issues import Issue, Severity
from storage.io.disk import Disk, StorageError

EXIT_HEALTHY, EXIT_ISSUES, EXIT_NOT_CHECKED = 0, 1, 2


class DryRunResult(NamedTuple):
    """The effects of a recovery on the node's directories."""

    refusals: list[Issue]
    """Why it does not complete."""
    changes: dict[str, list[str]]
    """Its changes as sentences, by directory of the partition or the node."""


class CheckResult(NamedTuple):
    """The issues and their effects."""

    node: Node
    issues: list[Issue]
    start: DryRunResult
    """The effect of the next start."""
    repair: DryRunResult | None
    """The effect of a repair; None if nothing needs repair."""
    directory_check: DirectoryCheck

    @property
    def worst(self) -> Severity:
        """The highest severity."""
        return max([issue.severity for issue in self.issues], default=Severity.NOTE)


class DoctorResult(NamedTuple):
    """The results before and after a repair."""

    before: CheckResult
    after: CheckResult | None
    """After a repair."""

    @property
    def status(self) -> int:
        """The exit status."""
        last = self.after or self.before
        return EXIT_ISSUES if last.worst > Severity.NOTE else EXIT_HEALTHY


def run_doctor(directories: Sequence[str], *, repair: bool, read_only: bool, progress: Progress) -> DoctorResult:
    """Checks the log directories of one node, and repairs them if requested and possible.

    Raises:
        CannotCheck: they are not log directories, a broker uses them, or a repair would change those of another user.
    """
    disk = Disk()
    paths = log_dir_paths(disk, directories)
    try:
        node = read_identity(disk, paths)  # before a lock file is created: they may belong to another program
    except (UnusableDirectory, StorageError) as error:
        raise CannotCheck(str(error)) from None
    if repair:
        check_user(paths)
    with ExitStack() as stack:
        if not read_only:
            try:
                for lock in lock_directories(disk, paths):
                    stack.callback(lock.release)
            except StorageError as error:
                hint = "Stop the broker first, or use --read-only."
                raise CannotCheck(f"{error} {hint}") from None
        try:
            return _run_doctor(disk, node, repair=repair, progress=progress)
        except StorageError as error:
            raise CannotCheck(str(error)) from None


def _run_doctor(disk: Disk, node: Node, *, repair: bool, progress: Progress) -> DoctorResult:
    before = check_node(disk, node, progress)
    if not repair or before.repair is None or before.repair.refusals:
        return DoctorResult(before, None)
    RecoveryRun(disk, node).run(**_repair_options(before.directory_check))
    return DoctorResult(before, check_node(disk, node, progress))


def check_node(disk: Disk, node: Node, progress: Progress) -> CheckResult:
    """Checks the directories, and predicts the next start and a repair."""
    directory_check = DirectoryCheck(disk, node, _read_image(disk, node))
    directory_check.run(progress)
    damaged = {path for path, check in directory_check.partitions.items() if check.issues}
    start = _dry_run(node, damaged, directories_to_open=damaged)
    issues = directory_check.issues + _unreported(start.refusals, directory_check.issues)
    repair = None
    if max([issue.severity for issue in issues], default=Severity.NOTE) > Severity.NOTE or not directory_check.is_clean:
        repair = _dry_run(node, damaged, **_repair_options(directory_check))
    return CheckResult(node, issues, start, repair, directory_check)


def _read_image(disk: Disk, node: Node) -> MetadataImage | None:
    """The metadata image, if necessary without the corrupt files."""
    if not node.has_metadata:
        return None
    run = RecoveryRun(DryRunDisk(), node)
    if not run.recover_metadata():
        directory_check = DirectoryCheck(disk, node, None)
        directory_check.check_metadata()
        run = RecoveryRun(DryRunDisk(), node)
        run.rename_corrupt(directory_check.corrupt_files)
        run.recover_metadata()
    return run.image


def _repair_options(directory_check: DirectoryCheck) -> dict[str, Any]:
    return {
        "corrupt_files": directory_check.corrupt_files,
        "recovery_points": directory_check.recovery_points,
        "directories_to_open": directory_check.correctable,
    }


def _unreported(refusals: list[Issue], issues: list[Issue]) -> list[Issue]:
    """The refusals whose reason is not among the issues."""
    known = " ".join([issue.text for issue in issues])
    return [refusal for refusal in refusals if refusal.text.split(": ", 1)[-1] not in known]


def _dry_run(node: Node, damaged: set[str], **options: Any) -> DryRunResult:
    """Runs a recovery with these options of `RecoveryRun.run`, and changes nothing."""
    disk = DryRunDisk()
    run = RecoveryRun(disk, node)
    run.run(**options)
    changes: dict[str, list[FileChange]] = {}
    for change in disk.changes():
        changes.setdefault(os.path.dirname(change.path), []).append(change)
    texts = {path: describe_changes(changes.get(path, []), run.ends.get(path)) for path in changes.keys() | damaged}
    for path in disk.renamed_directories:
        if parse_partition_dir_name(os.path.basename(path)) is not None:
            texts[path] = ["renames it to a stray"]
    return DryRunResult(run.refusals, texts)
