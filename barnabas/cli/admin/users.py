"""`barnabas users`: list, set, delete SCRAM users."""

from __future__ import annotations

import sys

import click

from barnabas.cli.admin.common import (
    ClusterOptions,
    cluster_options,
    confirm,
    confirm_option,
    for_each,
    show,
    show_tuples,
)
from barnabas.cli.verb import run_verb
from barnabas.client.errors import ClientError, require_text

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


def main(arguments: list[str]) -> int:
    """Runs the verb; returns the exit code."""
    return run_verb(users, "users", arguments)


@click.group()
def users() -> None:
    """Show SCRAM users, set their passwords, delete them."""


@users.command("list")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@cluster_options
def list_users(names: tuple[str, ...], *, cluster: ClusterOptions, as_json: bool) -> None:
    """List users with their mechanisms."""
    from barnabas.admin import users as api

    with cluster.connect() as client:
        rows = api.list_users(client, names)
    show_tuples(api.Credential, rows, as_json=as_json)


@users.command("set")
@click.argument("name")
@click.option("--mechanism", type=click.Choice(MECHANISMS), default="SCRAM-SHA-512", help="[default: SCRAM-SHA-512]")
@click.option("--iterations", metavar="N", type=click.IntRange(4096, 16384), default=4096, help="[default: 4096]")
@cluster_options
def set_user(name: str, *, mechanism: str, iterations: int, cluster: ClusterOptions, as_json: bool) -> None:
    """Create a user, set a password. The password is the first line of standard input, or asked for on a terminal."""
    password = _read_password()
    from barnabas.admin import users as api

    with cluster.connect() as client:
        api.set_password(client, name, password, mechanism, iterations)
    show(("user", "mechanism", "iterations", "result"), [(name, mechanism, iterations, "set")], as_json=as_json)


def _read_password() -> str:
    if sys.stdin is None:
        raise ClientError("Standard input is closed: the password is its first line.")
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise ClientError("The password is the first line of standard input, and it is empty.")
    return require_text("The password", password)


@users.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--mechanism", type=click.Choice(MECHANISMS), help="Only this one.  [default: all that the user has]")
@confirm_option
@cluster_options
def delete(names: tuple[str, ...], *, mechanism: str | None, yes: bool, cluster: ClusterOptions, as_json: bool) -> int:
    """Delete users."""
    confirm(f"Delete {', '.join(names)}?", yes=yes)
    from barnabas.admin import users as api

    def action(name: str) -> list[tuple[str, str, str]]:
        found = [mechanism] if mechanism else [user.mechanism for user in api.list_users(client, [name])]
        api.delete_user(client, name, found)
        return [(name, user, "deleted") for user in found]

    with cluster.connect() as client:
        rows, exit_code = for_each(names, action)
    show(("user", "mechanism", "result"), [row for group in rows for row in group], as_json=as_json)
    return exit_code
