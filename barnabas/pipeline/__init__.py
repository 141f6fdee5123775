"""Spark jobs for any Kafka broker; they use only Kafka's protocol.

    from barnabas.pipeline import ArchiveSettings, archive
    report = archive(spark, ArchiveSettings(topic=("flights",), into="/data/archive"))

Jobs are imported on first use, since they import Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = {
    "AggregateSettings": "jobs.aggregate.aggregate",
    "ArchiveSettings": "jobs.archive.archive",
    "AuditSettings": "jobs.audit.audit",
    "JobError": "errors",
    "ReplaySettings": "jobs.replay",
    "SearchSettings": "jobs.search",
    "StatsSettings": "jobs.stats",
    "TableSettings": "jobs.table",
    "aggregate": "jobs.aggregate.aggregate",
    "archive": "jobs.archive.archive",
    "audit": "jobs.audit.audit",
    "read_archive": "store.archive_reader",
    "replay": "jobs.replay",
    "search": "jobs.search",
    "stats": "jobs.stats",
    "table": "jobs.table",
}
"""The module of each public name."""


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
