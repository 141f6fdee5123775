"""Spark jobs around a broker, spoken to only through Kafka's protocol.

    from barnabas.pipeline import ArchiveSettings, archive
    report = archive(spark, ArchiveSettings(topic=("flights",), into="/data/archive"))

A job is looked up only when somebody asks for it: it imports Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES = {
    "AggregateSettings": "jobs.aggregate",
    "ArchiveSettings": "jobs.archive",
    "AuditSettings": "jobs.audit",
    "JobError": "trouble",
    "ReplaySettings": "jobs.replay",
    "SearchSettings": "jobs.search",
    "StatsSettings": "jobs.stats",
    "TableSettings": "jobs.table",
    "aggregate": "jobs.aggregate",
    "archive": "jobs.archive",
    "audit": "jobs.audit",
    "read_archive": "store.reading",
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
