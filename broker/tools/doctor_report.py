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
    yield from _findings(before)
    if after is not None:
        yield "Repaired. Checked again:"
        yield from _findings(after)
    yield _verdict(outcome)


def _findings(diagnosis: CheckResult) -> Iterator[str]:
    directories = list(diagnosis.node.directory_ids)
    groups: dict[str, list[Issue]] = {}
    for finding in diagnosis.findings:
        groups.setdefault(_directory_of(finding.path, directories, diagnosis), []).append(finding)
    for directory, findings in groups.items():
        yield ""
        yield directory
        for severity, path, text in findings:
            where = os.path.relpath(path, directory) if path.startswith(f"{directory}/") else ""
            yield f"  {severity.name.lower():9} {where}{': ' if where else ''}{text}"
        if max(findings).severity > Severity.NOTE:
            yield from _consequences(directory, diagnosis)
    yield ""


def _directory_of(path: str, directories: list[str], diagnosis: CheckResult) -> str:
    """The partition or the log directory of a file."""
    for partition in diagnosis.checkup.partitions:
        if path == partition or path.startswith(f"{partition}/"):
            return partition
    return next((directory for directory in directories if path.startswith(f"{directory}/")), path)


def _consequences(directory: str, diagnosis: CheckResult) -> Iterator[str]:
    yield f"  next start: {effect(diagnosis.start, directory, 'no change')}"
    if diagnosis.repair is not None:
        yield f"  --repair:   {effect(diagnosis.repair, directory, 'no change')}"


def effect(prognosis: DryRunResult, directory: str, otherwise: str) -> str:
    """The effect of a recovery on one partition, as a sentence without its end."""
    for _, path, text in prognosis.refusals:
        if path == directory or path.startswith(f"{directory}/") or directory.startswith(f"{path}/"):
            return f"refuses: {text}"
    return "; ".join(prognosis.changes.get(directory, [])) or otherwise


def _verdict(outcome: DoctorResult) -> str:
    last = outcome.after or outcome.before
    counts = [
        f"{count} {severity.name.lower()}"
        for severity in reversed(Severity)
        if severity > Severity.NOTE and (count := sum(found.severity == severity for found in last.findings))
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
    for when, diagnosis in (("found", before), ("remains", after)):
        if diagnosis is None:
            continue
        for severity, path, text in diagnosis.findings:
            yield {"type": "finding", "when": when, "severity": severity.name.lower(), "path": path, "text": text}
        for of, prognosis in (("start", diagnosis.start), ("repair", diagnosis.repair)):
            for path, does in sorted(prognosis.changes.items() if prognosis else ()):
                if does:
                    yield {"type": "consequence", "when": when, "of": of, "path": path, "does": does}
            for _, path, text in prognosis.refusals if prognosis else ():
                yield {"type": "refusal", "when": when, "of": of, "path": path, "text": text}
    yield {"type": "verdict", "status": outcome.status, "isRepaired": after is not None, "text": _verdict(outcome)}
