"""What a doctor's visit has found, for people and for programs.

FORMAT   as JSON, one object a line: `type` finding (severity, path, text), consequence (path, of, does), or verdict
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from broker.tools.doctor import Diagnosis, Outcome, Prognosis
from storage.inspection.issues import Finding, Severity


def text_lines(outcome: Outcome) -> Iterator[str]:
    """Lines for people."""
    before, after = outcome
    node = before.node
    yield f"Node {node.node_id} of cluster {node.cluster_id}: {', '.join(node.directory_ids)}"
    yield from _findings(before)
    if after is not None:
        yield "Repaired. Looked at again:"
        yield from _findings(after)
    yield _verdict(outcome)


def _findings(diagnosis: Diagnosis) -> Iterator[str]:
    directories = list(diagnosis.node.directory_ids)
    groups: dict[str, list[Finding]] = {}
    for finding in diagnosis.findings:
        groups.setdefault(_place(finding.path, directories, diagnosis), []).append(finding)
    for place, findings in groups.items():
        yield ""
        yield place
        for severity, path, text in findings:
            where = os.path.relpath(path, place) if path.startswith(f"{place}/") else ""
            yield f"  {severity.name.lower():9} {where}{': ' if where else ''}{text}"
        if max(findings).severity > Severity.NOTE:
            yield from _consequences(place, diagnosis)
    yield ""


def _place(path: str, directories: list[str], diagnosis: Diagnosis) -> str:
    """The partition or the log directory that a file belongs to."""
    for partition in diagnosis.checkup.partitions:
        if path == partition or path.startswith(f"{partition}/"):
            return partition
    return next((place for place in directories if path.startswith(f"{place}/")), path)


def _consequences(place: str, diagnosis: Diagnosis) -> Iterator[str]:
    yield f"  next start: {what(diagnosis.start, place, 'does not notice')}"
    if diagnosis.repair is not None:
        yield f"  --repair:   {what(diagnosis.repair, place, 'leaves it as it is')}"


def what(prognosis: Prognosis, place: str, otherwise: str) -> str:
    """What a recovery does to one partition, in a sentence without its end."""
    for _, path, text in prognosis.refusals:
        if path == place or path.startswith(f"{place}/") or place.startswith(f"{path}/"):
            return f"refuses: {text}"
    return "; ".join(prognosis.changes.get(place, [])) or otherwise


def _verdict(outcome: Outcome) -> str:
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
        done += f"; a repair cannot do without what is missing: {last.repair.refusals[0].text}"
    return f"Findings: {', '.join(counts)}; {done}."


def json_objects(outcome: Outcome) -> Iterator[dict[str, Any]]:
    """The same for programs."""
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
