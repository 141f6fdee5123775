"""`barnabas acls`: list, add, remove."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import click

from barnabas.cli.admin.common import NOT_EXECUTED, ClusterOptions, cluster_options, execute_option, show_tuples
from barnabas.cli.output import note
from barnabas.cli.verb import run_verb

if TYPE_CHECKING:
    from barnabas.admin.acls import Acl

OPERATIONS = (
    *("all", "read", "write", "create", "delete", "alter", "describe", "cluster-action"),
    *("describe-configs", "alter-configs", "idempotent-write", "create-tokens", "describe-tokens", "two-phase-commit"),
)
_RESOURCES = ("topic", "group", "transactional-id", "delegation-token", "user")
_CLUSTER = "kafka-cluster"


def main(arguments: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    return run_verb(acls, "acls", arguments)


@click.group()
def acls() -> None:
    """Show, add and remove access rights."""


def resource_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a verb with an option for each resource, and --cluster."""
    for name in reversed(_RESOURCES):
        verb = click.option(
            f"--{name}", metavar="NAME", multiple=True, help=f"A {name.replace('-', ' ')}; * is every one."
        )(verb)
    return click.option("--cluster", "on_cluster", is_flag=True, help="The cluster itself.")(verb)


def _resources(options: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for resource in _RESOURCES:
        for name in options[resource.replace("-", "_")]:
            yield resource, name
    if options["on_cluster"]:
        yield "cluster", _CLUSTER


@acls.command("list")
@resource_options
@click.option("--principal", metavar="TYPE:NAME", help="Only of this principal, such as User:alice.")
@cluster_options
def list_acls(*, principal: str | None, cluster: ClusterOptions, as_json: bool, **options: Any) -> None:
    """List ACLs. Of a resource, all that apply to its name."""
    from barnabas.admin import acls as api

    filters = [
        api.Acl(principal, None, "any", "any", resource, name, "match") for resource, name in _resources(options)
    ] or [api.Acl(principal, None, "any", "any", None, None, "any")]
    with cluster.connect() as client:
        rows = sorted({acl for wanted in filters for acl in api.list_acls(client, wanted)}, key=_order)
    show_tuples(api.Acl, rows, as_json=as_json)


def _order(acl: Acl) -> tuple[str, ...]:
    return tuple(str(part) for part in (acl.resource, acl.name, acl.pattern, *acl))


@acls.command()
@resource_options
@click.option(
    "--allow", "allowed", metavar="TYPE:NAME", multiple=True, help="Allow this principal, such as User:alice."
)
@click.option("--deny", "denied", metavar="TYPE:NAME", multiple=True, help="Deny this principal.")
@click.option(
    "--host", "hosts", metavar="ADDRESS", multiple=True, default=("*",), help="From this address.  [default: *]"
)
@click.option(
    "--operation", "operations", type=click.Choice(OPERATIONS), multiple=True, help="A right; may be repeated."
)
@click.option("--producer", is_flag=True, help="What a producer needs: describe, create and write on --topic.")
@click.option("--consumer", is_flag=True, help="What a consumer needs: describe and read on --topic, read on --group.")
@click.option("--prefixed", is_flag=True, help="Names are prefixes.")
@cluster_options
def add(*, cluster: ClusterOptions, as_json: bool, **options: Any) -> None:
    """Add ACLs. Each principal, host, operation and resource is combined with each other."""
    wanted = list(dict.fromkeys(_wanted(options)))
    from barnabas.admin import acls as api

    with cluster.connect() as client:
        api.add_acls(client, wanted)
    show_tuples(api.Acl, wanted, as_json=as_json)


def _wanted(options: dict[str, Any]) -> Iterator[Acl]:
    principals = [("allow", principal) for principal in options["allowed"]] + [
        ("deny", principal) for principal in options["denied"]
    ]
    rights = list(_rights(options))
    if not principals or not rights:
        raise click.UsageError("Give --allow or --deny, a resource, and --operation, --producer or --consumer.")
    for _, principal in principals:
        if ":" not in principal:
            raise click.UsageError(f"A principal is TYPE:NAME such as User:alice, not {principal!r}.")
    from barnabas.admin.acls import Acl

    pattern = "prefixed" if options["prefixed"] else "literal"
    for (permission, principal), host, (resource, name, operation) in product(principals, options["hosts"], rights):
        yield Acl(
            principal, host, permission, operation, resource, name, "literal" if resource == "cluster" else pattern
        )


def _rights(options: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Resource, name and operation of each right."""
    for resource, name in _resources(options):
        for operation in options["operations"]:
            yield resource, name, operation
        if options["producer"] and resource == "topic":
            yield from ((resource, name, operation) for operation in ("describe", "create", "write"))
        if options["producer"] and resource == "transactional-id":
            yield from ((resource, name, operation) for operation in ("describe", "write"))
        if options["consumer"] and resource == "topic":
            yield from ((resource, name, operation) for operation in ("describe", "read"))
        if options["consumer"] and resource == "group":
            yield resource, name, "read"


@acls.command()
@resource_options
@click.option("--principal", metavar="TYPE:NAME", help="Only of this principal.")
@click.option("--host", metavar="ADDRESS", help="Only from this address.")
@click.option("--operation", type=click.Choice(OPERATIONS), help="Only of this operation.")
@click.option("--permission", type=click.Choice(("allow", "deny")), help="Only of this permission.")
@click.option("--prefixed", is_flag=True, help="Only patterns that are prefixes; without it, only literal ones.")
@execute_option
@cluster_options
def remove(
    *,
    principal: str | None,
    host: str | None,
    operation: str | None,
    permission: str | None,
    prefixed: bool,
    execute: bool,
    cluster: ClusterOptions,
    as_json: bool,
    **options: Any,
) -> None:
    """Remove ACLs. Those that match all options are shown, and removed with --execute."""
    resources: list[tuple[str | None, str | None]] = list(_resources(options))
    if not resources and not any((principal, host, operation, permission)):
        raise click.UsageError("Say which ACLs: without an option it would be all of them.")
    from barnabas.admin import acls as api

    pattern = "prefixed" if prefixed else "literal"
    filters = [
        api.Acl(
            principal, host, permission or "any", operation or "any", resource, name, pattern if resource else "any"
        )
        for resource, name in resources or [(None, None)]
    ]
    act = api.remove_acls if execute else api.list_acls
    with cluster.connect() as client:
        rows = [acl for wanted in filters for acl in act(client, wanted)]
    show_tuples(api.Acl, rows, as_json=as_json)
    if not execute:
        note(NOT_EXECUTED)
