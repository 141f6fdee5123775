"""`barnabas groups`: list, describe, lag, reset, delete, delete-offsets."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.admin.common import (
    NOT_EXECUTED,
    ClusterOptions,
    as_object,
    cluster_options,
    compiled,
    complete_groups,
    complete_topics,
    confirm,
    confirm_option,
    duration_ms,
    execute_option,
    for_each,
    now_ms,
    show,
    show_tuples,
    time_ms,
    topic_partitions,
)
from barnabas.cli.output import note, print_json
from barnabas.cli.verb import run_verb

if TYPE_CHECKING:
    from barnabas.admin.client import Client
    from barnabas.admin.groups import GroupDescription
    from barnabas.admin.lag import LagRow
    from barnabas.admin.reset import Move, Target
    from barnabas.client.topic_partition import TopicPartition

STATES = ("Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Dead")
_OFFSET = re.compile(r"\s*[0-9]{1,18}\s*")
TYPES = ("classic", "consumer", "share", "streams")


def main(arguments: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    return run_verb(groups, "groups", arguments)


@click.group()
def groups() -> None:
    """Show consumer groups and their lag, reset their offsets, delete them."""


@groups.command("list")
@click.argument("pattern", required=False)
@click.option(
    "--state", "states", type=click.Choice(STATES, case_sensitive=False), multiple=True, help="Only in this state."
)
@click.option(
    "--type", "types", type=click.Choice(TYPES, case_sensitive=False), multiple=True, help="Only of this type."
)
@cluster_options
def list_groups(
    pattern: str | None, *, states: tuple[str, ...], types: tuple[str, ...], cluster: ClusterOptions, as_json: bool
) -> None:
    """List groups. PATTERN is a regular expression for their whole names."""
    expression = compiled(pattern or ".*")
    from barnabas.admin import groups as api

    with cluster.connect() as client:
        rows = [row for row in api.list_groups(client, states, types) if expression.fullmatch(row.name)]
    show_tuples(api.GroupRow, rows, as_json=as_json)


@groups.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_groups)
@click.option("--members", is_flag=True, help="The members instead of the partitions.")
@cluster_options
def describe(names: tuple[str, ...], *, members: bool, cluster: ClusterOptions, as_json: bool) -> int:
    """Show state, offsets, lag and members. One row for each partition, or with --members for each member."""
    from barnabas.admin.lag import LagRow, total_lag

    with cluster.connect() as client:
        found, exit_code = _all_with_lag(client, names)
    if as_json:
        for group, lags in found:
            print_json({**as_object(group), "lag": total_lag(lags), "partitions": [as_object(row) for row in lags]})
        return exit_code
    for group, lags in found:
        epoch = "" if group.epoch is None else f"  epoch {group.epoch}, assigned {group.assignment_epoch}"
        note(
            f"group {group.name}  type {group.type}  state {group.state}  coordinator {group.coordinator}"
            f"  assignor {group.assignor or '-'}{epoch}  members {len(group.members)}  lag {total_lag(lags)}"
        )
    if members:
        _show_members([group for group, _ in found])
    else:
        show(("group", *LagRow._fields), [(group.name, *row) for group, lags in found for row in lags], as_json=False)
    return exit_code


def _all_with_lag(client: Client, names: Sequence[str]) -> tuple[list[tuple[GroupDescription, list[LagRow]]], int]:
    """Groups with their lag, and the exit code. What a request for many groups does not answer is asked for alone."""
    from barnabas.admin.lag import lags_of
    from barnabas.admin.many_groups import describe_groups

    groups = describe_groups(client, names)
    lags = lags_of(client, groups.values())
    return for_each(names, lambda name: (groups[name], lags[name]) if name in lags else _with_lag(client, name))


def _with_lag(client: Client, name: str) -> tuple[GroupDescription, list[LagRow]]:
    """A group and its lag by partition. Raises Refused."""
    from barnabas.admin.groups import describe_group
    from barnabas.admin.lag import lag_of

    group = describe_group(client, name)
    return group, lag_of(client, group)


def _show_members(found: Sequence[GroupDescription]) -> None:
    columns = ("group", "member", "instance_id", "client_id", "host", "epoch", "assignment", "target")
    rows = [
        (
            group.name,
            member.id,
            member.instance_id,
            member.client_id,
            member.host,
            member.epoch,
            member.assignment,
            member.target,
        )
        for group in found
        for member in group.members
    ]
    show(columns, rows, as_json=False)


@groups.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_groups)
@click.option("--partitions", is_flag=True, help="A row for each partition.")
@cluster_options
def lag(names: tuple[str, ...], *, partitions: bool, cluster: ClusterOptions, as_json: bool) -> int:
    """Show the lag of groups, by default of all."""
    from barnabas.admin import groups as api
    from barnabas.admin.lag import LagRow, max_lag, total_lag

    with cluster.connect() as client:
        wanted = names or [row.name for row in api.list_groups(client) if row.type in {"", "classic", "consumer"}]
        found, exit_code = _all_with_lag(client, wanted)
    if partitions:
        by_partition = [(group.name, *row) for group, lags in found for row in lags]
        show(("group", *LagRow._fields), by_partition, as_json=as_json)
        return exit_code
    rows = [
        (group.name, group.type, group.state, len(group.members), len(lags), max_lag(lags), total_lag(lags))
        for group, lags in found
    ]
    show(("group", "type", "state", "members", "partitions", "max_lag", "lag"), rows, as_json=as_json)
    return exit_code


@groups.command()
@click.argument("name", shell_complete=complete_groups)
@click.option("--topic", "topics", metavar="TOPIC[:PARTITIONS]", multiple=True, help="Default: all that have offsets.")
@click.option("--to-earliest", is_flag=True, help="To the first offset.")
@click.option("--to-latest", is_flag=True, help="To the end.")
@click.option("--to-current", is_flag=True, help="Only clip the committed offsets to the log.")
@click.option("--to-offset", metavar="N", type=click.IntRange(min=0), help="To this offset.")
@click.option("--to-time", metavar="TIME", help="2026-01-31T12:00:00 (UTC), ms since 1970, or -1h.")
@click.option("--by-duration", metavar="DURATION", help="To this long before now: 90s, 1h30m, PT1H.")
@click.option("--shift-by", metavar="N", type=int, help="Forward, or back if negative.")
@click.option("--from-file", metavar="FILE", help="Lines of topic,partition,offset, as Kafka's tool exports them.")
@execute_option
@cluster_options
def reset(
    name: str, *, topics: tuple[str, ...], execute: bool, cluster: ClusterOptions, as_json: bool, **goals: Any
) -> None:
    """Move committed offsets. The group must have no members. Shows the new offsets, until --execute."""
    target = _target(goals)
    from barnabas.admin import groups as api
    from barnabas.admin.reset import Move, plan
    from barnabas.client.topic_partition import TopicPartition

    with cluster.connect() as client:
        _require_no_members(client, name)
        partitions = _chosen(client, name, topics, target)
        moves = plan(client, name, partitions, target)
        _note_left_out(name, partitions, moves)
        if execute:
            api.commit_offsets(client, name, {TopicPartition(row.topic, row.partition): row.target for row in moves})
    show_tuples(Move, moves, as_json=as_json)
    if not execute:
        note(NOT_EXECUTED)


def _note_left_out(name: str, partitions: Sequence[TopicPartition], moves: Sequence[Move]) -> None:
    """Names what a shift or a file leaves out. Raises Refused if that is everything."""
    from barnabas.admin.errors import Refused

    moved = {(move.topic, move.partition) for move in moves}
    left_out = ", ".join(str(tp) for tp in partitions if tp not in moved)
    if not moves:
        raise Refused(f"There is no offset to start from: group {name} or the file has none for {left_out}.")
    if left_out:
        note(f"Left out, since group {name} or the file has no offset for them: {left_out}.")


def _target(goals: dict[str, Any]) -> Target:
    given = {option: value for option, value in goals.items() if value is not None and value is not False}
    if len(given) != 1:
        raise click.UsageError(f"Give one of {', '.join('--' + option.replace('_', '-') for option in goals)}.")
    from barnabas.admin.reset import Target

    [(option, value)] = given.items()
    if option == "to_time":
        return Target(timestamp_ms=time_ms("--to-time", value))
    if option == "by_duration":
        return Target(timestamp_ms=max(0, now_ms() - duration_ms("--by-duration", value)))  # as parse_moment_ms
    if option == "from_file":
        return Target(offsets=_read_offsets(value))
    field = {"to_offset": "offset", "shift_by": "shift"}.get(option, option.removeprefix("to_"))
    return Target(**{field: value})


def _read_offsets(path: str) -> dict[TopicPartition, int]:
    from barnabas.client.topic_partition import TopicPartition

    found = {}
    try:
        with open(path, newline="", encoding="utf-8") as lines:  # noqa: PTH123 - the path is an argument
            for number, row in enumerate(csv.reader(lines), 1):
                if len(row) != 3 or not all(map(_OFFSET.fullmatch, row[1:])):
                    raise click.UsageError(f"Line {number} of {path} is not topic,partition,offset.")
                found[TopicPartition(row[0].strip(), int(row[1]))] = int(row[2])
    except (UnicodeDecodeError, csv.Error) as failure:
        raise click.UsageError(f"{path} has no lines of topic,partition,offset: {failure}.") from failure
    return found


def _chosen(client: Client, name: str, topics: Sequence[str], target: Target) -> list[TopicPartition]:
    """The partitions to reset. Raises Refused if there are none."""
    from barnabas.admin.errors import Refused
    from barnabas.admin.groups import committed_offsets

    if topics:
        return topic_partitions(client, topics)
    found = list(target.offsets) if target.offsets is not None else list(committed_offsets(client, name))
    if not found:
        raise Refused(f"Group {name} has no committed offsets: name the topics with --topic.")
    return found


def _require_no_members(client: Client, name: str) -> None:
    """Raises Refused if the group has members; a group that does not exist is created by the commit."""
    from barnabas.admin.errors import Refused
    from barnabas.admin.groups import describe_group

    try:
        members = len(describe_group(client, name).members)
    except Refused as failure:
        if failure.name != "GROUP_ID_NOT_FOUND":
            raise
        return
    if members:
        raise Refused(f"Group {name} has {members} member(s): stop them, then reset its offsets.")


@groups.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_groups)
@confirm_option
@cluster_options
def delete(names: tuple[str, ...], *, yes: bool, cluster: ClusterOptions, as_json: bool) -> int:
    """Delete groups. They must have no members; their committed offsets are deleted too."""
    confirm(f"Delete {', '.join(names)} with all committed offsets?", yes=yes)
    from barnabas.admin import groups as api

    def action(name: str) -> tuple[str, str]:
        api.delete_group(client, name)
        return name, "deleted"

    with cluster.connect() as client:
        rows, exit_code = for_each(names, action)
    show(("group", "result"), rows, as_json=as_json)
    return exit_code


@groups.command("delete-offsets")
@click.argument("name", shell_complete=complete_groups)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:PARTITIONS]",
    multiple=True,
    required=True,
    shell_complete=complete_topics,
    help="Of this topic; may be repeated.",
)
@execute_option
@cluster_options
def delete_offsets(
    name: str, *, topics: tuple[str, ...], execute: bool, cluster: ClusterOptions, as_json: bool
) -> None:
    """Delete committed offsets. No member may subscribe to the topics. Shows the offsets, until --execute."""
    from barnabas.admin import groups as api

    with cluster.connect() as client:
        wanted = set(topic_partitions(client, topics))
        found = api.committed_offsets(client, name)
        if not found:
            api.describe_group(client, name)  # raises Refused if there is none
        committed = {tp: position for tp, position in found.items() if tp in wanted}
        if execute and committed:
            api.delete_offsets(client, name, committed)
    show(
        ("topic", "partition", "committed"),
        [(*tp, position.offset) for tp, position in committed.items()],
        as_json=as_json,
    )
    if not execute:
        note(NOT_EXECUTED)
