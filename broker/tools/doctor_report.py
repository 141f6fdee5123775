"""The report of the doctor, as text and as JSON.

FORMAT   JSON, one object per line: `type` finding (severity, path, text), consequence (path, of, does), or verdict
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from broker.tools.doctor import CheckResult, DoctorResult, DryRunResult
from storage.inspection.issues import Issue, Severity


def text_lines(outcome: DoctorResult) -> Iterator[str]:
    """The report as text."""
    before, after = outcome
    node = before.node
    yield f"Node {node.node_id} of cluster {node.cluster_id}: {', '.join(node.directory_ids)}"
    yield from _issues(before)
    if after is not None:
        yield "Repaired. Checked again:"
        yield from _issues(after)
    yield _verdict(outcome)


def _issues(result: CheckResult) -> Iterator[str]:
    directories = list(result.node.directory_ids)
    groups: dict[str, list[Issue]] = {}
    for issue in result.issues:
        groups.setdefault(_directory_of(issue.path, directories, result), []).append(issue)
    for directory, issues in groups.items():
        yield ""
        yield directory
        for severity, path, text in issues:
            where = os.path.relpath(path, directory) if path.startswith(f"{directory}/") else ""
            yield f"  {severity.name.lower():9} {where}{': ' if where else ''}{text}"
        if max(issues).severity > Severity.NOTE:
            yield from _effects(directory, result)
    yield ""


def _directory_of(path: str, directories: list[str], result: CheckResult) -> str:
    """The partition or the log directory of a file."""
    for partition in result.directory_check.partitions:
        if path == partition or path.startswith(f"{partition}/"):
            return partition
    return next((directory for directory in directories if path.startswith(f"{directory}/")), path)


def _effects(directory: str, result: CheckResult) -> Iterator[str]:
    yield f"  next start: {_effect(result.start, directory)}"
    if result.repair is not None:
        yield f"  --repair:   {_effect(result.repair, directory)}"


def _effect(recovery: DryRunResult, directory: str) -> str:
    """The effect of a recovery on one partition, as a sentence without its end."""
    for _, path, text in recovery.refusals:
        if path == directory or path.startswith(f"{directory}/") or directory.startswith(f"{path}/"):
            return f"refuses: {text}"
    return "; ".join(recovery.changes.get(directory, [])) or "no change"


def _verdict(outcome: DoctorResult) -> str:
    last = outcome.after or outcome.before
    counts = [
        f"{count} {severity.name.lower()}"
        for severity in reversed(Severity)
        if severity > Severity.NOTE and (count := sum(found.severity == severity for found in last.issues))
    ]
    if not counts:
        return "Nothing is wrong any more." if outcome.after else "Nothing is wrong."
    done = "after the repair" if outcome.after else "nothing was changed"
    if outcome.after is None and last.repair is not None and last.repair.refusals:
        done += f"; a repair is not possible: {last.repair.refusals[0].text}"
    return f"Findings: {', '.join(counts)}; {done}."


def json_objects(outcome: DoctorResult) -> Iterator[dict[str, Any]]:
    """The report as JSON objects."""
    before, after = outcome
    for when, result in (("found", before), ("remains", after)):
        if result is None:
            continue
        for severity, path, text in result.issues:
            yield {"type": "finding", "when": when, "severity": severity.name.lower(), "path": path, "text": text}
        for of, recovery in (("start", result.start), ("repair", result.repair)):
            for path, does in sorted(recovery.changes.items() if recovery else ()):
                if does:
                    yield {"type": "consequence", "when": when, "of": of, "path": path, "does": does}
            for _, path, text in recovery.refusals if recovery else ():
                yield {"type": "refusal", "when": when, "of": of, "path": path, "text": text}
    yield {"type": "verdict", "status": outcome.status, "isRepaired": after is not None, "text": _verdict(outcome)}
