"""`barnabas nodes`: list, quorum, features, dirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from barnabas.cli.admin.common import (
    ClusterOptions,
    as_object,
    cluster_options,
    show,
    show_tuples,
    size_text,
    time_text,
)
from barnabas.cli.output import note, print_json
from barnabas.cli.verb import run_verb

if TYPE_CHECKING:
    from barnabas.admin.nodes import LogDirectory


def main(arguments: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    return run_verb(nodes, "nodes", arguments)


@click.group()
def nodes() -> None:
    """Show the nodes of a cluster, its metadata quorum, features and log directories."""


@nodes.command("list")
@cluster_options
def list_nodes(*, cluster: ClusterOptions, as_json: bool) -> None:
    """List the brokers. A fenced one is registered, but does not send heartbeats."""
    from barnabas.admin import nodes as api

    with cluster.connect() as client:
        found = api.describe_cluster(client)
    rows = [(found.id, *broker, broker.id == found.controller) for broker in found.brokers]
    show(("cluster", *api.Broker._fields, "controller"), rows, as_json=as_json)


@nodes.command()
@cluster_options
def quorum(*, cluster: ClusterOptions, as_json: bool) -> None:
    """Show the metadata quorum. Voters and observers, and how far they are behind."""
    from barnabas.admin import nodes as api

    with cluster.connect() as client:
        found = api.describe_quorum(client)
    if as_json:
        print_json(as_object(found))
        return
    note(f"leader {found.leader}  epoch {found.epoch}  high watermark {found.high_watermark}")
    columns = ("id", "role", "directory", "end_offset", "lag", "last_fetch")
    show(columns, [(*replica[:5], time_text(replica.last_fetch_ms)) for replica in found.replicas], as_json=False)


@nodes.command()
@cluster_options
def features(*, cluster: ClusterOptions, as_json: bool) -> None:
    """List features with their levels."""
    from barnabas.admin import nodes as api

    with cluster.connect() as client:
        rows = api.list_features(client)
    show_tuples(api.Feature, rows, as_json=as_json)


@nodes.command()
@click.option(
    "--broker", "brokers", metavar="ID", type=int, multiple=True, help="Only of this broker; may be repeated."
)
@click.option("--topic", "topics", metavar="NAME", multiple=True, help="Only this topic; may be repeated.")
@click.option("--replicas", is_flag=True, help="A row for each replica.")
@cluster_options
def dirs(
    *, brokers: tuple[int, ...], topics: tuple[str, ...], replicas: bool, cluster: ClusterOptions, as_json: bool
) -> int:
    """Show log directories. What topics use, and what is left of the file system; exit code 1 if a directory has failed."""
    from barnabas.admin import nodes as api

    with cluster.connect() as client:
        found = api.list_log_dirs(client, brokers, topics)
    exit_code = int(any(directory.error for directory in found))
    if replicas:
        rows = [(directory.broker, directory.path, *row) for directory in found for row in directory.replicas]
        show(("broker", "dir", *api.ReplicaDirectory._fields), rows, as_json=as_json)
        return exit_code
    if as_json:
        for directory in found:
            print_json(
                {
                    **as_object(directory),
                    "replicas": len(directory.replicas),
                    "bytes": sum(row.bytes for row in directory.replicas),
                }
            )
        return exit_code
    table = [_summary(directory) for directory in found]
    show(("broker", "dir", "replicas", "used", "free", "total", "error"), table, as_json=False)
    return exit_code


def _summary(directory: LogDirectory) -> tuple[object, ...]:
    used = size_text(sum(row.bytes for row in directory.replicas))
    space = [None if count < 0 else size_text(count) for count in (directory.usable_bytes, directory.total_bytes)]
    return (directory.broker, directory.path, len(directory.replicas), used, *space, directory.error or None)
