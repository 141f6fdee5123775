"""`barnabas partitions`: reassign, reassignments, elect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.admin.common import (
    NOT_EXECUTED,
    ClusterOptions,
    broker_ids,
    cluster_options,
    complete_topics,
    execute_option,
    note_failures,
    show,
    show_tuples,
    topic_partitions,
)
from barnabas.cli.output import note
from barnabas.cli.verb import run_verb

if TYPE_CHECKING:
    from barnabas.admin.client import Client
    from barnabas.admin.errors import Refused
    from barnabas.admin.nodes import Broker
    from barnabas.client.topic_partition import TopicPartition


_STARTED = "Started: barnabas partitions reassignments shows the rest, barnabas nodes dirs --replicas the directories."
_ANY = "any"
"""The log directory in a plan that leaves the choice to the broker."""


def main(arguments: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    return run_verb(partitions, "partitions", arguments)


@click.group()
def partitions() -> None:
    """Move replicas to other brokers, and elect leaders."""


@partitions.command()
@click.argument("where", metavar="[TOPIC[:PARTITIONS]]...", nargs=-1, shell_complete=complete_topics)
@click.option("--to", "to", metavar="ID,ID...", help="The brokers that may have the replicas: they are spread evenly.")
@click.option("-r", "--replicas", metavar="N", type=click.IntRange(min=1), help="Change the replication factor to N.")
@click.option("--file", "path", metavar="FILE", help="A plan as JSON, as Kafka's tool reads and writes it.")
@execute_option
@cluster_options
def reassign(
    where: tuple[str, ...],
    *,
    to: str | None,
    replicas: int | None,
    path: str | None,
    execute: bool,
    cluster: ClusterOptions,
    as_json: bool,
) -> int:
    """Move replicas to brokers. Shows the plan, until --execute. Brokers then copy in the background.

    Without --to, all brokers that are not fenced may have replicas. PARTITIONS is 0,2,4-6. The log_dirs of a plan move
    replicas to these log directories of their brokers.
    """
    if bool(where) == (path is not None):
        raise click.UsageError("Name the topics, or give a plan with --file.")
    allowed = None if to is None else broker_ids("--to", to)
    wanted, directories = (None, {}) if path is None else _read_plan(path)
    from barnabas.admin import partitions as api
    from barnabas.admin.nodes import describe_cluster

    with cluster.connect() as client:
        current = _replicas(client, topic_partitions(client, where) if wanted is None else list(wanted))
        if wanted is None:
            chosen = _chosen(
                describe_cluster(client).brokers, allowed, replicas or max(map(len, current.values()), default=1)
            )
            wanted = api.balanced_plan(current, chosen, replicas)
        moves = {tp: goal for tp, goal in wanted.items() if goal != current[tp]}
        chosen_dirs = _other_directories(client, directories)
        refused: dict[TopicPartition, Refused] = {}
        if execute:
            for broker, places in chosen_dirs.items():
                api.choose_directories(client, broker, places)
            if moves:
                refused = api.reassign(client, moves)
    rows = []
    for tp, goal in wanted.items():
        named = [f"{broker}:{places[tp]}" for broker, places in chosen_dirs.items() if tp in places]
        if (tp in moves and tp not in refused) or named:
            rows.append((*tp, current[tp], goal, [broker for broker in goal if broker not in current[tp]], named))
    show(("topic", "partition", "replicas", "new_replicas", "copies_to", "directories"), rows, as_json=as_json)
    note_failures(refused.values())
    if rows or not refused:
        note((_STARTED if rows else "Nothing to do.") if execute else NOT_EXECUTED)
    return int(bool(refused))


def _chosen(brokers: Sequence[Broker], allowed: list[int] | None, needed: int) -> dict[int, str | None]:
    """The brokers of the plan with their racks. Raises Refused."""
    from barnabas.admin.errors import Refused

    racks = {broker.id: broker.rack for broker in brokers}
    live = [broker.id for broker in brokers if not broker.fenced]
    chosen = {broker: racks.get(broker) for broker in (live if allowed is None else allowed)}
    if missing := sorted(set(chosen) - set(racks)):
        raise Refused(f"There is no broker {missing[0]}: brokers are {', '.join(map(str, sorted(racks)))}.")
    if len(chosen) < needed:
        fenced = "" if allowed is not None or len(live) == len(racks) else " that are not fenced"
        raise Refused(f"{needed} replicas need as many brokers, and there are {len(chosen)}{fenced}.")
    return chosen


def _read_plan(path: str) -> tuple[dict[TopicPartition, list[int]], dict[int, dict[TopicPartition, str]]]:
    """Reads {"partitions": [{"topic": ..., "partition": ..., "replicas": [...], "log_dirs": [...]}]}.

    Returns the replicas of each partition, and by broker the log directories that the plan names. Raises click.UsageError.
    """
    from barnabas.client.topic_partition import TopicPartition

    replicas: dict[TopicPartition, list[int]] = {}
    directories: dict[int, dict[TopicPartition, str]] = {}
    try:
        with open(path) as file:  # noqa: PTH123 - the path is an argument
            found = json.load(file)["partitions"]
        for entry in found:
            tp = TopicPartition(str(entry["topic"]), int(entry["partition"]))
            replicas[tp] = list(map(int, entry["replicas"]))
            for broker, directory in zip(
                replicas[tp], entry.get("log_dirs") or [_ANY] * len(replicas[tp]), strict=True
            ):
                if directory != _ANY:
                    directories.setdefault(broker, {})[tp] = str(directory)
    except (AttributeError, KeyError, TypeError, ValueError) as failure:
        raise click.UsageError(
            f'{path} is no plan: {{"partitions": [{{"topic", "partition", "replicas"}}]}} is. '
            "log_dirs, if it is there, names a directory or any for each replica."
        ) from failure
    return replicas, directories


def _other_directories(
    client: Client, wanted: dict[int, dict[TopicPartition, str]]
) -> dict[int, dict[TopicPartition, str]]:
    """What is not in the wanted log directory yet, nor on the way to it. Raises Refused."""
    from barnabas.admin.nodes import list_log_dirs
    from barnabas.client.topic_partition import TopicPartition

    found: dict[int, dict[TopicPartition, str]] = {}
    for broker, places in wanted.items():
        listed = list_log_dirs(client, [broker])
        current = {
            TopicPartition(row.topic, row.partition): directory.path
            for is_future in (False, True)
            for directory in listed
            for row in directory.replicas
            if row.is_future == is_future
        }
        found[broker] = {tp: path for tp, path in places.items() if current.get(tp) != path}
    return {broker: places for broker, places in found.items() if places}


def _replicas(client: Client, wanted: list[TopicPartition]) -> dict[TopicPartition, list[int]]:
    """The replicas of partitions now. Raises Refused if one does not exist."""
    from barnabas.admin.errors import Refused
    from barnabas.admin.topics import describe_topics
    from barnabas.client.topic_partition import TopicPartition

    found: dict[TopicPartition, list[int]] = {}
    for topic in describe_topics(client, sorted({tp.topic for tp in wanted})):
        found |= {TopicPartition(topic.name, row.partition): row.replicas for row in topic.partitions}
    if missing := [tp for tp in wanted if tp not in found]:
        raise Refused(f"There is no partition {missing[0]}.")
    return {tp: found[tp] for tp in sorted(wanted)}


@partitions.command()
@click.option("--cancel", is_flag=True, help="Stop all of them: partitions keep the replicas that they had before.")
@cluster_options
def reassignments(*, cancel: bool, cluster: ClusterOptions, as_json: bool) -> int:
    """List replicas that move now."""
    from barnabas.admin import partitions as api
    from barnabas.client.topic_partition import TopicPartition

    with cluster.connect() as client:
        rows = api.list_reassignments(client)
        refused: dict[TopicPartition, Refused] = {}
        if cancel and rows:
            refused = api.reassign(client, {TopicPartition(row.topic, row.partition): None for row in rows})
    show_tuples(api.Reassignment, rows, as_json=as_json)
    note_failures(refused.values())
    if cancel:
        note(f"Cancelled: {len(rows) - len(refused)}.")
    return int(bool(refused))


@partitions.command()
@click.argument("where", metavar="[TOPIC[:PARTITIONS]]...", nargs=-1, shell_complete=complete_topics)
@click.option("--all", "everything", is_flag=True, help="All partitions of the cluster.")
@click.option(
    "--unclean", is_flag=True, help="Elect a replica that is not in sync, if no other is there: records may be lost."
)
@cluster_options
def elect(where: tuple[str, ...], *, everything: bool, unclean: bool, cluster: ClusterOptions, as_json: bool) -> int:
    """Elect preferred leaders. The first replica becomes the leader, if it is in sync."""
    if bool(where) == everything:
        raise click.UsageError("Name the topics, or give --all.")
    from barnabas.admin import partitions as api

    with cluster.connect() as client:
        wanted: Any = None if everything else topic_partitions(client, where)
        rows, refused = api.elect(client, wanted, api.UNCLEAN if unclean else api.PREFERRED)
    show_tuples(api.Election, rows, as_json=as_json)
    note_failures(refused)
    return int(bool(refused))
