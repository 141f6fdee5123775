"""`barnabas doctor`: what is wrong in the log directories of a stopped node, what a start would make of it, and mending.

RULES    1. The directories are locked meanwhile, unless one only reads; a broker that runs keeps the doctor out.
         2. What a start would do is told by a start that changes nothing; a repair is a start that checks more.
         3. Nothing is repaired that a start would refuse afterwards. After a repair everything is looked at again.
         4. Exit status: 0 nothing but notes, 1 findings (also where they were repaired with a loss that remains visible),
            2 nothing could be looked at.
NOT HERE Looking (check.py), starting (dry_run.py), how a report looks (doctor_report.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from broker.tools.check import Checkup, Progress
from broker.tools.dry_run import RecoveryRun, rehearsed
from broker.tools.node_identity import Node, NothingToLookAt, absolute, know
from broker.tools.recovery_summary import by_directory, sentences
from replication.metadata.image import MetadataImage
from replication.metadata_log.formatting import UnusableDirectory
from storage.directories.directory_locks import lock_directories
from storage.inspection.dry_run_disk import RehearsalDisk
from storage.inspection.issues import Finding, Severity
from storage.io.disk import Disk, StorageError

HEALTHY, FOUND, NOTHING_SEEN = 0, 1, 2


class Prognosis(NamedTuple):
    """What a recovery does to the node's directories."""

    refusals: list[Finding]
    """Why it does not come to its end."""
    changes: dict[str, list[str]]
    """What it does, in sentences, by directory of the partition or the node."""


class Diagnosis(NamedTuple):
    """What was found, and what comes of it."""

    node: Node
    findings: list[Finding]
    start: Prognosis
    """What the next start does."""
    repair: Prognosis | None
    """What a repair does; None where there is nothing to repair."""
    checkup: Checkup

    @property
    def worst(self) -> Severity:
        """How bad it is."""
        return max([finding.severity for finding in self.findings], default=Severity.NOTE)


class Outcome(NamedTuple):
    """What a visit has come to."""

    before: Diagnosis
    after: Diagnosis | None
    """Where something was repaired."""

    @property
    def status(self) -> int:
        """The exit status."""
        last = self.after or self.before
        return FOUND if last.worst > Severity.NOTE else HEALTHY


def visit(directories: Sequence[str], *, repair: bool, read_only: bool, progress: Progress) -> Outcome:
    """Look at the log directories of one node, and repair them if that is asked for and possible.

    Raises:
        NothingToLookAt: they are no log directories, or a broker has them.
    """
    disk = Disk()
    paths = absolute(disk, directories)
    try:
        node = know(disk, paths)  # before a lock file is made: they may be anybody's
    except (UnusableDirectory, StorageError) as error:
        raise NothingToLookAt(str(error)) from None
    with ExitStack() as stack:
        if not read_only:
            try:
                for lock in lock_directories(disk, paths):
                    stack.callback(lock.release)
            except StorageError as error:
                hint = "Stop the broker first, or look with --read-only."
                raise NothingToLookAt(f"{error} {hint}") from None
        try:
            return _visit(disk, node, repair=repair, progress=progress)
        except StorageError as error:
            raise NothingToLookAt(str(error)) from None


def _visit(disk: Disk, node: Node, *, repair: bool, progress: Progress) -> Outcome:
    before = diagnose(disk, node, progress)
    if not repair or before.repair is None or before.repair.refusals:
        return Outcome(before, None)
    _repair(disk, node, before.checkup)
    return Outcome(before, diagnose(disk, node, progress))


def diagnose(disk: Disk, node: Node, progress: Progress) -> Diagnosis:
    """Look, and rehearse what a start would do, and a repair."""
    checkup = Checkup(disk, node, _known_metadata(disk, node))
    checkup.run(progress)
    concerned = {path for path, check in checkup.partitions.items() if check.findings}
    rehearsal, run = rehearsed(node)
    run.run(look_at=concerned)
    findings = checkup.findings + _new(run.refusals, checkup.findings)
    start = Prognosis(run.refusals, _told(rehearsal, run, concerned))
    repair = None
    if max([finding.severity for finding in findings], default=Severity.NOTE) > Severity.NOTE or not checkup.is_clean:
        rehearsal, run = rehearsed(node)
        _do(run, checkup)
        repair = Prognosis(run.refusals, _told(rehearsal, run, concerned))
    return Diagnosis(node, findings, start, repair, checkup)


def _known_metadata(disk: Disk, node: Node) -> MetadataImage | None:
    """What the metadata log says, if need be without the files beside it that nobody can understand."""
    if not node.has_metadata:
        return None
    _, run = rehearsed(node)
    run.run()
    if run.image is None:
        checkup = Checkup(disk, node, None)
        checkup.look_at_metadata()
        _, run = rehearsed(node)
        run.run(set_aside=checkup.set_aside)
    return run.image


def _repair(disk: Disk, node: Node, checkup: Checkup) -> None:
    _do(RecoveryRun(disk, node), checkup)


def _do(run: RecoveryRun, checkup: Checkup) -> None:
    run.run(set_aside=checkup.set_aside, check_from=checkup.check_from)


def _new(refusals: list[Finding], findings: list[Finding]) -> list[Finding]:
    """The refusals whose reason nobody has found so far."""
    known = " ".join([finding.text for finding in findings])
    return [refusal for refusal in refusals if refusal.text.split(": ", 1)[-1] not in known]


def _told(disk: RehearsalDisk, run: RecoveryRun, concerned: set[str]) -> dict[str, list[str]]:
    changes = by_directory(disk)
    told = {path: sentences(changes.get(path, []), run.ends.get(path)) for path in changes.keys() | concerned}
    for path in disk.renamed_directories:
        told[path] = ["sets it aside as a stray"]
    return told
