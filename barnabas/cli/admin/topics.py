"""`barnabas topics`: list, describe, create, alter, delete, and trim (delete records)."""

from __future__ import annotations

from typing import Any

import click

from barnabas.cli.admin.common import (
    NOT_EXECUTED,
    ClusterOptions,
    as_object,
    broker_ids,
    cluster_options,
    compiled,
    complete_topics,
    confirm,
    confirm_option,
    execute_option,
    for_each,
    show,
    show_tuples,
    time_ms,
    topic_partitions,
)
from barnabas.cli.output import note, print_json
from barnabas.cli.verb import run_verb


def main(arguments: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    return run_verb(topics, "topics", arguments)


@click.group()
def topics() -> None:
    """Show, create, change and delete topics."""


@topics.command("list")
@click.argument("pattern", required=False)
@click.option("--internal", is_flag=True, help="Also topics of the cluster itself, such as __consumer_offsets.")
@click.option("--under-replicated", is_flag=True, help="Only topics with a partition that lacks replicas in sync.")
@click.option("--unavailable", is_flag=True, help="Only topics with a partition without leader.")
@cluster_options
def list_topics(
    pattern: str | None,
    *,
    internal: bool,
    under_replicated: bool,
    unavailable: bool,
    cluster: ClusterOptions,
    as_json: bool,
) -> None:
    """List topics. PATTERN is a regular expression for their whole names."""
    expression = compiled(pattern or ".*")
    from barnabas.admin import topics as api

    with cluster.connect() as client:
        rows = [
            row
            for row in api.list_topics(client)
            if expression.fullmatch(row.name)
            and (internal or not row.internal)
            and (row.under_replicated or not under_replicated)
            and (row.offline or not unavailable)
        ]
    show_tuples(api.TopicRow, rows, as_json=as_json)


@topics.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--offsets", is_flag=True, help="Also the first offset and the end of each partition.")
@cluster_options
def describe(names: tuple[str, ...], *, offsets: bool, cluster: ClusterOptions, as_json: bool) -> int:
    """Show partitions. A row has leader, replicas, replicas in sync, and offsets if asked for."""
    from barnabas.admin import topics as api
    from barnabas.admin.offsets import ranges
    from barnabas.client.topic_partition import TopicPartition

    with cluster.connect() as client:
        found, exit_code = for_each(dict.fromkeys(names), lambda name: api.describe_topics(client, [name])[0])
        led = [
            TopicPartition(topic.name, row.partition) for topic in found for row in topic.partitions if row.leader >= 0
        ]
        limits = ranges(client, led) if offsets else {}

    def limit(topic: str, partition: int) -> dict[str, int | None]:
        if not offsets:
            return {}
        known = limits.get(TopicPartition(topic, partition))
        return {"start": None, "end": None} if known is None else known._asdict()

    rows = [(topic.name, row, limit(topic.name, row.partition)) for topic in found for row in topic.partitions]
    if as_json:
        for topic in found:
            partitions = [{**as_object(row), **more} for name, row, more in rows if name == topic.name]
            print_json({**topic._asdict(), "partitions": partitions})
        return exit_code
    for topic in found:
        note(f"topic {topic.name}  id {topic.id or 'unknown'}  partitions {len(topic.partitions)}")
    columns = ["topic", *api.PartitionRow._fields, *(["start", "end"] if offsets else [])]
    show(columns, [(name, *row, *more.values()) for name, row, more in rows], as_json=False)
    return exit_code


@topics.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("-p", "--partitions", metavar="N", type=click.IntRange(min=1), help="[default: the cluster's setting]")
@click.option("-r", "--replicas", metavar="N", type=click.IntRange(min=1), help="[default: the cluster's setting]")
@click.option("-c", "--config", "configs", metavar="NAME=VALUE", multiple=True, help="A topic config; may be repeated.")
@click.option(
    "--assign", "assigned", metavar="ID,ID...", multiple=True, help="The brokers of partition 0, then of 1, ..."
)
@click.option("--if-not-exists", is_flag=True, help="A topic that exists is no failure.")
@click.option("--dry-run", is_flag=True, help="Only check whether it could be created.")
@cluster_options
def create(
    names: tuple[str, ...],
    *,
    partitions: int | None,
    replicas: int | None,
    configs: tuple[str, ...],
    assigned: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
    cluster: ClusterOptions,
    as_json: bool,
) -> int:
    """Create topics."""
    if assigned and (partitions or replicas):
        raise click.UsageError("--assign says how many partitions and replicas: it excludes -p and -r.")
    assignment = {index: broker_ids("--assign", text) for index, text in enumerate(assigned)}
    from barnabas.client.client_settings import parse_pairs

    settings = parse_pairs("--config", configs)
    from barnabas.admin import topics as api
    from barnabas.admin.errors import Refused

    def action(name: str) -> Any:
        try:
            created = api.create_topic(
                client,
                name,
                partitions=partitions or api.DEFAULT,
                replicas=replicas or api.DEFAULT,
                assignment=assignment,
                configs=settings,
                validate_only=dry_run,
            )
        except Refused as failure:
            if not if_not_exists or failure.name != "TOPIC_ALREADY_EXISTS":
                raise
            return name, None, None, "exists"
        return *created, "valid" if dry_run else "created"

    with cluster.connect() as client:
        rows, exit_code = for_each(names, action)
    show(("topic", "partitions", "replicas", "result"), rows, as_json=as_json)
    return exit_code


@topics.command()
@click.argument("name", shell_complete=complete_topics)
@click.option(
    "-p", "--partitions", metavar="N", type=click.IntRange(min=1), help="Raise the number of partitions to N."
)
@click.option(
    "--assign", "assigned", metavar="ID,ID...", multiple=True, help="The brokers of the first new partition, ..."
)
@click.option(
    "-c", "--config", "configs", metavar="NAME=VALUE", multiple=True, help="Set a topic config; may be repeated."
)
@click.option("--dry-run", is_flag=True, help="Only check whether it could be changed.")
@cluster_options
def alter(
    name: str,
    *,
    partitions: int | None,
    assigned: tuple[str, ...],
    configs: tuple[str, ...],
    dry_run: bool,
    cluster: ClusterOptions,
    as_json: bool,
) -> None:
    """Add partitions, set configs. With more partitions, keys change their partitions."""
    from barnabas.client.client_settings import parse_pairs

    settings = parse_pairs("--config", configs)
    if partitions is None and not settings:
        raise click.UsageError("Nothing to change: give --partitions or --config.")
    assignment = [broker_ids("--assign", text) for text in assigned] or None
    from barnabas.admin import topics as api
    from barnabas.admin.configs import alter as alter_configs

    result = "valid" if dry_run else "changed"
    rows: list[tuple[str, str, Any, str]] = []
    with cluster.connect() as client:
        if partitions is not None:
            api.add_partitions(client, name, partitions, assignment, validate_only=dry_run)
            rows.append((name, "partitions", partitions, result))
        if settings:
            alter_configs(
                client, "topic", name, {key: ("set", value) for key, value in settings.items()}, validate_only=dry_run
            )
            rows += [(name, key, value, result) for key, value in settings.items()]
    show(("topic", "setting", "value", "result"), rows, as_json=as_json)


@topics.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_topics)
@confirm_option
@cluster_options
def delete(names: tuple[str, ...], *, yes: bool, cluster: ClusterOptions, as_json: bool) -> int:
    """Delete topics with all their records."""
    confirm(f"Delete {', '.join(names)} with all records?", yes=yes)
    from barnabas.admin import topics as api

    def action(name: str) -> tuple[str, str]:
        api.delete_topic(client, name)
        return name, "deleted"

    with cluster.connect() as client:
        rows, exit_code = for_each(names, action)
    show(("topic", "result"), rows, as_json=as_json)
    return exit_code


@topics.command()
@click.argument("where", metavar="TOPIC[:PARTITIONS]...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--offset", metavar="N", type=click.IntRange(min=0), help="Delete records below this offset.")
@click.option(
    "--time", "time", metavar="TIME", help="Delete records before the first one with this timestamp or a later one."
)
@click.option("--all", "everything", is_flag=True, help="Delete all records.")
@execute_option
@cluster_options
def trim(
    where: tuple[str, ...],
    *,
    offset: int | None,
    time: str | None,
    everything: bool,
    execute: bool,
    cluster: ClusterOptions,
    as_json: bool,
) -> None:
    """Delete the oldest records. Shows what it would delete, until --execute.

    PARTITIONS is 0,2,4-6. TIME is 2026-01-31T12:00:00 (UTC), ms since 1970, or -1h.
    """
    if sum((offset is not None, time is not None, everything)) != 1:
        raise click.UsageError("Give one of --offset, --time, --all.")
    at_ms = None if time is None else time_ms("--time", time)
    from barnabas.admin import topics as api
    from barnabas.admin.offsets import list_offsets, ranges

    with cluster.connect() as client:
        partitions = topic_partitions(client, where)
        limits = ranges(client, partitions)
        times = {} if at_ms is None else list_offsets(client, dict.fromkeys(partitions, at_ms))
        goals = {}
        for tp, limit in limits.items():
            goal = limit.end if everything else times[tp].offset if at_ms is not None else offset or 0
            goals[tp] = min(limit.end, limit.end if goal < 0 else max(goal, limit.start))
        if execute:
            api.delete_records(client, goals)
    rows = [(*tp, limits[tp].start, goal, limits[tp].end, goal - limits[tp].start) for tp, goal in goals.items()]
    show(("topic", "partition", "start", "new_start", "end", "deleted"), rows, as_json=as_json)
    if not execute:
        note(NOT_EXECUTED)
