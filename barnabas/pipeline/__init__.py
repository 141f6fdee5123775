"""Spark jobs around a broker, spoken to only through Kafka's protocol.

    from barnabas.pipeline import ArchiveSettings, archive
    report = archive(spark, ArchiveSettings(topic=("flights",), into="/data/archive"))

A job is looked up only when somebody asks for it: it imports Spark.
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
"""Where each promised name is defined."""


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
