"""`barnabas configs`: list, describe, set, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.admin.common import ClusterOptions, as_object, cluster_options, for_each, show
from barnabas.cli.number_options import whole_number
from barnabas.cli.output import print_json
from barnabas.cli.verb import run_verb

if TYPE_CHECKING:
    from barnabas.admin.configs import Changes

KINDS = ("topic", "broker", "group", "client-metrics", "broker-logger")
DEFAULTS = "default"
"""The name for the dynamic defaults of all brokers."""
_RESULTS = {"set": "set", "delete": "deleted", "append": "appended", "subtract": "removed"}
"""What the output says of an operation."""


def main(arguments: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    return run_verb(configs, "configs", arguments)


@click.group()
def configs() -> None:
    """Show and change configurations of topics, brokers, groups, client metrics, loggers."""


_kind = click.argument("kind", type=click.Choice(KINDS))


@configs.command("list")
@_kind
@cluster_options
def list_names(kind: str, *, cluster: ClusterOptions, as_json: bool) -> None:
    """List what has configurations. Of groups and client metrics, only those with an own one."""
    from barnabas.admin import configs as api

    with cluster.connect() as client:
        names = api.list_resources(client, kind)
    show(("kind", "name"), [(kind, name) for name in names], as_json=as_json)


@configs.command()
@_kind
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--all", "everything", is_flag=True, help="Also defaults.")
@click.option("--key", "keys", metavar="NAME", multiple=True, help="Only this configuration; may be repeated.")
@click.option("--docs", is_flag=True, help="With --json: also Kafka's description, and values that would follow.")
@cluster_options
def describe(
    kind: str,
    names: tuple[str, ...],
    *,
    everything: bool,
    keys: tuple[str, ...],
    docs: bool,
    cluster: ClusterOptions,
    as_json: bool,
) -> int:
    """Show configurations, and where they were set. NAME `default` is for all brokers. Sensitive values are hidden."""
    from barnabas.admin import configs as api
    from barnabas.admin.errors import Refused

    def action(name: str) -> Any:
        rows = api.describe(client, kind, _name(kind, name), documentation=docs)
        if missing := set(keys) - {row.name for row in rows}:
            raise Refused(f"There is no config {min(missing)} of {api.subject_of(kind, name)}.")
        return [(name, row) for row in rows]

    with cluster.connect() as client:
        found, exit_code = for_each(names, action)
    rows = [
        (name, row)
        for group in found
        for name, row in group
        if (row.name in keys if keys else everything or not row.is_default)
    ]
    if as_json:
        for name, row in rows:
            fields = as_object(row)
            if not docs:
                del fields["documentation"], fields["synonyms"]
            print_json({kind.replace("-", "_"): name, **fields})
        return exit_code
    columns = (kind, "name", "value", "source", "read_only")
    show(columns, [(name, row.name, row.value, row.source, row.read_only) for name, row in rows], as_json=False)
    return exit_code


@configs.command("set")
@_kind
@click.argument("name")
@click.argument("changes", metavar="KEY=VALUE...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only check whether it could be set.")
@cluster_options
def set_configs(
    kind: str, name: str, changes: tuple[str, ...], *, dry_run: bool, cluster: ClusterOptions, as_json: bool
) -> None:
    """Set configurations. KEY+=VALUE appends to a list, KEY-=VALUE removes from it."""
    _alter(cluster, kind, name, dict(map(_change, changes)), dry_run=dry_run, as_json=as_json)


@configs.command()
@_kind
@click.argument("name")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only check whether it could be deleted.")
@cluster_options
def delete(
    kind: str, name: str, keys: tuple[str, ...], *, dry_run: bool, cluster: ClusterOptions, as_json: bool
) -> None:
    """Delete configurations. Their defaults count again."""
    _alter(cluster, kind, name, dict.fromkeys(keys, ("delete", None)), dry_run=dry_run, as_json=as_json)


def _alter(cluster: ClusterOptions, kind: str, name: str, changes: Changes, *, dry_run: bool, as_json: bool) -> None:
    from barnabas.admin import configs as api

    with cluster.connect() as client:
        api.alter(client, kind, _name(kind, name), changes, validate_only=dry_run)
    rows = [
        (name, key, value, "valid" if dry_run else _RESULTS[operation]) for key, (operation, value) in changes.items()
    ]
    show((kind, "name", "value", "result"), rows, as_json=as_json)


def _change(text: str) -> tuple[str, tuple[str, str | None]]:
    """A config with the name of an operation and the value. Raises click.UsageError."""
    key, equals, value = text.partition("=")
    operation = {"+": "append", "-": "subtract"}.get(key[-1:], "set")
    name = key if operation == "set" else key[:-1]
    if not equals or not name:
        raise click.UsageError(f"A change is KEY=VALUE, KEY+=VALUE or KEY-=VALUE, not {text!r}.")
    return name, (operation, value)


def _name(kind: str, name: str) -> str:
    """The name of a resource in requests. Raises click.UsageError."""
    if kind == "broker" and name == DEFAULTS:
        return ""
    if kind in {"broker", "broker-logger"} and whole_number(name) is None:
        allowed = f"its id, or {DEFAULTS}," if kind == "broker" else "its id,"
        raise click.UsageError(f"The name of a {kind} is {allowed} not {name!r}.")
    return name
