"""`barnabas schedules`: list, pending, cancel.

RULES    1. A record is cancelled by a later one without value and with its key, in its partition.
"""

from __future__ import annotations

import heapq
from collections import Counter
from contextlib import closing
from typing import Any

import click

from barnabas.cli.admin.common import (
    NOT_EXECUTED,
    ClusterOptions,
    cluster_options,
    complete_topics,
    execute_option,
    now_ms,
    show,
    time_text,
)
from barnabas.cli.output import note
from barnabas.cli.verb import run_verb

_COLUMNS = ("topic", "partition", "offset", "due", "key", "bytes")


def main(arguments: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    return run_verb(schedules, "schedules", arguments)


@click.group()
def schedules() -> None:
    """Show what waits in schedule topics (barnabas.deliver.to), and cancel it."""


@schedules.command("list")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topics)
@cluster_options
def list_schedules(topics: tuple[str, ...], *, cluster: ClusterOptions, as_json: bool) -> None:
    """List schedule topics. A row has what is pending, and when the first record is due. Reads the topics."""
    from barnabas.admin import schedules as api

    rows = []
    denied: list[str] = []
    with cluster.connect() as client:
        if topics:
            targets = api.targets(client, topics)
        else:
            targets, denied = api.all_targets(client)
        with closing(cluster.connection.cluster()) as records:
            for topic, target in targets.items():
                count, first, late = 0, None, 0
                now = now_ms()
                for record in api.pending(client, records, topic):
                    count += 1
                    first = record.due_ms if first is None else min(first, record.due_ms)
                    late += record.due_ms <= now
                rows.append((topic, target, count, late, None if first is None else _due_text(first)))
    show(("topic", "target", "pending", "overdue", "first_due"), rows, as_json=as_json)
    if denied:
        note(f"Topics that are left out, since this user has no DescribeConfigs on them: {', '.join(denied)}.")


@schedules.command("pending")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("-k", "--key", "keys", multiple=True, metavar="KEY", help="Only records with this key; may be repeated.")
@click.option("-n", "--max", "limit", type=click.IntRange(min=1), default=100, show_default=True, help="The first N.")
@cluster_options
def list_pending(
    topics: tuple[str, ...], *, keys: tuple[str, ...], limit: int, cluster: ClusterOptions, as_json: bool
) -> None:
    """List pending records, those that are due first at the top."""
    rows = heapq.nsmallest(limit, _pending(cluster, topics, keys), key=lambda record: (record.due_ms, record.offset))
    show(_COLUMNS, map(_row, rows), as_json=as_json)


@schedules.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "-k", "--key", "keys", multiple=True, required=True, metavar="KEY", help="Of the records; may be repeated."
)
@execute_option
@cluster_options
def cancel(topic: str, *, keys: tuple[str, ...], execute: bool, cluster: ClusterOptions, as_json: bool) -> None:
    """Cancel pending records with a key. Shows them, until --execute."""
    from barnabas.client.record_writer import RecordWriter
    from barnabas.client.topic_partition import TopicPartition

    found = list(_pending(cluster, (topic,), keys))
    show(_COLUMNS, map(_row, found), as_json=as_json)
    if not execute:
        note(NOT_EXECUTED)
        return
    writer = RecordWriter(cluster.connection.cluster())
    counts = Counter((record.partition, record.key) for record in found)
    for partition, key in counts:
        writer.append(TopicPartition(topic, partition), key, None)
    writer.close()
    note(f"Cancelled: {len(found)}.")


def _pending(cluster: ClusterOptions, topics: tuple[str, ...], keys: tuple[str, ...]) -> Any:
    """The pending records of schedule topics, with one of these keys if there are any."""
    from barnabas.admin import schedules as api

    wanted = {key.encode() for key in keys}
    with cluster.connect() as client, closing(cluster.connection.cluster()) as records:
        for topic in api.targets(client, topics):
            for record in api.pending(client, records, topic):
                if not wanted or record.key in wanted:
                    yield record


def _due_text(due_ms: int) -> str | None:
    return time_text(due_ms) if due_ms else "now"


def _row(record: Any) -> tuple[Any, ...]:
    key = None if record.key is None else record.key.decode("utf-8", "backslashreplace")
    return (
        record.topic,
        record.partition,
        record.offset,
        _due_text(record.due_ms),
        key,
        record.size,
    )
