"""The commands of all verbs under one root, for completion and man pages; verbs themselves are run by `__main__`.

RULES    1. A verb's module is imported when its command is asked for: a completion imports one of them.
         2. The command of a verb is the name in its module that is the verb's; the daemon's are in a group of its own.
"""

from __future__ import annotations

import sys
from importlib import import_module

import click
from click.shell_completion import CompletionItem

from barnabas.__main__ import DAEMON_VERBS, USER_VERBS, daemon_folder

_HEALTH = click.Command(
    "health",
    params=[
        click.Argument(["address"], metavar="[HOST:PORT]", required=False),
        click.Option(
            ["--advertised"],
            is_flag=True,
            help="Check too that this machine reaches the addresses that the node gives to its clients.",
        ),
        click.Option(
            ["--safe-to-stop"],
            is_flag=True,
            help="Check that no partition needs the node; HOST:PORT is its metrics listener.",
        ),
        click.Option(
            ["--wait"],
            metavar="SECONDS",
            type=int,
            help="With --safe-to-stop, repeat the check for at most SECONDS, until it passes.",
        ),
    ],
    help="Check whether a node answers. Options are before the address, which is by default this node's.",
)
"""The only verb without click, since container engines call it every few seconds."""


class Root(click.Group):
    """The command `barnabas`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Returns the verbs."""
        return sorted([*DAEMON_VERBS, *USER_VERBS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Returns the command of a verb (rule 2)."""
        if cmd_name == "health":
            return _HEALTH
        if cmd_name in USER_VERBS:
            command: click.Command = getattr(import_module(USER_VERBS[cmd_name]), cmd_name)
            return command
        if cmd_name in DAEMON_VERBS:
            if daemon_folder() not in sys.path:
                sys.path.insert(0, daemon_folder())
            daemon: click.Group = import_module("broker.cli").daemon
            return daemon.get_command(ctx, cmd_name)
        return None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns the verbs that begin so, without their modules (rule 1)."""
        return [CompletionItem(verb) for verb in self.list_commands(ctx) if verb.startswith(incomplete)]


root = Root("barnabas", help="A message broker that implements Kafka's protocol, and verbs for any Kafka cluster.")


def command_of(verb: str) -> click.Command:
    """Returns the command of a verb."""
    found = root.get_command(click.Context(root), verb)
    assert found is not None, verb
    return found
