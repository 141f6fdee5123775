"""`barnabas transactions`: list, describe, producers, hanging, abort."""

from __future__ import annotations

import click

from barnabas.cli.admin.common import (
    NOT_EXECUTED,
    ClusterOptions,
    as_object,
    cluster_options,
    complete_topics,
    duration_ms,
    execute_option,
    for_each,
    show,
    show_tuples,
    time_text,
    topic_partitions,
)
from barnabas.cli.output import note, print_json
from barnabas.cli.verb import run_verb

STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)


def main(arguments: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    return run_verb(transactions, "transactions", arguments)


@click.group()
def transactions() -> None:
    """Show transactions and their producers, find hanging ones, abort them."""


@transactions.command("list")
@click.option(
    "--state", "states", type=click.Choice(STATES, case_sensitive=False), multiple=True, help="Only in this state."
)
@click.option("--longer-than", metavar="DURATION", help="Only those that have run longer: 90s, 1h.")
@cluster_options
def list_transactions(
    *, states: tuple[str, ...], longer_than: str | None, cluster: ClusterOptions, as_json: bool
) -> None:
    """List transactional ids."""
    limit = None if longer_than is None else duration_ms("--longer-than", longer_than)
    from barnabas.admin import transactions as api

    with cluster.connect() as client:
        rows = api.list_transactions(client, states, limit)
    show_tuples(api.TransactionRow, rows, as_json=as_json)


@transactions.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@cluster_options
def describe(ids: tuple[str, ...], *, cluster: ClusterOptions, as_json: bool) -> int:
    """Show transactional ids. A row has state, producer, start, partitions."""
    from barnabas.admin import transactions as api

    with cluster.connect() as client:
        found, exit_code = for_each(ids, lambda name: api.describe_transaction(client, name))
    if as_json:
        for transaction in found:
            print_json(as_object(transaction))
        return exit_code
    columns = ("id", "state", "producer_id", "producer_epoch", "coordinator", "timeout_ms", "started", "partitions")
    show(
        columns,
        [(*transaction[:6], time_text(transaction.started_ms), transaction.partitions) for transaction in found],
        as_json=False,
    )
    return exit_code


@transactions.command()
@click.argument("where", metavar="TOPIC[:PARTITIONS]...", nargs=-1, required=True, shell_complete=complete_topics)
@cluster_options
def producers(where: tuple[str, ...], *, cluster: ClusterOptions, as_json: bool) -> None:
    """List producers of partitions. OPEN-FROM is the first offset of their open transaction."""
    from barnabas.admin import transactions as api

    with cluster.connect() as client:
        rows = api.describe_producers(client, topic_partitions(client, where))
    show_tuples(api.ProducerRow, rows, as_json=as_json)


@transactions.command()
@click.argument("where", metavar="TOPIC[:PARTITIONS]...", nargs=-1, required=True, shell_complete=complete_topics)
@click.option("--abort", "is_abort", is_flag=True, help="Abort them.")
@cluster_options
def hanging(where: tuple[str, ...], *, is_abort: bool, cluster: ClusterOptions, as_json: bool) -> None:
    """List hanging transactions. Partitions have them open, and no coordinator knows them: they stop committed reads."""
    from barnabas.admin import transactions as api

    with cluster.connect() as client:
        rows = api.find_hanging(client, topic_partitions(client, where))
        if is_abort:
            for row in rows:
                api.abort_hanging(client, row)
    show_tuples(api.ProducerRow, rows, as_json=as_json)
    if is_abort:
        note(f"Aborted: {len(rows)}.")


@transactions.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@execute_option
@cluster_options
def abort(ids: tuple[str, ...], *, execute: bool, cluster: ClusterOptions, as_json: bool) -> int:
    """Abort open transactions. Their producers are fenced. Shows them, until --execute."""
    from barnabas.admin import transactions as api

    def action(name: str) -> tuple[str, str, str]:
        state = api.describe_transaction(client, name).state
        if execute and state == "Ongoing":
            api.abort_open(client, name)
        return name, state, "aborted" if execute and state == "Ongoing" else "unchanged"

    with cluster.connect() as client:
        rows, exit_code = for_each(ids, action)
    show(("id", "state", "result"), rows, as_json=as_json)
    if not execute:
        note(NOT_EXECUTED)
    return exit_code
