"""The report of a conversion as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from broker.tools.convert import Outcome, Plan, PlannedLog
from storage.config.log_config import COMMIT_LOG, STORAGE_ENGINE

_PLACES = {"segments": "segment files", COMMIT_LOG: "the commit log"}


def report_lines(outcome: Outcome) -> Iterator[str]:
    """What was, or would be, done, and what the operator must know."""
    plan = outcome.plan
    for directory, missing in plan.missing.items():
        yield f"{directory} needs {_size(missing)} more free space. Nothing was changed."
    if outcome.is_dry_run or plan.missing:
        for log in plan.logs:
            yield f"{log.directory}: {log.name} has {_size(log.size)} in {_count(log.segments, 'segment')}."
    yield _summary(outcome)
    left = Counter((name.rpartition("-")[0], reason) for name, reason in plan.left)
    for (topic, reason), partitions in sorted(left.items()):
        stay = "stays as it is" if partitions == 1 else "stay as they are"
        yield f"{topic} {reason}: {_count(partitions, 'partition')} {stay}."
    for name, error in outcome.failures:
        yield f"{name} stays as it is: {error}"
    for name in outcome.cancelled_moves:
        yield f"The move of {name} to another log directory is cancelled."
    if not plan.missing:
        yield from _consequences(outcome)


def _summary(outcome: Outcome) -> str:
    plan = outcome.plan
    place = _PLACES[plan.engine]
    if not plan.logs:
        return f"Nothing to convert: all chosen partitions are in {place}."
    if outcome.is_dry_run or plan.missing:
        return f"{_total(plan.logs)} would be moved to {place}. Nothing was changed."
    unfinished = len(plan.logs) - len(outcome.converted)
    rest = f" {_count(unfinished, 'partition')} could not be converted; run the command again." if unfinished else ""
    return f"{_total(outcome.converted)} moved to {place}.{rest}"


def _consequences(outcome: Outcome) -> Iterator[str]:
    plan = outcome.plan
    yield from _advice(plan)
    if plan.engine == COMMIT_LOG:
        return
    done = {log.name for log in (plan.logs if outcome.is_dry_run else outcome.converted)}
    for directory, remaining in plan.remaining.items():
        others = remaining + sum(log.directory == directory and log.name not in done for log in plan.logs)
        if others:
            is_or_are = "is" if others == 1 else "are"
            yield f"{directory}: {_count(others, 'partition')} {is_or_are} in the commit log: Apache Kafka cannot start here."
        for stray in plan.strays[directory]:
            yield (
                f"{stray} is not in use, and its records are in the commit log: Apache Kafka cannot start here before it is "
                "deleted and this command is run again."
            )


def _advice(plan: Plan) -> Iterator[str]:
    for topic in plan.named:
        yield (
            f"The topic {topic} has another {STORAGE_ENGINE}: a start of Barnabas converts it back. "
            f"Then: barnabas topics alter {topic} --config {STORAGE_ENGINE}={plan.engine}"
        )


def _total(logs: Sequence[PlannedLog]) -> str:
    return f"{_count(len(logs), 'partition')} with {_size(sum([log.size for log in logs]))}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _size(size: int) -> str:
    return f"{size:,} bytes" if size < 10_240 else f"{-(-size // 1024):,} KiB"
