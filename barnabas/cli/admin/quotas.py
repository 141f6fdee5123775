"""`barnabas quotas`: list, set, delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from barnabas.cli.admin.common import ClusterOptions, cluster_options, show
from barnabas.cli.verb import run_verb

TYPES = ("user", "client-id", "ip")
KEYS = """Keys: producer_byte_rate and consumer_byte_rate (bytes/s of each broker), request_percentage (percent of a thread),
controller_mutation_rate (partitions/s), of addresses connection_creation_rate (connections/s)."""


def main(arguments: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    return run_verb(quotas, "quotas", arguments)


@click.group(epilog=KEYS)
def quotas() -> None:
    """Show, set and delete quotas of users, client ids and addresses."""


def entity_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a verb with --user, --client-id, --ip and --default."""
    verb = click.option(
        "--default",
        "defaults",
        type=click.Choice(TYPES),
        multiple=True,
        help="The default of this type; may be repeated.",
    )(verb)
    for name in reversed(TYPES):
        verb = click.option(
            f"--{name}", metavar="NAME", help=f"Of this {name.replace('ip', 'address').replace('-', ' ')}."
        )(verb)
    return verb


def _entity(options: dict[str, Any]) -> dict[str, str | None]:
    """The entity that the options name. Raises click.UsageError."""
    names = {entity_type: options[entity_type.replace("-", "_")] for entity_type in TYPES}
    found: dict[str, str | None] = {entity_type: name for entity_type, name in names.items() if name is not None}
    for entity_type in options["defaults"]:
        if entity_type in found:
            raise click.UsageError(f"--{entity_type} and --default {entity_type} exclude each other.")
        found[entity_type] = None
    return found


@quotas.command("list")
@entity_options
@click.option("--exact", is_flag=True, help="Only of this entity, not of its combinations with other types.")
@cluster_options
def list_quotas(*, exact: bool, cluster: ClusterOptions, as_json: bool, **options: Any) -> None:
    """List quotas. Without options, of all entities."""
    wanted = _entity(options)
    from barnabas.admin import quotas as api

    with cluster.connect() as client:
        rows = api.list_quotas(client, wanted, exact=exact)
    _show([(row.entity, row.key, row.value) for row in rows], as_json=as_json)


@quotas.command("set", epilog=KEYS)
@click.argument("changes", metavar="KEY=VALUE...", nargs=-1, required=True)
@entity_options
@click.option("--dry-run", is_flag=True, help="Only check whether it could be set.")
@cluster_options
def set_quotas(
    changes: tuple[str, ...], *, dry_run: bool, cluster: ClusterOptions, as_json: bool, **options: Any
) -> None:
    """Set quotas of an entity."""
    from barnabas.client.client_settings import parse_pairs

    values: dict[str, float | None] = {key: _number(text) for key, text in parse_pairs("quotas set", changes).items()}
    _alter(cluster, _named(options), values, dry_run=dry_run, as_json=as_json)


@quotas.command()
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@entity_options
@click.option("--dry-run", is_flag=True, help="Only check whether it could be deleted.")
@cluster_options
def delete(keys: tuple[str, ...], *, dry_run: bool, cluster: ClusterOptions, as_json: bool, **options: Any) -> None:
    """Delete quotas of an entity."""
    _alter(cluster, _named(options), dict.fromkeys(keys), dry_run=dry_run, as_json=as_json)


def _named(options: dict[str, Any]) -> dict[str, str | None]:
    found = _entity(options)
    if not found:
        raise click.UsageError("Say of what: --user, --client-id, --ip or --default.")
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as failure:
        raise click.UsageError(f"The value of a quota is a number, not {text!r}.") from failure


def _alter(
    cluster: ClusterOptions,
    entity: dict[str, str | None],
    changes: dict[str, float | None],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    from barnabas.admin import quotas as api

    with cluster.connect() as client:
        api.alter_quotas(client, entity, changes, validate_only=dry_run)
    _show([(entity, key, value) for key, value in changes.items()], as_json=as_json)


def _show(rows: list[tuple[dict[str, str | None], str, float | None]], *, as_json: bool) -> None:
    from barnabas.admin.quotas import entity_text

    shown = [(entity if as_json else entity_text(entity), key, value) for entity, key, value in rows]
    show(("entity", "key", "value"), shown, as_json=as_json)
